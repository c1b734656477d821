"""The session takes facts and returns actions, and the test sets the time."""

import pytest

from nakadi.model.event_type import Position
from nakadi.model.events import Record
from nakadi.model.outcomes import NotPermitted
from nakadi.streaming import session as session_module
from nakadi.streaming.session import (
    LowLevelSession,
    SendEvents,
    SendProblem,
    SendStreamKeepAlive,
    StreamAction,
    StreamEnd,
    StreamLimits,
)
from tests.support.chunks import a_chunk, some_events, values

BEFORE = Position(1, -1)


def a_session(partitions: int = 1, start: Position = BEFORE, **limits: float) -> LowLevelSession:
    defaults = {"flush_seconds": 10, "stream_seconds": 1000}
    return LowLevelSession(StreamLimits(**defaults | limits), {str(number): start for number in range(partitions)}, 0.0)


def describe_actions(actions: list[StreamAction]) -> list[str]:
    """A short form of actions: partition and values of a batch, `-` for a keep-alive, `!` for a Problem."""
    return [_describe_action(action) for action in actions]


def _describe_action(action: StreamAction) -> str:
    match action:
        case SendEvents(partition, _, runs):
            return f"{partition}: {b' '.join(values(runs)).decode()}"
        case SendStreamKeepAlive(partition):
            return f"{partition}: -"
        case SendProblem(error):
            return f"! {error}"


# Ends of partitions


def test_a_partition_ends_with_what_waits_and_a_line_without_events():
    """At its end, a partition sends the events that wait, and then a line without events; the stream ends with its last
    partition. (L78)
    """
    session = a_session(partitions=2, batch_limit=10)
    assert describe_actions(session.handle_events("0", some_events(2), 1.0)) == []
    assert describe_actions(session.handle_partition_end("0", Position(1, 5), 2.0)) == ["0: 0 1", "0: -"]
    assert session.end is None
    assert describe_actions(session.tick(11.0)) == ["1: -"]
    assert session.handle_partition_end("1", Position(1, 3), 12.0) == [SendStreamKeepAlive("1", Position(1, 3))]
    assert session.end is StreamEnd.COMPLETE
    assert session.handle_partition_end("1", Position(1, 3), 13.0) == []


# Batching


def test_a_full_batch_goes_at_once():
    """A batch is sent as soon as a partition has batch_limit events. (L47, trap 10)"""
    session = a_session(batch_limit=3)
    assert describe_actions(session.handle_events("0", some_events(2), 1.0)) == []
    assert describe_actions(session.handle_events("0", some_events(2, start=2), 2.0)) == ["0: 0 1 2"]


@pytest.mark.parametrize(
    ("batch_limit", "expected"),
    [
        (1, ["0: 0", "0: 1", "0: 2", "0: 3", "0: 4"]),
        (2, ["0: 0 1", "0: 2 3"]),
        (5, ["0: 0 1 2 3 4"]),
        (6, []),
    ],
)
def test_no_batch_exceeds_its_limit(batch_limit, expected):
    """Many events that arrive together are cut into batches of batch_limit, which is 1 by default. (L50, L51)"""
    assert describe_actions(a_session(batch_limit=batch_limit).handle_events("0", some_events(5), 1.0)) == expected


def test_partitions_are_never_mixed():
    """A batch has events of one partition, in their order. (L45)"""
    session = a_session(2, batch_limit=2)
    assert describe_actions(session.handle_events("0", some_events(1), 1.0)) == []
    assert describe_actions(session.handle_events("1", some_events(1), 1.0)) == []
    assert describe_actions(session.handle_events("1", some_events(1, start=1), 1.0)) == ["1: 0 1"]
    assert describe_actions(session.handle_events("0", some_events(1, start=1), 1.0)) == ["0: 0 1"]


def test_a_batch_is_placed_at_its_last_event():
    """The cursor of a batch is the position of its last event. (L44)"""
    (batch,) = a_session(batch_limit=2).handle_events("0", some_events(2, start=7), 1.0)
    assert batch.position == Position(1, 8)


# Flushing


def test_what_waits_is_flushed_in_time():
    """When the flush timeout has passed, a partition sends the events that it has. (L47)"""
    session = a_session(batch_limit=100)
    session.handle_events("0", some_events(3), 4.0)
    assert describe_actions(session.tick(9.9)) == []
    assert describe_actions(session.tick(10.0)) == ["0: 0 1 2"]


def test_the_timer_runs_from_the_start_of_the_stream():
    """The first flush is due one flush timeout after the stream began, not after the first event. (L48)"""
    session = a_session(batch_limit=100)
    session.handle_events("0", some_events(1), 9.5)
    assert session.next_tick_at() == 10.0
    assert describe_actions(session.tick(10.0)) == ["0: 0"]


def test_every_send_resets_the_timer():
    """Full batches, timed batches and keep-alives all restart the timer. (L48)"""
    session = a_session(batch_limit=2)
    session.handle_events("0", some_events(2), 6.0)
    assert session.next_tick_at() == 16.0
    assert describe_actions(session.tick(16.0)) == ["0: -"]
    assert session.next_tick_at() == 26.0
    session.handle_events("0", some_events(1, start=2), 20.0)
    assert describe_actions(session.tick(26.0)) == ["0: 2"]
    assert session.next_tick_at() == 36.0


def test_an_empty_partition_sends_a_keep_alive():
    """If a timer finds nothing to send, it sends one keep-alive for its partition. (L49)"""
    session = a_session(2)
    assert describe_actions(session.tick(10.0)) == ["0: -", "1: -"]
    assert describe_actions(session.tick(10.0)) == []


def test_timers_of_partitions_are_their_own():
    """A batch of one partition does not delay the keep-alive of another. (L48, L49)"""
    session = a_session(2)
    session.handle_events("1", some_events(1), 5.0)
    assert describe_actions(session.tick(10.0)) == ["0: -"]
    assert describe_actions(session.tick(15.0)) == ["1: -"]


def test_a_late_tick_does_not_shift_the_next_ones():
    """Flush times are calculated from when they were due, so that small delays do not add up. (L47)"""
    session = a_session()
    session.tick(10.3)
    assert session.next_tick_at() == 20.0


def test_a_very_late_tick_does_not_make_up_for_what_was_missed():
    """After a long pause, there is one keep-alive, not one for each that was due. (L49)"""
    session = a_session()
    assert describe_actions(session.tick(57.0)) == ["0: -"]
    assert session.next_tick_at() == 67.0


def test_a_keep_alive_reports_the_last_delivered_position():
    """Before the first event, the position is the start; afterwards, it is that of the last event sent. (L44)"""
    session = a_session(start=Position(3, 41))
    assert session.tick(10.0) == [SendStreamKeepAlive("0", Position(3, 41))]
    session.handle_events("0", some_events(1, start=42), 11.0)
    (keep_alive,) = session.tick(21.0)
    assert keep_alive.position == Position(1, 42)


def test_a_silent_connection_gets_a_sign_of_life():
    """However long the flush timeout, a client that gives up after 30 s of silence gets a line before that.

    The counts and timers of keep-alives do not change. (L49, L55: with long flush timeouts, keep-alives come sooner
    than agreed)
    """
    session = a_session(flush_seconds=60, keep_alive_limit=2)
    assert session.next_tick_at() == 25.0
    assert describe_actions(session.tick(25.0)) == ["0: -"]
    assert describe_actions(session.tick(50.0)) == ["0: -"]
    assert describe_actions(session.tick(60.0)) == []
    assert describe_actions(session.tick(75.0)) == ["0: -"]
    assert describe_actions(session.tick(100.0)) == ["0: -"]
    assert session.end is None
    assert describe_actions(session.tick(120.0)) == []
    assert session.end is StreamEnd.KEEP_ALIVES


def test_a_sign_of_life_takes_the_place_of_a_keep_alive():
    """With the default flush timeout, there is still one line for each keep-alive, but it comes sooner. (L49, L55,
    L56)
    """
    session = a_session(2, flush_seconds=30, keep_alive_limit=1)
    assert describe_actions(session.tick(25.0)) == ["0: -"]
    assert describe_actions(session.tick(30.0)) == ["1: -"]
    assert session.end is StreamEnd.KEEP_ALIVES


def test_too_much_in_memory_goes_early(monkeypatch):
    """Above the memory limit, the partition with the most bytes is sent at once, until the rest is below the limit.
    (L52)"""
    monkeypatch.setattr(session_module, "MAX_BUFFERED_BYTES", 1000)
    session = a_session(3, batch_limit=100)
    assert session.handle_events("0", some_events(1, size=300), 1.0) == []
    assert session.handle_events("1", some_events(2, size=300), 1.0) == []
    (early,) = session.handle_events("2", some_events(1, size=200), 1.0)
    assert early.partition == "1"
    assert len(values(early.runs)) == 2


def test_an_early_batch_resets_the_timer(monkeypatch):
    """A batch that is sent because of the memory limit counts like any other. (L48, L52)"""
    monkeypatch.setattr(session_module, "MAX_BUFFERED_BYTES", 1000)
    session = a_session(batch_limit=100)
    session.handle_events("0", some_events(2, size=600), 4.0)
    assert session.next_tick_at() == 14.0


def test_the_memory_limit_is_fifty_million_bytes():
    """The limit is the same as in the reference. (L52)"""
    assert session_module.MAX_BUFFERED_BYTES == 50_000_000


# The end


def test_a_stream_limit_ends_the_stream_with_what_it_holds():
    """After stream_limit events over all partitions, all buffered events are sent and the stream ends. (L51, L53,
    L54)"""
    session = a_session(3, batch_limit=3, stream_limit=5)
    assert describe_actions(session.handle_events("0", some_events(2), 1.0)) == []
    assert session.end is None
    assert describe_actions(session.handle_events("1", some_events(9), 1.0)) == ["1: 0 1 2", "0: 0 1"]
    assert session.end is StreamEnd.LIMIT


@pytest.mark.parametrize(("stream_limit", "expected"), [(4, ["0: 0 1", "0: 2 3"]), (3, ["0: 0 1", "0: 2"])])
def test_no_stream_exceeds_its_limit(stream_limit, expected):
    """Exactly stream_limit events are sent, even if this makes the last batch short. (L51, L53)"""
    session = a_session(batch_limit=2, stream_limit=stream_limit)
    assert describe_actions(session.handle_events("0", some_events(10), 1.0)) == expected
    assert session.end is StreamEnd.LIMIT


def test_a_stream_timeout_ends_the_stream_with_what_it_holds():
    """When the time is up, partitions with events send them, the others send nothing, and the stream ends. (L53,
    L54)"""
    session = a_session(3, batch_limit=100, flush_seconds=30, stream_seconds=20)
    session.handle_events("1", some_events(2), 1.0)
    assert session.next_tick_at() == 20.0
    assert describe_actions(session.tick(20.0)) == ["1: 0 1"]
    assert session.end is StreamEnd.TIMEOUT


def test_equal_timeouts_make_one_keep_alive():
    """If the flush timeout equals the stream timeout, an idle partition gets exactly one keep-alive at the end.
    (L56)"""
    session = a_session(2, flush_seconds=2, stream_seconds=2)
    assert describe_actions(session.tick(2.0)) == ["0: -", "1: -"]
    assert session.end is StreamEnd.TIMEOUT


def test_eight_events_and_two_seconds():
    """With 8 events, batch_limit 5 and both timeouts 2 s, there are batches of 5 and 3, and keep-alives for idle
    partitions. (L57)"""
    session = a_session(3, batch_limit=5, flush_seconds=2, stream_seconds=2)
    assert describe_actions(session.handle_events("1", some_events(8), 0.5)) == ["1: 0 1 2 3 4"]
    assert describe_actions(session.tick(2.0)) == ["0: -", "2: -", "1: 5 6 7"]
    assert session.end is StreamEnd.TIMEOUT


def test_a_keep_alive_limit_needs_all_partitions():
    """With P partitions and limit K, an idle stream sends P times K keep-alives and ends. (L53, L55)"""
    session = a_session(3, keep_alive_limit=2)
    lines = describe_actions(session.tick(10.0))
    assert session.end is None
    lines += describe_actions(session.tick(20.0))
    assert lines == ["0: -", "1: -", "2: -"] * 2
    assert session.end is StreamEnd.KEEP_ALIVES


def test_an_event_resets_its_partitions_count():
    """Consecutive keep-alives are counted per partition; one busy partition keeps the stream open. (L55)"""
    session = a_session(2, keep_alive_limit=2)
    session.tick(10.0)
    session.handle_events("0", some_events(1), 15.0)
    session.tick(20.0)  # partition 1 has had two keep-alives
    assert session.end is None
    session.tick(25.0)
    assert session.end is None
    session.tick(35.0)
    assert session.end is StreamEnd.KEEP_ALIVES


def test_what_is_not_delivered_counts_for_nothing():
    """Tombstones, events addressed to others and foreign events move no cursor, fill no limit and reset no counter.
    (L58)"""
    session = a_session(batch_limit=2, stream_limit=3, keep_alive_limit=1)
    hidden = [Record(None, key="k"), Record(b"x", directed_to="s")]
    chunk = a_chunk(*hidden, "a", *hidden, "b", *hidden)
    (batch,) = session.handle_events("0", chunk.run_from_offset(0), 1.0)
    assert values(batch.runs) == [b'"a"', b'"b"']
    assert batch.position == Position(1, 5)
    assert session.end is None
    session.handle_events("0", a_chunk(*hidden, start=8).run_from_offset(8), 2.0)
    assert session.tick(11.0) == [SendStreamKeepAlive("0", Position(1, 5))]
    assert session.end is StreamEnd.KEEP_ALIVES


def test_who_may_read_is_for_others_to_say():
    """For every event with restricted access, the session asks whether the client may read it. (L58)"""
    session = LowLevelSession(
        StreamLimits(batch_limit=9), {"0": BEFORE}, 0.0, may_read=lambda record: record.directed_to == "mine"
    )
    chunk = a_chunk(Record(b"1", directed_to="mine"), Record(b"2", directed_to="other"))
    session.handle_events("0", chunk.run_from_offset(0), 1.0)
    (batch,) = session.handle_shutdown(2.0)
    assert values(batch.runs) == [b"1"]


def test_a_block_ends_the_stream_without_a_word():
    """A blocked stream ends without a message, and drops its buffered events. (L53, L59)"""
    session = a_session(batch_limit=9)
    session.handle_events("0", some_events(2), 1.0)
    assert session.handle_block() == []
    assert session.end is StreamEnd.BLOCKED
    assert session.tick(1000.0) == []
    assert session.handle_events("0", some_events(9, start=2), 3.0) == []


def test_a_refusal_is_reported():
    """A stream that may not continue reports the reason once, drops its buffered events and ends. (L53, L60)"""
    session = a_session(batch_limit=9)
    session.handle_events("0", some_events(2), 1.0)
    assert describe_actions(session.handle_refusal(NotPermitted("no"))) == ["! no"]
    assert session.end is StreamEnd.REFUSED
    assert session.handle_refusal(NotPermitted("no")) == []


def test_a_client_that_has_gone_is_sent_nothing():
    """Without a client, the stream ends. (L53)"""
    session = a_session(batch_limit=9)
    session.handle_events("0", some_events(2), 1.0)
    assert session.handle_disconnect() == []
    assert session.end is StreamEnd.GONE
    assert session.handle_shutdown(2.0) == []


def test_draining_sends_what_waits():
    """When the process ends, its streams send what they have buffered. (L54)"""
    session = a_session(2, batch_limit=9)
    session.handle_events("1", some_events(2), 1.0)
    assert describe_actions(session.handle_shutdown(2.0)) == ["1: 0 1"]
    assert session.end is StreamEnd.DRAINED


def test_the_first_reason_to_end_is_the_one():
    """Facts that arrive after the end change nothing."""
    session = a_session()
    session.handle_disconnect()
    session.handle_block()
    assert session.end is StreamEnd.GONE
