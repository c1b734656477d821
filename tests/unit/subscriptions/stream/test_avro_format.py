"""Batches of a stream in Avro."""

import json

import pytest

from nakadi.model.event_type import Position
from nakadi.model.events import Record
from nakadi.model.outcomes import TryLater
from nakadi.model.subscription import EventTypePartition
from nakadi.subscriptions.stream.actions import SendBatch, SendKeepAlive
from nakadi.subscriptions.stream.avro_format import AvroSubscriptionFormat, AvroVersion
from nakadi.subscriptions.stream.driver import MAX_STEP_BYTES
from tests.support.avro import EID, ORDER, encode, read_batches
from tests.support.chunks import a_chunk

PARTITION = EventTypePartition("order", "0")
ID = "x" * 1000


def an_event(**metadata):
    event = {"id": ID, "lines": [1, 2], "metadata": {"eid": EID, "version": "1.0.0"} | metadata}
    return Record(json.dumps(event).encode())


def a_format():
    return AvroSubscriptionFormat({"order": {"1.0.0": AvroVersion(json.dumps(ORDER)), "0.1.0": None}}, lambda: "token")


def a_batch(*events):
    return SendBatch(PARTITION, Position(1, 7), (a_chunk(*events).run_from_offset(0),), "why")


def encode_in_steps(line):
    """Encode a line, and return it with the number of pauses meanwhile."""
    steps, pauses = a_format().encode_line(line), 0
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            return finished.value, pauses
        pauses += 1


def test_a_batch_is_made_in_steps():
    """A batch is one object, however many steps it takes, and each step is short. (P176, S184)"""
    event = an_event()
    count = 10 * MAX_STEP_BYTES // len(event.value)

    line, pauses = encode_in_steps(a_batch(*[event] * count))

    [batch] = read_batches(line)
    assert pauses >= 10
    assert batch["cursor"] == {
        "partition": "0",
        "offset": str(Position(1, 7)),
        "event_type": "order",
        "cursor_token": "token",
    }
    assert batch["info"] == "why"
    assert [each["payload"] for each in batch["events"]] == [encode(ORDER, {"id": ID, "lines": [1, 2]})] * count


def test_a_short_batch_is_made_at_once():
    """A short batch is encoded at once, and so is a line without events. (P176, S184)"""
    line, pauses = encode_in_steps(a_batch(an_event()))
    assert (len(read_batches(line)[0]["events"]), pauses) == (1, 0)
    line, pauses = encode_in_steps(SendKeepAlive(PARTITION, Position(1, 7)))
    assert (read_batches(line)[0]["events"], pauses) == ([], 0)


@pytest.mark.parametrize(
    "event",
    [
        {"id": ID, "lines": [], "metadata": {"eid": EID, "version": "0.1.0"}},
        {"id": 5, "metadata": {"eid": EID, "version": "1.0.0"}},
        {"metadata": {"eid": EID, "version": 7}},
    ],
)
def test_what_does_not_fit_a_schema_is_sent_as_its_text(event):
    """An event that does not fit the schema that its metadata names was published as JSON, so its text is sent.
    (P173)
    """
    [batch] = read_batches(encode_in_steps(a_batch(Record(json.dumps(event).encode())))[0])
    assert json.loads(batch["events"][0]["payload"]) == event
    assert batch["events"][0]["metadata"]["event_type"] == "order"


def test_an_event_of_an_unknown_version_ends_the_stream():
    """An event whose schema version is newer than the stream ends the stream. (P175)"""
    with pytest.raises(TryLater):
        encode_in_steps(a_batch(an_event(version="2.0.0")))
