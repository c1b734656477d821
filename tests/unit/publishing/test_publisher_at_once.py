"""Checking and enriching a batch as a whole has the same result as for each event."""

import json

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from nakadi.common.work import NeedsThread, run_without_blocking
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.event_type import Category, PartitionStrategy
from nakadi.model.events import RecordLines
from nakadi.model.outcomes import Malformed, NotFound
from nakadi.publishing.batch import BatchStatus
from nakadi.publishing.enrichment import as_signed_32_bit, java_string_hash
from nakadi.schemas.validation import Validator
from tests.support.builders import an_event_type
from tests.support.everything import choose_by_suite
from tests.support.publishing import EID, PublisherInMemory, a_business_type, metadata

SCHEMA = {
    "type": "object",
    "required": ["n"],
    "properties": {
        "n": {"type": "integer", "minimum": 0},
        "note": {"type": ["string", "null"]},
        "who": {"type": ["object", "null"], "properties": {"id": {"type": ["string", "null"]}}},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
    },
}


def by_hash(name, *fields, **changes):
    changes |= {"partition_strategy": PartitionStrategy.HASH, "partition_key_fields": fields, "partitions": 8}
    return a_business_type(name=name, schema=SCHEMA, **changes)


def event_types():
    yield a_business_type(name="one", schema=SCHEMA)
    yield a_business_type(name="three", schema=SCHEMA, partitions=3)
    yield a_business_type(name="data", schema=SCHEMA, category=Category.DATA, partitions=2)
    yield by_hash("hash", "note")
    yield by_hash("hashes", "who.id", "n")
    yield by_hash("further", "more")
    yield by_hash("data hash", "who.id", category=Category.DATA)
    yield a_business_type(name="plain", schema=SCHEMA, enrichment_strategies=())
    yield an_event_type(name="undefined", schema=a_business_type(schema=SCHEMA).schema)


def make_houses():
    """Two publishers with the same event types."""
    pair = PublisherInMemory(), PublisherInMemory()
    for house in pair:
        for event_type in event_types():
            house.add(event_type)
    return pair


NAMES = ["more", "x", "metadata", 'y"metadata', "n:", "é"]
# Members that the schema does not name.
VALUES = some.recursive(
    some.sampled_from([None, True, 0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0.5, 1e30, "", ':"metadata":{']),
    lambda inner: some.lists(inner, max_size=2) | some.dictionaries(some.sampled_from(NAMES), inner, max_size=2),
    max_leaves=8,
)
LINES = some.fixed_dictionaries({}, optional={"sku": some.text(max_size=2), "x": VALUES, "metadata": VALUES})
EVENTS = some.fixed_dictionaries(
    {"n": some.integers(-1, 2**63) | some.sampled_from([1, 2, 1.0])},
    optional={
        "note": some.none() | some.text(max_size=4) | some.just('"metadata":{'),
        "lines": some.lists(LINES, max_size=2),
        "who": some.none() | some.fixed_dictionaries({}, optional={"id": some.none() | some.text(max_size=3)}),
        **dict.fromkeys(set(NAMES) - {"metadata"}, VALUES),
    },
)
METADATA = some.fixed_dictionaries(
    {"eid": some.just(EID), "occurred_at": some.sampled_from(["2026-11-21T12:00:00Z", "2024-02-29T12:00:00Z"])},
    optional={
        "event_type": some.sampled_from(["one", "three", "data", "plain"]),
        "flow_id": some.sampled_from(["", "mine", "yours"]),
        "span_ctx": some.dictionaries(some.sampled_from(["a", "metadata"]), some.text(max_size=2), max_size=2),
        "partition": some.just("7"),
        "parent_eids": some.just([EID]),
    },
)
SPELLINGS = [
    orjson.dumps,
    lambda events: json.dumps(events).encode(),
    lambda events: orjson.dumps(events, option=orjson.OPT_INDENT_2),
    lambda events: orjson.dumps(events).replace(b'"metadata"', b'"\\u006detadata"', 1),
    lambda events: orjson.dumps(events).replace(b'"n":1', b'"n":1,"n":1', 1),
    lambda events: orjson.dumps(events).replace(b"}", b",}", 1),
    lambda events: orjson.dumps(events).replace(b'"x":', b'"x":0,"x":', 1),
    lambda events: orjson.dumps(events).replace(b'"x":', b'"\\u0078":', 1),
    lambda events: orjson.dumps(events).replace(b'"x":', b'"x":0,"\\u0078":', 1),
    lambda events: orjson.dumps(events).replace(b'"x":0', b'"x":-9223372036854775809', 1),
    lambda events: orjson.dumps(events).replace(b'"x":0', b'"x":1e400', 1),
    lambda events: orjson.dumps(events).replace(b'"x":1', b'"x":%b' % (b"[" * 210 + b"]" * 210), 1),
]


@pytest.fixture(scope="module")
def pair():
    return make_houses()


def check_each_event_alone(patch):
    patch.setattr(Validator, "quick_check", lambda *_: lambda _: False)


@settings(max_examples=choose_by_suite(80, 200), deadline=None)
@given(
    name=some.sampled_from([each.name for each in event_types()]),
    events=some.lists(some.tuples(EVENTS, METADATA), max_size=4),
    alike=some.booleans(),
    spelled=some.sampled_from(SPELLINGS),
)
@example(name="plain", events=[({"n": 0}, metadata(event_type="one"))], alike=False, spelled=orjson.dumps)
def test_what_comes_of_a_batch_is_the_same(pair, name, events, alike, spelled):
    """Outcomes, partitions and stored events are the same as if the events were handled one by one."""
    sent = [event | {"metadata": events[0][1] if alike else about} for event, about in events]
    if name == "undefined":
        sent = [event for event, _ in events]
    if name.startswith("data"):
        sent = [{"metadata": event.pop("metadata"), "data_type": "t", "data_op": "C", "data": event} for event in sent]
    body = spelled(sent)
    came = []
    for house, at_once in zip(pair, (True, False), strict=True):
        house.log.appends.clear()
        with pytest.MonkeyPatch.context() as patch:
            if not at_once:
                check_each_event_alone(patch)
            try:
                outcome = house.publisher.publish(name, body, UNAUTHENTICATED, "the-flow")
            except Malformed as refusal:
                outcome = refusal.detail
        stored = [
            {partition: [tuple(each) for each in records] for partition, records in batches.items()}
            for _, batches in house.log.appends
        ]
        came.append((outcome, stored))
    assert came[0] == came[1]


def test_usual_batches_are_taken_at_once():
    """Ordinary batches may have their members in any order, whitespace, and metadata that all events have in common."""
    [house, _] = make_houses()
    house.draws += [0.1, 0.4, 0.9] * 100
    for about in ({}, {"flow_id": "mine"}, {"event_type": "three", "span_ctx": {"a": "b"}}):
        events = [{"n": number, "metadata": metadata(**about)} for number in range(20)]
        for body in (orjson.dumps(events), json.dumps(events[::-1], indent=1).encode()):
            house.log.appends.clear()
            assert house.publish(a_business_type(name="three"), body).status is BatchStatus.STORED
            [(_, batches)] = house.log.appends
            assert {type(records) for records in batches.values()} == {RecordLines}
            assert sum(map(len, batches.values())) == 20
            for partition, records in batches.items():
                for record in records:
                    stored = orjson.loads(record.value)["metadata"]
                    assert stored["partition"] == str(partition)
                    assert stored["event_type"] == "three"
                    assert stored["flow_id"] == about.get("flow_id", "the-flow")


def test_events_are_spread_by_hash_at_once():
    """The hash of the keys, which may be strings and numbers, decides each event's partition, and the keys are stored
    with the event."""
    [house, _] = make_houses()
    events = [{"n": number, "who": {"id": f"é{number}"}, "metadata": metadata()} for number in range(20)]
    assert house.publish(house.event_types.get("hashes"), events).status is BatchStatus.STORED
    [(_, batches)] = house.log.appends
    assert {type(records) for records in batches.values()} == {RecordLines}
    for partition, records in batches.items():
        for record in records:
            number = orjson.loads(record.value)["n"]
            assert record.key == f"é{number},{number}"
            hashed = as_signed_32_bit(java_string_hash(f"é{number}") + java_string_hash(str(number)))
            assert partition == abs(hashed) % 8
    assert sum(map(len, batches.values())) == 20
    house.log.appends.clear()
    del events[3]["who"]
    assert house.publish(house.event_types.get("hashes"), events).status is BatchStatus.REJECTED


def test_long_keys_are_hashed_in_a_turn():
    """Hashing takes a step per character, and this much work waits for its turn outside the event loop."""
    [house, _] = make_houses()
    events = [{"n": 1, "note": "x" * 100_000, "metadata": metadata()} for _ in range(3)]
    with pytest.raises(NeedsThread):
        run_without_blocking(lambda: house.publish(house.event_types.get("hash"), events))
    assert house.publish(house.event_types.get("hash"), events).status is BatchStatus.STORED
    [(_, batches)] = house.log.appends
    [records] = batches.values()
    assert [each.key for each in records] == ["x" * 100_000] * 3


def test_members_that_the_schema_does_not_name_are_stored():
    """Members that the schema does not name are stored unchanged."""
    [house, _] = make_houses()
    more = b'"x":[1.50,{"y":"\\u00e9"}],"z":1E2'
    body = b'[{"n":1,%b,"metadata":%b}]' % (more, orjson.dumps(metadata()))
    assert house.publish(a_business_type(name="one"), body).status is BatchStatus.STORED
    [(_, batches)] = house.log.appends
    [records] = batches.values()
    assert more in records[0].value


def test_partitions_of_a_batch_that_is_taken_at_once_are_refused_one_by_one():
    """If partitions of a batch are refused, the result for each event is the same as for any other batch."""
    [house, _] = make_houses()
    house.draws += [0.1, 0.4, 0.9] * 10
    house.log.refusing[1] = "full"
    events = [{"n": number, "metadata": metadata()} for number in range(20)]
    outcome = house.publish(a_business_type(name="three"), events)
    assert outcome.status is BatchStatus.NOT_ALL_STORED
    assert {item.partition: item.publishing_status.value for item in outcome.items} == {
        "0": "submitted",
        "1": "failed",
        "2": "submitted",
    }
    assert {item.eid for item in outcome.items} == {EID}


def test_a_body_that_cannot_be_read_is_told_first():
    """A malformed body is refused as malformed, whether or not the event type exists or may be written. (P19)"""
    house = PublisherInMemory()
    with pytest.raises(NotFound):
        house.publisher.publish("unknown", b"[{}]", UNAUTHENTICATED, "f")
    with pytest.raises(Malformed):
        house.publisher.publish("unknown", b"[{]", UNAUTHENTICATED, "f")


def test_a_batch_may_be_longer_than_its_longest_event():
    """The size limit holds for each event: a longer body of smaller events is accepted, and one with an event beyond
    the limit is refused.
    """
    [house, _] = make_houses()
    limit = house.publisher.limits.max_event_bytes
    small, large = ({"n": 0, "note": "x" * size, "metadata": metadata()} for size in (limit // 5, limit))
    assert house.publish(house.event_types.get("one"), [small] * 5).status is BatchStatus.STORED
    [(_, batches)] = house.log.appends
    assert {type(records) for records in batches.values()} == {RecordLines}
    refused = house.publish(house.event_types.get("one"), [large])
    assert refused.status is BatchStatus.REJECTED
    assert "Event too large" in refused.items[0].detail
    assert len(house.log.appends) == 1


@pytest.mark.parametrize("sent", [{"event_type": "three"}, {"flow_id": "mine"}, {"flow_id": ""}])
def test_what_only_some_events_have_sent_is_there_once(sent):
    """An event has each member that the broker adds exactly once, whether or not the client sent it."""
    [house, _] = make_houses()
    house.draws += [0.1] * 10
    events = [{"n": number, "metadata": metadata(**about)} for number, about in enumerate((sent, {}, sent))]
    assert house.publish(a_business_type(name="three"), events).status is BatchStatus.STORED
    [(_, batches)] = house.log.appends
    [records] = batches.values()
    for record in records:
        assert record.value.count(b'"event_type":') == record.value.count(b'"flow_id":') == 1
        assert orjson.loads(record.value)["metadata"]["flow_id"]
