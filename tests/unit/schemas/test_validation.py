"""Whether an event is valid, with a schema that is compiled only once."""

import copy

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode
from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import effective_schema
from nakadi.schemas.explanation import NO_EXPLANATION_MESSAGE
from nakadi.schemas.validation import Validator, compile_validator
from tests.support.schemas import VALUES, schemas

EID = "d765de34-09c0-4bbb-8b1e-7160a33a0791"
METADATA = {"eid": EID, "occurred_at": "2026-11-21T12:00:00Z"}


def validator(schema=None, **changes) -> Validator:
    kind = {
        "event_type": "order",
        "category": Category.BUSINESS,
        "mode": CompatibilityMode.FORWARD,
        "cleanup_policy": CleanupPolicy.DELETE,
    }
    return compile_validator(effective_schema(schema or {}, **(kind | changes)))


def is_accepted(schema, event) -> bool:
    return compile_validator(schema).accepts(event)


def test_business_events():
    """A business event matches the submitted schema plus metadata, which are required. (P56, P58)"""
    order = validator({"properties": {"number": {"type": "string"}}, "required": ["number"]})

    assert order.accepts({"metadata": METADATA, "number": "1", "more": 1})
    assert not order.accepts({"metadata": METADATA, "number": 1})
    assert not order.accepts({"metadata": METADATA})
    assert not order.accepts({"number": "1"})
    assert not order.accepts("an event")


def test_data_events():
    """A data event is an envelope whose `data` matches the submitted schema. (P56, P59)"""
    change = validator({"required": ["id"]}, category=Category.DATA)
    event = {"metadata": METADATA, "data_type": "order", "data_op": "C", "data": {"id": 1}}

    assert change.accepts(event)
    assert not change.accepts(event | {"data": {}})
    assert not change.accepts(event | {"data_op": "X"})
    assert not change.accepts(event | {"data_type": 1})
    assert not change.accepts(event | {"more": 1})


def test_undefined_events():
    """An undefined event is checked against its schema, and its metadata is not checked. (P57, P74, R170)"""
    anything = validator({"required": ["a"]}, category=Category.UNDEFINED)

    assert anything.accepts({"a": 1, "metadata": 5})
    assert not anything.accepts({"metadata": METADATA})


def test_strict_events():
    """In the mode `compatible`, an event may have only members that the schema names, apart from metadata. (P60,
    P61)"""
    order = validator({"properties": {"lines": {"items": [{}]}}}, mode=CompatibilityMode.COMPATIBLE)

    assert order.accepts({"metadata": METADATA, "lines": [{}]})
    assert not order.accepts({"metadata": METADATA, "lines": [{}, {}]})
    assert not order.accepts({"metadata": METADATA, "more": 1})


def test_strict_events_with_listed_objects():
    """In the mode `compatible`, an object on the list of an `enum` may have members. (P60, R177)"""
    order = validator({"properties": {"size": {"enum": [{"width": 1}]}}}, mode=CompatibilityMode.COMPATIBLE)

    assert order.accepts({"metadata": METADATA, "size": {"width": 1}})
    assert not order.accepts({"metadata": METADATA, "size": {"width": 2}})


@pytest.mark.parametrize(
    "more",
    [
        {"event_type": "order"},
        {"partition": "0", "flow_id": "f"},
        {"parent_eids": [EID, EID.upper()]},
        {"parent_eids": []},
        {"span_ctx": {"a": "b"}},
        {"eid": EID.upper()},
    ],
)
def test_metadata(more):
    """Metadata may have the members that the contract lists. (P62)"""
    assert validator().accepts({"metadata": METADATA | more})


@pytest.mark.parametrize(
    "more",
    [
        {"event_type": "other"},
        {"partition": 0},
        {"parent_eids": ["x"]},
        {"parent_eids": EID},
        {"span_ctx": {"a": 1}},
        {"eid": f"{EID}\n"},
        {"eid": f"x{EID}"},
        {"eid": EID.replace("d", "g")},
        {"eid": "\u0661" + EID[1:]},
        {"eid": 1},
        {"occurred_at": 1},
        {"received_at": "2026-11-21T12:00:00Z"},
        {"version": "1.0.0"},
        {"published_by": "ann"},
        {"schema_version": "1"},
        {"partition_compaction_key": "a"},
    ],
)
def test_bad_metadata(more):
    """Metadata may have no other members, and no other formats. (P62, P63, P64, P65)"""
    assert not validator().accepts({"metadata": METADATA | more})


@pytest.mark.parametrize("name", METADATA)
def test_incomplete_metadata(name):
    """Without `eid` or `occurred_at`, metadata is not valid. (P62)"""
    assert not validator().accepts({"metadata": {key: value for key, value in METADATA.items() if key != name}})


@pytest.mark.parametrize("policy", [CleanupPolicy.COMPACT, CleanupPolicy.COMPACT_AND_DELETE])
def test_compaction_key(policy):
    """Events that are compacted need a key that is not empty. (P62)"""
    compacted = validator(cleanup_policy=policy)

    assert compacted.accepts({"metadata": METADATA | {"partition_compaction_key": "a"}})
    assert not compacted.accepts({"metadata": METADATA | {"partition_compaction_key": ""}})
    assert not compacted.accepts({"metadata": METADATA})


@pytest.mark.parametrize("draft", [4, 6, 7])
def test_types_of_numbers(draft):
    """1.0 is a number and not an integer, in each draft, and true is neither. (P72)"""
    told = {"$schema": f"http://json-schema.org/draft-0{draft}/schema#"}

    assert is_accepted(told | {"type": "integer"}, 1)
    assert not is_accepted(told | {"type": "integer"}, 1.0)
    assert not is_accepted(told | {"type": "integer"}, True)
    assert is_accepted(told | {"type": "number"}, 1.0)
    assert not is_accepted(told | {"type": "number"}, False)


@pytest.mark.parametrize("name", ["date-time", "uri", "email", "ipv4", "ipv6", "hostname", "iso-4217", "ISO-4217"])
def test_formats(name):
    """A format that is enforced refuses a string that does not have it, and does not apply to other values. (P70,
    R181)"""
    assert not is_accepted({"format": name}, "\n")
    assert is_accepted({"format": name}, 5)


@pytest.mark.parametrize("name", ["uuid", "date", "time", "regex", "nonsense"])
def test_other_formats(name):
    """Other formats are not checked. (R181)"""
    assert is_accepted({"format": name}, "\n")


def test_drafts():
    """The draft that the schema names decides which keywords apply; without one, it is draft 04. (P56)"""
    schema = {"const": 1, "if": {"type": "string"}, "then": False}

    assert is_accepted(schema, "a")
    assert is_accepted(schema | {"$schema": "http://json-schema.org/draft-06/schema#", "const": "a"}, "a")
    assert not is_accepted(schema | {"$schema": "http://json-schema.org/draft-06/schema#"}, "a")
    assert not is_accepted(schema | {"$schema": "http://json-schema.org/draft-07/schema", "const": "a"}, "a")


def test_defaults():
    """A default is not inserted into the event. (P56)"""
    schema = {"default": {}, "properties": {"a": {"default": 1}}, "items": [{"default": 1}]}
    for event in ({}, []):
        before = copy.deepcopy(event)
        assert is_accepted(schema, event)
        assert event == before


def test_encoded_strings_are_not_decoded():
    """Validation does not decode encoded strings, so a string stays a string. (P56)"""
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "contentEncoding": "base64", "type": "string"}

    assert is_accepted(schema, "not base64!")


def test_recursive_schemas():
    """A schema that refers to itself is applied to every level of the event. (P56)"""
    tree = compile_validator(
        {"properties": {"value": {"type": "integer"}, "nodes": {"items": {"$ref": "#"}}}, "required": ["value"]}
    )

    assert tree.accepts({"value": 1, "nodes": [{"value": 2, "nodes": [{"value": 3}]}]})
    assert not tree.accepts({"value": 1, "nodes": [{"value": 2, "nodes": [{"value": "3"}]}]})
    assert not tree.accepts({"value": 1, "nodes": [{}]})


@pytest.mark.parametrize("levels", [10, 300, 990, 5_000])
def test_deep_events(levels):
    """An event that is nested too deeply is refused with a reason. (P56)"""
    tree = compile_validator({"properties": {"a": {"$ref": "#"}}, "additionalProperties": False})
    good: dict = {}
    bad: dict = {"b": 1}
    for _ in range(levels):
        good, bad = {"a": good}, {"a": bad}

    assert tree.accepts(good) is (levels < 900)
    assert not tree.accepts(bad)
    assert tree.explain(bad).startswith("#")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"required": "a"}, "#/required: expected type: JsonArray, found: String"),
        ({"type": "foo"}, "unknown type: [foo]"),
        ({"$ref": "#/definitions/a"}, "#: key [definitions] not found"),
        ({"$ref": "http://localhost/a"}, "external url reference is not supported: http://localhost/a"),
        ({"pattern": "a(?!b)"}, 'invalid regex pattern in the schema: invalid or unsupported Perl syntax "(?!"'),
        ({"patternProperties": {"a**": {}}}, "invalid regex pattern in the schema: invalid nested repetition"),
        ({"allOf": [{"$ref": "#"}]}, "a schema refers back to itself for the same value"),
        ({"title": [0] * 20_000}, "schema is too large"),
    ],
)
def test_schemas_that_cannot_be_used(schema, reason):
    """An invalid schema is refused with the reason, as soon as it is used. (R153, R157)"""
    with pytest.raises(Invalid) as refused:
        compile_validator(schema)
    assert reason in refused.value.detail


def drafts_as_we_read_them(draft: int):
    """The independent implementation with which random cases are compared, with one intended difference: 1.0 is not an
    integer.
    """
    known = {4: jsonschema.Draft4Validator, 6: jsonschema.Draft6Validator, 7: jsonschema.Draft7Validator}[draft]
    integers = known.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    )
    return jsonschema.validators.extend(known, type_checker=integers)


@pytest.mark.parametrize("draft", [4, 6, 7])
def test_an_independent_implementation_agrees(draft):
    """The verdict, the explanation and an independent implementation agree for any schema and event. (P56, P71)"""
    reference = drafts_as_we_read_them(draft)

    @settings(max_examples=50)
    @given(schemas(draft), st.lists(VALUES, min_size=1, max_size=5))
    def check(schema, events):
        try:
            ours = compile_validator(schema)
        except Invalid:
            return
        for event in events:
            assert ours.accepts(event) == reference(schema).is_valid(event)
            assert ours.accepts(event) == (ours.explain(event) == NO_EXPLANATION_MESSAGE)

    check()
