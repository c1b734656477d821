"""How many processes a broker has by default."""

import pytest

from nakadi.app.settings import Settings
from nakadi.local.cores import cores_within_limit, default_workers, usable_cores

FILE = Settings(registry="sqlite:///data/nakadi.db", event_log="sqlite:///data/nakadi.db")


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 2), (4, 4), (8, 8), (64, 8)])
def test_each_core_has_a_process(cores, workers):
    """A broker has as many processes as cores, up to the number beyond which more do not help."""
    assert default_workers(FILE, cores) == workers


def test_what_cannot_have_several_has_one():
    """A broker whose data is in memory has one process, because several could not share the data."""
    assert default_workers(Settings(registry="memory:", event_log="memory:"), 8) == 1


def test_events_in_kafka_have_several():
    """A broker whose events are in Kafka may have several processes, each of which is a client of Kafka."""
    kafka = Settings(registry="sqlite:///data/nakadi.db", event_log="kafka://broker:9092")

    assert default_workers(kafka, 4) == 4


@pytest.mark.parametrize(
    ("limit", "cores"), [("max 100000\n", None), ("200000 100000\n", 2), ("150000 100000", 1), ("50000 100000", 1)]
)
def test_a_container_has_whole_cores(limit, cores):
    assert cores_within_limit(limit) == cores


def test_this_machine_has_at_least_one():
    assert usable_cores() >= 1
