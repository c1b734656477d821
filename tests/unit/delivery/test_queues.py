"""Which events of a partition may be sent next, and up to where everything is delivered."""

from __future__ import annotations

from nakadi.delivery.queues import MAX_BATCH_BYTES, KeyedQueue, split_runs
from nakadi.model.event_type import Position
from nakadi.model.events import Record
from nakadi.model.subscription import OffsetRange
from tests.support.chunks import a_chunk, values


def a_queue(*keys, size=1):
    queue = KeyedQueue()
    records = [Record(str(offset).rjust(size, "0").encode(), key) for offset, key in enumerate(keys)]
    queue.receive([a_chunk(*records).run_from_offset(0)])
    return queue


def test_what_goes_back_comes_again_before_what_follows_it():
    """An event that goes back to the queue is taken again before those that follow it, even if other events of its
    batch are delivered. (X60)
    """
    queue = a_queue("a", "b", "a", "c")
    taken = queue.take(2)
    delivered, rest = split_runs(taken, 1)
    queue.complete(delivered)
    queue.give_back(rest)
    queue.release(delivered)
    assert values(queue.take(9)) == [b"2", b"3"]
    assert not queue.may_take, "b is not released"
    queue.release(rest)
    assert values(queue.take(9)) == [b"1"]


def test_a_key_stays_blocked_by_what_is_left_of_it():
    """If half of a batch is delivered, the other half may have the same key, so the key stays blocked. (X60)"""
    queue = a_queue("a", "a", "a", "b")
    delivered, left = split_runs(queue.take(2), 1)
    queue.release(delivered, but=left)
    assert values(queue.take(9)) == [b"3"]


def test_what_is_delivered_ahead_is_told_in_ranges():
    """Only events after the first missing one are delivered ahead. (X61)"""
    queue = a_queue("a", "b", "c", "d", "e")
    single = [queue.take(1) for _ in range(5)]
    for index in (1, 2, 4):
        queue.complete(single[index])
    assert (queue.reached, queue.done_ahead()) == (Position(1, -1), (OffsetRange(1, 1, 2), OffsetRange(1, 4, 4)))
    assert queue.is_next(Position(1, 0))
    queue.complete(single[0])
    assert (queue.reached, queue.done_ahead()) == (Position(1, 2), (OffsetRange(1, 4, 4),))


def test_neighbours_of_a_batch_are_one_run():
    """Consecutive events of a batch are one run, so their text is copied at once. (X10)"""
    queue = a_queue("a", "b", "c", "d", "e", size=MAX_BATCH_BYTES // 3)
    assert [run.count for run in queue.take(9)] == [3]
    assert [run.count for run in queue.take(9)] == [2]
