"""Events that are recognized as valid at once are valid, and valid events are recognized, except for unusual ones."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from nakadi.model.event_type import CleanupPolicy
from nakadi.schemas import shapes
from nakadi.schemas.batch_check import MAX_STEPS, make_batch_check
from nakadi.schemas.document import EID_PATTERN, SchemaDocument, metadata_schema
from nakadi.schemas.text_check import make_text_check
from nakadi.schemas.validation import compile_validator
from tests.support.everything import choose_by_suite

TEXT = {"type": "string"}
NAMES = ("a", "b", 'c"', "dé")

SCALARS = [
    *({}, TEXT, {"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"]}),
    *({"type": "string", "minLength": 2}, {"type": "string", "maxLength": 1, "format": "uuid"}),
    *({"type": "string", "enum": ["", "é", "no"]}, {"type": ["null", "string"], "enum": ["no"]}, {"enum": ["no"]}),
    *({"type": "string", "pattern": EID_PATTERN}, {"type": "string", "pattern": "^n"}, {"minLength": 1}),
    *({"type": "string", "format": "date-time"}, {"type": "string", "format": "email"}),
    *({"type": "integer"}, {"type": "integer", "minimum": 1}, {"type": ["null", "integer"], "maximum": 1}),
    *({"type": "integer", "format": "date-time", "minLength": 3}, {"type": "integer", "minimum": 2**60}),
    *({"type": "number"}, {"type": "number", "minimum": 1, "maximum": 2}, {"type": "number", "minimum": 0.5}),
    *({"type": "number", "minimum": 0.5, "maximum": 1.5}, {"type": "integer", "minimum": -0.5, "maximum": 0.5}),
    *({"type": "number", "minimum": 1, "exclusiveMinimum": True}, {"type": "integer", "multipleOf": 2}),
    *({"type": ["string", "integer"]}, {"type": "integer", "enum": [1]}, {"type": "string", "anyOf": [TEXT]}),
    *({"type": "object"}, {"type": "array"}, {"type": "object", "additionalProperties": TEXT}),
]
SCHEMAS = some.recursive(
    some.sampled_from(SCALARS),
    lambda inner: (
        some.fixed_dictionaries(
            {"type": some.sampled_from(["object", ["object", "null"]])},
            optional={
                "properties": some.dictionaries(some.sampled_from(NAMES), inner, min_size=2),
                "required": some.lists(some.sampled_from(NAMES), max_size=2, unique=True),
                "additionalProperties": some.booleans() | inner,
            },
        )
        | some.fixed_dictionaries(
            {"type": some.just("array"), "items": inner},
            optional={"minItems": some.integers(0, 2), "maxItems": some.integers(1, 2), "uniqueItems": some.booleans()},
        )
    ),
    max_leaves=8,
)
OBJECTS = some.fixed_dictionaries(
    {"type": some.just("object"), "properties": some.fixed_dictionaries(dict.fromkeys(NAMES[:3], SCHEMAS))},
    optional={"required": some.just(["a"]), "additionalProperties": some.booleans()},
)
PLAIN = [
    *(None, True, False, 0, 1, 2, 3, -1, 2**53 + 1, 2**60, 2**63, 2**64 - 1, 0.5, 1.0, 1.5, 2.0, 1e30),
    *("", "n", "é", "no", "nö", "1", "2026-11-21T12:00:00Z", "2026-11-21T12:00:00Z\n", "2024-02-29t00:00:00Z"),
    *("105a76d8-db49-4144-ace7-e683e8f4ba46", "105a76d8-db49-4144-ace7-e683e8f4ba46\n"),
]
VALUES = some.recursive(
    some.sampled_from(PLAIN),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.sampled_from(NAMES), inner),
    max_leaves=8,
)


def values_for(schema):
    """A strategy for values, many of which are valid."""
    if not isinstance(schema, dict):
        return VALUES
    if "properties" in schema and "object" in schema["type"]:
        members = {name: values_for(each) for name, each in schema["properties"].items()}
        return some.fixed_dictionaries({}, optional=members) | VALUES
    if schema.get("type") == "array":
        return some.lists(values_for(schema.get("items", True)), max_size=3) | VALUES
    return VALUES


ORDER = {
    "type": "object",
    "required": ["n"],
    "properties": {
        "n": {"type": "integer", "minimum": 0},
        "sum": {"type": "number"},
        "note": {"type": ["string", "null"]},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": TEXT, "a:b": TEXT}}},
        "names": {"type": "object", "additionalProperties": TEXT},
    },
}
EID = "105a76d8-db49-4144-ace7-e683e8f4ba46"
SENT = {"eid": EID, "occurred_at": "2026-11-21T12:00:00Z"}
# A time in an unusual format.
UNUSUAL = ("2024-02-29t00:00:00Z",)


def with_metadata(schema):
    sent = metadata_schema("order", CleanupPolicy.DELETE)
    return {**schema, "properties": {**schema["properties"], "metadata": sent}, "required": ["metadata"]}


def check_for(schema, *, has_metadata=False):
    document = SchemaDocument.from_root(schema)
    return AcceptingCheck(
        make_batch_check(document, compile_validator(schema).compile_parts, has_metadata=has_metadata)
    )


class AcceptingCheck:
    """A check with the steps of a whole batch for each call. It accepts texts as it accepts the parsed events."""

    def __init__(self, check):
        self.fits, self.parts = check.fits, check.checks_of_parts
        self._check = check
        self._text_checks = [make_text_check(check), make_text_check(check, lambda event: event)]

    def accepts(self, events):
        doubtful = [number for number, each in enumerate(events) if not self._check.accepts([each], [MAX_STEPS])]
        for check in self._text_checks:
            assert list(check.find_doubtful(list(map(orjson.dumps, events)), [MAX_STEPS])) == doubtful
        accepted = self._check.accepts(events, [MAX_STEPS])
        assert accepted is (not doubtful)
        return accepted


def is_usual(value):
    """Whether a value contains nothing unusual, which may be valid and yet not recognized."""
    return not any(each in json.dumps(value) for each in UNUSUAL)


@settings(max_examples=choose_by_suite(50, 400), deadline=None)
@given(some.data())
def test_what_is_known_at_once_is_what_is_valid(data):
    """For random schemas and events, exactly those events are recognized that the code for the whole schema accepts."""
    schema = data.draw(OBJECTS)
    check, validator = check_for(schema), compile_validator(schema)
    events = [
        each for each in data.draw(some.lists(values_for(schema), min_size=1, max_size=8)) if isinstance(each, dict)
    ]
    for event in events:
        is_valid = validator.accepts(event)
        assert check.accepts([event]) is is_valid or (is_valid and not is_usual(event))
    assert check.accepts(events) is all(check.accepts([event]) for event in events)


@pytest.mark.parametrize("said", [*SCALARS, *({"type": "array", "items": each} for each in SCALARS[:4])])
@pytest.mark.parametrize("closed", [True, False])
def test_each_kind_of_value_is_known(said, closed):
    """A value is recognized if the code for the whole schema accepts it, including in lists and beside unknown
    members."""
    schema = order(more=said) | {"additionalProperties": not closed, "required": ["more"]}
    check, validator = check_for(schema), compile_validator(schema)
    values = [*PLAIN, {}, {"a": ""}, {"a": 1}, [], [""], [1], [None]]
    events = [{**an_order([]), **more} for each in values for more in ({"more": each}, {"more": each, "x": 1})]
    for event in [*events, an_order([]), an_order([1]), {}]:
        is_valid = validator.accepts(event)
        assert check.accepts([event]) is is_valid or (is_valid and not is_usual(event)), event


def order(**changes):
    item = {
        "type": "object",
        "required": ["sku"],
        "properties": {"sku": TEXT, "tags": {"type": "array", "items": TEXT}},
    }
    return {
        "type": "object",
        "title": "An order",
        "properties": {
            "number": TEXT,
            "placed_at": {"type": "string", "format": "date-time"},
            "items": {"type": "array", "minItems": 1, "items": item},
            "total": {"type": "number", "minimum": 0},
            **changes,
        },
    }


def an_order(tags):
    return {"number": "1", "placed_at": "2026-11-21T12:00:00Z", "items": [{"sku": "s", "tags": tags}], "total": 1}


AMOUNT = {"type": "object", "properties": {"net": {"type": "number"}}}
UNTYPED_PARTS = {
    "a pattern": ({"type": "string", "pattern": "^o-[0-9]+$"}, "o-1", "o-"),
    "a pattern that null need not match": ({"type": ["string", "null"], "pattern": "^o$"}, None, "p"),
    "a format": ({"type": "string", "format": "ipv4"}, "10.0.0.1", "10.0.0.256"),
    "values without a type": ({"enum": ["new", 1, None, {"a": [1]}]}, {"a": [1]}, "old"),
    "one value of several types": ({"type": ["string", "integer"]}, 1, 1.5),
    "a multiple": ({"type": "number", "multipleOf": 0.01}, 12.34, 12.345),
    "one of two": ({"oneOf": [{"type": "string"}, {"type": "object", "required": ["a"]}]}, {"a": 1}, {"b": 1}),
    "not": ({"not": {"type": "null"}}, 0, None),
    "different items": ({"type": "array", "uniqueItems": True}, [1, "1", [1]], [1, [2], 1.0]),
    "items by position": ({"items": [TEXT, {"type": "integer"}]}, ["a", 1], [1]),
    "items of a list by position": ({"type": "array", "items": [TEXT, {"type": "integer"}]}, ["a", 1], [1]),
    "names by pattern": ({"type": "object", "patternProperties": {"^x": TEXT}}, {"x": "", "y": 1}, {"x": 1}),
    "few members": ({"type": "object", "maxProperties": 1}, {"x": {"y": 2}}, {"x": 1, "y": 2}),
    "an exclusive bound": ({"type": "integer", "exclusiveMinimum": 0}, 1, 0),
    "one of two beside members": (
        {**AMOUNT, "oneOf": [{"required": ["net"]}, {"required": ["gross"]}]},
        {"net": 1, "more": 2},
        {"net": 1, "gross": 1},
    ),
    "conditions beside members": (
        {**AMOUNT, "if": {"required": ["net"]}, "then": {"minProperties": 2}, "else": {"required": ["gross"]}},
        {"net": 1, "tax": 2},
        {"net": 1},
    ),
    "dependencies beside members": ({**AMOUNT, "dependencies": {"net": ["gross"]}}, {"net": 1, "gross": 1}, {"net": 1}),
    "names by pattern beside members": (
        {**AMOUNT, "patternProperties": {"^[xn]": {"type": ["string", "number"]}}},
        {"net": 1, "x": "", "y": []},
        {"net": 1, "x": []},
    ),
    "further members of one kind": (
        {**AMOUNT, "additionalProperties": TEXT},
        {"net": 1, "more": ""},
        {"net": 1, "more": 1},
    ),
    "further members by pattern only": (
        {**AMOUNT, "patternProperties": {"^x": TEXT}, "additionalProperties": False},
        {"net": 1, "x": ""},
        {"net": 1, "y": ""},
    ),
    "what is defined elsewhere": ({"$ref": "#/definitions/address"}, {"zip": "12345", "more": 1}, {"zip": "x"}),
    "what holds itself": ({"$ref": "#/definitions/node"}, {"left": {"left": {}}}, {"left": {"left": {"left": 1}}}),
}
DEFINITIONS = {
    "address": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}},
    "node": {"type": "object", "properties": {"left": {"$ref": "#/definitions/node"}}},
}
PLACES = {
    "at the top": (lambda part: {"v": part}, lambda value: {"v": value}),
    "in an object": (
        lambda part: {"o": {"type": ["object", "null"], "properties": {"v": part}}},
        lambda value: {"o": {"v": value}},
    ),
    "in a list": (
        lambda part: {"l": {"type": "array", "items": {"type": "object", "properties": {"v": part}}}},
        lambda value: {"l": [{}, {"v": value}]},
    ),
    "in a list of lists": (
        lambda part: {"l": {"type": "array", "items": {"type": "array", "items": part}}},
        lambda value: {"l": [[], [value]]},
    ),
    "by name": (
        lambda part: {"m": {"type": "object", "additionalProperties": part}},
        lambda value: {"m": {"x": value}},
    ),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize(("part", "good", "bad"), UNTYPED_PARTS.values(), ids=UNTYPED_PARTS)
def test_what_a_type_cannot_say_is_checked_in_its_place(part, good, bad, place):
    """A part of a schema that no type expresses is checked in its place: events that match it are recognized with all
    others, and an event that does not match it is not.
    """
    make_properties, make_event = place
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, **make_properties(part)}}
    check = check_for({**schema, "definitions": DEFINITIONS, "$schema": "http://json-schema.org/draft-07/schema"})
    assert check.accepts([{}, {"n": 1}, make_event(good)])
    assert not check.accepts([make_event(good), make_event(bad)])
    assert not check.accepts([{"n": ""}, make_event(good)])


@pytest.mark.parametrize(
    "said",
    [
        *({"type": "integer", "minimum": 0, "maximum": 2**53}, {"type": ["number", "null"], "maximum": -(2**53)}),
        *({"type": "number", "minimum": -0.5, "maximum": 99.99}, {"type": "integer", "minimum": 0.5}),
        *({"type": "string", "minLength": 1, "maxLength": 2, "format": "uuid"}, {"type": "string", "enum": ["a"]}),
        *(
            {"type": "array", "minItems": 1, "maxItems": 2, "items": TEXT},
            {"type": "boolean"},
            {"type": "null"},
            True,
            {},
        ),
        *({"type": "object", "additionalProperties": TEXT}, {"type": "object", "additionalProperties": False}),
        *(
            {"$ref": "#/properties/n"},
            {"type": "object", "required": ["a"], "properties": {"b": TEXT}},
            {"minLegth": 1},
        ),
    ],
)
def test_what_a_type_says_needs_no_code(said):
    """Types, members, lengths and bounds do not become separate parts."""
    assert not check_for({"type": "object", "properties": {"n": {"type": "integer"}, "x": said}}).parts


@pytest.mark.parametrize(
    "said",
    [
        *(
            {"type": "number", "minimum": 2**53 + 1},
            {"type": "number", "maximum": 1e300},
            {"type": "integer", "enum": [1]},
        ),
        *(
            {"type": "number", "minimum": 1, "exclusiveMinimum": True},
            {"type": ["string", "integer"]},
            {"enum": ["a", 1]},
        ),
        *(
            {"type": "string", "enum": ["a"], "maxLength": 1},
            {"type": ["string", "null"], "enum": ["a"]},
            {"maximum": 1},
        ),
        *(
            {"type": "array", "items": [TEXT]},
            {"type": "object", "properties": {"a": TEXT}, "additionalProperties": TEXT},
        ),
        *(
            {"type": "string", "pattern": "a"},
            {"type": "string", "format": "date-time"},
            {"const": 1},
            {"minLength": 1},
        ),
    ],
)
def test_what_no_type_says_is_a_part(said):
    """A value that no type expresses is left to code, as the only part of its schema."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "x": said}}
    assert [part.path for part in check_for(schema).parts] == [("x",)]


@pytest.mark.parametrize("name", ['"', "\\", "\n", "", "x" * 200, "é", 'metadata":{'])
def test_members_of_any_name(name):
    """A member with any name is checked, even if no type can declare it, and only in the object whose schema names
    it.
    """
    odd = {"type": "object", "properties": {name: TEXT}, "required": [name]}
    check = check_for({"type": "object", "properties": {"n": {"type": "integer"}, "odd": odd}})
    assert check.accepts([{"n": 1, "odd": {name: "", "y": 1}}, {"x": {name: 1}}])
    for event in ({"odd": {name: 1}}, {"odd": {}}, {"n": "", "odd": {name: ""}}):
        assert not check.accepts([event])


def test_what_is_said_of_whole_events_is_checked_beside_their_type():
    """Rules about a whole event also cover the members that the schema does not name."""
    check = check_for({"type": "object", "properties": {"a": TEXT}, "minProperties": 2, "not": {"required": ["c"]}})
    assert check.accepts([{"a": "", "b": 1}, {"b": 1, "a": "", "x": {"y": 1}}])
    for event in ({"a": ""}, {"a": "", "c": 1}, {"a": 1, "b": 1}):
        assert not check.accepts([event])


def test_events_are_objects_whatever_their_schema_says():
    """A schema without a type describes an object."""
    check = check_for({"properties": {"a": TEXT}, "additionalProperties": {"type": "integer"}})
    assert check.accepts([{"a": "", "b": 1}])
    for event in ({"a": 1}, {"b": "c"}):
        assert not check.accepts([event])


def test_a_schema_that_refers_to_itself():
    """Events of any depth are checked, and values that are too deep are not recognized."""
    check = check_for({"type": "object", "properties": {"a": TEXT, "in": {"$ref": "#"}}})
    deep = orjson.loads('{"in":' * 150 + '{"a":""}' + "}" * 150)
    assert check.accepts([deep])
    assert not check.accepts([orjson.loads('{"in":' * 150 + '{"a":1}' + "}" * 150)])


def test_what_is_checked_in_many_places_is_bounded():
    """A part that takes many steps for many values is left to the check that waits for its turn."""
    laborious = {"not": {"anyOf": [{"enum": [str(number)]} for number in range(200)]}}
    check = check_for({"type": "object", "properties": {"v": {"type": "array", "items": laborious}}})
    assert check.accepts([{"v": ["a"] * 10}])
    assert not check.accepts([{"v": ["a"] * 1000}] * 3)


def test_only_so_many_types_are_made(monkeypatch):
    """For a schema with hundreds of objects, few types are created, and it is still checked as a whole."""
    defstruct, made = shapes.defstruct, []
    monkeypatch.setattr(shapes, "defstruct", lambda *said, **more: made.append(1) or defstruct(*said, **more))
    check = check_for({"type": "object", "properties": {f"p{number}": order() for number in range(200)}})
    assert len(made) == shapes._MAX_STRUCTS_PER_SCHEMA + 1  # including the one for the batch
    assert check.accepts([{"p0": an_order([]), "p199": an_order([])}])
    for name in ("p0", "p199"):
        assert not check.accepts([{name: an_order([1])}])


def test_a_batch_of_many_members_that_are_missing_takes_no_memory():
    """A converted object has a slot for each member of its schema, so a batch with many objects is not converted."""
    check = check_for({"type": "object", "properties": {f"p{number}": TEXT for number in range(1000)}})
    few, many = (b"[" + b",".join([b"{}"] * number) + b"]" for number in (1000, 1100))
    assert check.fits([few])
    assert not check.fits([many])
    assert check.fits([b"x" * len(many)])


@pytest.mark.parametrize(
    "sent",
    [
        *({"eid": "x"}, {"eid": EID + "\n"}, {"occurred_at": "2026-02-29T12:00:00Z"}, {"occurred_at": "yesterday"}),
        *({"parent_eids": ["x"]}, {"published_by": "x"}, {"event_type": "another"}, {"x": 1}, {"span_ctx": {"a": 1}}),
        *({"eid": None}, {"partition": 1}, {"partition_compaction_key": "k"}),
    ],
)
def test_metadata_that_are_not_valid(sent):
    """Metadata is checked against its schema like everything else, and its time has to be valid."""
    check = check_for(with_metadata(ORDER), has_metadata=True)
    rich = {**SENT, "event_type": "order", "flow_id": "f", "span_ctx": {"a": "b"}, "partition": "7"}
    rich |= {"parent_eids": [EID], "occurred_at": "2024-02-29T12:00:00Z"}
    assert check.accepts([{"metadata": rich, "n": 1}])
    assert not check.accepts([{"metadata": rich, "n": 1}, {"metadata": SENT | sent, "n": 1}])


@pytest.mark.parametrize("event", [{}, {"metadata": None}, {"metadata": []}, {"metadata": {"eid": EID}}])
def test_events_without_metadata(event):
    """If no type expresses the schema, nothing is accepted that its code would refuse."""
    for schema in (with_metadata(ORDER), {**with_metadata(ORDER), "patternProperties": {"x": {}}, "enum": [1]}):
        assert not check_for(schema, has_metadata=True).accepts([event])
