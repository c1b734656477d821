"""How the streams of a process count consumed events, and report the counts."""

from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest

from nakadi.model.objective import ConsumedBatch, MinuteCounts, minute_of
from nakadi.model.outcomes import Unavailable
from nakadi.subscriptions.api.objectives import FreshnessReports
from nakadi.subscriptions.stream.freshness import FreshnessRecorder
from tests.support.metrics import collect_samples, sample_value

OBJECTIVE = {"percent": 99, "within_seconds": 30}


@pytest.fixture
def subscription(house):
    found = house.subscription(house.event_type(), objective=OBJECTIVE)
    return house.subscription_services.subscriptions.get(found["id"])


@pytest.fixture
def recorder(house):
    return new_recorder(house)


def new_recorder(house):
    services = house.subscription_services
    return FreshnessRecorder(services.subscriptions, services.freshness_reports, house.clock, house.broker.metrics)


@contextmanager
def follow(recorder, subscription):
    end = recorder.follow(subscription)
    try:
        yield
    finally:
        end()


def stored_counts(house, subscription):
    return house.subscription_services.freshness_reports.find(subscription.id, subscription.objective).counts


def batches(house, *sizes, age=0.0):
    return [ConsumedBatch(each, house.clock.now() - timedelta(seconds=age)) for each in sizes]


def test_what_was_counted_is_reported_once(house, subscription, recorder):
    """Counts are added to the subscription's report, by minute. (O5)"""
    minute = minute_of(house.clock.now())
    with follow(recorder, subscription):
        recorder.count(subscription.id, batches(house, 3, 4))
        house.clock.move(60)
        recorder.count(subscription.id, batches(house, 5))
        recorder.count(subscription.id, batches(house, 2, age=31))
        recorder.report()
        recorder.report()
    assert stored_counts(house, subscription) == (MinuteCounts(minute, 7, 0), MinuteCounts(minute + 1, 5, 2))


def test_processes_add_to_one_report(house, subscription, recorder):
    """Processes that serve streams of the same subscription add their counts to one report. (O5)"""
    other = new_recorder(house)
    for each in (recorder, other):
        with follow(each, subscription):
            each.count(subscription.id, batches(house, 3))
            each.report()
    assert [each.in_time for each in stored_counts(house, subscription)] == [6]


def test_a_report_that_fails_loses_no_counts(house, subscription, recorder, monkeypatch):
    """If the registry does not answer, the next report includes the counts. (O5)"""
    with follow(recorder, subscription):
        recorder.count(subscription.id, batches(house, 3))
        with monkeypatch.context() as broken:
            broken.setattr(house.broker.registry, "write", unavailable)
            with pytest.raises(Unavailable):
                recorder.report()
        recorder.count(subscription.id, batches(house, 4))
        recorder.report()
    assert [each.in_time for each in stored_counts(house, subscription)] == [7]


def unavailable(*_):
    raise Unavailable("not now")


def test_what_was_counted_last_is_reported_after_the_end_of_the_stream(house, subscription, recorder):
    """Counts from just before the end of a stream are reported, too. (O5)"""
    with follow(recorder, subscription), follow(recorder, subscription):
        recorder.count(subscription.id, batches(house, 3))
        assert not recorder.has_unreported_end(subscription.id)
    assert recorder.has_unreported_end(subscription.id)
    recorder.report_subscription(subscription.id)
    assert not recorder.has_unreported_end(subscription.id)
    assert not recorder.is_following
    recorder.report_subscription(subscription.id)
    assert [each.in_time for each in stored_counts(house, subscription)] == [3]


def test_a_stream_that_begins_during_the_report_of_the_last_one_is_followed(house, subscription, recorder, monkeypatch):
    """If two threads report at once, and the later one finds a new stream, the counts of that stream are not lost.
    (O5)"""
    with follow(recorder, subscription):
        recorder.count(subscription.id, batches(house, 3))
    add = FreshnessReports.add

    def report_and_stream_meanwhile(self, *arguments):
        add(self, *arguments)
        monkeypatch.setattr(FreshnessReports, "add", add)
        recorder.report()
        began.enter_context(follow(recorder, subscription))

    with ExitStack() as began:
        monkeypatch.setattr(FreshnessReports, "add", report_and_stream_meanwhile)
        recorder.report_subscription(subscription.id)
        recorder.count(subscription.id, batches(house, 4))
    recorder.report()
    assert [each.in_time for each in stored_counts(house, subscription)] == [7]


def test_a_new_objective_is_known_after_the_next_report(house, recorder):
    """Streams apply an objective that is set while they are open, and stop when it is removed. (O2)"""
    found = house.subscription(house.event_type())
    place = f"/subscriptions/{found['id']}/objective"
    subscriptions = house.subscription_services.subscriptions
    with follow(recorder, subscriptions.get(found["id"])):
        assert not recorder.has_objective(found["id"])
        assert house.api.put(place, json=OBJECTIVE).status_code == 200
        recorder.report()
        assert recorder.has_objective(found["id"])
        house.clock.move(1)
        recorder.count(found["id"], batches(house, 3))
        assert house.api.delete(place).status_code == 204
        recorder.report()
        assert not recorder.has_objective(found["id"])
        recorder.count(found["id"], batches(house, 3))


def test_a_stricter_objective_begins_without_the_counts_of_the_old_one(house, subscription, recorder):
    """Counts for an objective that has been replaced are dropped. (O4)"""
    place = f"/subscriptions/{subscription.id}/objective"
    with follow(recorder, subscription):
        recorder.count(subscription.id, batches(house, 3))
        assert house.api.put(place, json={"percent": 99, "within_seconds": 1}).status_code == 200
        house.clock.move(1)
        recorder.report()
        recorder.count(subscription.id, batches(house, 2, age=0.5))
        recorder.report()
    now = house.subscription_services.subscriptions.get(subscription.id)
    assert [(each.in_time, each.late) for each in stored_counts(house, now)] == [(2, 0)]


def test_nothing_is_reported_for_a_subscription_that_is_gone(house, subscription, recorder):
    """Nothing is reported for a deleted subscription, because the report would stay for ever. (O7)"""
    with follow(recorder, subscription):
        recorder.count(subscription.id, batches(house, 3))
        recorder.report()
        recorder.count(subscription.id, batches(house, 3))
        assert house.api.delete(f"/subscriptions/{subscription.id}").status_code == 204
        recorder.report()
    assert house.broker.registry.list("freshness-reports") == []


def test_nothing_is_written_without_consumption(house, subscription, recorder, monkeypatch):
    """A subscription without any consumption causes no writes. (O5)"""
    monkeypatch.setattr(house.broker.registry, "write", lambda *_: pytest.fail("something was written"))
    with follow(recorder, subscription):
        recorder.count(subscription.id, ())
        recorder.report()


def test_metrics_have_the_counts_and_the_objective(house, subscription, recorder):
    """The metrics contain the counters, from which burn rates can be computed for any window, and the objective.
    (O8)"""
    house.clock.move(60)
    with follow(recorder, subscription):
        recorder.count(subscription.id, batches(house, 3))
        recorder.count(subscription.id, batches(house, 2, age=31))
        assert recorder.objective_ratios() == {(subscription.id,): 0.99}
    samples = collect_samples(house.broker.metrics)
    assert sample_value(samples, "nakadi_subscription_events_in_time_total", subscription=subscription.id) == 3
    assert sample_value(samples, "nakadi_subscription_events_late_total", subscription=subscription.id) == 2
