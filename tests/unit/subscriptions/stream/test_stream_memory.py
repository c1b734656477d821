"""How many events streams hold if the events stay in this process until they are committed."""

from nakadi.subscriptions.stream.stream_memory import StreamMemory
from tests.support.chunks import some_events
from tests.support.consuming import SessionHarness
from tests.support.coordination import a_place, entry

EVENT_BYTES = 1000
READ_BYTES = 4 * EVENT_BYTES


def a_stream(*partitions, memory):
    return SessionHarness(*partitions, memory=memory, batch_limit=32, max_uncommitted_events=2**31, sends_at_once=True)


def read_all(stream, partition=0, start=0):
    """Pass reads to a stream for as long as it requests them, and return the numbers of their events."""
    count = 0
    while stream.session.wants_events(a_place(partition)):
        stream.arrive(some_events(4, start=start + count, size=EVENT_BYTES), partition=partition)
        count += 4
        assert count <= 1000, "it has no bound"
    return count


def test_a_stream_reads_on_when_what_it_holds_is_committed():
    """The stream holds its limit and one more read at most, counted in bytes. (X64)"""
    memory = StreamMemory(limit_of_stream=10 * EVENT_BYTES, limit=1000 * EVENT_BYTES)
    stream = a_stream(0, memory=memory)
    assert read_all(stream) == 12
    assert memory.held == 12 * EVENT_BYTES
    stream.commit(3)
    assert read_all(stream, start=12) == 4
    assert memory.held == 12 * EVENT_BYTES
    stream.commit(15)
    stream.session.wants_events(a_place(0))
    assert memory.held == 0


def test_events_that_wait_in_the_stream_count_too():
    """Events that may not be sent yet also count. (X64)"""
    memory = StreamMemory(limit_of_stream=10 * EVENT_BYTES, limit=1000 * EVENT_BYTES)
    stream = SessionHarness(
        0, memory=memory, batch_limit=32, max_uncommitted_events=2**31, max_uncommitted_per_partition=4
    )
    assert read_all(stream) == 12


def test_a_partition_without_events_gets_a_read_whatever_the_others_hold():
    """A partition that makes no progress does not stop the others. (X17, X64)"""
    memory = StreamMemory(limit_of_stream=10 * EVENT_BYTES, limit=1000 * EVENT_BYTES)
    stream = a_stream(0, 1, memory=memory)
    assert read_all(stream) == 12
    for read in range(5):
        assert read_all(stream, partition=1, start=4 * read) == 4
        stream.commit(4 * read + 3, partition=1)


def test_all_streams_of_a_process_have_a_bound_together():
    """All streams of a process together have a limit, beyond which each partition may still hold one read, so that
    it makes progress. (X64)
    """
    memory = StreamMemory(limit_of_stream=10 * EVENT_BYTES, limit=30 * EVENT_BYTES)
    streams = [a_stream(0, memory=memory) for _ in range(20)]
    counts = [read_all(each) for each in streams]
    assert counts[:2] == [12, 12]
    assert memory.held <= memory.limit + len(streams) * READ_BYTES
    assert set(counts[3:]) == {4}
    for each in streams:
        each.session.release_memory()
    assert memory.held == 0


def test_a_partition_that_another_stream_takes_is_held_no_longer():
    """(X64)"""
    memory = StreamMemory(limit_of_stream=10 * EVENT_BYTES, limit=1000 * EVENT_BYTES)
    stream = a_stream(0, 1, memory=memory)
    read_all(stream)
    read_all(stream, partition=1)
    stream.change(entry(0, "other"))
    stream.session.wants_events(a_place(1))
    assert memory.held == READ_BYTES
