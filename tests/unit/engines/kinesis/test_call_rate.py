"""The rate of reads of a shard, which allows five a second for all processes together."""

import random
import time
from collections import Counter

import pytest

from nakadi.engines.kinesis import call_rate
from nakadi.engines.kinesis.call_rate import MAX_READ_INTERVAL_SECONDS, CallRate

ALLOWED = 5


class Clock:
    """A clock that the test moves; the time of day continues."""

    time = staticmethod(time.time)

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    # Replace the time only in this module, because threads of other tests' brokers pause, too.
    monkeypatch.setattr(call_rate, "time", clock)
    return clock


def test_calls_for_a_name_are_apart(clock):
    """A call that comes too early waits; calls for other names do not wait for it."""
    pace = CallRate(0.2)
    for _ in range(6):
        pace.wait_for_turn("a")
    assert clock.now == pytest.approx(1001.0)
    pace.wait_for_turn("b")
    assert clock.now == pytest.approx(1001.0)


def mean_interval(pace: CallRate, clock: Clock, name: str) -> float:
    """The average time between two calls; single intervals vary by half."""
    pace.wait_for_turn(name)
    began = clock.now
    for _ in range(1000):
        pace.wait_for_turn(name)
    return (clock.now - began) / 1000


def test_refusals_make_it_slower_and_answers_faster_again(clock):
    """The interval doubles with each refusal, up to a maximum, and shrinks gradually to the minimum."""
    pace = CallRate(0.2)
    pace.slow_down("a")
    assert mean_interval(pace, clock, "a") == pytest.approx(0.4, rel=0.1)
    for _ in range(10):
        pace.slow_down("a")
    assert mean_interval(pace, clock, "a") == pytest.approx(MAX_READ_INTERVAL_SECONDS, rel=0.1)
    assert mean_interval(pace, clock, "b") == pytest.approx(0.2)
    for _ in range(100):
        pace.speed_up("a")
    assert mean_interval(pace, clock, "a") == pytest.approx(0.2)


@pytest.mark.parametrize("processes", [1, 2, 10, 20])
def test_many_processes_share_a_shard(clock, processes):
    """However many processes read a shard, each gets answers regularly, and few calls are refused needlessly."""
    random.seed(17)
    paces = [CallRate(0.2) for _ in range(processes)]
    due = dict.fromkeys(range(processes), clock.now)
    taken: Counter[int] = Counter()
    answered: Counter[int] = Counter()
    refused = 0
    last = dict.fromkeys(range(processes), 1000.0)
    silence = 0.0
    while min(due.values()) < 1120:
        number = min(due, key=due.__getitem__)
        clock.now = due[number]
        paces[number].wait_for_turn("shard")
        second = int(clock.now)
        taken[second] += 1
        if taken[second] > ALLOWED:
            refused += 1
            paces[number].slow_down("shard")
        else:
            answered[number] += 1
            paces[number].speed_up("shard")
            silence = max(silence, clock.now - last[number])
            last[number] = clock.now
        due[number] = clock.now + 0.4
    assert min(answered.values()) > 60 / processes
    assert silence < 20
    assert refused < 2 * sum(answered.values())
