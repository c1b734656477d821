"""Batches in Avro: their envelopes, the events stored from them, and malicious bytes."""

import json
from base64 import b64encode

import pytest
from msgspec.structs import replace

from nakadi.common.waiting import run_blocking
from nakadi.common.work import LongWorkQueue, client_never_gone
from nakadi.model.authorization import UNAUTHENTICATED, Attribute, Feature
from nakadi.model.event_type import (
    Category,
    CleanupPolicy,
    EnrichmentStrategy,
    OwnerSelector,
    OwnerSelectorType,
    PartitionStrategy,
    SchemaType,
    Version,
)
from nakadi.model.outcomes import Malformed, TooLarge, TryLater
from nakadi.publishing.avro import PayloadForms
from nakadi.publishing.batch import BatchLimits, BatchStatus
from nakadi.publishing.publisher import BatchSender
from nakadi.schemas.avro.envelopes import BATCH_SCHEMAS
from nakadi.schemas.avro.writing import write_long
from tests.support.avro import (
    AN_ORDER,
    EID,
    ORDER,
    PAYLOAD,
    a_batch,
    a_decimal,
    a_field,
    a_record,
    an_envelope,
    encode,
    fingerprint,
)
from tests.support.builders import a_schema, an_event_type
from tests.support.publishing import ANN, the_failure

LONG = "12345678901234567890.1234567890"
HEAD = b"\xc3\x01" + fingerprint(BATCH_SCHEMAS["batch.publishing"]["1"])


def avro_type(schema=ORDER, **changes):
    return an_event_type(
        category=Category.BUSINESS,
        enrichment_strategies=(EnrichmentStrategy.METADATA,),
        schema=a_schema(json.dumps(schema), type=SchemaType.AVRO, version=Version.parse("1.0.0")),
        **changes,
    )


def publish(house, event_type, *envelopes, body=None, subject=UNAUTHENTICATED):
    sender = BatchSender(subject=subject, flow_id="flow")
    return run_blocking(house.publisher.avro_task(event_type.name, body or a_batch(*envelopes), sender))


@pytest.fixture
def an_order_type(house):
    return house.add(avro_type())


def envelopes_of(event_type, *payloads):
    """The envelopes as they are in the array of a batch, without the bytes before and after the array."""
    whole = a_batch(*[an_envelope(event_type.name, each) for each in payloads])
    return whole[len(HEAD) + 1 : -1]


def number(value):
    out = bytearray()
    write_long(value, out)
    return bytes(out)


def test_events_come_in_blocks(house, an_order_type):
    """A block may state its length, and there may be several blocks. (P145)"""
    one, two = envelopes_of(an_order_type, PAYLOAD), envelopes_of(an_order_type, PAYLOAD, PAYLOAD)

    body = HEAD + number(-1) + number(len(one)) + one + number(2) + two + number(0)

    assert publish(house, an_order_type, body=body).status is BatchStatus.STORED
    assert [each["id"] for each in house.stored(an_order_type)] == [AN_ORDER["id"]] * 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda one: number(-1) + number(len(one) + 1) + one + number(0), "A block does not have the length"),
        (lambda one: number(-1) + number(-len(one)) + one + number(0), "A block does not have the length"),
        (lambda one: number(-1) + number(1 << 62) + one + number(0), "A block does not have the length"),
        (lambda one: number(2) + one + number(0), "ends within a number"),
        (lambda one: number(2) + one, "ends within a number"),
        (lambda one: number(1) + one, "ends within a number"),
        (lambda one: number(1) + one + b"\x80" * 10 + b"\x01", "more than 10 bytes"),
        (lambda one: number(1) + one[: -len(PAYLOAD) - 1] + number(-5), "A length is -5"),
        (lambda one: number(1) + one[: -len(PAYLOAD) - 1] + number(1 << 62), "A length is 46116860"),
        (lambda one: number(1) + b"\xff" * len(one), "more than 10 bytes"),
        (lambda _: number(1) + number(0) + number(1 << 40), "A length is"),
        (lambda one: number(1) + one + number(0) + b"\0", "1 bytes follow"),
    ],
)
def test_bytes_that_lie_are_no_batch(house, an_order_type, body, reason):
    """Lengths and counts are checked before they are used; if one of them is wrong, nothing is stored. (P151)"""
    with pytest.raises(Malformed) as refused:
        publish(house, an_order_type, body=HEAD + body(envelopes_of(an_order_type, PAYLOAD)))
    assert reason in str(refused.value)
    assert house.records(an_order_type) == []


@pytest.mark.parametrize("name", ["occurred_at", "received_at"])
@pytest.mark.parametrize("moment", [1 << 60, -(1 << 62), 253402300800000])
def test_a_moment_is_in_a_year(house, an_order_type, name, moment):
    """(P151)"""
    with pytest.raises(Malformed, match=f"`{name}` is in no year from 1 to 9999"):
        publish(house, an_order_type, an_envelope(an_order_type.name, PAYLOAD, **{name: moment}))


@pytest.mark.parametrize("count", [10_001, -10_001, 1 << 62, -(1 << 63)])
def test_a_count_is_checked_before_the_first_event(house, an_order_type, count):
    """The count is checked first, however it is encoded. (P151)"""
    length = number(1) if count < 0 else b""
    with pytest.raises(TooLarge):
        publish(house, an_order_type, body=HEAD + number(count) + length)


def test_the_counts_of_blocks_add_up(house, an_order_type):
    """Many small blocks form one batch. (P151)"""
    body = HEAD + (number(1) + envelopes_of(an_order_type, PAYLOAD)) * 10_001 + number(0)
    with pytest.raises(TooLarge):
        publish(house, an_order_type, body=body)


@pytest.mark.parametrize("name", ["partition_keys", "parent_eids", "flow_id"])
def test_metadata_is_bounded(house, an_order_type, name):
    """The metadata of an event is limited, so that a few bytes of a batch cannot become megabytes of metadata.
    (P151)
    """
    value = "x" * 70_000 if name == "flow_id" else [""] * 70_000
    with pytest.raises(Malformed, match="more than 65536 bytes"):
        publish(house, an_order_type, an_envelope(an_order_type.name, PAYLOAD, **{name: value}))


def test_each_event_has_its_own_room_for_metadata(house, an_order_type):
    """The metadata of each event may be as long as the limit allows. (P151)"""
    envelopes = [an_envelope(an_order_type.name, PAYLOAD, flow_id="x" * 40_000)] * 3
    assert publish(house, an_order_type, *envelopes).status is BatchStatus.STORED


def test_a_payload_is_refused_before_it_fills_the_memory(house):
    """A list with 2**40 entries that take no bytes, a branch that its union does not have, and a record that is nested
    too deeply are refused. (P171)
    """
    branches = [a_record(name=f"R{number}") for number in range(500)]
    schema = a_record(
        a_field("m", {"type": "array", "items": "null"}),
        a_field("u", branches),
        a_field("next", ["null", "Order"]),
    )
    event_type = house.add(avro_type(schema))
    level = number(0) + number(499) + number(1)
    for payload, reason in [
        (number(1 << 40), "Event too large: it has more than 999000 bytes as JSON"),
        (number(-(1 << 40)) + number(0), "Event too large: it has more than 999000 bytes as JSON"),
        (number(0) + number(500), "The payload cannot be read. A union has no branch 500"),
        (number(0) + number(-1), "The payload cannot be read. A union has no branch -1"),
        (level * 100_000, "The payload cannot be read. It is nested deeper than 200 levels"),
    ]:
        outcome = publish(house, event_type, an_envelope(event_type.name, payload))
        assert the_failure(outcome) == ("publishing", reason)
    payload = level * 3 + number(0) + number(0) + number(0)
    assert publish(house, event_type, an_envelope(event_type.name, payload)).status is BatchStatus.STORED
    [stored] = house.stored(event_type)
    assert stored["next"]["next"]["next"] == {"m": [], "u": {}, "next": None}


def test_an_event_may_be_as_large_as_in_json(house):
    """If the initial allowance is exceeded, the event waits for its turn at long work. (P171)"""
    event_type = house.add(avro_type(a_record(a_field("a"))))
    for size, status in [(900_000, BatchStatus.STORED), (998_990, BatchStatus.NOT_ALL_STORED)]:
        payload = encode(a_record(a_field("a")), {"a": "x" * size})
        outcome = publish(house, event_type, an_envelope(event_type.name, payload))
        assert outcome.status is status


def test_the_limit_of_an_event_counts_below_the_free_room(house):
    """(P171)"""
    house.publisher = replace(house.publisher, limits=BatchLimits(max_event_bytes=1000))
    event_type = house.add(avro_type())
    payload = encode(ORDER, {"id": "x" * 2000, "lines": []})

    outcome = publish(house, event_type, an_envelope(event_type.name, payload))

    assert the_failure(outcome)[1] == "Event too large: it has more than 1000 bytes as JSON"


@pytest.mark.parametrize(
    ("selector", "changes", "owner"),
    [
        (OwnerSelector(type=OwnerSelectorType.STATIC, name="user", value="ann"), {}, "ann"),
        (OwnerSelector(type=OwnerSelectorType.METADATA, name="user"), {"event_owner": "ann"}, "ann"),
        (OwnerSelector(type=OwnerSelectorType.METADATA, name="user"), {}, None),
        (OwnerSelector(type=OwnerSelectorType.PATH, name="user", value="id"), {}, "ann"),
        (OwnerSelector(type=OwnerSelectorType.PATH, name="user", value="metadata.event_type"), {}, "NAME"),
        (OwnerSelector(type=OwnerSelectorType.PATH, name="user", value="id.more"), {}, None),
        (OwnerSelector(type=OwnerSelectorType.PATH, name="user", value="price"), {}, "-1.5"),
    ],
)
def test_events_have_owners(house, selector, changes, owner):
    """Each selector finds the same owner as in the event as JSON; the selector `metadata` exists for Avro only. (P129,
    P130, P131)
    """
    house.features.switch(Feature.EVENT_OWNER_SELECTOR_AUTHZ, on=True)
    schema = a_record(a_field("id"), a_field("price", a_decimal(9, 2)))
    event_type = house.add(avro_type(schema, event_owner_selector=selector))
    payload = encode(a_record(a_field("id"), a_field("price", "bytes")), {"id": "ann", "price": b"\xff\x6a"})

    # Who may publish events without such an owner is tested elsewhere.
    outcome = publish(house, event_type, an_envelope(event_type.name, payload, **changes), subject=ANN)

    if owner in ("NAME", "-1.5"):
        assert outcome.status is not BatchStatus.STORED
        assert outcome.items[0].detail
    else:
        assert outcome.status is BatchStatus.STORED
        [record] = house.records(event_type)
        assert record.owner == (None if owner is None else Attribute("user", owner))


def test_a_decimal_is_a_number_with_all_its_digits(house):
    """A decimal becomes a number with all its digits; if JSON readers could lose some of them, the payload is
    stored, too. (P152, P172)
    """
    short, long = a_decimal(9, 2), a_decimal(30, 10)
    for price, raw, text, kept in [
        (short, b"\x04\xd2", "12.34", False),
        (short, b"\xff\xff", "-0.01", False),
        (short, b"\x00\x64", "1.00", False),
        (long, bytes.fromhex("018ee90ff6c373e0ee4e3f0ad2"), LONG, True),
    ]:
        event_type = house.add(avro_type(a_record(a_field("price", price))))
        payload = number(len(raw)) + raw
        assert publish(house, event_type, an_envelope(event_type.name, payload)).status is BatchStatus.STORED
        [stored] = house.texts(event_type)
        assert stored.startswith(f'{{"price":{text},"metadata"')
        assert ("avro_payload" in stored) is kept


@pytest.mark.parametrize(
    ("name", "keys", "failed"),
    [
        (None, None, "partition keys not set"),
        (None, [], "partition keys not set"),
        ("other", ["a"], "event type does not match"),
    ],
)
def test_the_first_bad_event_is_named(house, name, keys, failed):
    """Events before the invalid one have partitions, and events after it have none. (P147, P148, P149)"""
    event_type = house.add(avro_type(partition_strategy=PartitionStrategy.HASH, partitions=4))
    good = an_envelope(event_type.name, PAYLOAD, partition_keys=["a"])

    bad = an_envelope(name or event_type.name, PAYLOAD, partition_keys=keys)
    outcome = publish(house, event_type, good, bad, good)

    assert [each.publishing_status.value for each in outcome.items] == ["aborted", "failed", "aborted"]
    assert failed in outcome.items[1].detail
    assert house.records(event_type) == []


def test_records_have_keys(house):
    """The record keys are the compaction keys, or the keys that chose the partition. (P147, P149)"""
    compacted = house.add(avro_type(cleanup_policy=CleanupPolicy.COMPACT))
    hashed = house.add(avro_type(partition_strategy=PartitionStrategy.HASH))
    plain = house.add(avro_type())
    keys = {"partition_keys": ["a", "b"], "partition_compaction_key": "k"}
    for event_type, key in [(compacted, "k"), (hashed, "a,b"), (plain, None)]:
        assert publish(house, event_type, an_envelope(event_type.name, PAYLOAD, **keys)).status is BatchStatus.STORED
        assert [each.key for each in house.records(event_type)] == [key]


def test_metadata_is_that_of_the_broker(house, an_order_type):
    """The metadata says who published the event, when the broker received it and where it is stored, whatever the
    publisher wrote. (P147, P152)"""
    sent = {"published_by": "mallory", "received_at": 1, "partition": "9", "flow_id": "own", "parent_eids": [EID]}
    publish(house, an_order_type, an_envelope(an_order_type.name, PAYLOAD, **sent), subject=ANN)
    publish(house, an_order_type, an_envelope(an_order_type.name, PAYLOAD, flow_id=""), subject=ANN)

    first, second = (each["metadata"] for each in house.stored(an_order_type))

    assert (first["published_by"], first["partition"], first["flow_id"]) == ("ann", "0", "own")
    assert first["received_at"] > "2000"
    assert first["parent_eids"] == [EID]
    assert (second["flow_id"], "parent_eids" in second) == ("flow", False)


def test_tombstones_have_keys_and_no_payload(house):
    """(P147, P150)"""
    event_type = house.add(avro_type(cleanup_policy=CleanupPolicy.COMPACT))
    good = an_envelope(event_type.name, b"", partition_compaction_key="k")
    for bad, reason in [
        (an_envelope(event_type.name, b"x", partition_compaction_key="k"), "Payload must be empty to delete events."),
        (an_envelope(event_type.name, b""), "Compacted topic cannot accept message without key"),
        (an_envelope("other", b"", partition_compaction_key="k"), "event type does not match"),
    ]:
        assert the_failure(delete(house, event_type, good, bad))[1] == reason
        assert house.records(event_type) == []
    assert delete(house, event_type, good, good).status is BatchStatus.STORED
    assert [(each.key, each.value) for each in house.records(event_type)] == [("k", None)] * 2


def delete(house, event_type, *envelopes):
    sender = BatchSender(subject=UNAUTHENTICATED, flow_id="flow")
    return run_blocking(house.publisher.avro_deletion_task(event_type.name, a_batch(*envelopes), sender))


def test_a_payload_may_begin_with_its_own_fingerprint_only(house, an_order_type):
    """The fingerprint of another schema is part of the payload, and is decoded as such. (P172)"""
    mark = b"\xc3\x01"
    own = mark + fingerprint(ORDER) + PAYLOAD
    other = mark + fingerprint(a_record(a_field("other"))) + PAYLOAD
    assert publish(house, an_order_type, an_envelope(an_order_type.name, own)).status is BatchStatus.STORED
    assert the_failure(publish(house, an_order_type, an_envelope(an_order_type.name, other)))
    [stored] = house.stored(an_order_type)
    assert stored["metadata"]["avro_payload"] == b64encode(own).decode()


def test_forms_that_are_not_used_are_forgotten():
    """The prepared forms of payloads are cached for a limited number of event types; the form that was not used for
    longest is dropped.
    """
    forms = PayloadForms(max_forms=2)
    first, second, third = (avro_type() for _ in range(3))
    made = forms.get_or_make(first, first.schema)
    other = forms.get_or_make(second, second.schema)
    assert forms.get_or_make(first, first.schema) is made
    forms.get_or_make(third, third.schema)
    assert forms.get_or_make(first, first.schema) is made
    assert forms.get_or_make(second, second.schema) is not other


def test_an_unknown_version_is_named(house, an_order_type):
    """The message about an unknown version contains only the beginning of the version. (P147, P171)"""
    outcome = publish(house, an_order_type, an_envelope(an_order_type.name, PAYLOAD, version="9" * 500))
    name = an_order_type.name
    assert the_failure(outcome)[1] == f'EventType "{name}" has no schema with version "{"9" * 100}"'


def test_nothing_follows_a_payload(house, an_order_type):
    """(P171)"""
    outcome = publish(house, an_order_type, an_envelope(an_order_type.name, PAYLOAD + b"xy"))
    assert the_failure(outcome)[1] == "The payload cannot be read. 2 bytes follow the end of the value"


def test_what_becomes_large_waits_for_its_turn(house):
    """A few bytes may cause much work: beyond the initial allowance, it is not done at the same time as other long
    work. (P171)"""
    queue = LongWorkQueue(max_waiting=0)
    house.publisher = replace(house.publisher, long_work_queue=queue)
    event_type = house.add(avro_type(a_record(a_field("a", {"type": "array", "items": "null"}))))
    envelope = an_envelope(event_type.name, number(1 << 40))
    with queue.wait_for_turn(client_never_gone), pytest.raises(TryLater):
        publish(house, event_type, envelope)
    assert "Event too large" in the_failure(publish(house, event_type, envelope))[1]


def test_the_memory_of_events_is_counted(house, an_order_type):
    """A body in Avro is small compared with its events in JSON, so the memory of the events is counted. (P171)"""
    taken = []
    sender = BatchSender(subject=UNAUTHENTICATED, flow_id="flow", take_memory=taken.append)
    body = a_batch(*[an_envelope(an_order_type.name, PAYLOAD)] * 2)
    run_blocking(house.publisher.avro_task(an_order_type.name, body, sender))
    assert taken == [2 * len(each.value) for each in house.records(an_order_type)]
