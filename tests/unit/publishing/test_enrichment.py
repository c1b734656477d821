import json
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from nakadi.model.event_type import Category, EnrichmentStrategy, Version
from nakadi.publishing.batch import BatchRejected, PublishingStep
from nakadi.publishing.enrichment import BatchOrigin, timestamp_text
from nakadi.publishing.records import RecordMaker, Stamps
from nakadi.publishing.validation import read_batch
from tests.support.builders import an_event_type
from tests.support.publishing import metadata

ORIGIN = BatchOrigin(
    published_by="ann",
    flow_id="the-flow",
    received_at=datetime(2026, 11, 21, 12, 0, 0, 42_999, tzinfo=UTC),
    schema_version=Version(1, 2, 3),
)


def enrich(*events, partitions=None, strategies=(EnrichmentStrategy.METADATA,), origin=ORIGIN, **fields):
    event_type = an_event_type(name="order.created", partitions=12, enrichment_strategies=strategies, **fields)
    batch = read_batch(json.dumps(events).encode())
    partitions = partitions or [0] * len(events)
    stamps = Stamps(event_type, origin) if strategies else None
    records = RecordMaker(partitions=partitions, stamps=stamps).make_records(batch)
    return [json.loads(each.value) for partition in dict.fromkeys(partitions) for each in records[partition]]


def test_what_is_added():
    """The publisher, the time, the event type, the flow id, the partition and the schema version are added; the rest
    stays as sent. (P100, P101)"""
    sent = metadata(parent_eids=["x"], span_ctx={"a": "b"}, partition_compaction_key="k", occurred_at="2026-01-01t0Z")
    [event] = enrich({"a": 1, "metadata": sent}, partitions=[11])
    assert event == {
        "a": 1,
        "metadata": sent
        | {
            "published_by": "ann",
            "received_at": "2026-11-21T12:00:00.042Z",
            "event_type": "order.created",
            "flow_id": "the-flow",
            "partition": "11",
            "version": "1.2.3",
        },
    }
    assert list(event) == ["a", "metadata"]


@pytest.mark.parametrize(("sent", "stored"), [({"flow_id": "mine"}, "mine"), ({"flow_id": ""}, "the-flow")])
def test_a_flow_id_of_one_s_own(sent, stored):
    """A flow id in the metadata is kept unless it is empty. (P100)"""
    [event] = enrich({"metadata": metadata(**sent)})
    assert event["metadata"]["flow_id"] == stored


def test_a_partition_that_was_sent_is_overwritten():
    """The chosen partition replaces the one that the client sent, which is never a reason to refuse the event. (P100,
    P102)"""
    [event] = enrich({"metadata": metadata(partition="7")}, partitions=[3])
    assert event["metadata"]["partition"] == "3"


@pytest.mark.parametrize("category", [Category.BUSINESS, Category.UNDEFINED])
def test_the_trace_of_the_request_is_that_of_events_without_one(category):
    """An event with a trace of its own keeps it, whatever the other events of the batch have. (E10)"""
    trace = {"traceparent": "t", "tracestate": "s"}
    own = [{}, {"span_ctx": {}}, {"span_ctx": {"traceparent": "own"}}, {"flow_id": "mine"}, {"partition": "7"}]
    sent = [{"metadata": metadata(**each), "span_ctx": {"a": "b"}} for each in own]

    events = enrich(*sent, origin=replace(ORIGIN, trace_context=trace), category=category)
    assert [each["metadata"]["span_ctx"] for each in events] == [trace, {}, {"traceparent": "own"}, trace, trace]
    assert all(each["span_ctx"] == {"a": "b"} for each in events)
    assert not any("span_ctx" in each["metadata"] for each in enrich({"metadata": metadata()}, category=category))


def test_only_where_it_is_asked_for():
    """Events of an event type without the enrichment strategy stay unchanged. (P99)"""
    event = {"metadata": {"x": 1}}
    assert enrich(event, {}, strategies=()) == [event, {}]


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05.000Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=UTC), "2026-01-02T03:04:05.999Z"),
    ],
)
def test_times_have_three_digits(moment, text):
    """The time of receipt always has exactly three decimal places. (P100)"""
    assert timestamp_text(moment) == text


def test_what_cannot_be_enriched():
    """An event without metadata fails at the enrichment step, and the whole batch with it. (P103)"""
    with pytest.raises(BatchRejected) as caught:
        enrich({"metadata": metadata()}, {"metadata": 1}, partitions=[4, 5])
    assert (caught.value.step, caught.value.index, caught.value.detail) == (
        PublishingStep.ENRICHING,
        1,
        "enrichment error",
    )
    assert (caught.value.prior_step, caught.value.partitions) == (PublishingStep.PARTITIONING, [4, 5])
