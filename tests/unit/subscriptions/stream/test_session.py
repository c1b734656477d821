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
    table = SessionHarness(0, batch_limit=3, max_uncommitted_events=100)
    table.arrive(7)
    assert table.take_messages() == [f"0:0-2 {STARTED}", "0:3-5"]
    table.arrive(2, start=7)
    assert table.take_messages() == ["0:6-8"]


def test_the_window_makes_batches_smaller():
    """If the batch limit is above the window, batches have the window's size, and are sent at once. (S187)"""
    table = SessionHarness(0, batch_limit=50, max_uncommitted_events=4)
    table.arrive(10)
    assert table.take_messages() == [f"0:0-3 {STARTED}"]


def test_what_waits_goes_after_the_flush_timeout():
    """After the flush timeout, waiting events or a keep-alive are sent; the timer restarts each time. (S188)"""
    table = SessionHarness(0, batch_limit=5, max_uncommitted_events=100, flush_seconds=10)
    table.arrive(12)
    assert table.take_messages() == [f"0:0-4 {STARTED}", "0:5-9"]
    table.wait(9)
    assert table.take_messages() == []
    table.wait(1)
    assert table.take_messages() == ["0:10-11"]
    table.commit(11)
    table.wait(20)
    assert table.take_messages() == ["0@11", "0@11"]


def test_each_partition_has_its_own_flush_timer():
    """Batches of one partition do not delay the keep-alive of another. (S188)"""
    table = SessionHarness(0, 1, batch_limit=1, max_uncommitted_events=100, flush_seconds=10)
    table.wait(5)
    table.arrive(1, partition=1)
    table.take_messages()
    table.wait(5)
    assert table.take_messages() == ["0@-1"]
    table.wait(5)
    assert table.take_messages() == ["1@0"]


def test_the_first_line_says_that_the_stream_started():
    """The first line, even if it is a keep-alive, says that the stream started, and no other line does. (S181, S182)"""
    table = SessionHarness(0, flush_seconds=10)
    table.wait(20)
    assert table.take_messages() == [f"0@-1 {STARTED}", "0@-1"]


def test_lost_events_are_reported():
    """If events were removed before they could be sent, the first line contains their number. (S181, S101, S301)"""
    table = SessionHarness(0, opening=False)
    [opening] = table.take_calls()
    table.tell(table.session.handle_opening(opening, at(6), 7, table.now))
    table.arrive(some_events(1, start=7))
    assert table.take_messages() == [f"0:7-7 {STARTED}; skipped events due to retention time passed, count: 7"]
    table.commit(7)
    assert table.session.end is None


def test_one_partition_is_served_before_the_next():
    """A busy partition may use the whole window. (S189)"""
    table = SessionHarness(0, 1, batch_limit=2, max_uncommitted_events=6)
    table.arrive(6, partition=0)
    table.arrive(6, partition=1)
    assert table.take_messages() == [f"0:0-1 {STARTED}", "0:2-3", "0:4-5"]


def test_a_batch_is_due_by_the_age_of_its_events():
    """Events that are older than the newest one by the timespan are sent together, at least one. (S191, S193)"""
    table = SessionHarness(0, batch_limit=100, max_uncommitted_events=100, batch_timespan_seconds=60)
    table.arrive(_stored_after(0, 10, 59))
    assert table.take_messages() == []
    table.arrive(_stored_after(61, start=3))
    assert table.take_messages() == [f"0:0-2 {STARTED}"]
    table.arrive(_stored_after(200, start=4))
    assert table.take_messages() == ["0:3-3"]


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
    table = SessionHarness(0, batch_limit=100, max_uncommitted_events=2, batch_timespan_seconds=60)
    table.arrive(_stored_after(0, 10, 20, 100))
    assert table.take_messages() == [f"0:0-1 {STARTED}"]


def test_the_heaviest_partition_is_relieved():
    """If too many bytes are buffered, the partition with the most sends a batch beyond its batch limit, and its line
    says why. (S194, S182)"""
    table = SessionHarness(0, 1, batch_limit=1000, max_uncommitted_events=1000)
    table.arrive(some_events(3, size=10_000_000), partition=0)
    table.arrive(some_events(3, size=9_000_000), partition=1)
    assert table.take_messages() == [f"0:0-2 {STARTED}; Stream parameters are causing overflow"]


def test_a_client_hears_of_an_idle_stream_in_time():
    """However long the flush timeout, a client gets a line before it considers its stream dead. (S188)"""
    table = SessionHarness(0, flush_seconds=600)
    table.wait(MAX_SECONDS_BETWEEN_LINES)
    assert table.take_messages() == [f"0@-1 {STARTED}"]
    table.wait(2 * MAX_SECONDS_BETWEEN_LINES)
    assert table.take_messages() == ["0@-1", "0@-1"]


# The window


def test_sending_stops_at_the_window():
    """The window is shared by all partitions; nothing beyond it is read, and a commit opens it. (S199, S195, S129)"""
    table = SessionHarness(0, 1, batch_limit=1, max_uncommitted_events=5)
    table.arrive(10)
    table.arrive(3, partition=1)
    assert table.take_messages() == [f"0:0-0 {STARTED}", "0:1-1", "0:2-2", "0:3-3", "0:4-4"]
    assert not table.session.wants_events(a_place(1))
    table.commit(4)
    assert table.take_messages() == ["0:5-5", "0:6-6", "0:7-7", "0:8-8", "0:9-9"]
    table.commit(6)
    assert table.take_messages() == ["1:0-0", "1:1-1"]


def test_keep_alives_go_on_beyond_the_window():
    """When the window is exhausted, keep-alives continue, and their cursors show up to where events were sent. (S195,
    S179, S188)"""
    table = SessionHarness(0, max_uncommitted_events=1, flush_seconds=10)
    table.arrive(2)
    table.take_messages()
    table.wait(10)
    assert table.take_messages() == ["0@0"]


def test_positions_are_counted_not_events():
    """Events that were skipped between others also use up the window. (S200)"""
    table = SessionHarness(
        0, batch_limit=1, max_uncommitted_events=5, deliverable=lambda record: record.value in (b'"a"', b'"b"')
    )
    table.rules.skips_misplaced_events = True
    table.arrive(a_chunk("a", "x", "x", "x", "b", "a").run_from_offset(0))
    assert table.take_messages() == [f"0:0-0 {STARTED}", "0:4-4"]


def test_a_commit_of_what_was_not_sent():
    """A commit beyond the sent events drops the events that it covers; reading continues after them. (S207, S127,
    S209)"""
    table = SessionHarness(0, 1, batch_limit=1, max_uncommitted_events=2)
    table.arrive(6)
    table.take_messages()
    table.commit(3)
    assert table.take_messages() == ["0:4-4", "0:5-5"]
    table.opening = False
    table.commit(20)
    assert table.take_calls() == [OpenPartition(a_place(0), at(20), 3)]
    table.arrive(1, start=6)
    assert table.take_messages() == []


def test_an_offset_that_goes_back():
    """If an offset goes back, waiting events are dropped, and reading starts at the new offset. (S208)"""
    table = SessionHarness(0, batch_limit=1, max_uncommitted_events=10)
    table.arrive(3)
    table.commit(2)
    table.take_messages()
    table.opening = False
    table.commit(0)
    assert table.take_calls() == [OpenPartition(a_place(0), at(0), 2)]


def test_a_partition_whose_offset_follows_later_is_opened():
    """A partition is opened once its offset is the session's own, even if the assignment was reported before. (S208)"""
    table = SessionHarness(0, batch_limit=1)
    table.opening = False
    table.offsets[a_place(1)] = CommittedOffset(at(4), "other", A_MOMENT)
    table.assignment = replace(table.assignment, revision=2, entries=(entry(0, ME), entry(1, ME)))
    table.pass_shared_state()
    assert table.take_calls() == []
    table.offsets[a_place(1)] = CommittedOffset(at(4), ME, A_MOMENT)
    table.pass_shared_state()
    assert table.take_calls() == [OpenPartition(a_place(1), at(4), 2)]
    table.pass_shared_state()
    assert table.take_calls() == []


# The commit timeout


def test_the_commit_timeout():
    """If a client commits nothing within the commit timeout, it gets a debug line, and the stream ends at once. (S201,
    S203, S214, S182)"""
    table = SessionHarness(0, commit_seconds=20)
    table.wait(7)
    table.arrive(1)
    table.take_messages()
    table.wait(19)
    assert table.session.end is None
    table.wait(1)
    assert table.take_messages() == ["0@0 Commit timeout reached"]
    assert table.session.end is SessionEnd.COMMIT_TIMEOUT


def test_any_commit_winds_the_timer():
    """All partitions share one timer: a commit of any one restarts it, even if another is never committed. (S201,
    S202)"""
    table = SessionHarness(0, 1, commit_seconds=20, flush_seconds=1000, max_uncommitted_events=10)
    table.arrive(1)
    table.arrive(5, partition=1)
    for offset in range(4):
        table.wait(15)
        table.commit(offset, partition=1)
    assert table.session.end is None
    table.wait(20)
    assert table.session.end is SessionEnd.COMMIT_TIMEOUT


def test_time_runs_from_the_first_event_that_is_outstanding():
    """When everything is committed, the timer stops, and it starts with the next event. (S201, S204)"""
    table = SessionHarness(0, commit_seconds=20)
    table.arrive(1)
    table.commit(0)
    table.wait(500)
    assert table.session.end is None
    table.arrive(1, start=1)
    table.wait(19)
    assert table.session.end is None
    table.wait(1)
    assert table.session.end is SessionEnd.COMMIT_TIMEOUT


# Ends


def test_the_stream_timeout():
    """At the stream timeout, waiting events are sent, the client gets a debug line, and the stream waits for commits.
    (S211, S210)"""
    table = SessionHarness(
        0, batch_limit=3, max_uncommitted_events=10, stream_seconds=100, flush_seconds=1000, commit_seconds=60
    )
    table.wait(95)
    table.take_messages()
    table.arrive(5)
    assert table.take_messages() == ["0:0-2"]
    table.wait(5)
    assert table.take_messages() == ["0:3-4", "0@4 Stream timeout reached"]
    assert table.session.reason is SessionEnd.TIMEOUT
    table.arrive(5, start=5)
    table.wait(30)
    assert table.take_messages() == []
    table.commit(4)
    assert table.session.end is SessionEnd.TIMEOUT


def test_a_closing_stream_does_not_wait_for_ever():
    """A closing stream waits for commits until the commit timeout. (S210)"""
    table = SessionHarness(0, stream_seconds=100, flush_seconds=1000, commit_seconds=60)
    table.wait(90)
    table.arrive(1)
    table.wait(59)
    assert (table.session.reason, table.session.end) == (SessionEnd.TIMEOUT, None)
    table.wait(1)
    assert table.session.end is SessionEnd.TIMEOUT


def test_the_stream_limit_counts_commits():
    """No more than the stream limit is sent, and the stream ends when that many events are committed, not when they are
    sent. (S212, S182)"""
    table = SessionHarness(0, batch_limit=2, max_uncommitted_events=10, stream_limit=3)
    table.arrive(10)
    assert table.take_messages() == [f"0:0-1 {STARTED}", "0:2-2"]
    table.commit(1)
    assert table.session.end is None
    table.commit(2)
    assert table.take_messages() == ["0@2 Stream limit in events reached: 3"]
    assert table.session.end is SessionEnd.LIMIT


def test_the_committed_count_has_what_was_passed_over():
    """Skipped events count as committed, so the number may exceed the limit. (S213)"""
    table = SessionHarness(0, batch_limit=1, max_uncommitted_events=10, stream_limit=2)
    table.arrive(2)
    table.take_messages()
    table.commit(7)
    assert table.take_messages() == ["0@7 Stream limit in events reached: 8"]


def test_keep_alives_are_limited():
    """The stream closes without a message when every partition had this many keep-alives in a row. (S196, S217)"""
    table = SessionHarness(0, 1, keep_alive_limit=2, flush_seconds=10, commit_seconds=60)
    table.wait(10)
    table.arrive(1)
    table.wait(10)
    assert table.session.reason is None
    table.take_messages()
    table.wait(10)
    assert sorted(table.take_messages()) == ["0@0", "1@-1"]
    assert table.session.reason is SessionEnd.KEEP_ALIVES
    table.commit(0)
    assert table.session.end is SessionEnd.KEEP_ALIVES


def test_keep_alives_beyond_the_window_count():
    """Keep-alives that are sent because the window is exhausted count, too. (S197)"""
    table = SessionHarness(0, keep_alive_limit=2, max_uncommitted_events=1, flush_seconds=5, commit_seconds=60)
    table.arrive(2)
    table.wait(10)
    assert table.session.reason is SessionEnd.KEEP_ALIVES


def test_a_stream_without_partitions_ends():
    """A stream that neither owns a partition nor is promised one ends after twice the commit timeout. (S218, S183)"""
    table = SessionHarness(commit_seconds=10, entries=[entry(0, "other")])
    table.wait(15)
    table.change(entry(0, f"other>{ME}"))
    table.wait(100)
    assert table.session.end is None
    table.change(entry(0, "other"))
    table.wait(19)
    assert table.session.end is None
    table.wait(1)
    assert table.session.end is SessionEnd.IDLE
    assert table.take_messages() == []


def test_a_reset_closes():
    """When offsets are being set, the client gets a debug line, and has time to commit. (S215, S137, S182, S295)"""
    table = SessionHarness(0)
    table.arrive(1)
    table.take_messages()
    table.pass_shared_state(resetting=True)
    assert table.take_messages() == ["0@0 Resetting subscription cursors"]
    assert table.session.end is None
    table.commit(0)
    assert table.session.end is SessionEnd.RESET


def test_a_blocked_client():
    """A client that is blocked gets a debug line, and the stream closes. (S216, S182, S308)"""
    table = SessionHarness(0)
    table.session.handle_block()
    table.tick()
    assert table.take_messages() == ["0@-1 Consumption is blocked"]
    assert table.session.end is SessionEnd.BLOCKED


def test_a_client_that_has_gone():
    """After the client has gone, the events that it received may still be committed until the commit timeout. (S220,
    S128, S169)"""
    table = SessionHarness(0, commit_seconds=20)
    table.arrive(1)
    table.tell(table.session.handle_disconnect(table.now))
    assert (table.session.reason, table.session.end) == (SessionEnd.GONE, None)
    table.wait(20)
    assert table.session.end is SessionEnd.GONE


def test_a_client_that_has_gone_with_everything_committed():
    """If nothing is uncommitted, the slot of a client that has gone becomes free at once. (S220)"""
    table = SessionHarness(0)
    table.tell(table.session.handle_disconnect(table.now))
    assert table.session.end is SessionEnd.GONE


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
    table = SessionHarness(0)
    table.arrive(1)
    table.take_messages()
    table.tell(fact(table.session))
    assert (table.session.end, table.take_messages()) == (end, [])
    assert table.session.departure_record() == DepartureRecord()


def test_a_session_that_was_removed():
    """A session that is no longer in the assignment sends nothing more. (S74, S239)"""
    table = SessionHarness(0)
    table.assignment = an_assignment_without_me(table)
    table.pass_shared_state()
    assert table.session.end is SessionEnd.REMOVED
    table.arrive(1)
    assert table.take_messages() == []


def an_assignment_without_me(table):
    return type(table.assignment)(revision=9, initialised=True, sessions=(a_session("other"),))


def test_a_lease_that_ran_out():
    """A session whose lease has expired sends nothing more. (S318)"""
    table = SessionHarness(0)
    table.lease.valid_until = 10.0
    table.now = 9.9
    table.arrive(1)
    assert table.take_messages() == [f"0:0-0 {STARTED}"]
    table.now = 10.0
    table.arrive(1, start=1)
    assert table.take_messages() == []
    assert table.session.end is SessionEnd.LEASE_LOST


# Skipped events


def is_for_us(record: Record) -> bool:
    return record.value is not None and record.directed_to is None


def record_for_others(text: str) -> Record:
    return Record(f'"{text}"'.encode(), directed_to="another subscription")


def test_what_is_not_for_the_client_is_passed_over():
    """Events for others and tombstones are not sent; they are committed when nothing before them is uncommitted. (S228,
    S230, S231, S232, S233, S275)"""
    table = SessionHarness(0, batch_limit=1, max_uncommitted_events=10, deliverable=is_for_us)
    table.arrive(
        a_chunk(record_for_others("x"), Record(None), "a", record_for_others("y"), Record(None)).run_from_offset(0)
    )
    assert table.take_messages() == [f"0:2-2 {STARTED}"]
    table.wait(5)
    assert table.take_calls() == [AutoCommit({a_place(0): at(1)})]
    table.commit(1)
    table.wait(10)
    assert table.take_calls() == []
    table.commit(2)
    table.tick()
    assert table.take_calls() == [AutoCommit({a_place(0): at(4)})]


def test_passing_over_is_committed_with_a_hand_over():
    """Skipped events are committed when a partition is handed over, and when the stream ends. (S232)"""
    table = SessionHarness(0, 1, deliverable=is_for_us)
    table.arrive(a_chunk(record_for_others("x")).run_from_offset(0))
    table.arrive(a_chunk(record_for_others("x")).run_from_offset(0), partition=1)
    table.change(entry(0, f"{ME}>other"))
    assert table.take_calls() == [HandOverPartitions(frozenset({a_place(0)}), {a_place(0): at(0)})]
    table.change(entry(0, "other"))
    table.tell(table.session.handle_shutdown())
    assert table.session.departure_record().commit_positions == {a_place(1): at(0)}


def test_keep_alives_jump_over_what_was_passed_over():
    """If every event is skipped, the client gets keep-alives whose cursor moves on. (S234)"""
    table = SessionHarness(0, flush_seconds=10, deliverable=is_for_us)
    table.arrive(a_chunk(record_for_others("x"), record_for_others("y")).run_from_offset(0))
    table.commit(1)
    table.wait(10)
    assert table.take_messages() == [f"0@1 {STARTED}"]


def test_an_idle_stream_is_not_woken_between_keep_alives():
    """An idle stream has nothing to do between its keep-alives. (S232)"""
    table = SessionHarness(0, flush_seconds=24)
    assert table.session.next_tick_at() == 24


def test_what_was_done_ahead_is_not_sent_again():
    """Events that were done ahead count as consumed as soon as every event before them is. (X61)"""
    table = SessionHarness(batch_limit=1, max_uncommitted_events=100, flush_seconds=600)
    done = (OffsetRange(1, 0, 0), OffsetRange(1, 3, 4), OffsetRange(1, 6, 6))
    table.offsets[a_place(0)] = CommittedOffset(at(1), None, A_MOMENT, done)
    table.change(entry(0, ME))
    table.arrive(some_events(3, start=2))
    table.arrive(some_events(4, start=5))
    assert table.take_messages() == [f"0:2-2 {STARTED}", "0:5-5", "0:7-7", "0:8-8"]
    table.take_calls()
    table.commit(2)
    table.wait(5)
    assert table.take_calls() == [AutoCommit({a_place(0): at(4)})]


# Consumed events


def counted_batches(table):
    return [each.batches for each in table.calls if isinstance(each, CountConsumed)]


def test_batches_are_counted_when_they_are_committed():
    """If the subscription has an objective, a commit reports which batches it completes, with the time of their first
    event. (O3)"""
    table = SessionHarness(0, batch_limit=3, max_uncommitted_events=100, has_objective=True)
    table.arrive(9)
    table.commit(1)
    assert counted_batches(table) == []
    table.commit(6)
    assert counted_batches(table) == [(ConsumedBatch(3, A_MOMENT), ConsumedBatch(3, A_MOMENT))]
    table.commit(8)
    assert counted_batches(table)[1:] == [(ConsumedBatch(3, A_MOMENT),)]


def test_without_an_objective_nothing_is_counted():
    """A subscription without an objective bears no cost for others. (O3)"""
    table = SessionHarness(0, batch_limit=3, max_uncommitted_events=100)
    table.arrive(9)
    table.commit(8)
    assert counted_batches(table) == []
