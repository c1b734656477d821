"""Faults that a test or an operator orders."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.local.broker import Faults, FaultyLog
from nakadi.model.events import AppendRefused, AppendStored
from nakadi.model.outcomes import Unavailable
from tests.support.clock import HandMovedClock
from tests.support.engines import a_record, append_async, record_text
from tests.support.patience import PATIENCE


@pytest.fixture
def faults():
    return Faults()


@pytest.fixture
def log(faults):
    log = FaultyLog(MemoryLog(HandMovedClock()), faults)
    log.create_topic("orders", 2)
    log.create_topic("other", 1)
    yield log
    log.close()


def append(log, *names, topic="orders"):
    return run_blocking(log.append(topic, {partition: [a_record(name)] for partition, name in enumerate(names)}))


def values(log, partition=0, topic="orders", start=0):
    return [record_text(event.record) for event in log.read(topic, partition, start).events]


def test_without_orders_it_is_the_log_behind_it(log):
    """Without an order, the log behaves like the log behind it."""
    assert append(log, "a", "b") == {0: AppendStored(), 1: AppendStored()}
    assert (values(log, 0), values(log, 1)) == (["a"], ["b"])
    assert log.first_offset_since("orders", 0, HandMovedClock().now()) == 0
    log.trim("orders", 0, HandMovedClock().now())
    log.compact("orders", 0, stored_before=HandMovedClock().now(), tombstones_before=HandMovedClock().now())
    log.add_partitions("orders", 3)
    assert log.bounds("orders", [2])[2].next_offset == 0
    log.seal_topic("orders")
    log.delete_topic("orders")


def test_a_refused_partition_stores_nothing(log, faults):
    """A refused partition fails as often as ordered, and the other partitions of the append are stored. (P111)"""
    faults.refuse(partition="1", times=2)
    assert append(log, "a", "x") == {0: AppendStored(), 1: AppendRefused("internal error")}
    assert append(log, "b", "y") == {0: AppendStored(), 1: AppendRefused("internal error")}
    assert append(log, "c", "z") == {0: AppendStored(), 1: AppendStored()}
    assert (values(log, 0), values(log, 1)) == (["a", "b", "c"], ["z"])


def test_orders_concern_appends_that_are_not_waited_for(log, faults):
    """Whether an append is refused, late, throttled or stopped, the outcome is the one that a waiting caller would get.
    (P111)"""
    faults.refuse(partition="1")
    both = {0: [a_record("a")], 1: [a_record("x")]}
    assert append_async(log, "orders", both).result(PATIENCE) == {0: AppendStored(), 1: AppendRefused("internal error")}
    faults.delay(PATIENCE * 10)
    late = append_async(log, "orders", {0: [a_record("b")]})
    assert append_async(log, "orders", {0: [a_record("c")]}).result(PATIENCE) == {0: AppendStored()}
    faults.clear()
    assert late.result(PATIENCE) == {0: AppendStored()}
    faults.throttle()
    assert isinstance(append_async(log, "orders", both).exception(PATIENCE), Unavailable)
    faults.stop()
    assert isinstance(append_async(log, "orders", both).exception(PATIENCE), Unavailable)
    faults.resume()
    assert (values(log, 0), values(log, 1)) == (["a", "c", "b"], [])


def test_a_time_out_comes_after_the_fact(log, faults):
    """An append that is ordered to time out is stored nevertheless, so a retry stores it twice. (P111)"""
    faults.time_out(partition="0")
    assert append(log, "a") == {0: AppendRefused("timed out")}
    assert append(log, "a") == {0: AppendStored()}
    assert values(log) == ["a", "a"]


def test_a_throttled_append_fails_as_a_whole(log, faults):
    """Throttling affects the whole append, and none of it is stored."""
    faults.throttle(partition="1")
    with pytest.raises(Unavailable):
        append(log, "a", "b")
    append(log, "c", "d")
    assert (values(log, 0), values(log, 1)) == (["c"], ["d"])


def test_reads_can_be_throttled(log, faults):
    """Throttled reads fail as often as ordered."""
    append(log, "a")
    faults.throttle_reads(event_type="orders", times=2)
    for _ in range(2):
        with pytest.raises(Unavailable):
            values(log)
    assert values(log) == ["a"]


def test_orders_concern_one_event_type(faults):
    """An order for an event type affects its topics and no others."""
    faults = Faults(topics_of=lambda event_type: {"shop.order": ("orders",)}.get(event_type, ()))
    log = FaultyLog(MemoryLog(HandMovedClock()), faults)
    log.create_topic("orders", 1)
    log.create_topic("other", 1)
    faults.refuse(event_type="shop.order", reason="not today")
    assert append(log, "a", topic="other") == {0: AppendStored()}
    assert append(log, "a") == {0: AppendRefused("not today")}
    log.close()


def test_a_delayed_append_is_stored_late(log, faults):
    """While an append is delayed, none of its events can be read; clearing the orders ends the delay."""
    faults.delay(60)
    with ThreadPoolExecutor(1) as publisher:
        publishing = publisher.submit(append, log, "late")
        assert log.read("orders", 0, 0, wait=0.05).events == ()
        faults.clear()
        assert publishing.result(PATIENCE) == {0: AppendStored()}
    assert values(log) == ["late"]


def test_a_delay_ends_by_itself(log, faults):
    """A delay lasts as long as ordered."""
    faults.delay(0.05)
    begun = time.monotonic()
    append(log, "a")
    assert time.monotonic() - begun >= 0.05


def test_a_delivery_is_repeated(log, faults):
    """A repeated delivery begins with earlier events at their own offsets, and continues at the same offset."""
    for name in "abcd":
        append(log, name)
    faults.repeat(2)
    found = log.read("orders", 0, 3)
    assert [event.offset for event in found.events] == [1, 2, 3]
    assert found.next_offset == 4
    assert values(log, start=3) == ["d"]


def test_a_delivery_is_repeated_from_the_beginning_at_most(log, faults):
    """There may be fewer earlier events than ordered, or none, and a read that finds nothing repeats nothing."""
    faults.repeat(5, times=2)
    assert values(log) == []
    append(log, "a")
    append(log, "b")
    assert values(log, start=1) == ["a", "b"]
    assert values(log) == ["a", "b"]


def test_every_call_fails_while_the_log_is_stopped(log, faults):
    """Every call fails while the log is stopped, and works as before when it is resumed."""
    faults.stop()
    for attempt in (
        lambda: append(log, "a"),
        lambda: values(log),
        lambda: log.bounds("orders", [0]),
        lambda: log.create_topic("new", 1),
    ):
        with pytest.raises(Unavailable):
            attempt()
    faults.resume()
    append(log, "a")
    assert values(log) == ["a"]


def test_stopping_fails_reads_that_wait(log, faults, monkeypatch):
    """A read that waits when the log is stopped fails rather than returning."""
    append(log, "a")
    read = log._log.read
    monkeypatch.setattr(log._log, "read", lambda *asked, **limits: (faults.stop(), read(*asked, **limits))[1])
    with pytest.raises(Unavailable):
        log.read("orders", 0, 0, wait=1)


def test_watchers_are_notified(log):
    """Watchers are notified of new events by the log behind the faults."""
    told = threading.Event()
    end = log.add_change_listener(lambda *_: told.set())
    append(log, "a")
    assert told.is_set()
    end()


def test_orders_are_carried_out_in_turn(log, faults):
    """For each partition, the orders that affect it are carried out in the order in which they were given."""
    faults.time_out()
    faults.refuse()
    assert [append(log, name)[0] for name in "abc"] == [
        AppendRefused("timed out"),
        AppendRefused("internal error"),
        AppendStored(),
    ]
    assert values(log) == ["a", "c"]
