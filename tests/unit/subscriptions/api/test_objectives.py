"""Objectives: which partition is the slowest, and why."""

import pytest
from msgspec.structs import replace

from nakadi.model.events import Record
from nakadi.model.objective import MinuteCounts, minute_of
from nakadi.model.subscription import EventTypePartition
from nakadi.subscriptions.api.stats import ObjectiveFigures
from tests.support.engines import append_and_wait
from tests.support.logs import records_of_this_thread
from tests.support.metrics import collect_samples, sample_value
from tests.support.subscriptions import a_cursor

OBJECTIVE = {"percent": 99, "within_seconds": 30}


def status(house, subscription):
    answer = house.api.get(f"/subscriptions/{subscription['id']}/objective")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_nobody_is_late_where_no_event_waits(house):
    """If no events wait, no partition is the slowest. (O9)"""
    subscription = house.subscription(house.event_type(), objective=OBJECTIVE)
    found = status(house, subscription)
    assert (found["pressure"], "slowest_partition" in found) == (0, False)


def test_pressure_is_the_oldest_age_in_relation_to_the_objective(house):
    """The pressure exceeds 1 when the subscription is late; only then is a cause reported. (O9)"""
    name = house.event_type(events=2)
    subscription = house.subscription(name, objective=OBJECTIVE)
    house.clock.move(30)
    slowest = {"event_type": name, "partition": "0", "lag_seconds": 30, "unconsumed_events": 2}
    found = status(house, subscription)
    assert (found["pressure"], found["slowest_partition"]) == (1, slowest)
    house.clock.move(15)
    found = status(house, subscription)
    assert found["pressure"] == 1.5
    assert found["slowest_partition"]["cause"] == "no_consumer"


def test_a_consumer_that_commits_nothing_is_named(house):
    """A stream that has a partition, but commits nothing, counts first as slow, and as stalled once the commit timeout
    has passed. (O10)
    """
    subscription = house.subscription(house.event_type(events=2), objective=OBJECTIVE)
    house.session(subscription, commit_timeout=60.0)
    house.wait(31)
    assert status(house, subscription)["slowest_partition"]["cause"] == "slow_consumer"
    house.wait(31)
    assert status(house, subscription)["slowest_partition"]["cause"] == "stalled_consumer"


@pytest.mark.parametrize(("waiting", "cause"), [((5, 2), "hot_partition"), ((4, 2), "slow_consumer")])
def test_a_hot_partition_is_named(house, waiting, cause):
    """A hot partition has more than two thirds of the waiting events. (O10)"""
    name = house.event_type(partitions=2)
    subscription = house.subscription(name, objective=OBJECTIVE)
    house.session(subscription, commit_timeout=600.0)
    for partition, count in enumerate(waiting):
        append(house, name, partition, count)
        house.clock.move(1)
    house.wait(31)
    found = status(house, subscription)["slowest_partition"]
    assert (found["partition"], found["unconsumed_events"], found["cause"]) == ("0", waiting[0], cause)


def append(house, name, partition, count):
    [timeline] = house.broker.event_types.get(name).timelines
    append_and_wait(house.broker.logs.for_storage("default"), timeline.topic, {partition: [Record(b"{}")] * count})


def test_an_event_that_consumers_fail_at_is_named(house):
    """If consecutive streams end at the same event without a commit, the cause of the delay is an event at which
    consumers fail. (O10)
    """
    annotations = {
        "nakadi.zalando.org/subscription-unprocessable-event-policy": "SKIP_EVENT",
        "nakadi.zalando.org/subscription-max-event-send-count": "2",
    }
    name = house.event_type(events=2)
    subscription = house.subscription(name, objective=OBJECTIVE, annotations=annotations)
    place = EventTypePartition(name, "0")
    old = house.assignment(subscription)
    entries = tuple(replace(each, failed_streams=1) if each.partition == place else each for each in old.entries)
    house.coordination.replace_assignment(subscription["id"], old, replace(old, entries=entries), house.clock.now())
    house.clock.move(31)
    assert status(house, subscription)["slowest_partition"]["cause"] == "failing_event"


def test_housekeeping_counts_those_that_are_late(house, caplog):
    """Housekeeping counts the late subscriptions, even those without a consumer, and the log names them with the cause.
    (O11)
    """
    name = house.event_type(events=1)
    late = house.subscription(name, objective=OBJECTIVE)
    house.subscription(name)
    shown = house.subscription(
        name, objective={"percent": 99, "within_seconds": 62}, annotations={"nakadi.io/pressure-metric": "on"}
    )
    house.clock.move(31)
    house.broker.housekeeping.run()
    troubled = house.broker.subscription_services.troubled_subscriptions
    assert troubled.late_ids == [late["id"]]
    assert sample_value(collect_samples(house.broker.metrics), "nakadi_late_subscriptions") == 1
    assert troubled.objectives == {
        late["id"]: ObjectiveFigures(burn_rate=0, pressure=1.033, is_shown=False),
        shown["id"]: ObjectiveFigures(burn_rate=0, pressure=0.5, is_shown=True),
    }
    said = [each.getMessage() for each in records_of_this_thread(caplog)]
    [message] = [each for each in said if " is late: " in each]
    assert late["id"] in message
    assert "no_consumer" in message
    session = house.session(late)
    house.commit(late, session, a_cursor(name, "0", 0))
    house.broker.subscription_services.freshness_reports.add(
        late["id"],
        house.broker.subscription_services.subscriptions.get(late["id"]).objective,
        [MinuteCounts(minute_of(house.clock.now()), 98, 2)],
    )
    house.broker.housekeeping.run()
    assert troubled.late_ids == []
    assert troubled.objectives[late["id"]] == ObjectiveFigures(burn_rate=2, pressure=0, is_shown=False)
