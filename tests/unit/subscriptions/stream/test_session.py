"""What a session sends, and how it ends."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from nakadi.model.events import Record
from nakadi.model.objective import ConsumedBatch
from nakadi.model.subscription import CommittedOffset, OffsetRange
from nakadi.subscriptions.stream.actions import (
    MAX_SECONDS_BETWEEN_LINES,
    AutoCommit,
    CountConsumed,
    DepartureRecord,
    HandOverPartitions,
    OpenPartition,
    SessionEnd,
)
from tests.support.builders import A_MOMENT
from tests.support.chunks import a_chunk, some_events
from tests.support.consuming import ME, SessionHarness, at
from tests.support.coordination import a_place, a_session, entry

STARTED = "Stream started"


# Batches


def test_a_full_batch_goes_at_once():
    """A batch is sent as soon as it has the maximum number of events, and never has more. (S186, S178, S190)"""
    harness = SessionHarness(0, batch_limit=3, max_uncommitted_events=100)
    harness.arrive(7)
    assert harness.take_messages() == [f"0:0-2 {STARTED}", "0:3-5"]
    harness.arrive(2, start=7)
    assert harness.take_messages() == ["0:6-8"]


def test_the_window_makes_batches_smaller():
    """If the batch limit is above the window, batches have the window's size, and are sent at once. (S187)"""
    harness = SessionHarness(0, batch_limit=50, max_uncommitted_events=4)
    harness.arrive(10)
    assert harness.take_messages() == [f"0:0-3 {STARTED}"]


def test_what_waits_goes_after_the_flush_timeout():
    """After the flush timeout, waiting events or a keep-alive are sent; the timer restarts each time. (S188)"""
    harness = SessionHarness(0, batch_limit=5, max_uncommitted_events=100, flush_seconds=10)
    harness.arrive(12)
    assert harness.take_messages() == [f"0:0-4 {STARTED}", "0:5-9"]
    harness.wait(9)
    assert harness.take_messages() == []
    harness.wait(1)
    assert harness.take_messages() == ["0:10-11"]
    harness.commit(11)
    harness.wait(20)
    assert harness.take_messages() == ["0@11", "0@11"]


def test_each_partition_has_its_own_flush_timer():
    """Batches of one partition do not delay the keep-alive of another. (S188)"""
    harness = SessionHarness(0, 1, batch_limit=1, max_uncommitted_events=100, flush_seconds=10)
    harness.wait(5)
    harness.arrive(1, partition=1)
    harness.take_messages()
    harness.wait(5)
    assert harness.take_messages() == ["0@-1"]
    harness.wait(5)
    assert harness.take_messages() == ["1@0"]


def test_the_first_line_says_that_the_stream_started():
    """The first line, even if it is a keep-alive, says that the stream started, and no other line does. (S181, S182)"""
    harness = SessionHarness(0, flush_seconds=10)
    harness.wait(20)
    assert harness.take_messages() == [f"0@-1 {STARTED}", "0@-1"]


def test_lost_events_are_reported():
    """If events were removed before they could be sent, the first line contains their number. (S181, S101, S301)"""
    harness = SessionHarness(0, opening=False)
    [opening] = harness.take_calls()
    harness.tell(harness.session.handle_opening(opening, at(6), 7, harness.now))
    harness.arrive(some_events(1, start=7))
    assert harness.take_messages() == [f"0:7-7 {STARTED}; skipped events due to retention time passed, count: 7"]
    harness.commit(7)
    assert harness.session.end is None


def test_one_partition_is_served_before_the_next():
    """A busy partition may use the whole window. (S189)"""
    harness = SessionHarness(0, 1, batch_limit=2, max_uncommitted_events=6)
    harness.arrive(6, partition=0)
    harness.arrive(6, partition=1)
    assert harness.take_messages() == [f"0:0-1 {STARTED}", "0:2-3", "0:4-5"]


def test_each_partition_gets_its_turn_of_a_small_window():
    """If the window is smaller than the waiting events, partitions take turns at it, so none has to wait until the
    others are empty. (S189)
    """
    harness = SessionHarness(0, 1, 2, batch_limit=2, max_uncommitted_events=2, flush_seconds=10)
    for partition in (0, 1, 2):
        harness.arrive(8, partition=partition)
    sent = harness.take_messages()
    for partition, offset in ((0, 1), (1, 1), (2, 1), (0, 3), (1, 3)):
        harness.commit(offset, partition=partition)
        sent += harness.take_messages()
        # Keep-alives change no turn.
        harness.wait(10)
        harness.take_messages()
    assert sent == [f"0:0-1 {STARTED}", "1:0-1", "2:0-1", "0:2-3", "1:2-3", "2:2-3"]


def test_a_batch_is_due_by_the_age_of_its_events():
    """Events that are older than the newest one by the timespan are sent together, at least one. (S191, S193)"""
    harness = SessionHarness(0, batch_limit=100, max_uncommitted_events=100, batch_timespan_seconds=60)
    harness.arrive(_stored_after(0, 10, 59))
    assert harness.take_messages() == []
    harness.arrive(_stored_after(61, start=3))
    assert harness.take_messages() == [f"0:0-2 {STARTED}"]
    harness.arrive(_stored_after(200, start=4))
    assert harness.take_messages() == ["0:3-3"]


def _stored_after(*seconds, start=0):
    """Events that were stored at these intervals after a point in time."""
    chunk = a_chunk(*["x"] * len(seconds), start=start)
    chunk.events = tuple(
        each._replace(stored_at=A_MOMENT + timedelta(seconds=after))
        for each, after in zip(chunk.events, seconds, strict=True)
    )
    return chunk.run_from_offset(start)


def test_batches_by_age_respect_window_and_limit():
    """A batch that is due by its age is no longer than the batch limit and the window allow: a deviation from the
    original. (S192)"""
    harness = SessionHarness(0, batch_limit=100, max_uncommitted_events=2, batch_timespan_seconds=60)
    harness.arrive(_stored_after(0, 10, 20, 100))
    assert harness.take_messages() == [f"0:0-1 {STARTED}"]


def test_the_heaviest_partition_is_relieved():
    """If too many bytes are buffered, the partition with the most sends a batch beyond its batch limit, and its line
    says why. (S194, S182)"""
    harness = SessionHarness(0, 1, batch_limit=1000, max_uncommitted_events=1000)
    harness.arrive(some_events(3, size=10_000_000), partition=0)
    harness.arrive(some_events(3, size=9_000_000), partition=1)
    assert harness.take_messages() == [f"0:0-2 {STARTED}; Stream parameters are causing overflow"]


def test_a_client_hears_of_an_idle_stream_in_time():
    """However long the flush timeout, a client gets a line before it considers its stream dead. (S188)"""
    harness = SessionHarness(0, flush_seconds=600)
    harness.wait(MAX_SECONDS_BETWEEN_LINES)
    assert harness.take_messages() == [f"0@-1 {STARTED}"]
    harness.wait(2 * MAX_SECONDS_BETWEEN_LINES)
    assert harness.take_messages() == ["0@-1", "0@-1"]


# The window


def test_sending_stops_at_the_window():
    """The window is shared by all partitions; nothing beyond it is read, and a commit opens it. (S199, S195, S129)"""
    harness = SessionHarness(0, 1, batch_limit=1, max_uncommitted_events=5)
    harness.arrive(10)
    harness.arrive(3, partition=1)
    assert harness.take_messages() == [f"0:0-0 {STARTED}", "0:1-1", "0:2-2", "0:3-3", "0:4-4"]
    assert not harness.session.wants_events(a_place(1))
    harness.commit(4)
    assert harness.take_messages() == ["1:0-0", "1:1-1", "1:2-2", "0:5-5", "0:6-6"]
    harness.commit(6)
    assert harness.take_messages() == ["0:7-7", "0:8-8"]


def test_keep_alives_go_on_beyond_the_window():
    """When the window is exhausted, keep-alives continue, and their cursors show up to where events were sent. (S195,
    S179, S188)"""
    harness = SessionHarness(0, max_uncommitted_events=1, flush_seconds=10)
    harness.arrive(2)
    harness.take_messages()
    harness.wait(10)
    assert harness.take_messages() == ["0@0"]


def test_positions_are_counted_not_events():
    """Events that were skipped between others also use up the window. (S200)"""
    harness = SessionHarness(
        0, batch_limit=1, max_uncommitted_events=5, deliverable=lambda record: record.value in (b'"a"', b'"b"')
    )
    harness.rules.skips_misplaced_events = True
    harness.arrive(a_chunk("a", "x", "x", "x", "b", "a").run_from_offset(0))
    assert harness.take_messages() == [f"0:0-0 {STARTED}", "0:4-4"]


def test_a_commit_of_what_was_not_sent():
    """A commit beyond the sent events drops the events that it covers; reading continues after them. (S207, S127,
    S209)"""
    harness = SessionHarness(0, 1, batch_limit=1, max_uncommitted_events=2)
    harness.arrive(6)
    harness.take_messages()
    harness.commit(3)
    assert harness.take_messages() == ["0:4-4", "0:5-5"]
    harness.opening = False
    harness.commit(20)
    assert harness.take_calls() == [OpenPartition(a_place(0), at(20), 3)]
    harness.arrive(1, start=6)
    assert harness.take_messages() == []


def test_reading_restarts_where_an_offset_goes_back_to():
    """If an offset goes back, waiting events are dropped, and reading starts at the new offset. (S208)"""
    harness = SessionHarness(0, batch_limit=1, max_uncommitted_events=10)
    harness.arrive(3)
    harness.commit(2)
    harness.take_messages()
    harness.opening = False
    harness.commit(0)
    assert harness.take_calls() == [OpenPartition(a_place(0), at(0), 2)]


def test_a_partition_whose_offset_follows_later_is_opened():
    """A partition is opened once its offset is recorded as belonging to this session, even if the assignment was
    reported earlier. (S208)"""
    harness = SessionHarness(0, batch_limit=1)
    harness.opening = False
    harness.offsets[a_place(1)] = CommittedOffset(at(4), "other", A_MOMENT)
    harness.assignment = replace(harness.assignment, revision=2, entries=(entry(0, ME), entry(1, ME)))
    harness.pass_shared_state()
    assert harness.take_calls() == []
    harness.offsets[a_place(1)] = CommittedOffset(at(4), ME, A_MOMENT)
    harness.pass_shared_state()
    assert harness.take_calls() == [OpenPartition(a_place(1), at(4), 2)]
    harness.pass_shared_state()
    assert harness.take_calls() == []


# The commit timeout


def test_the_commit_timeout():
    """If a client commits nothing within the commit timeout, it gets a debug line, and the stream ends at once. (S201,
    S203, S214, S182)"""
    harness = SessionHarness(0, commit_seconds=20)
    harness.wait(7)
    harness.arrive(1)
    harness.take_messages()
    harness.wait(19)
    assert harness.session.end is None
    harness.wait(1)
    assert harness.take_messages() == ["0@0 Commit timeout reached"]
    assert harness.session.end is SessionEnd.COMMIT_TIMEOUT


def test_any_commit_winds_the_timer():
    """All partitions share one timer: a commit of any one restarts it, even if another is never committed. (S201,
    S202)"""
    harness = SessionHarness(0, 1, commit_seconds=20, flush_seconds=1000, max_uncommitted_events=10)
    harness.arrive(1)
    harness.arrive(5, partition=1)
    for offset in range(4):
        harness.wait(15)
        harness.commit(offset, partition=1)
    assert harness.session.end is None
    harness.wait(20)
    assert harness.session.end is SessionEnd.COMMIT_TIMEOUT


def test_time_runs_from_the_first_event_that_is_outstanding():
    """When everything is committed, the timer stops, and it starts with the next event. (S201, S204)"""
    harness = SessionHarness(0, commit_seconds=20)
    harness.arrive(1)
    harness.commit(0)
    harness.wait(500)
    assert harness.session.end is None
    harness.arrive(1, start=1)
    harness.wait(19)
    assert harness.session.end is None
    harness.wait(1)
    assert harness.session.end is SessionEnd.COMMIT_TIMEOUT


# Ends


def test_the_stream_timeout():
    """At the stream timeout, waiting events are sent, the client gets a debug line, and the stream waits for commits.
    (S211, S210)"""
    harness = SessionHarness(
        0, batch_limit=3, max_uncommitted_events=10, stream_seconds=100, flush_seconds=1000, commit_seconds=60
    )
    harness.wait(95)
    harness.take_messages()
    harness.arrive(5)
    assert harness.take_messages() == ["0:0-2"]
    harness.wait(5)
    assert harness.take_messages() == ["0:3-4", "0@4 Stream timeout reached"]
    assert harness.session.reason is SessionEnd.TIMEOUT
    harness.arrive(5, start=5)
    harness.wait(30)
    assert harness.take_messages() == []
    harness.commit(4)
    assert harness.session.end is SessionEnd.TIMEOUT


def test_a_closing_stream_does_not_wait_for_ever():
    """A closing stream waits for commits until the commit timeout. (S210)"""
    harness = SessionHarness(0, stream_seconds=100, flush_seconds=1000, commit_seconds=60)
    harness.wait(90)
    harness.arrive(1)
    harness.wait(59)
    assert (harness.session.reason, harness.session.end) == (SessionEnd.TIMEOUT, None)
    harness.wait(1)
    assert harness.session.end is SessionEnd.TIMEOUT


def test_the_stream_limit_counts_commits():
    """No more than the stream limit is sent, and the stream ends when that many events are committed, not when they are
    sent. (S212, S182)"""
    harness = SessionHarness(0, batch_limit=2, max_uncommitted_events=10, stream_limit=3)
    harness.arrive(10)
    assert harness.take_messages() == [f"0:0-1 {STARTED}", "0:2-2"]
    harness.commit(1)
    assert harness.session.end is None
    harness.commit(2)
    assert harness.take_messages() == ["0@2 Stream limit in events reached: 3"]
    assert harness.session.end is SessionEnd.LIMIT


def test_the_committed_count_has_what_was_passed_over():
    """Skipped events count as committed, so the number of committed events may exceed the stream limit. (S213)"""
    harness = SessionHarness(0, batch_limit=1, max_uncommitted_events=10, stream_limit=2)
    harness.arrive(2)
    harness.take_messages()
    harness.commit(7)
    assert harness.take_messages() == ["0@7 Stream limit in events reached: 8"]


def test_keep_alives_are_limited():
    """The stream closes without a message when every partition has had as many keep-alives in a row as the limit says.
    (S196, S217)
    """
    harness = SessionHarness(0, 1, keep_alive_limit=2, flush_seconds=10, commit_seconds=60)
    harness.wait(10)
    harness.arrive(1)
    harness.wait(10)
    assert harness.session.reason is None
    harness.take_messages()
    harness.wait(10)
    assert sorted(harness.take_messages()) == ["0@0", "1@-1"]
    assert harness.session.reason is SessionEnd.KEEP_ALIVES
    harness.commit(0)
    assert harness.session.end is SessionEnd.KEEP_ALIVES


def test_the_limit_of_keep_alives_does_not_end_a_closing_stream():
    """A stream that is closing waits for commits, even if its limit of keep-alives passes meanwhile. (S210, S217)"""
    harness = SessionHarness(0, 1, keep_alive_limit=2, stream_seconds=25, flush_seconds=10, commit_seconds=60)
    harness.wait(10)
    harness.arrive(1)
    harness.wait(15)
    assert harness.session.reason is SessionEnd.TIMEOUT
    harness.wait(30)
    assert harness.session.end is None
    harness.commit(0)
    assert harness.session.end is SessionEnd.TIMEOUT


def test_keep_alives_beyond_the_window_count():
    """Keep-alives that are sent because the window is exhausted count, too. (S197)"""
    harness = SessionHarness(0, keep_alive_limit=2, max_uncommitted_events=1, flush_seconds=5, commit_seconds=60)
    harness.arrive(2)
    harness.wait(10)
    assert harness.session.reason is SessionEnd.KEEP_ALIVES


def test_a_stream_without_partitions_ends():
    """A stream that neither owns a partition nor is promised one ends after twice the commit timeout. (S218, S183)"""
    harness = SessionHarness(commit_seconds=10, entries=[entry(0, "other")])
    harness.wait(15)
    harness.change(entry(0, f"other>{ME}"))
    harness.wait(100)
    assert harness.session.end is None
    harness.change(entry(0, "other"))
    harness.wait(19)
    assert harness.session.end is None
    harness.wait(1)
    assert harness.session.end is SessionEnd.IDLE
    assert harness.take_messages() == []


def test_a_reset_closes():
    """When offsets are being set, the client gets a debug line, and has time to commit. (S215, S137, S182, S295)"""
    harness = SessionHarness(0)
    harness.arrive(1)
    harness.take_messages()
    harness.pass_shared_state(resetting=True)
    assert harness.take_messages() == ["0@0 Resetting subscription cursors"]
    assert harness.session.end is None
    harness.commit(0)
    assert harness.session.end is SessionEnd.RESET


def test_a_blocked_client():
    """A client that is blocked gets a debug line, and its stream closes. (S216, S182, S308)"""
    harness = SessionHarness(0)
    harness.session.handle_block()
    harness.tick()
    assert harness.take_messages() == ["0@-1 Consumption is blocked"]
    assert harness.session.end is SessionEnd.BLOCKED


def test_a_client_that_has_gone():
    """After the client has gone, the events that it received may still be committed until the commit timeout. (S220,
    S128, S169)"""
    harness = SessionHarness(0, commit_seconds=20)
    harness.arrive(1)
    harness.tell(harness.session.handle_disconnect(harness.now))
    assert (harness.session.reason, harness.session.end) == (SessionEnd.GONE, None)
    harness.wait(20)
    assert harness.session.end is SessionEnd.GONE


def test_a_client_that_has_gone_with_everything_committed():
    """If nothing is uncommitted, the slot of a client that has gone becomes free at once. (S220)"""
    harness = SessionHarness(0)
    harness.tell(harness.session.handle_disconnect(harness.now))
    assert harness.session.end is SessionEnd.GONE


@pytest.mark.parametrize(
    ("fact", "end"),
    [
        (lambda session: session.handle_refusal(ValueError()), SessionEnd.REFUSED),
        (lambda session: session.handle_shutdown(), SessionEnd.DRAINED),
    ],
)
def test_ends_without_grace(fact, end):
    """After a loss of permission, a failure or the server's end, the stream closes at once, without a message, and
    counts no failure. (S222, S223, S224, S84)"""
    harness = SessionHarness(0)
    harness.arrive(1)
    harness.take_messages()
    harness.tell(fact(harness.session))
    assert (harness.session.end, harness.take_messages()) == (end, [])
    assert harness.session.departure_record() == DepartureRecord()


def test_a_session_that_was_removed():
    """A session that is no longer in the assignment sends nothing more. (S74, S239)"""
    harness = SessionHarness(0)
    harness.assignment = an_assignment_without_me(harness)
    harness.pass_shared_state()
    assert harness.session.end is SessionEnd.REMOVED
    harness.arrive(1)
    assert harness.take_messages() == []


def an_assignment_without_me(harness):
    return type(harness.assignment)(revision=9, initialised=True, sessions=(a_session("other"),))


def test_a_lease_that_ran_out():
    """A session whose lease has expired sends nothing more. (S318)"""
    harness = SessionHarness(0)
    harness.lease.valid_until = 10.0
    harness.now = 9.9
    harness.arrive(1)
    assert harness.take_messages() == [f"0:0-0 {STARTED}"]
    harness.now = 10.0
    harness.arrive(1, start=1)
    assert harness.take_messages() == []
    assert harness.session.end is SessionEnd.LEASE_LOST


# Skipped events


def is_for_us(record: Record) -> bool:
    return record.value is not None and record.directed_to is None


def record_for_others(text: str) -> Record:
    return Record(f'"{text}"'.encode(), directed_to="another subscription")


def test_what_is_not_for_the_client_is_passed_over():
    """Events for others and tombstones are not sent; they are committed when nothing before them is uncommitted. (S228,
    S230, S231, S232, S233, S275)"""
    harness = SessionHarness(0, batch_limit=1, max_uncommitted_events=10, deliverable=is_for_us)
    harness.arrive(
        a_chunk(record_for_others("x"), Record(None), "a", record_for_others("y"), Record(None)).run_from_offset(0)
    )
    assert harness.take_messages() == [f"0:2-2 {STARTED}"]
    harness.wait(5)
    assert harness.take_calls() == [AutoCommit({a_place(0): at(1)})]
    harness.commit(1)
    harness.wait(10)
    assert harness.take_calls() == []
    harness.commit(2)
    harness.tick()
    assert harness.take_calls() == [AutoCommit({a_place(0): at(4)})]


def test_passing_over_is_committed_with_a_hand_over():
    """Skipped events are committed when a partition is handed over, and when the stream ends. (S232)"""
    harness = SessionHarness(0, 1, deliverable=is_for_us)
    harness.arrive(a_chunk(record_for_others("x")).run_from_offset(0))
    harness.arrive(a_chunk(record_for_others("x")).run_from_offset(0), partition=1)
    harness.change(entry(0, f"{ME}>other"))
    assert harness.take_calls() == [HandOverPartitions(frozenset({a_place(0)}), {a_place(0): at(0)})]
    harness.change(entry(0, "other"))
    harness.tell(harness.session.handle_shutdown())
    assert harness.session.departure_record().commit_positions == {a_place(1): at(0)}


def test_keep_alives_jump_over_what_was_passed_over():
    """If every event is skipped, the client gets keep-alives whose cursor moves on. (S234)"""
    harness = SessionHarness(0, flush_seconds=10, deliverable=is_for_us)
    harness.arrive(a_chunk(record_for_others("x"), record_for_others("y")).run_from_offset(0))
    harness.commit(1)
    harness.wait(10)
    assert harness.take_messages() == [f"0@1 {STARTED}"]


def test_an_idle_stream_is_not_woken_between_keep_alives():
    """An idle stream has nothing to do between its keep-alives. (S232)"""
    harness = SessionHarness(0, flush_seconds=24)
    assert harness.session.next_tick_at() == 24


def test_what_was_done_ahead_is_not_sent_again():
    """Events that were committed ahead are not sent again; they count as consumed as soon as every event before them
    is. (X61)
    """
    harness = SessionHarness(batch_limit=1, max_uncommitted_events=100, flush_seconds=600)
    done = (OffsetRange(1, 0, 0), OffsetRange(1, 3, 4), OffsetRange(1, 6, 6))
    harness.offsets[a_place(0)] = CommittedOffset(at(1), None, A_MOMENT, done)
    harness.change(entry(0, ME))
    harness.arrive(some_events(3, start=2))
    harness.arrive(some_events(4, start=5))
    assert harness.take_messages() == [f"0:2-2 {STARTED}", "0:5-5", "0:7-7", "0:8-8"]
    harness.take_calls()
    harness.commit(2)
    harness.wait(5)
    assert harness.take_calls() == [AutoCommit({a_place(0): at(4)})]


# Consumed events


def consumed_batch_counts(harness):
    return [each.batches for each in harness.calls if isinstance(each, CountConsumed)]


def test_batches_are_counted_when_they_are_committed():
    """If the subscription has an objective, a commit reports which batches it completes, with the time of their first
    event. (O3)"""
    harness = SessionHarness(0, batch_limit=3, max_uncommitted_events=100, has_objective=True)
    harness.arrive(9)
    harness.commit(1)
    assert consumed_batch_counts(harness) == []
    harness.commit(6)
    assert consumed_batch_counts(harness) == [(ConsumedBatch(3, A_MOMENT), ConsumedBatch(3, A_MOMENT))]
    harness.commit(8)
    assert consumed_batch_counts(harness)[1:] == [(ConsumedBatch(3, A_MOMENT),)]


def test_without_an_objective_nothing_is_counted():
    """For a subscription without an objective, commits report no batches. (O3)"""
    harness = SessionHarness(0, batch_limit=3, max_uncommitted_events=100)
    harness.arrive(9)
    harness.commit(8)
    assert consumed_batch_counts(harness) == []
