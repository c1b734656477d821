"""The requirements of a broker with several processes, and how often its workers may die."""

import pytest

from nakadi.app.settings import Settings
from nakadi.local.supervisor import RestartLimit, check_workers
from nakadi.model.outcomes import BadSetting

FILE = "sqlite:///data/nakadi.db"


def test_workers_that_die_now_and_then_are_started_again():
    """Workers are restarted any number of times, as long as not too many die within a short time."""
    restarts = RestartLimit(max_deaths=2, seconds=60)
    assert [restarts.allows_restart(now) for now in (0, 10, 65, 130, 140, 200)] == [True] * 6


def test_workers_that_die_again_and_again_are_given_up():
    restarts = RestartLimit(max_deaths=2, seconds=60)
    assert [restarts.allows_restart(now) for now in (0, 10, 59)] == [True, True, False]


@pytest.mark.parametrize("workers", [0, -1, 65])
def test_a_number_of_workers_that_makes_no_sense(workers):
    with pytest.raises(BadSetting, match=f"NAKADI_WORKERS is {workers}, but must be from 1 to 64"):
        check_workers(Settings(registry=FILE, event_log=FILE, workers=workers))


@pytest.mark.parametrize(
    "stores",
    [
        {},
        {"registry": FILE},
        {"registry": FILE, "event_log": "kinesis://stream"},
        {"event_log": "kafka://broker:9092"},
        {"registry": FILE, "event_log": FILE, "coordination": "memory:"},
    ],
)
def test_several_workers_need_a_data_file(stores):
    with pytest.raises(BadSetting, match="2 workers need the embedded engine"):
        check_workers(Settings(**stores, workers=2))


@pytest.mark.parametrize("event_log", [FILE, "kafka://broker:9092"])
def test_a_data_file_is_enough(event_log):
    """Several workers need a registry in a data file; the events may be in the same file, or in Kafka, to which each
    worker connects.
    """
    check_workers(Settings(registry=FILE, event_log=event_log, workers=2))
