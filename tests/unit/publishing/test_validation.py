import json

import pytest
from msgspec.structs import replace

from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode, SchemaType, Version
from nakadi.publishing import validation
from nakadi.publishing.batch import BatchStatus
from tests.support.builders import a_schema, an_event_type
from tests.support.publishing import EID, PublisherInMemory, a_business_type, metadata, statuses_and_steps, the_failure

EID_PATTERN = "^[a-fA-F0-9]{8}-[a-fA-F0-9]{4}-[a-fA-F0-9]{4}-[a-fA-F0-9]{4}-[a-fA-F0-9]{12}$"
SKU = {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}


def detail(house: PublisherInMemory, event_type, event) -> str:
    """The fault of an event, or an empty string if it has none."""
    if event_type.name not in [each.name for each in house.event_types.all()]:
        house.add(event_type)
    outcome = house.publish(event_type, [event])
    if outcome.status is BatchStatus.STORED:
        return ""
    step, found = the_failure(outcome)
    assert step == "validating"
    return found


def a_data_type(schema=None, **changes):
    return a_business_type(schema=schema, category=Category.DATA, **changes)


def data_event(**changes):
    return {"metadata": metadata(), "data_type": "order", "data_op": "C", "data": {}} | changes


def test_events_of_no_category_follow_their_schema(house):
    """Events of the category `undefined` are checked against their unchanged schema. (P56, P57)"""
    event_type = an_event_type(schema=a_schema(json.dumps(SKU)))
    assert detail(house, event_type, {"sku": "1", "more": 1}) == ""
    assert detail(house, event_type, {"more": 1}) == "#: required key [sku] not found"
    assert detail(house, event_type, {"sku": 1}) == "#/sku: expected type: String, found: Integer"


@pytest.mark.parametrize(
    "sent", [{"metadata": 1}, {"metadata": {"eid": "x", "received_at": []}}, {"metadata": None}, {}]
)
def test_events_of_no_category_may_say_anything_of_themselves(house, sent):
    """The category `undefined` has no rules for metadata. (P74)"""
    assert detail(house, an_event_type(), sent) == ""


def test_the_latest_schema_decides(house):
    """After a schema change, events are checked against the new schema, and get its version. (P56, P100)"""
    event_type = house.add(a_business_type())
    house.publish(event_type, [{"metadata": metadata()}])
    newer = house.event_types.get(event_type.name)
    changed = a_business_type(
        name=newer.name, id=newer.id, schema=SKU, version="2.0.0", timelines=newer.timelines, revision=newer.revision
    )
    house.event_types.replace(newer, changed)
    assert detail(house, event_type, {"metadata": metadata()}) == "#: required key [sku] not found"
    assert detail(house, event_type, {"metadata": metadata(), "sku": "1"}) == ""
    assert [event["metadata"]["version"] for event in house.stored(event_type)] == ["1.0.0", "2.0.0"]


def test_business_events_need_metadata(house):
    """A business event is an object with metadata beside the members of its schema. (P58, P73)"""
    event_type = a_business_type(schema=SKU)
    assert detail(house, event_type, {"sku": "1", "metadata": metadata(), "more": 1}) == ""
    assert detail(house, event_type, {"sku": "1"}) == "#: required key [metadata] not found"
    assert detail(house, event_type, {"metadata": metadata()}) == "#: required key [sku] not found"


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, ""),
        ({"data_op": "U"}, ""),
        ({"data_op": "D"}, ""),
        ({"data_op": "S"}, ""),
        ({"data_op": "X"}, "#/data_op: X is not a valid enum value"),
        ({"data_type": 1}, "#/data_type: expected type: String, found: Integer"),
        ({"data": {"sku": 1}}, "#/data/sku: expected type: String, found: Integer"),
        ({"sku": "1"}, "#: extraneous key [sku] is not permitted"),
    ],
)
def test_data_events_have_an_envelope(house, changes, wrong):
    """The schema describes `data`; around it are type, operation and metadata, and nothing else. (P59)"""
    schema = {"properties": {"sku": {"type": "string"}}}
    assert detail(house, a_data_type(schema), data_event(**changes)) == wrong


@pytest.mark.parametrize("missing", ["metadata", "data_type", "data_op", "data"])
def test_data_events_need_all_of_it(house, missing):
    """Each part of the envelope is required. (P59)"""
    event = data_event()
    del event[missing]
    assert detail(house, a_data_type(), event) == f"#: required key [{missing}] not found"


@pytest.mark.parametrize(
    ("mode", "wrong"),
    [
        (CompatibilityMode.COMPATIBLE, "#: extraneous key [more] is not permitted"),
        (CompatibilityMode.FORWARD, ""),
        (CompatibilityMode.NONE, ""),
    ],
)
def test_only_compatible_types_are_closed(house, mode, wrong):
    """In the mode `compatible`, members that are not in the schema are refused, except for metadata. (P60, P61)"""
    event_type = a_business_type(schema=SKU, compatibility_mode=mode)
    assert detail(house, event_type, {"sku": "1", "metadata": metadata()}) == ""
    assert detail(house, event_type, {"sku": "1", "metadata": metadata(), "more": 1}) == wrong


PERMITTED = {
    "eid": EID.upper(),
    "occurred_at": "2026-11-21T12:00:00Z",
    "event_type": "order.created",
    "partition": "17",
    "parent_eids": [EID],
    "flow_id": "",
    "span_ctx": {"a": "b"},
}


def test_all_that_metadata_may_hold(house):
    """Every permitted member of the metadata can be sent. (P62, P64)"""
    event_type = a_business_type(name="order.created")
    assert detail(house, event_type, {"metadata": PERMITTED}) == ""


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"eid": "x"}, f"#/metadata/eid: string [x] does not match pattern {EID_PATTERN}"),
        ({"eid": 1}, "#/metadata/eid: expected type: String, found: Integer"),
        ({"event_type": "other"}, "#/metadata/event_type: other is not a valid enum value"),
        ({"partition": 1}, "#/metadata/partition: expected type: String, found: Integer"),
        ({"parent_eids": ["x"]}, f"#/metadata/parent_eids/0: string [x] does not match pattern {EID_PATTERN}"),
        ({"flow_id": None}, "#/metadata/flow_id: expected type: String, found: Null"),
        ({"span_ctx": {"a": 1}}, "#/metadata/span_ctx/a: expected type: String, found: Integer"),
        ({"occurred_at": 1}, "#/metadata/occurred_at: expected type: String, found: Integer"),
        ({"received_at": "x"}, "#/metadata: extraneous key [received_at] is not permitted"),
        ({"version": "1.0.0"}, "#/metadata: extraneous key [version] is not permitted"),
        ({"published_by": "x"}, "#/metadata: extraneous key [published_by] is not permitted"),
        ({"schema_version": "1"}, "#/metadata: extraneous key [schema_version] is not permitted"),
        ({"partition_compaction_key": "k"}, "#/metadata: extraneous key [partition_compaction_key] is not permitted"),
    ],
)
def test_what_metadata_may_not_hold(house, changes, wrong):
    """Metadata accept no other members, and each member has its format. (P62, P63, P64, P65, P72)"""
    assert detail(house, a_business_type(name="order.created"), {"metadata": PERMITTED | changes}) == wrong


@pytest.mark.parametrize("policy", [CleanupPolicy.COMPACT, CleanupPolicy.COMPACT_AND_DELETE])
def test_compacted_events_need_their_key(house, policy):
    """With a compacting policy, the compaction key is required, and must not be empty. (P62)"""
    event_type = a_business_type(cleanup_policy=policy)
    assert detail(house, event_type, {"metadata": metadata(partition_compaction_key="k")}) == ""
    missing = "#/metadata: required key [partition_compaction_key] not found"
    assert detail(house, event_type, {"metadata": metadata()}) == missing
    empty = "#/metadata/partition_compaction_key: expected minLength: 1, actual: 0"
    assert detail(house, event_type, {"metadata": metadata(partition_compaction_key="")}) == empty


@pytest.mark.parametrize("category", [Category.BUSINESS, Category.DATA])
@pytest.mark.parametrize("sent", [None, 1, "x", [], {}, {"eid": 1}, {"occurred_at": "2026-11-21T12:00:00Z"}])
def test_items_tell_of_missing_metadata(house, category, sent):
    """An event without usable metadata is a failed item; the request itself is not malformed. (P73)"""
    event_type = a_business_type(category=category)
    event = data_event(metadata=sent) if category is Category.DATA else {"metadata": sent}
    assert detail(house, event_type, event).startswith("#")


@pytest.mark.parametrize(
    "moment",
    [
        "2026-11-21T12:00:00Z",
        "2026-11-21t12:00:00z",
        "2026-11-21T12:00:00.1+18:00",
        "2026-11-21T12:00:00.123456789-05:30",
        "2024-02-29T23:59:59Z",
        "2026-11-21T12:00:57.Z",
        "+12026-11-21T12:00:00Z",
    ],
)
def test_times_with_an_offset_are_accepted(house, moment):
    """Times with an offset and up to nine decimal places are accepted, and stored to the letter. (P67, P69, P101)"""
    event_type = house.add(a_business_type())
    assert detail(house, event_type, {"metadata": metadata(occurred_at=moment)}) == ""
    assert house.stored(event_type)[0]["metadata"]["occurred_at"] == moment


@pytest.mark.parametrize(
    "moment",
    [
        "",
        "2026-11-21T12:00:00",
        "2026-11-21T12:00Z",
        "2026-11-21 12:00:00Z",
        "2026-11-21T12:00:00+0100",
        "2026-11-21T12:00:00+01:00:00",
        "2026-11-21T12:00:00.1234567890Z",
        "2026-11-21T24:00:00Z",
        "2026-11-21T12:00:60Z",
        "2026-02-30T12:00:00Z",
        "2025-02-29T12:00:00Z",
        "2026-11-21T12:00:00+18:01",
    ],
)
def test_what_is_no_moment(house, moment):
    """An event with a string that is not a time fails with the contract's message, followed by the parser's reason, if
    any. (P66, P68)"""
    found = detail(house, a_business_type(), {"metadata": metadata(occurred_at=moment)})
    assert found.startswith("#/metadata/occurred_at:must be a valid date-time")


def test_the_moment_is_looked_at_after_the_schema(house):
    """A violation of the schema is reported first, even if the timestamp is also invalid. (P66, P14)"""
    event = {"metadata": metadata(occurred_at="now"), "sku": 1}
    assert detail(house, a_business_type(schema=SKU), event) == "#/sku: expected type: String, found: Integer"


@pytest.mark.parametrize(
    ("format_name", "value", "wrong"),
    [
        ("date-time", "2026-11-21T12:00:00Z", ""),
        ("iso-4217", "EUR", ""),
        ("ISO-4217", "EUR", ""),
        ("iso-4217", "XYZ", "#/v: [XYZ] is not a valid alphabetic ISO 4217 currency code"),
        ("ISO-4217", "eur", "#/v: [eur] is not a valid alphabetic ISO 4217 currency code"),
    ],
)
def test_formats_in_schemas(house, format_name, value, wrong):
    """Schemas may require times and currencies. (P70)"""
    event_type = an_event_type(schema=a_schema(json.dumps({"properties": {"v": {"format": format_name}}})))
    assert detail(house, event_type, {"v": value}) == wrong
    assert detail(house, event_type, {"v": "now"})


def test_all_violations_are_reported(house):
    """The first line has the number of violations, if there are several, and the violations follow one by one. (P71,
    P72)"""
    schema = {
        "properties": {"a": {"type": "string"}, "b": {"minLength": 1}, "c": {"enum": ["x"]}},
        "required": ["d"],
    }
    event_type = an_event_type(schema=a_schema(json.dumps(schema)))
    first, *others = detail(house, event_type, {"a": 1.5, "b": "", "c": "y"}).split("\n")
    assert first == "#: 4 schema violations found"
    assert sorted(others) == [
        "#/a: expected type: String, found: Double",
        "#/b: expected minLength: 1, actual: 0",
        "#/c: y is not a valid enum value",
        "#: required key [d] not found",
    ]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (1, "Integer"),
        (2**40, "Long"),
        (1.5, "Double"),
        (True, "Boolean"),
        ({}, "JSONObject"),
        ([], "JSONArray"),
        (None, "Null"),
    ],
)
def test_kinds_are_named_as_in_java(house, value, name):
    """The message names the type of a wrong value as Java does. (P72)"""
    event_type = an_event_type(schema=a_schema('{"properties": {"a": {"type": "string"}}}'))
    assert detail(house, event_type, {"a": value}) == f"#/a: expected type: String, found: {name}"


def with_avro(event_type, version):
    avro = a_schema('{"type": "record"}', type=SchemaType.AVRO, version=Version.parse(version))
    return replace(event_type, schema=avro)


def test_a_type_without_any_json_schema(house):
    """All JSON events of an event type that never had a JSON schema fail. (P75, P104)"""
    event_type = house.add(with_avro(a_business_type(name="avro.only"), "1.0.0"))
    outcome = house.publish(event_type, [{"metadata": metadata()}, {}])
    assert the_failure(outcome) == ("validating", "No json_schema found for event type: avro.only")
    assert statuses_and_steps(outcome) == [("failed", "validating"), ("aborted", "none")]


def test_a_type_that_moved_away_from_json_schemas(house):
    """JSON events are still checked against the last JSON schema, and get its version. (P76)"""
    event_type = house.add(a_business_type(schema=SKU, version="1.1.0"))
    house.event_types.replace(event_type, with_avro(event_type, "2.0.0"))
    assert detail(house, event_type, {"metadata": metadata()}) == "#: required key [sku] not found"
    assert detail(house, event_type, {"metadata": metadata(), "sku": "1"}) == ""
    assert house.stored(event_type)[0]["metadata"]["version"] == "1.1.0"


def test_what_is_not_looked_at(house):
    """Ids may repeat, parents need not exist, ordering fields may be missing, and times may be in the future. (P77)"""
    event_type = a_business_type(ordering_key_fields=("at",), ordering_instance_ids=("id",))
    event = {"metadata": metadata(parent_eids=[EID], occurred_at="2999-01-01T00:00:00Z")}
    assert detail(house, event_type, event) == detail(house, event_type, event) == ""


def event_of_size(bytes_in_all: int, **members) -> str:
    """The text of an event of this size, which is mostly whitespace that is not stored."""
    text = json.dumps({"a": "x"} | members)
    return text[:-1] + " " * (bytes_in_all - len(text)) + "}"


@pytest.mark.parametrize("around", ["[{}]", "[,{}]", '[{{"a": "x"}}, {}]'])
def test_the_largest_event(house, around):
    """An event of exactly the maximum size, including whitespace, is accepted. (P37, P38)"""
    event_type = house.add(an_event_type())
    body = around.format(event_of_size(999_000)).encode()
    assert house.publish(event_type, body).status is BatchStatus.STORED
    assert house.texts(event_type)[-1] == '{"a":"x"}'


def test_an_event_above_the_limit(house):
    """An event that is one byte larger than the maximum fails, and the message contains both sizes. (P38)"""
    event_type = house.add(an_event_type())
    outcome = house.publish(event_type, f'[{{"a":"x"}},{event_of_size(999_001)},{{}}]'.encode())
    assert statuses_and_steps(outcome) == [("aborted", "validating"), ("failed", "validating"), ("aborted", "none")]
    assert the_failure(outcome)[1] == "Event too large: 999001 bytes, max size is 999000 bytes"


def test_sizes_are_looked_at_last(house):
    """For an event that is both invalid and too large, the violation is reported, and later events are not reported.
    (P14, P38)
    """
    event_type = house.add(an_event_type(schema=a_schema('{"properties": {"a": {"type": "string"}}}')))
    body = f'[{event_of_size(999_001, a=1)},{{"a":1}}]'.encode()
    assert the_failure(house.publish(event_type, body))[1] == "#/a: expected type: String, found: Integer"


def test_enrichment_may_go_beyond_the_limit(house):
    """The broker's additions do not count towards the size of an event. (P39)"""
    event_type = house.add(a_business_type())
    text = json.dumps({"metadata": metadata(), "a": ""}, separators=(",", ":"))
    text = text.replace('"a":""', f'"a":"{"x" * (999_000 - len(text))}"')
    assert house.publish(event_type, f"[{text}]".encode()).status is BatchStatus.STORED
    assert len(house.texts(event_type)[0]) > 999_000


def test_many_events(house):
    """Neither the number of events nor the total of their bytes is limited. (P40)"""
    event_type = house.add(an_event_type())
    events = [{"a": "x" * 200} for _ in range(10_000)]
    assert house.publish(event_type, events).status is BatchStatus.STORED


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_a_refused_event_is_found_among_valid_ones(count):
    """The first event that is not certainly valid is found by bisection: none is checked more than twice. (P56)"""
    events = [{"n": number} for number in range(count)]
    for refused in (*range(min(count, 8)), count - 1, count):
        looked_at = []

        def are_certainly_valid(some, refused=refused, looked_at=looked_at):
            looked_at.extend(some)
            return all(event["n"] != refused for event in some)

        assert validation._count_certain(events, are_certainly_valid) == refused
        assert len(looked_at) <= 2 * count
