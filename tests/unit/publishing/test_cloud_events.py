"""CloudEvents are converted to the events of a batch."""

import json
from base64 import b64decode
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from nakadi.model.outcomes import Invalid, Malformed, Outcome, TooLarge
from nakadi.publishing.batch import BatchLimits
from nakadi.publishing.cloud_events import MAX_ATTRIBUTE_CHARACTERS, MAX_ATTRIBUTES, CloudEventReader, Publication
from tests.support.everything import choose_by_suite

EID = "105a76d8-db49-4144-ace7-e683e8f4ba46"
NOW = datetime(2026, 11, 21, 12, 0, 0, 42_000, tzinfo=UTC)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def a_cloud_event(**members: object) -> dict[str, object]:
    """A CloudEvent without data; attributes that are None here are left out."""
    event = {"specversion": "1.0", "id": EID, "source": "/shop", "type": "order.paid"} | members
    return {name: value for name, value in event.items() if value is not None}


def read(*events: object, **settings: object) -> Publication:
    return CloudEventReader(now=NOW, **settings).read_batch(json.dumps(events).encode())


def event_of(**members: object) -> dict[str, object]:
    """The event to which a CloudEvent is converted."""
    [event] = json.loads(read(a_cloud_event(**members)).body)
    return event


def metadata_of(**members: object) -> dict[str, object]:
    return event_of(**members)["metadata"]


# The mapping


def test_attributes_become_metadata():
    """Attributes that have a member of their own in the metadata are stored there, and all others in `cloudevent`.
    (E2)"""
    event = event_of(
        time="2026-11-21T12:00:00Z", subject="4711", dataschema="https://example.org/paid", tenant="a", data={"n": 1}
    )

    attributes = {"source": "/shop", "type": "order.paid", "subject": "4711", "tenant": "a"}
    metadata = {"eid": EID, "occurred_at": "2026-11-21T12:00:00Z"}
    metadata["cloudevent"] = attributes | {"dataschema": "https://example.org/paid"}
    assert event == {"metadata": metadata, "n": 1}


def test_an_id_that_is_no_uuid_gives_the_same_eid_each_time():
    """The eid depends on the source and the id, and the id is kept. (E3)"""
    first, again, elsewhere = (
        metadata_of(id="A-1", source=source, data={"n": n}) for n, source in ((1, "/a"), (2, "/a"), (3, "/b"))
    )

    assert first["cloudevent"]["id"] == "A-1"
    assert first["eid"] == again["eid"] != elsewhere["eid"]
    assert "id" not in metadata_of(id=EID.upper())["cloudevent"]


def test_a_cloud_event_without_a_time_happened_when_it_arrived():
    """If a CloudEvent has no time, `occurred_at` is the time of receipt. (E4)"""
    assert metadata_of()["occurred_at"] == "2026-11-21T12:00:00.042Z"


def test_trace_context_goes_where_producers_of_events_put_it():
    """Both attributes of the trace context are stored in `span_ctx`, together with its members in the data. (E7)"""
    metadata = metadata_of(traceparent=TRACE, tracestate="a=1", data={"metadata": {"span_ctx": {"b": "2"}}})

    assert metadata["span_ctx"] == {"b": "2", "traceparent": TRACE, "tracestate": "a=1"}
    assert set(metadata["cloudevent"]) == {"source", "type"}


def test_a_partition_key_is_the_compaction_key_of_a_compacted_event_type():
    """For a compacted event type, the attribute `partitionkey` becomes the compaction key; for others, it is an
    attribute like any other. (E2)
    """
    event = a_cloud_event(partitionkey="4711")

    [kept], [other] = (json.loads(read(event, is_compacted=each).body) for each in (True, False))
    assert kept["metadata"]["partition_compaction_key"] == "4711"
    assert "partitionkey" not in kept["metadata"]["cloudevent"]
    assert other["metadata"]["cloudevent"]["partitionkey"] == "4711"


def test_metadata_in_the_data_count_where_no_attribute_says_it():
    """Metadata in the data is kept, except for members that a broker has written, and the position where the event
    was read. (E6)
    """
    own = {
        "eid": "x",
        "flow_id": "f",
        "event_type": "other",
        "parent_eids": [EID],
        "occurred_at": "2020-01-01T00:00:00Z",
    }
    event = event_of(offset="001-0001-1", eventtype="other", partition="3", data={"a": 1, "metadata": own, "b": 2})

    assert list(event) == ["a", "metadata", "b"]
    assert event["metadata"] == {
        "eid": EID,
        "occurred_at": "2020-01-01T00:00:00Z",
        "parent_eids": [EID],
        "partition": "3",
        "cloudevent": {"source": "/shop", "type": "order.paid"},
    }


@pytest.mark.parametrize(("value", "text"), [(5, "5"), (-(2**31), "-2147483648"), (True, "true"), ("", "")])
def test_extension_attributes_are_kept_as_texts(value, text):
    """Integers and truth values are spelled as in headers. (E5)"""
    assert metadata_of(tenant=value)["cloudevent"]["tenant"] == text


def test_a_null_attribute_is_as_good_as_none():
    """In JSON, an attribute without a value may be null. (E5)"""
    [event] = json.loads(read({**a_cloud_event(), "subject": None, "data": None}).body)
    assert event == {"metadata": metadata_of()}


@pytest.mark.parametrize("text", ["1.0", "12345678901234567", '"\\u00e4"', '{"metadata":1}'])
def test_the_text_of_data_stays_as_it_came(text):
    """The text of the data stays as it came: numbers keep their digits, and escapes stay. (E2)"""
    sent = b'%b, "data": {"a": %b}}' % (json.dumps(a_cloud_event())[:-1].encode(), text.encode())

    assert CloudEventReader(now=NOW).read_event(sent).body.endswith(b',"a":%b}]' % text.encode())


def test_data_may_be_in_base64():
    """Bytes that are a JSON object are treated like the object. (E2)"""
    assert event_of(data_base64="eyJuIjogMX0=")["n"] == 1


def test_content_types_of_json_are_kept():
    """All content types of JSON except for the usual one are stored. (E2)"""
    assert metadata_of(datacontenttype="application/vnd.shop+json")["cloudevent"]["datacontenttype"].endswith("+json")
    assert "datacontenttype" not in metadata_of(datacontenttype="application/json")["cloudevent"]


def test_ids_are_those_of_the_cloud_events():
    """The ids are those of the CloudEvents, so results can name them. (E8)"""
    assert read(a_cloud_event(id="A"), a_cloud_event(id="B")).ids == ["A", "B"]


def test_parts_make_an_event():
    """In binary mode, attributes and data come separately; without data, an event has only metadata. (E1)"""
    attributes = {each: str(value) for each, value in a_cloud_event().items()}
    reader = CloudEventReader(now=NOW)

    assert reader.read_parts(attributes, b' {"n": 1.0} ').body.endswith(b',"n":1.0}]')
    assert json.loads(reader.read_parts(attributes, b"").body) == [event_of()]


def test_long_batches_are_read_as_well():
    """A body that is parsed in pieces gives the same events in the same order. (E1)"""
    events = [a_cloud_event(id=str(number), data={"text": "x" * 1000}) for number in range(3000)]

    sent = read(*events)
    assert sent.ids == [str(number) for number in range(3000)]
    assert [each["metadata"]["cloudevent"]["id"] for each in json.loads(sent.body)] == sent.ids


# Any input

NAMES = some.sampled_from(
    ["specversion", "id", "source", "type", "time", "subject", "data", "data_base64", "traceparent", "partition", "a"]
)
TEXTS = (
    some.sampled_from(["1.0", EID, "/shop", "2026-11-21T12:00:00Z", "e30=", "metadata", "ä\u2028", ""]) | some.text()
)
VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.dictionaries(some.sampled_from(["metadata", "span_ctx", "eid", "n"]) | TEXTS, inner, max_size=3)
    ),
)


@settings(max_examples=choose_by_suite(60, 3000), deadline=None)
@given(
    events=some.lists(some.dictionaries(NAMES | TEXTS, VALUES, max_size=5), max_size=3),
    is_compacted=some.booleans(),
    complete=some.booleans(),
)
def test_whatever_comes_makes_a_batch_or_an_outcome(events, is_compacted, complete):
    """A batch has an event for each CloudEvent, with all other members of the data. (E2, E9)"""
    sent = [a_cloud_event() | event if complete else event for event in events]
    try:
        publication = read(*sent, is_compacted=is_compacted)
    except Outcome:
        return
    made = json.loads(publication.body)
    assert len(made) == len(publication.ids) == len(sent)
    for event, cloud_event in zip(made, sent, strict=True):
        data = cloud_event.get("data") or json.loads(b64decode(cloud_event.get("data_base64") or "e30="))
        assert {**event, "metadata": None} == {**data, "metadata": None}
        assert UUID(event["metadata"]["eid"])


# Invalid input


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"id": None}, "has no `id`"),
        ({"id": ""}, "has no `id`"),
        ({"source": None}, "has no `source`"),
        ({"type": None}, "has no `type`"),
        ({"specversion": None}, "has no `specversion`"),
        ({"specversion": "0.3"}, "has the `specversion` '0.3', and the broker reads 1.0"),
        ({"id": 5}, "has `id` that is not a text"),
        ({"id": True}, "has `id` that is not a text"),
        ({"subject": ["a"]}, "has `subject` that is not a text"),
        ({"subject": ""}, "has an empty `subject`"),
        ({"source": "a b"}, "has a wrong `source`: it is no URI"),
        ({"dataschema": "a b"}, "has a wrong `dataschema`: it is no URI"),
        ({"time": "yesterday"}, "has a wrong `time`: must be a valid date-time"),
        ({"datacontenttype": "text/plain"}, "has `datacontenttype` 'text/plain', and events are JSON objects"),
        ({"type": "a\nb"}, "has `type` with a control character"),
        ({"tenant": {}}, "has `tenant` that is neither a text, a truth value nor an integer of 32 bits"),
        ({"tenant": 1.5}, "has `tenant` that is neither a text, a truth value nor an integer of 32 bits"),
        ({"tenant": 2**31}, "has `tenant` that is neither a text, a truth value nor an integer of 32 bits"),
        ({"Tenant": "a"}, "has an attribute `Tenant`: names are lower-case letters and digits"),
        ({"": "a"}, "has an attribute ``: names are lower-case letters and digits"),
        ({"data": {}, "data_base64": "e30="}, "has both `data` and `data_base64`"),
        ({"data": [1]}, "has `data` that is not a JSON object, and cannot be an event"),
        ({"data": "text"}, "has `data` that is not a JSON object, and cannot be an event"),
        ({"data": {"metadata": 1}}, "has `data` with `metadata` that is not a JSON object"),
        ({"data_base64": "?"}, "has `data_base64` that is not a JSON object in Base64"),
        ({"data_base64": 5}, "has `data_base64` that is not a JSON object in Base64"),
        ({"data_base64": "W10="}, "has `data_base64` that is not a JSON object in Base64"),
    ],
)
def test_what_breaks_a_rule_is_named(members, message):
    """The message names the CloudEvent and its fault. (E9)"""
    with pytest.raises(Invalid) as refused:
        read(a_cloud_event(), a_cloud_event(**members))
    assert refused.value.detail.startswith("The CloudEvent at index 1 ")
    assert message in refused.value.detail


@pytest.mark.parametrize(
    "members",
    [{"tenant": "x" * (MAX_ATTRIBUTE_CHARACTERS + 1)}, {f"a{number}": "" for number in range(MAX_ATTRIBUTES)}],
    ids=["long", "many"],
)
def test_attributes_have_limits(members):
    """Attributes that are too long or too many are refused. (E9)"""
    with pytest.raises(TooLarge):
        read(a_cloud_event(**members))


@pytest.mark.parametrize("text", ["", "5", "[]", "{}, {}", '{"id": "a", "id": "b"}', '{"id": "\\ud800"}'])
def test_a_text_that_is_no_single_object_is_malformed(text):
    """A CloudEvent is one JSON object in which no member occurs twice, as in a batch of events. (E9)"""
    with pytest.raises(Malformed):
        CloudEventReader(now=NOW).read_event(text.encode())


def test_a_batch_has_no_more_events_than_any_other():
    """The limit for batches applies to CloudEvents. (E9)"""
    with pytest.raises(TooLarge):
        read(a_cloud_event(), a_cloud_event(), limits=BatchLimits(max_events=1))
