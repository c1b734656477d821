"""A registry whose calls are timed."""

import pytest

from nakadi.common.metrics import Metrics
from nakadi.common.timed_registry import TimedRegistry
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.ports.registry import ChangedMeanwhile, PutDocument
from tests.support.clock import HandMovedClock
from tests.support.metrics import collect_samples, sample_value


class SlowRegistry(MemoryRegistry):
    """A registry in which each read takes three seconds, and each write seven."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock

    def get(self, kind, key):
        self._clock.move(3)
        return super().get(kind, key)

    def write(self, *changes):
        self._clock.move(7)
        super().write(*changes)


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def registry(metrics):
    clock = HandMovedClock()
    return TimedRegistry(SlowRegistry(clock), metrics.registry_seconds, clock)


def read_seconds(metrics, call):
    return sample_value(collect_samples(metrics), "nakadi_registry_call_duration_seconds_sum", call=call)


def test_each_call_is_timed(registry, metrics):
    """Reads and writes are timed separately, and return what the registry returns."""
    registry.write(PutDocument("settings", "a", {"n": 1}))
    assert registry.get("settings", "a").body == {"n": 1}
    assert [each.key for each in registry.list("settings", prefix="a")] == ["a"]
    assert registry.change_counters().count_by_bucket

    assert [read_seconds(metrics, call) for call in ("get", "write", "list")] == [3, 7, 0]
    samples = collect_samples(metrics)
    for call in ("get", "list", "write", "change_counters"):
        assert sample_value(samples, "nakadi_registry_call_duration_seconds_count", call=call) == 1


def test_a_call_that_fails_is_timed_too(registry, metrics):
    """A write whose condition does not hold raises as before, and is timed."""
    with pytest.raises(ChangedMeanwhile):
        registry.write(PutDocument("settings", "a", {}, expected_revision=5))

    assert read_seconds(metrics, "write") == 7
