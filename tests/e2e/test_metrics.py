"""Prometheus reads metrics of requests, streams and the broker's own work."""

import json
import logging
from contextlib import ExitStack
from uuid import uuid4

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics

from tests.support.api import a_business_definition, a_definition, create_event_type
from tests.support.consumer import Consumer
from tests.support.http import check_against_description
from tests.support.metrics import PROMETHEUS, TEXT, sample_value, scrape
from tests.support.open_stream import OpenStream
from tests.support.parking import (
    COUNT,
    PARKING,
    POLICY,
    a_keyed_definition,
    give_up_on_the_next,
    parked_ids,
    publish_events,
)
from tests.support.patience import PATIENCE, until
from tests.support.publishing import metadata
from tests.support.served import ServedBroker
from tests.support.subscriptions import create_subscription, publish


@pytest.fixture(scope="module")
def running_broker(tmp_path_factory):
    """A broker that archives events at once, and removes them from its data file."""
    folder = tmp_path_factory.mktemp("data")
    url = f"sqlite:///{folder}/nakadi.db"
    settings = {"archive": str(folder / "archive"), "archive_after_seconds": 0, "hot_retention_ms": 0}
    with ServedBroker(registry=url, event_log=url, max_partitions=4, **settings) as broker:
        yield broker


@pytest.fixture
def api(running_broker):
    with check_against_description(httpx.Client(base_url=running_broker.url, timeout=PATIENCE)) as client:
        yield client


@pytest.fixture
def measure_change(api):
    """A function that returns how much a sample has grown since the test began."""
    before = scrape(api)

    def difference(name, **labels):
        return sample_value(scrape(api), name, **labels) - sample_value(before, name, **labels)

    return difference


@pytest.fixture
def consumer(api):
    with ExitStack() as streams:
        yield lambda *args, **parameters: streams.enter_context(Consumer(api, *args, **parameters))


# Formats


def test_prometheus_gets_what_it_likes_best(api):
    """An `Accept` header of Prometheus gets OpenMetrics, which Prometheus' own parser reads."""
    answer = api.get("/metrics", headers={"accept": PROMETHEUS})

    assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert answer.headers["cache-control"] == "must-revalidate,no-cache,no-store"
    assert "nakadi_http_requests" in {family.name for family in read_openmetrics(answer.text)}


def test_the_older_text_format_is_there_too(api):
    """A client that accepts the text format of version 0.0.4 gets it."""
    answer = api.get("/metrics", headers={"accept": TEXT})

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert sample_value(scrape(api), "nakadi_http_requests_total", operation="get_metrics", status="200") >= 1
    assert sample_value(scrape(api), "process_resident_memory_bytes") > 0


@pytest.mark.parametrize(
    "accept", ["", "*/*", "application/json", "text/plain", "text/html,*/*;q=0.8", f"application/json, {TEXT};q=0.9"]
)
def test_everyone_else_gets_json(api, accept):
    """A client that does not ask for a text format of Prometheus gets JSON, as before. (R245)"""
    assert api.get("/metrics", headers={"accept": accept}).headers["content-type"] == "application/json"


# Publishing


def test_published_events_are_counted(api, measure_change):
    """Events and bytes are counted by event type, and requests, their time and bytes by operation."""
    name = create_event_type(api)["name"]
    publish(api, name, 3)

    assert measure_change("nakadi_events_published_total", event_type=name) == 3
    size = len(json.dumps([{"n": number} for number in range(3)], separators=(",", ":")))
    assert measure_change("nakadi_published_bytes_total", event_type=name) == size
    assert measure_change("nakadi_http_requests_total", operation="publish_events", status="200") == 1
    assert measure_change("nakadi_http_request_duration_seconds_count", operation="publish_events") == 1
    assert measure_change("nakadi_http_request_bytes_total", operation="publish_events") == size
    assert measure_change("nakadi_http_response_bytes_total", operation="get_event_type") > 0
    assert measure_change("nakadi_sqlite_commit_duration_seconds_count") >= 1
    assert measure_change("nakadi_sqlite_commit_appends_count") >= 1
    assert measure_change("nakadi_cache_misses_total", cache="validators") == 1


def test_refused_events_are_counted_by_their_reason(api, measure_change):
    """If a step refuses a batch, its events are counted; if a batch cannot be read, the batch is counted."""
    name = create_event_type(api, schema={"type": "object", "properties": {"n": {"type": "integer"}}})["name"]
    target = f"/event-types/{name}/events"
    assert api.post(target, json=[{"n": 1}, {"n": "two"}]).status_code == 422
    assert api.post(target, content=b"[").status_code == 400
    assert api.post("/event-types/nowhere/events", json=[{}]).status_code == 404

    assert measure_change("nakadi_events_refused_total", event_type=name, reason="validating") == 2
    assert measure_change("nakadi_batches_refused_total", reason="malformed") == 1
    assert measure_change("nakadi_batches_refused_total", reason="not_found") == 1
    assert measure_change("nakadi_events_published_total", event_type=name) == 0


def test_duplicates_are_counted(api, measure_change):
    """Duplicates count separately from stored events."""
    name = create_event_type(api, a_business_definition(deduplication={"window_seconds": 300}))["name"]
    target = f"/event-types/{name}/events"
    first, second = ({"metadata": metadata(eid=str(uuid4()))} for _ in range(2))
    assert api.post(target, json=[first]).status_code == 200
    assert api.post(target, json=[first, second, first]).status_code == 200

    assert measure_change("nakadi_event_duplicates_total", event_type=name) == 2
    assert measure_change("nakadi_events_published_total", event_type=name) == 2


def test_deleted_events_are_counted(api, measure_change):
    """Tombstones are counted separately from events."""
    compacted = {"cleanup_policy": "compact", "partition_compaction_key_field": "n"}
    name = create_event_type(api, a_business_definition(**compacted))["name"]
    event = {"metadata": {"eid": "70779f46-950d-4e48-9fca-10c413845e7f", "occurred_at": "2026-11-21T12:00:00Z"}}
    event["metadata"]["partition_compaction_key"] = "a"
    answer = api.post(f"/event-types/{name}/deleted-events", json=[event])
    assert answer.status_code == 200, answer.text

    assert measure_change("nakadi_events_deleted_total", event_type=name) == 1


def test_requests_without_an_operation_are_counted(api, measure_change):
    """A request for a missing path counts by its status."""
    api.get("/nowhere")

    assert measure_change("nakadi_http_requests_total", operation="unrouted", status="404") == 1


def test_figures_are_counted(api, measure_change):
    """Each figure (KPI) that was written counts."""
    assert api.post("/settings/features", json={"feature": "kpi_collection", "enabled": True}).status_code == 204
    try:
        name = create_event_type(api)["name"]
        # A process that found the feature switched off checks it again after a while.
        until(lambda: publish(api, name) or measure_change("nakadi_kpi_figures_total", outcome="written") >= 1)
    finally:
        api.post("/settings/features", json={"feature": "kpi_collection", "enabled": False})


# Streams


def test_streams_are_counted_with_what_they_send(api, measure_change, running_broker):
    """A stream counts while it is open and at its end, with the reason; so do its events, their bytes and age."""
    name = create_event_type(api)["name"]
    publish(api, name, 3)
    begin = {"X-nakadi-cursors": '[{"partition": "0", "offset": "BEGIN"}]'}
    with OpenStream(running_broker.url, f"/event-types/{name}/events?batch_limit=3&stream_limit=4", begin) as stream:
        line = stream.line()
        assert measure_change("nakadi_open_streams", api="low-level") == 1
        publish(api, name, 1)
        rest = stream.rest()

    until(lambda: measure_change("nakadi_streams_ended_total", api="low-level", reason="limit") == 1)
    assert measure_change("nakadi_open_streams", api="low-level") == 0
    assert measure_change("nakadi_streams_opened_total", api="low-level") == 1
    assert measure_change("nakadi_events_sent_total", api="low-level", event_type=name) == 4
    assert measure_change("nakadi_sent_bytes_total", api="low-level") == len(line) + len(rest)
    assert measure_change("nakadi_delivery_delay_seconds_count", api="low-level") == 2


def test_a_client_that_goes_away_is_a_reason(api, measure_change, running_broker):
    """If the client has closed the connection, that is the reason for the end of its stream."""
    with OpenStream(running_broker.url, f"/event-types/{create_event_type(api)['name']}/events"):
        pass

    until(lambda: measure_change("nakadi_streams_ended_total", api="low-level", reason="gone") == 1)


def test_a_subscription_reports_how_far_its_consumers_are(api, measure_change, consumer):
    """The metrics have the number of sent but uncommitted events, and the age of the oldest one, by subscription."""
    name = create_event_type(api)["name"]
    subscription = create_subscription(api, name, read_from="begin")
    publish(api, name, 2)
    stream = consumer(subscription, batch_limit=2)
    batch = stream.batch()
    mine = {"subscription": subscription["id"]}
    # The stream of another test may just be releasing its partitions.
    until(lambda: sample_value(scrape(api), "nakadi_partitions_held") == 1)
    assert measure_change("nakadi_subscription_uncommitted_events", **mine) == 2
    assert measure_change("nakadi_subscription_lag_seconds", **mine) > 0
    assert measure_change("nakadi_lease_renewals_total", outcome="renewed") >= 1

    assert stream.commit(batch).status_code == 204
    until(lambda: measure_change("nakadi_subscription_uncommitted_events", **mine) == 0)
    assert measure_change("nakadi_subscription_lag_seconds", **mine) == 0
    assert stream.commit(batch).status_code == 200
    assert stream.commit({**batch["cursor"], "partition": "7"}).status_code == 422
    outcomes = ("committed", "outdated", "refused")
    assert [measure_change("nakadi_cursors_committed_total", outcome=each) for each in outcomes] == [1, 1, 1]
    assert measure_change("nakadi_cache_hits_total", cache="subscriptions") >= 1


def test_a_stuck_consumer_is_seen(api, measure_change, consumer):
    """A stream whose client receives events but commits none ends with a commit timeout."""
    name = create_event_type(api)["name"]
    publish(api, name, 1)
    stream = consumer(create_subscription(api, name, read_from="begin"), batch_limit=1, commit_timeout=1)
    assert stream.debug_at_the_end()

    until(lambda: measure_change("nakadi_streams_ended_total", api="subscription", reason="commit_timeout") == 1)


def test_partitions_that_change_hands_are_counted(api, measure_change, consumer):
    """When a second stream gets half of the partitions from the first, the partitions that are handed over
    are counted.
    """
    statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 2, "write_parallelism": 2}
    subscription = create_subscription(api, create_event_type(api, default_statistic=statistic)["name"])
    first = consumer(subscription, batch_flush_timeout=1)
    assert first.keep_alive()
    second = consumer(subscription, batch_flush_timeout=1)
    assert second.keep_alive()

    assert measure_change("nakadi_partitions_handed_over_total") == 1
    until(lambda: sample_value(scrape(api), "nakadi_partitions_held") == 2)


def test_a_removed_stream_loses_its_partitions(api, measure_change, consumer):
    """If a stream is removed, for example because its subscription is deleted, its partitions count as lost."""
    subscription = create_subscription(api, create_event_type(api)["name"])
    stream = consumer(subscription, batch_flush_timeout=1)
    assert stream.keep_alive()
    assert api.delete(f"/subscriptions/{subscription['id']}").status_code == 204
    stream.rest()

    until(lambda: measure_change("nakadi_partitions_lost_total") == 1)
    assert measure_change("nakadi_streams_ended_total", api="subscription", reason="removed") == 1


# Failures of consumers


def test_parked_events_are_counted(api, measure_change, running_broker, consumer, caplog):
    """The metrics count the event at which consumers failed, and the later events of its key. The log has a
    line for each.
    """
    caplog.set_level(logging.INFO)
    name = create_event_type(api, a_keyed_definition())["name"]
    subscription = create_subscription(api, name, read_from="begin", annotations=PARKING)
    publish_events(api, name, "a1", "a2", "b1")
    give_up_on_the_next(running_broker.services, api, subscription)
    assert [each["event"] for each in consumer(subscription).consumed(1)] == ["b1"]
    until(lambda: len(parked_ids(api, subscription)) == 2)

    assert measure_change("nakadi_events_parked_total", cause="failed") == 1
    assert measure_change("nakadi_events_parked_total", cause="followed") == 1
    place = f"of partition 0 of {name} for subscription {subscription['id']}"
    parked = "Parked the event at offset 001-0001-00000000000000000"
    lines = [
        f"{parked}0 {place}: 2 streams failed at it",
        f"{parked}1 {place}: following a parked event of the same key",
    ]
    until(lambda: [each for each in caplog.messages if each.startswith("Parked ") and place in each] == lines)


@pytest.mark.parametrize(
    ("policy", "metric", "labels"),
    [
        ("DEAD_LETTER_QUEUE", "nakadi_dead_letters_total", {"outcome": "stored"}),
        ("SKIP_EVENT", "nakadi_events_skipped_total", {}),
    ],
)
def test_events_that_are_given_up_are_counted(api, measure_change, running_broker, consumer, policy, metric, labels):
    """An event that goes to the dead letters, or is skipped, counts."""
    name = create_event_type(api)["name"]
    subscription = create_subscription(api, name, read_from="begin", annotations={COUNT: "2", POLICY: policy})
    publish(api, name, 2)
    give_up_on_the_next(running_broker.services, api, subscription)
    assert [each["n"] for each in consumer(subscription, batch_flush_timeout=1).consumed(1)] == [1]

    assert measure_change(metric, **labels) == 1


# The broker's own work


def test_the_archive_is_counted(api, measure_change, running_broker):
    """Archived segments, events and bytes are counted; reads from the archive use the cache first."""
    name = create_event_type(api)["name"]
    for _ in range(5):
        publish(api, name)
    until(lambda: measure_change("nakadi_archive_events_written_total") >= 5)
    until(lambda: sample_value(scrape(api), "nakadi_archive_partitions_waiting") == 0)
    running_broker.log.archive()

    assert measure_change("nakadi_archive_segments_written_total") >= 1
    assert measure_change("nakadi_archive_bytes_written_total") > 0
    assert sample_value(scrape(api), "nakadi_archive_lag_seconds") == 0
    begin = {"X-nakadi-cursors": '[{"partition": "0", "offset": "BEGIN"}]'}

    def asks_the_cache():
        with OpenStream(
            running_broker.url, f"/event-types/{name}/events?batch_limit=5&stream_limit=5", begin
        ) as stream:
            stream.rest()
        return measure_change("nakadi_cache_misses_total", cache="archive") + measure_change(
            "nakadi_cache_hits_total", cache="archive"
        )

    # The archiver may have been working, and then removes archived events a moment later.
    until(asks_the_cache)


def test_an_objective_is_reported_while_streams_are_open(api):
    """The metrics have the share of events that should be consumed in time, for rules about burn rates. (O8)"""
    name = create_event_type(api)["name"]
    subscription = create_subscription(api, name, objective={"percent": 99, "within_seconds": 30})
    mine = {"subscription": subscription["id"]}
    with Consumer(api, subscription):
        until(lambda: sample_value(scrape(api), "nakadi_subscription_objective_ratio", **mine) == 0.99)


def test_housekeeping_is_counted(api, measure_change, running_broker):
    """The metrics have the number, the duration and the last end of housekeeping's rounds, and the stalled
    subscriptions that the last round found.
    """
    running_broker.services.housekeeping.run()

    assert measure_change("nakadi_housekeeping_duration_seconds_count") >= 1
    assert measure_change("nakadi_housekeeping_last_round_timestamp_seconds") > 0
    assert ("nakadi_stalled_subscriptions", frozenset()) in scrape(api)


def test_rehearsals_are_counted(api, measure_change):
    """The events of a rehearsal are counted by verdict, and the rehearsal by its outcome."""
    name = create_event_type(api, a_definition(compatibility_mode="none"))["name"]
    publish(api, name, 3)
    schema = {"type": "json_schema", "schema": json.dumps({"properties": {"n": {"maximum": 0}}})}
    found = api.post(f"/event-types/{name}/schemas/rehearsals", json={"schema": schema, "events": 10}).json()
    until(lambda: api.get(f"/event-types/{name}/schemas/rehearsals/{found['id']}").json()["state"] == "finished")

    assert measure_change("nakadi_rehearsed_events_total", verdict="accepted") == 1
    assert measure_change("nakadi_rehearsed_events_total", verdict="refused") == 2
    until(lambda: measure_change("nakadi_rehearsals_ended_total", state="finished") == 1)
    until(lambda: sample_value(scrape(api), "nakadi_rehearsals_running") == 0)


def test_json_reports_the_same(api):
    """Metrics for Prometheus are in the JSON too, under a name made of the metric's name and its labels. (R245)"""
    name = create_event_type(api)["name"]
    publish(api, name, 2)
    told = api.get("/metrics").json()

    assert told["counters"][f"nakadi.events_published.{name}"]["count"] == 2
    assert told["counters"]["nakadi.http.publish_events.200"]["count"] >= 1
    assert told["timers"]["nakadi.http.publish_events"]["p99"] >= 0
    assert told["gauges"]["nakadi.http_request_memory_bytes"]["value"] >= 0
    assert told["gauges"]["nakadi.uptime"]["value"] > 0
    assert told["histograms"]["nakadi.sqlite_commit_appends"]["max"] >= 1


# Clients


def test_requests_are_timed_by_client_and_path(api):
    """Each requested path has a timer; a path that does not exist has none. (R246)"""
    api.get("/event-types")
    api.get("/nothing-here")

    answer = api.get("/request-metrics", params={"pretty": "true"})

    assert answer.headers["cache-control"] == "must-revalidate,no-cache,no-store"
    assert "\n  " in answer.text
    assert answer.json()["timers"]["unauthenticated.GET./event-types"]["count"] >= 1
    assert not any("nothing-here" in name for name in answer.json()["timers"])
    assert set(answer.json()) == {"version", "gauges", "counters", "histograms", "meters", "timers"}


def test_streams_are_metered_by_client(api):
    """The bytes of streams count for the client and the event type, or the subscription. (R246)"""
    name = create_event_type(api, a_definition(name=f"metered.{uuid4().hex}"))["name"]
    subscription = create_subscription(api, name, read_from="begin")["id"]
    publish(api, name, 1)
    begin = {"X-Nakadi-Cursors": json.dumps([{"partition": "0", "offset": "BEGIN"}])}
    low = api.get(f"/event-types/{name}/events?stream_limit=1", headers=begin)
    high = api.get(f"/subscriptions/{subscription}/events?stream_limit=1&commit_timeout=1")

    meters = api.get("/stream-metrics").json()["meters"]

    low_name = f"lola.unauthenticated.{name.replace('.', '#')}.bytes-flushed"
    assert 0 < meters[low_name]["count"] <= len(low.content)
    assert 0 < meters[f"hila.unauthenticated.{subscription}.bytes-flushed"]["count"] <= len(high.content)


# Event types that come and go


def test_deleted_event_types_are_not_reported():
    """No metric keeps the names of deleted event types, and event types that are created later are reported by name."""
    with ServedBroker(max_metric_names=3) as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        names = [f"gone.number-{number}" for number in range(5)]
        for name in names:
            create_event_type(api, a_definition(name=name, schema={"required": ["n"]}))
            publish(api, name, 1)
            assert api.post(f"/event-types/{name}/events", json=[{}]).status_code == 422
            begin = {"X-Nakadi-Cursors": json.dumps([{"partition": "0", "offset": "BEGIN"}])}
            with OpenStream(broker.url, f"/event-types/{name}/events?stream_limit=1", begin) as stream:
                stream.rest()
        assert names[0] in api.get("/metrics", headers={"accept": TEXT}).text
        for name in names:
            assert api.delete(f"/event-types/{name}").status_code == 200
        until(lambda: "gone.number" not in api.get("/metrics", headers={"accept": TEXT}).text)

        name = create_event_type(api, a_definition())["name"]
        publish(api, name, 1)
        assert sample_value(scrape(api), "nakadi_events_published_total", event_type=name) == 1
