"""The bill: quantities times prices, by part."""

from dataclasses import replace

import pytest

from infra.cost.bill import PARTS, Line, bill_lines, by_part, total_dollars
from infra.cost.elsewhere import offers_elsewhere
from infra.cost.flows import Flows
from infra.cost.idle import idle_costs
from infra.cost.load import Assumed, Deployment, Load, Measured
from infra.cost.prices import PRICES, SECONDS, override_prices

MILLION_EVENTS_A_MONTH = 1e6 / SECONDS


def flows(deployment: Deployment | None = None, **load: float) -> Flows:
    return Flows(load=Load(**load), deployment=deployment or Deployment(), measured=Measured(), assumed=Assumed())


def dollars(lines: list[Line], part: str, what: str) -> float:
    [line] = [line for line in lines if (line.part, line.what) == (part, what)]
    return line.dollars


def test_a_million_requests_cost_what_they_cost():
    """The bill matches a calculation by hand."""
    hasty = Deployment(index_seconds=1)
    load = flows(events_per_second=MILLION_EVENTS_A_MONTH, batch=1, event_bytes=1000, consumers=0, deployment=hasty)
    lines = bill_lines(load, PRICES)
    assert dollars(lines, "API Gateway", "publish requests") == pytest.approx(3.5)
    assert dollars(lines, "Lambda", "publish, invocations") == pytest.approx(0.2)
    assert dollars(lines, "Kinesis", "shards") == pytest.approx(10.95)
    assert dollars(lines, "Kinesis", "put units") == pytest.approx(0.014)
    # For a single event, the index writes its head and segment in a transaction, and the progress; it reads heads,
    # topic and progress.
    assert dollars(lines, "DynamoDB", "log index, written") == pytest.approx(5 * 0.625)
    assert dollars(lines, "DynamoDB", "log index, read") == pytest.approx(3 * 0.125)


def test_publishing_once_costs_two_writes_an_event():
    """A claim and its confirmation each cost a write unit; without deduplication, there is no such line."""
    load = flows(events_per_second=MILLION_EVENTS_A_MONTH, deduplicated=0.5)
    assert dollars(bill_lines(load, PRICES), "DynamoDB", "eids, claimed and confirmed") == pytest.approx(0.625)
    assert not any(line.what.startswith("eids") for line in bill_lines(flows(), PRICES))


def test_nothing_published_costs_what_stands_there():
    """Without events, the bill has no line for them; hourly charges remain."""
    lines = bill_lines(flows(events_per_second=0, consumers=0, event_types=1), PRICES)
    assert {line.part for line in lines} == {
        *("Kinesis", "Fargate", "Load balancer and network", "CloudWatch", "Glue", "Lambda", "DynamoDB"),
        "Keys and images",
    }
    assert by_part(lines)["Lambda"] < 0.1
    assert by_part(lines)["DynamoDB"] < 2


def test_batches_make_events_cheap():
    """A publisher who sends ten events at once pays a fraction of the price for each."""
    alone, ten = (total_dollars(bill_lines(flows(events_per_second=1000, batch=batch), PRICES)) for batch in (1, 10))
    assert ten < alone / 3


def test_the_parts_are_the_bill():
    """Every line belongs to a part, and the parts add up."""
    lines = bill_lines(flows(), PRICES)
    assert list(by_part(lines)) == [part for part in PARTS if part != "MSK"]
    assert sum(by_part(lines).values()) == pytest.approx(total_dollars(lines))


def test_an_on_demand_stream_is_paid_by_what_goes_through():
    """A stream without provisioned shards costs its hours and its incoming and outgoing bytes."""
    lines = bill_lines(flows(Deployment(stream_mode="on-demand")), PRICES)
    assert dollars(lines, "Kinesis", "stream") == pytest.approx(29.2)
    assert {line.what for line in lines if line.part == "Kinesis"} == {*("stream", "in", "out, to those who ask")}


def test_consumers_of_tasks_are_paid_by_the_hour_and_by_what_is_pushed():
    """With fan-out each task has a consumer of each shard, and the stream's bytes once more."""
    load = {"events_per_second": 1000.0, "streams": 5000}
    lines = bill_lines(flows(Deployment(fan_out=True, shards=2), **load), PRICES)
    tasks, shards = flows(**load).tasks, 2
    gigabytes = flows(**load).stored_bytes * SECONDS / (1 << 30)
    assert tasks == 3
    assert dollars(lines, "Kinesis", "consumers of tasks") == pytest.approx(tasks * shards * 10.95)
    assert dollars(lines, "Kinesis", "pushed to tasks") == pytest.approx(tasks * gigabytes * 0.013)
    pushed = bill_lines(flows(Deployment(fan_out=True, stream_mode="on-demand"), **load), PRICES)
    assert dollars(pushed, "Kinesis", "pushed to tasks") == pytest.approx(tasks * gigabytes * 0.05)
    assert dollars(pushed, "Kinesis", "out, to those who ask") == pytest.approx(gigabytes * 0.04)


def test_only_metrics_that_are_reported_are_paid_for():
    """An idle stage reports how late its index is and how many streams are open; an invoked function reports four more
    metrics.
    """
    assert dollars(
        bill_lines(flows(events_per_second=0, consumers=0), PRICES), "CloudWatch", "metrics"
    ) == pytest.approx(0.6)
    few, many = (
        dollars(bill_lines(flows(Deployment(detailed_metrics=detailed)), PRICES), "CloudWatch", "metrics")
        for detailed in (False, True)
    )
    assert few == pytest.approx((2 + 3 * 4 + 3) * 0.3 - 4 * 0.3)
    assert many - few == pytest.approx(3 * 5 * 0.3)


def test_direct_requests_are_paid_by_the_byte():
    """Without the gateway, nobody pays for requests, functions, logs and traces, but for bytes, addresses and tasks."""
    load = {"events_per_second": 1000.0, "batch": 100.0}
    lines = bill_lines(flows(Deployment(direct=True), **load), PRICES)
    usual = bill_lines(flows(**load), PRICES)
    assert by_part(lines)["API Gateway"] == 0
    assert {line.what for line in lines if line.part == "Lambda"} == {
        *("log indexer, invocations", "log indexer, time", "housekeeping, invocations", "housekeeping, time")
    }
    assert dollars(lines, "Load balancer and network", "events out") == pytest.approx(
        dollars(usual, "API Gateway", "events out")
    )
    assert dollars(lines, "Load balancer and network", "load balancer") == pytest.approx(2 * 16.425)
    assert dollars(lines, "Load balancer and network", "addresses of the load balancer") == pytest.approx(7.3)
    assert by_part(lines)["DynamoDB"] == pytest.approx(by_part(usual)["DynamoDB"])


def test_tasks_that_are_asked_directly_work_for_it():
    """If clients call the tasks directly, the tasks also do the work of the functions."""
    busy = {"events_per_second": 20_000.0, "batch": 10.0, "event_bytes": 100.0}
    assert flows(Deployment(direct=True), **busy).tasks > flows(**busy).tasks


def test_a_private_network_and_a_key_are_paid_for():
    """A private network costs endpoints instead of addresses, and a key costs a dollar; a stage that sleeps pays for no
    network.
    """
    private = bill_lines(flows(Deployment(private_network=True, own_keys=1)), PRICES)
    assert dollars(private, "Load balancer and network", "interface endpoints") == pytest.approx(58.4)
    assert "addresses of tasks" not in {line.what for line in private}
    assert dollars(private, "Keys and images", "keys of one's own") == 1.0
    asleep = bill_lines(flows(Deployment(private_network=True, asleep=True), consumers=0), PRICES)
    assert by_part(asleep)["Load balancer and network"] == 0


def test_sinks_are_paid_for():
    """Any number of sinks costs a key and a read per second, and each sink costs its reports; docs/cost.md has the
    figures.
    """
    none, one, hundred = (bill_lines(flows(Deployment(sinks=count)), PRICES) for count in (0, 1, 100))
    assert dollars(one, "DynamoDB", "sinks, looked for") == pytest.approx(0.66, abs=0.01)
    assert dollars(one, "DynamoDB", "sinks, reported") == pytest.approx(0.66, abs=0.01)
    assert dollars(one, "Keys and images", "keys of one's own") == 1.0
    assert total_dollars(one) - total_dollars(none) == pytest.approx(2.31, abs=0.01)
    assert dollars(hundred, "DynamoDB", "sinks, reported") == pytest.approx(65.7, abs=0.1)
    assert dollars(hundred, "DynamoDB", "sinks, looked for") == dollars(one, "DynamoDB", "sinks, looked for")


def test_queries_are_paid_for():
    """A query costs the memory of its function for as long as it runs, and their image has its price even without any;
    docs/cost.md has the figures.
    """
    none, some = (bill_lines(flows(Deployment(queries=count)), PRICES) for count in (0, 1000))
    assert dollars(some, "Lambda", "queries, time") == pytest.approx(4.06, abs=0.01)
    assert dollars(some, "Lambda", "queries, invocations") < 0.01
    assert total_dollars(some) - total_dollars(none) == pytest.approx(4.08, abs=0.02)


def test_versions_and_copies_of_the_archive_are_paid_for():
    """Removed objects cost for as long as they are kept; a copy costs as much as the archive, plus the transfer."""
    load = {"events_per_second": 100.0, "retention_days": 10.0}
    plain, kept = (bill_lines(flows(Deployment(version_days=days), **load), PRICES) for days in (0, 5))
    copied = bill_lines(flows(Deployment(version_days=5, archive_replica=True), **load), PRICES)

    assert dollars(kept, "S3", "archive, old versions") == pytest.approx(dollars(plain, "S3", "archive, kept") / 2)
    assert dollars(copied, "S3", "replica, kept") == pytest.approx(dollars(plain, "S3", "archive, kept"))
    assert dollars(copied, "S3", "replica, written") == pytest.approx(dollars(plain, "S3", "archive, written"))
    moved = dollars(plain, "S3", "archive, kept") / 0.023 * SECONDS / (10 * 86400) * 0.02
    assert dollars(copied, "S3", "replica, moved") == pytest.approx(moved)


def test_recovery_of_tables_is_paid_for():
    """Restoring to any second costs by the size of the tables, for any number of days; without recovery, it costs
    nothing.
    """
    load = {"events_per_second": 100.0, "retention_days": 10.0}
    month, day, none = (bill_lines(flows(Deployment(recovery_days=days), **load), PRICES) for days in (35, 1, 0))

    kept = dollars(month, "DynamoDB", "log index, kept")
    assert dollars(month, "DynamoDB", "log index, recovery") == pytest.approx(kept * 0.20 / 0.25)
    assert total_dollars(day) == total_dollars(month)
    assert total_dollars(month) - total_dollars(none) == pytest.approx(kept * 0.20 / 0.25)


def test_a_stage_that_sleeps_has_no_streams():
    """While a stage sleeps, it pays for no tasks, balancer and their alarms, but still for its events."""
    awake, asleep = (bill_lines(flows(Deployment(asleep=asleep), consumers=0), PRICES) for asleep in (False, True))
    assert by_part(asleep)["Fargate"] == by_part(asleep)["Load balancer and network"] == 0
    assert by_part(asleep)["Kinesis"] == by_part(awake)["Kinesis"]
    assert dollars(awake, "CloudWatch", "alarms") - dollars(asleep, "CloudWatch", "alarms") == pytest.approx(0.7)


STREAMS_READ = ("DynamoDB", "streams, read")


def test_idle_event_types_cost_next_to_nothing():
    """An event type without events costs a few documents and an occasional read; a separate shard is expensive."""
    event_type, streamed, stream, subscribed, shard, on_demand = idle_costs(flows(), PRICES)
    assert event_type.dollars < 0.01
    assert streamed.dollars < 0.01
    assert stream.dollars < subscribed.dollars < 0.05
    assert (shard.dollars, on_demand.dollars) == (pytest.approx(10.95), pytest.approx(29.2))


def test_streaming_many_idle_event_types_costs_what_one_costs():
    """A task reads the changes of all its event types together; five hundred in two tasks cost cents."""
    one, many = (
        dollars(
            bill_lines(flows(Deployment(min_tasks=2), events_per_second=0, event_types=count), PRICES), *STREAMS_READ
        )
        for count in (1, 500)
    )
    assert many - one < 0.2


def test_idle_event_types_are_what_more_of_them_cost():
    """The figure for one event type is the increase of the bill for a thousand more."""
    few, many = (
        [
            line
            for line in bill_lines(flows(events_per_second=0, consumers=0, event_types=count), PRICES)
            if line.what.startswith("housekeeping")
        ]
        for count in (10, 1010)
    )
    documents = 5000 / (1 << 30) * 0.25
    each = idle_costs(flows(), PRICES)[0].dollars
    assert (total_dollars(many) - total_dollars(few)) / 1000 + documents == pytest.approx(each)


def test_others_are_reckoned_for_the_same_load():
    """The bills of other services match a calculation by hand for a million events of 1 KB, each read once."""
    load = Load(events_per_second=MILLION_EVENTS_A_MONTH, event_bytes=1024, batch=10, retention_days=0)
    offers = {offer.name: offer.dollars for offer in offers_elsewhere(load, PRICES)}
    assert offers["EventBridge"] == pytest.approx(1.0)
    assert offers["Pub/Sub"] == pytest.approx(2 * 40 * 1e6 / (1 << 30))
    assert offers["Confluent Basic"] == pytest.approx(2 * 0.05 * 1e6 / (1 << 20))
    assert offers["MSK Serverless"] == pytest.approx(547.5 + 10.95 + 0.15 * 1e6 / (1 << 20))
    assert offers["MSK, 3 m7g.large"] == pytest.approx(446.76)
    large = {offer.name: offer.dollars for offer in offers_elsewhere(replace(load, event_bytes=100_000), PRICES)}
    assert large["EventBridge"] == pytest.approx(2.0)


def test_small_requests_are_counted_as_larger_ones_where_that_is_so():
    """Pub/Sub charges at least a thousand bytes for each request."""
    small, larger = (
        offers_elsewhere(Load(event_bytes=size, batch=1, delivered_batch=1), PRICES)[1].dollars for size in (10, 1000)
    )
    assert small == larger


def test_prices_can_be_others():
    """Other prices give another bill."""
    usual, dear = (
        total_dollars(bill_lines(flows(), prices)) for prices in (PRICES, override_prices(["api-request=1"]))
    )
    assert dear > 1000 * usual
