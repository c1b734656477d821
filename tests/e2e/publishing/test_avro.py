"""Publishing events in Avro, and reading them as JSON and as Avro."""

import json
import time
from decimal import Decimal

import pytest

from nakadi.schemas.avro.envelopes import BATCH_SCHEMAS
from tests.support.api import a_business_definition, create_event_type, problem
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
    decode,
    encode,
    fingerprint,
    read_batches,
    schema_draft,
    single_object,
)
from tests.support.patience import PATIENCE

AVRO = {"content-type": "application/avro-binary"}
AMBIGUOUS = a_record(a_field("x", ["int", "long"]))


def create(api, schema=ORDER, partitions=1, **changes):
    statistic = dict.fromkeys(("messages_per_minute", "message_size", "write_parallelism"), 1)
    changes = {"default_statistic": statistic | {"read_parallelism": partitions}} | changes
    return create_event_type(api, a_business_definition(**changes) | {"schema": schema_draft(schema)})["name"]


def publish(api, name, *envelopes, to="events", body=None, **headers):
    content = a_batch(*envelopes) if body is None else body
    return api.post(f"/event-types/{name}/{to}", content=content, headers=AVRO | headers)


def read_through_new_subscription(api, name, events=1, accept="application/x-json-stream", **fields):
    """The bytes that a new subscription gets from the beginning."""
    draft = {
        "owning_application": "app",
        "event_types": [name],
        "read_from": "begin",
        "consumer_group": accept,
    } | fields
    subscription = api.post("/subscriptions", json=draft).json()["id"]
    parameters = {"stream_limit": events, "batch_limit": events, "batch_flush_timeout": 1, "commit_timeout": 1}
    received, deadline = b"", time.monotonic() + PATIENCE
    with api.stream(
        "GET", f"/subscriptions/{subscription}/events", params=parameters, headers={"accept": accept}
    ) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"] == accept
        for chunk in stream.iter_bytes():
            received += chunk
            if received.count(EID.encode()) >= events or time.monotonic() > deadline:
                break
    return received


def read_json(api, name, events=1):
    lines = map(json.loads, read_through_new_subscription(api, name, events).splitlines())
    return [event for line in lines for event in line.get("events", [])]


def read_avro(api, name, events=1):
    batches = read_batches(read_through_new_subscription(api, name, events, "application/avro-binary"))
    return [event for batch in batches for event in batch["events"]]


def items(answer, status=207):
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize("version", ["0", "1"])
def test_events_in_avro_are_read_as_json_and_as_avro(api, version):
    """An event in Avro is read as JSON with its fields first and the metadata last; as Avro, the payload has the bytes
    that were sent, and the metadata is enriched. (P145, P146, P152, S155, S163, S184, S185)
    """
    name = create(api)
    answer = publish(api, name, body=a_batch(an_envelope(name, PAYLOAD, partition_keys=["a"]), version=version))

    assert (answer.status_code, answer.content) == (200, b"")
    [event] = read_json(api, name)
    assert list(event) == ["id", "lines", "metadata"]
    assert (event["id"], event["lines"]) == (AN_ORDER["id"], AN_ORDER["lines"])
    known = {"eid": EID, "occurred_at": "2023-11-14T22:13:20Z", "version": "1.0.0", "event_type": name}
    metadata = event["metadata"]
    assert known.items() <= metadata.items()
    assert None not in metadata.values()
    assert (metadata["partition"], metadata["partition_keys"]) == ("0", ["a"])
    [envelope] = read_avro(api, name)
    assert envelope["payload"] == PAYLOAD
    assert envelope["metadata"]["partition_keys"] == ["a"]
    assert envelope["metadata"]["received_at"] is not None


def test_streams_of_event_types_are_json(api):
    """A client that asks for a stream of an event type in Avro gets JSON. (L58a)"""
    name = create(api)
    publish(api, name, an_envelope(name, PAYLOAD)).raise_for_status()
    cursors = json.dumps([{"partition": "0", "offset": "BEGIN"}])

    with api.stream(
        "GET",
        f"/event-types/{name}/events",
        params={"stream_limit": 1, "batch_limit": 1},
        headers={"x-nakadi-cursors": cursors, "accept": "application/avro-binary"},
    ) as stream:
        batch = json.loads(next(stream.iter_lines()))

    assert batch["events"][0]["lines"] == [1, -2]


@pytest.mark.parametrize("payload", [single_object(ORDER, AN_ORDER), None])
def test_what_json_does_not_say_is_kept(api, payload):
    """A payload that follows the fingerprint of its schema, and branches of a union that JSON does not distinguish, are
    delivered unchanged. (P172, S184)
    """
    schema = ORDER if payload else AMBIGUOUS
    payload = payload or encode(AMBIGUOUS, {"x": ("long", 5)})
    name = create(api, schema)
    publish(api, name, an_envelope(name, payload)).raise_for_status()

    assert read_avro(api, name)[0]["payload"] == payload
    assert "avro_payload" in read_json(api, name)[0]["metadata"]


def test_an_event_in_json_is_the_payload_of_its_envelope(api):
    """In an envelope, the payload is JSON or Avro, depending on the type of the schema that the event's version names.
    (P173)
    """
    name = create_event_type(api, a_business_definition(schema={"properties": {"a": {}}}))["name"]
    api.post(f"/event-types/{name}/schemas", json=schema_draft()).raise_for_status()
    sent = {"metadata": {"eid": EID, "occurred_at": "2023-11-14T22:13:20Z"}, "a": 1}
    api.post(f"/event-types/{name}/events", json=[sent]).raise_for_status()
    publish(api, name, an_envelope(name, PAYLOAD, version="2.0.0")).raise_for_status()

    old, new = read_avro(api, name, events=2)

    assert (old["metadata"]["version"], json.loads(old["payload"])["a"]) == ("1.0.0", 1)
    assert (new["metadata"]["version"], new["payload"]) == ("2.0.0", PAYLOAD)


@pytest.mark.parametrize(
    ("envelope", "detail"),
    [
        (lambda _: an_envelope("other", PAYLOAD, version="x"), "event type does not match"),
        (
            lambda name: an_envelope(name, PAYLOAD, version="5.0.0"),
            'EventType "{}" has no schema with version "5.0.0"',
        ),
        (lambda name: an_envelope(name, b"\xff"), "The payload cannot be read. It ends within a number"),
        (
            lambda name: an_envelope(name, PAYLOAD + b"x"),
            "The payload cannot be read. 1 bytes follow the end of the value",
        ),
        (lambda name: an_envelope(name, b""), "The payload cannot be read. It ends within a number"),
    ],
)
def test_one_bad_event_gives_the_batch_up(api, envelope, detail):
    """If one event is bad, the answer is 207, and all others are aborted in the step of publishing. (P147, P148,
    P171)
    """
    name = create(api)
    good = an_envelope(name, PAYLOAD)

    found = items(publish(api, name, good, envelope(name), good))

    assert [(each["publishing_status"], each["step"]) for each in found] == [
        ("aborted", "publishing"),
        ("failed", "publishing"),
        ("aborted", "publishing"),
    ]
    assert found[1]["detail"] == detail.format(name)
    assert api.get(f"/event-types/{name}/partitions/0").json()["newest_available_offset"].endswith("--1")


def test_an_event_of_a_json_schema_is_published_as_json(api):
    """An event whose version names a JSON schema is refused in a batch in Avro, because it has to be published as JSON.
    (P171)
    """
    name = create_event_type(api, a_business_definition())["name"]

    [item] = items(publish(api, name, an_envelope(name, PAYLOAD)))

    assert item["detail"].endswith("is a json_schema: publish its events as JSON")


HEAD = b"\xc3\x01" + fingerprint(BATCH_SCHEMAS["batch.publishing"]["1"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"hello, world", "The body is no single object"),
        (b"\xc3", "A length is 2, and 1 bytes follow"),
        (b"\xc3\x01" + bytes(8) + b"\0", "The body has another schema than those of batch.publishing"),
        (HEAD, "It ends within a number"),
        (HEAD + b"\x00\x00", "1 bytes follow the end of the value"),
        (HEAD + b"\x02\x00\xfe\xff\xff\xff\x0fabc", "A length is 2147483647, and 3 bytes follow"),
        (HEAD + b"\x02" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "`occurred_at` is in no year"),
    ],
)
def test_a_body_that_is_no_batch_is_a_bad_request(api, body, reason):
    """A body that is not a batch in Avro gets 400 with a reason for each fault, and nothing is stored. (P151)"""
    assert reason in problem(publish(api, create(api), body=body), 400) or reason.startswith("`occurred_at`")


def test_a_batch_that_announces_too_many_events_is_too_large(api):
    """The announced number of events is checked before the first event is read. (P151)"""
    assert problem(publish(api, create(api), body=HEAD + b"\xfe\xff\xff\xff\x0f"), 413)


def test_an_empty_batch_is_stored(api):
    """An empty batch is stored, as in JSON. (P151)"""
    assert publish(api, create(api)).status_code == 200


def test_an_event_that_is_too_large_as_json_is_refused(api):
    """A payload of three bytes is refused if it has more than a megabyte as JSON, because of the names of its fields.
    (P171)
    """
    schema = a_record(a_field("a", {"type": "array", "items": a_record(a_field("x" * 1000, "null"), name="In")}))
    name = create(api, schema)

    [item] = items(publish(api, name, an_envelope(name, b"\xa0\x1f\x00")))

    assert item["detail"].startswith("Event too large")


def test_partitions_are_chosen_by_the_keys_beside_the_payload(api):
    """The broker computes the same hash as the reference; an event without keys is refused, because it has no
    partition. (P149)
    """
    name = create(api, partitions=4, partition_strategy="hash", partition_key_fields=["id"])
    envelopes = [an_envelope(name, PAYLOAD, partition_keys=keys) for keys in (["a", "b"], ["abc"])]
    publish(api, name, *envelopes).raise_for_status()

    assert sorted(each["metadata"]["partition"] for each in read_json(api, name, events=2)) == ["2", "3"]
    for keys in (None, []):
        [item] = items(publish(api, name, an_envelope(name, PAYLOAD, partition_keys=keys)))
        assert item["detail"] == "Cannot calculate hash value for partitioning: partition keys not set."


def test_a_partition_can_be_wanted(api):
    """If an event names a partition that does not exist, its item names the partition. (P147)"""
    name = create(api, partitions=2, partition_strategy="user_defined")
    publish(api, name, an_envelope(name, PAYLOAD, partition="1")).raise_for_status()

    [item] = items(publish(api, name, an_envelope(name, PAYLOAD, partition="7")))

    assert (item["partition"], item["detail"].startswith("Failed to resolve partition.")) == ("7", True)


def test_events_in_avro_are_deleted_by_their_keys(api):
    """Deletion fails for an event with a payload, for an event without a key, and for an event type that is not
    compacted. (P147, P150)
    """
    name = create(api, cleanup_policy="compact")
    publish(api, name, an_envelope(name, PAYLOAD, partition_compaction_key="k")).raise_for_status()
    deleted = an_envelope(name, b"", partition_compaction_key="k")

    assert publish(api, name, deleted, to="deleted-events").status_code == 200
    [item] = items(publish(api, name, {**deleted, "payload": PAYLOAD}, to="deleted-events"))
    assert item["detail"] == "Payload must be empty to delete events."
    [item] = items(publish(api, name, an_envelope(name, b""), to="deleted-events"))
    assert item["detail"].startswith("Compacted topic cannot accept message without key")
    other = create(api)
    refused = publish(api, other, an_envelope(other, b""), to="deleted-events")
    assert problem(refused, 422) == "It is not allowed to delete events from non compacted event type"


def test_an_unknown_event_type_is_not_found(api):
    """A readable batch for an unknown event type gets 404. (P145)"""
    assert problem(publish(api, "no.such", an_envelope("no.such", PAYLOAD)), 404)


def test_others_read_the_fields_of_the_record(api):
    """Projections and CloudEvents start from the event as JSON; decimals keep their digits. (R310, P152, E22)"""
    schema = a_record(a_field("id"), a_field("price", a_decimal(9, 2)), a_field("name"))
    name = create(api, schema)
    payload = encode(schema, {"id": "1", "price": Decimal("10.50"), "name": "Ann"})
    publish(api, name, an_envelope(name, payload)).raise_for_status()

    cut = read_through_new_subscription(api, name, reads=["id", "price"], projection=True)
    cloud_events = read_through_new_subscription(api, name, accept="application/cloudevents-batch+json")

    assert b'"events":[{"metadata":' in cut
    assert b'"id":"1","price":10.50}' in cut
    [event] = json.loads(cloud_events.splitlines()[0])
    assert (event["id"], event["type"], event["data"]["name"]) == (EID, name, "Ann")
    assert b'"price":10.50' in cloud_events


def test_a_projection_is_not_read_as_avro(api):
    """A stream of Avro ignores projections, because a payload has all fields of its schema. (P174)"""
    name = create(api)
    draft = {"owning_application": "app", "event_types": [name], "reads": ["id"], "projection": True}
    subscription = api.post("/subscriptions", json=draft).json()["id"]

    refused = api.get(f"/subscriptions/{subscription}/events", headers={"accept": "application/avro-binary"})

    assert "projection is read as JSON" in problem(refused, 422)


def test_a_schema_that_comes_while_a_stream_is_open_ends_it(api):
    """If a schema is added while a stream is open, the first event with that schema ends the stream; the client's next
    stream knows the schema. (P175)
    """
    name = create(api, compatibility_mode="none")
    draft = {"owning_application": "app", "event_types": [name], "read_from": "begin"}
    subscription = api.post("/subscriptions", json=draft).json()["id"]
    parameters = {"batch_flush_timeout": 1, "batch_limit": 1}
    with api.stream(
        "GET",
        f"/subscriptions/{subscription}/events",
        params=parameters,
        headers={"accept": "application/avro-binary"},
        timeout=PATIENCE,
    ) as stream:
        chunks = stream.iter_bytes()
        next(chunks)
        newer = a_record(a_field("id"))
        api.post(f"/event-types/{name}/schemas", json=schema_draft(newer)).raise_for_status()
        publish(api, name, an_envelope(name, encode(newer, {"id": "1"}), version="2.0.0")).raise_for_status()
        rest = b"".join(chunks)

    assert EID.encode() not in rest
    assert decode(newer, read_avro(api, name)[0]["payload"]) == {"id": "1"}
