"""A first look at an event says yes to valid events alone, and is taken where it may be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from nakadi.schemas import validation
from nakadi.schemas.document import EID_PATTERN
from nakadi.schemas.shapes import make_quick_checks
from nakadi.schemas.validation import compile_validator
from nakadi.schemas.values import StepsExhausted

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


def like(schema):
    """Values of which many are valid."""
    if not isinstance(schema, dict):
        return VALUES
    if "properties" in schema and "object" in schema["type"]:
        members = {name: like(each) for name, each in schema["properties"].items()}
        return some.fixed_dictionaries({}, optional=members) | VALUES
    if schema.get("type") == "array":
        return some.lists(like(schema.get("items", True)), max_size=3) | VALUES
    return VALUES


def looking_and_thorough(schema):
    """The validators with and without a first look."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "make_quick_checks", lambda *_: {})
        thorough = compile_validator(schema)
    return compile_validator(schema), thorough


@settings(max_examples=60, deadline=None)
@given(some.data())
def test_a_look_changes_no_verdict(data):
    """With and without a first look, the same events are valid."""
    schema = data.draw(OBJECTS)
    looking, thorough = looking_and_thorough(schema)
    for event in data.draw(some.lists(like(schema), min_size=1, max_size=8)):
        assert looking.accepts(event) is thorough.accepts(event)


@pytest.mark.parametrize("said", [*SCALARS, *({"type": "array", "items": each} for each in SCALARS[:4])])
@pytest.mark.parametrize("closed", [True, False])
def test_a_look_changes_no_verdict_of_any_value(said, closed):
    """Each kind of value is valid or not as it is without a look, in lists too, and beside unknown members."""
    schema = order(more=said)
    looking, thorough = looking_and_thorough({**schema, "additionalProperties": not closed, "required": ["more"]})
    values = [*PLAIN, {}, {"a": ""}, {"a": 1}, [], [""], [1], [None]]
    events = [{**an_order([]), **more} for each in values for more in ({"more": each}, {"more": each, "x": 1})]
    for event in [*events, an_order([]), an_order([1]), {}, None, []]:
        assert looking.accepts(event) is thorough.accepts(event), event


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


def test_an_ordinary_event_is_known_at_first_look():
    """What is valid at first look takes no steps for what is in its lists; what is not takes all that it needs."""
    validator = compile_validator(order())
    assert validator.check(an_order(["x"] * 10_000), [1000])
    with pytest.raises(StepsExhausted):
        validator.check(an_order(["x"] * 10_000 + [1]), [1000])


@pytest.mark.parametrize(
    "said",
    [
        *(
            {"pattern": "^(a+)+$"},
            {"format": "email"},
            {"anyOf": [TEXT]},
            {"not": {"type": "null"}},
            {"enum": ["a", 1]},
        ),
        *({"$ref": "#/definitions/x"}, {"type": ["string", "integer"]}, {"type": "integer", "multipleOf": 2}),
        *({"type": "number", "minimum": 2**54}, {"type": "number", "maximum": 1.5}, {"type": "array", "items": [TEXT]}),
        *({"type": "array", "uniqueItems": True}, {"type": "object", "patternProperties": {"a": TEXT}}),
        *({"type": "object", "minProperties": 1}, {"type": "object", "properties": {"a\\b": TEXT}}, False),
    ],
)
def test_what_no_type_can_say(said):
    """An event has no look where its schema says more, or what a stranger's pattern says; parts of it may have one."""
    schema = order(more={"type": "string", **said} if isinstance(said, dict) else said)
    fine = schema["properties"]["fine"] = order()
    looks = make_quick_checks(schema, frozenset())
    assert id(schema) not in looks
    assert id(fine) in looks


def test_what_a_value_may_be_held_to_many_times():
    """Neither what references point at has a look, nor what stands there, nor an alternative."""
    schema = {"type": "object", "properties": {"a": order(), "b": {"$ref": "#/properties/a"}}}
    assert make_quick_checks(schema, frozenset({id(schema["properties"]["a"])})) == {}
    assert (
        make_quick_checks({"type": "object", "anyOf": [order()], "properties": {"b": {"not": order()}}}, frozenset())
        == {}
    )
    with pytest.raises(StepsExhausted):
        compile_validator(schema).check({"a": an_order(["x"] * 10_000)}, [1000])


def test_only_so_many_types_are_made():
    """The looks at a schema with thousands of objects are few."""
    many = {"type": "object", "properties": {f"p{n}": order() for n in range(500)}}
    assert 10 < len(make_quick_checks(many, frozenset())) <= 30
