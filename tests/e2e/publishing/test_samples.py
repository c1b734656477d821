"""The sample event types and batches behave as their names say."""

import json
from pathlib import Path

import pytest

from tests.support import http
from tests.support.api import problem
from tests.support.builders import a_name

EVENTS = Path(__file__).parents[3] / "events"
TYPES = {path.stem: path for path in (EVENTS / "event_types").glob("*.json")}
BATCHES = {str(path.relative_to(EVENTS / "batches")): path for path in (EVENTS / "batches").rglob("*.json")}

STORED = {
    "customer.changed/deleted/two-customers.json": 2,
    "customer.changed/snapshot-and-change.json": 3,
    "order.placed/nothing.json": 0,
    "order.placed/spelled-otherwise.json": 2,
    "order.placed/three-orders.json": 3,
    "page.viewed/two-views.json": 2,
    "price.changed/deleted/one-price.json": 1,
    "price.changed/two-partitions.json": 2,
    "shipment.delayed/weather.json": 1,
    "stock.counted/one-partition.json": 2,
}

# For each batch, the index of the failing event, its step, and its detail.
REJECTED = {
    "customer.changed/beside-the-envelope.json": (0, "validating", "#: extraneous key [note] is not permitted"),
    "customer.changed/compaction-key-missing.json": (
        0,
        "validating",
        "#/metadata: required key [partition_compaction_key] not found",
    ),
    "customer.changed/deleted/partition-key-missing.json": (0, "partitioning", "field data doesn't exist."),
    "customer.changed/unknown-operation.json": (0, "validating", "#/data_op: X is not a valid enum value"),
    "order.placed/already-enriched.json": (
        0,
        "validating",
        "#/metadata: extraneous key [received_at] is not permitted",
    ),
    "order.placed/bad-eid.json": (0, "validating", "#/metadata/eid: string [order-1] does not match pattern "),
    "order.placed/bad-time.json": (1, "validating", "#/metadata/occurred_at:must be a valid date-time "),
    "order.placed/compaction-key-not-wanted.json": (
        0,
        "validating",
        "#/metadata: extraneous key [partition_compaction_key] is not permitted",
    ),
    "order.placed/missing-field.json": (1, "validating", "#: required key [items] not found"),
    "order.placed/no-metadata.json": (0, "validating", "#: required key [metadata] not found"),
    "order.placed/other-event-type.json": (
        0,
        "validating",
        "#/metadata/event_type: order.cancelled is not a valid enum value",
    ),
    "order.placed/three-violations.json": (0, "validating", "#: 3 schema violations found\n"),
    "order.placed/unknown-field.json": (0, "validating", "#: extraneous key [gift] is not permitted"),
    "order.placed/wrong-type.json": (0, "validating", "#/items/0/quantity: expected type: "),
    "page.viewed/missing-field.json": (0, "validating", "#: required key [url] not found"),
    "shipment.delayed/unknown-reason.json": (0, "validating", "#/reason: mood is not a valid enum value"),
    "stock.counted/partition-missing.json": (
        1,
        "partitioning",
        "Failed to resolve partition. Failed to get partition from event metadata",
    ),
    "stock.counted/partition-unknown.json": (
        0,
        "partitioning",
        "Failed to resolve partition. Invalid partition specified when publishing event: north",
    ),
}

MALFORMED = {
    "customer.changed/deleted/compaction-key-missing.json": 'JSONObject["partition_compaction_key"] not found.',
    "order.placed/blanks.json": "Array of events should start with [ at position 2",
    "order.placed/control-character.json": "Illegal escape. at pos ",
    "order.placed/dangling-comma.json": "Not allowed to finish object with comma at pos ",
    "order.placed/no-array.json": "Array of events should start with [ at position 0",
    "order.placed/no-objects.json": "Illegal character at position 1",
    "order.placed/not-a-number.json": "Unexpected symbol 'N' at pos ",
    "order.placed/repeated-key.json": 'Duplicate key "order_number"',
    "order.placed/too-big-float.json": "1e999 can not be used at pos ",
    "order.placed/too-big-integer.json": "Can not use long value '9223372036854775808' cause it is too big at pos ",
    "order.placed/unclosed.json": "Unexpected symbol ']' ",
    "order.placed/unended.json": "Array of events should end with ] at position ",
}

NOT_COMPACTED = "order.placed/deleted/not-compacted.json"


@pytest.fixture(scope="module")
def names(running_broker):
    """Create the sample event types, and return the name that each has in this broker."""
    definitions = {sample: json.loads(path.read_text()) | {"name": a_name(sample)} for sample, path in TYPES.items()}
    for definition in definitions.values():
        assert http.post(f"{running_broker.url}/event-types", json=definition).status_code == 201
    return {sample: definition["name"] for sample, definition in definitions.items()}


@pytest.fixture
def publish(api, names):
    """`publish(batch)` sends a sample batch. It returns the answer, and the event type's name in this broker."""

    def send(batch: str):
        name = names[batch.partition("/")[0]]
        path = "deleted-events" if "/deleted/" in batch else "events"
        return api.post(f"/event-types/{name}/{path}", content=BATCHES[batch].read_bytes()), name

    return send


def size_of(api, name: str) -> int:
    """The number of used offsets of an event type."""
    partitions = api.get(f"/event-types/{name}/partitions").json()
    newest = (each["newest_available_offset"].split("-", 2)[2] for each in partitions)
    return sum(int(offset) + 1 for offset in newest)


def test_every_sample_has_its_place_here():
    """Each sample batch is in one of the tests below, and each sample event type has a batch."""
    assert set(BATCHES) == {*STORED, *REJECTED, *MALFORMED, NOT_COMPACTED}
    assert {batch.split("/")[0] for batch in BATCHES} == set(TYPES)


def test_the_event_types_show_what_there_is():
    """Every category, partition strategy and cleanup policy occurs in the samples at least once."""
    definitions = [json.loads(path.read_text()) for path in TYPES.values()]
    assert {each["category"] for each in definitions} == {"undefined", "data", "business"}
    assert {each["partition_strategy"] for each in definitions} == {"random", "hash", "user_defined"}
    assert {each["cleanup_policy"] for each in definitions} == {"delete", "compact", "compact_and_delete"}
    assert {each["compatibility_mode"] for each in definitions} == {"forward", "compatible", "none"}


@pytest.mark.parametrize("batch", sorted(STORED))
def test_good_batches(api, publish, batch):
    """A good batch is stored, each event at its own offset. (P1, P2, P23, P26, P143)"""
    _, name = publish(batch)
    before = size_of(api, name)
    answer, _ = publish(batch)
    assert (answer.status_code, answer.content) == (200, b"")
    assert size_of(api, name) - before == STORED[batch]


@pytest.mark.parametrize("batch", sorted(REJECTED))
def test_rejected_batches(api, publish, batch):
    """A batch with an event that breaks a rule gets 422, names the event and the reason, and stores nothing. (P3, P122,
    P124)
    """
    index, step, detail = REJECTED[batch]
    _, name = publish(batch)
    before = size_of(api, name)
    answer, _ = publish(batch)
    assert answer.status_code == 422
    assert size_of(api, name) == before
    failed = [(number, item) for number, item in enumerate(answer.json()) if item["publishing_status"] == "failed"]
    [(found, item)] = failed
    assert (found, item["step"]) == (index, step)
    assert item["detail"].startswith(detail)


@pytest.mark.parametrize("batch", sorted(MALFORMED))
def test_malformed_batches(publish, batch):
    """A batch that cannot be read gets 400 with the reason. (P22)"""
    answer, _ = publish(batch)
    assert problem(answer, 400).startswith(f"Error occurred when parsing event(s). {MALFORMED[batch]}")


def test_deleting_without_compaction(publish):
    """Deleting from an event type without compaction fails for every item. (P138)"""
    answer, _ = publish(NOT_COMPACTED)
    assert answer.status_code == 422
    assert [(item["publishing_status"], item["step"]) for item in answer.json()] == [("aborted", "none")]
