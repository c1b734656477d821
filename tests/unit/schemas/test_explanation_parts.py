"""Compiled code for parts of a schema does not change which rules an event is found to break."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from nakadi.schemas.explanation import SHORT_EXPLANATION_MAX_STEPS, broken_rules
from nakadi.schemas.keywords import BrokenRule
from nakadi.schemas.validation import Validator, compile_validator
from nakadi.schemas.values import StepsExhausted
from tests.support.everything import choose_by_suite

SEVEN = {"$schema": "http://json-schema.org/draft-07/schema#"}
NAMES = ("a", "b", "1")
SCALARS = (
    *({}, {"type": "string"}, {"type": ["string", "null"]}, {"type": "integer", "minimum": 1}, {"maximum": 0.5}),
    *({"enum": ["", 1]}, {"const": None}, {"pattern": "^n"}, {"format": "ipv4"}, {"minLength": 1}, {"multipleOf": 2}),
    *({"uniqueItems": True}, {"maxProperties": 1}, {"exclusiveMaximum": 1}, {"$ref": "#/definitions/node"}),
)
SCHEMAS = some.recursive(
    some.sampled_from(SCALARS),
    lambda inner: (
        some.fixed_dictionaries(
            {"properties": some.dictionaries(some.sampled_from(NAMES), inner)},
            optional={
                "type": some.just("object"),
                "required": some.lists(some.sampled_from(NAMES), min_size=1, unique=True),
                "additionalProperties": inner | some.just(False),
                "patternProperties": some.fixed_dictionaries({"^[b1]": inner}),
            },
        )
        | some.fixed_dictionaries({"type": some.just("array"), "items": inner})
        | some.fixed_dictionaries({}, optional=dict.fromkeys(("not", "if", "then", "else"), inner))
        | some.dictionaries(
            some.sampled_from(["allOf", "anyOf", "oneOf"]), some.lists(inner, min_size=1, max_size=2), max_size=1
        )
    ),
    max_leaves=10,
)
VALUES = some.recursive(
    some.sampled_from([None, True, 0, 1, 0.5, 2, "", "n", "10.0.0.1"]),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.sampled_from(NAMES), inner),
    max_leaves=8,
)
NODE = {"definitions": {"node": {"type": "object", "properties": {"a": {"$ref": "#/definitions/node"}}}}}


def rules_found_without_parts(validator: Validator, event: Any) -> tuple[BrokenRule, ...]:
    steps = SHORT_EXPLANATION_MAX_STEPS
    return broken_rules(validator.document, validator._patterns, event, steps, lambda *_: False)


@settings(max_examples=choose_by_suite(150, 2000), deadline=None)
@given(
    some.fixed_dictionaries(
        {"properties": some.fixed_dictionaries(dict.fromkeys(NAMES, some.sampled_from(SCALARS) | SCHEMAS))}
    ),
    some.lists(some.fixed_dictionaries(dict.fromkeys(NAMES, VALUES)), min_size=5, max_size=5),
)
def test_code_for_parts_finds_the_same_rules(schema, events):
    """Compiled code for parts finds the same broken rules as a search, for random schemas and events. (H6)"""
    validator = compile_validator(SEVEN | schema | NODE)
    for event in events:
        if not validator.accepts(event):
            assert validator.broken_rules(event) == rules_found_without_parts(validator, event)


def test_what_code_cannot_tell_is_searched():
    """If the code takes too many steps, or recurses too deeply, the search finds what it would find without code.
    (H6)"""
    validator = compile_validator({"properties": {"a": {"properties": {"b": {"type": "string"}}}}})
    for trouble in (StepsExhausted, RecursionError):

        def accepts_part(*_: Any, trouble: type[Exception] = trouble) -> bool:
            raise trouble

        found = broken_rules(validator.document, validator._patterns, {"a": {"b": 1}}, 1000, accepts_part)
        assert found == (BrokenRule("type", "#/a/b"),)


def test_deep_places_have_no_code_of_their_own():
    """The code for a part contains the code for all parts inside it, so nested schemas, whose code would multiply, have
    none for deep parts. (H6)
    """
    schema: dict[str, Any] = {"type": "string"}
    event: Any = 1
    for _ in range(30):
        schema, event = {"properties": {"a": schema}}, {"a": event}
    asked = []
    validator = compile_validator(schema)

    found = broken_rules(
        validator.document, validator._patterns, event, 10_000, lambda part, *_: bool(asked.append(part))
    )

    assert found == (BrokenRule("type", "#" + "/a" * 30),)
    assert len(asked) < 10
