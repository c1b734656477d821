"""Texts of events are known to be valid as their values are; `test_batch_check` compares both on all its examples."""

import json

import pytest

from nakadi.model.event_type import CleanupPolicy
from nakadi.schemas.batch_check import MAX_STEPS, make_batch_check
from nakadi.schemas.document import SchemaDocument, metadata_schema
from nakadi.schemas.text_check import make_text_check
from nakadi.schemas.validation import compile_validator

TEXT = {"type": "string", "pattern": "^x"}


def text_check_of(properties):
    schema = {"type": "object", "properties": properties, "$schema": "http://json-schema.org/draft-07/schema"}
    compile_parts = compile_validator(schema).compile_parts
    return make_text_check(make_batch_check(SchemaDocument.from_root(schema), compile_parts, has_metadata=False))


def accepts(check, *events):
    return check.accepts(json.dumps(events).encode(), [MAX_STEPS])


@pytest.mark.parametrize(
    ("properties", "good", "bad"),
    [
        ({"a": TEXT}, [{"a": "x"}, {}, {"b": 1}], {"a": "y"}),
        ({"a": {"type": ["string", "null"], "pattern": "^x"}}, [{"a": None}], {"a": "y"}),
        (
            {"a": {"type": ["object", "null"], "properties": {"b": TEXT}}},
            [{"a": None}, {"a": {"b": "x"}}],
            {"a": {"b": ""}},
        ),
        (
            {"a": {"type": "array", "items": {"type": "array", "items": TEXT}}},
            [{"a": [[], ["x", "x"]]}],
            {"a": [["y"]]},
        ),
        ({"a": {"type": "object", "additionalProperties": TEXT}}, [{"a": {"b": "x"}}], {"a": {"b": ""}}),
        ({"a": {"oneOf": [TEXT, {"type": "object"}]}}, [{"a": {"b": {"c": 1}}}, {"a": "x"}], {"a": ["x"]}),
        ({"metadata": metadata_schema("a", CleanupPolicy.DELETE)}, [{}], {"metadata": {"eid": "1"}}),
    ],
)
def test_values_that_types_do_not_express_are_checked_in_their_places(properties, good, bad):
    """Through objects, lists and maps, whether something is there or null."""
    check = text_check_of(properties)
    assert accepts(check, *good)
    assert not accepts(check, *good, bad)


def test_a_part_about_a_whole_object_needs_the_object():
    """A type keeps only the members that it names, so such a schema has no check of texts."""
    whole = {"type": "object", "properties": {"b": {"type": "integer"}}, "minProperties": 2}
    assert text_check_of({"a": whole}) is None
    assert text_check_of({"a": {"type": "array", "items": whole}}) is None
    assert text_check_of({"a": {key: each for key, each in whole.items() if key != "properties"}}) is not None


def test_what_takes_too_much_is_not_known():
    """Neither with too few steps, nor with too many objects, nor where it is no JSON."""
    check = text_check_of({"a": {"type": "array", "uniqueItems": True}})
    assert not check.accepts(json.dumps([{"a": list(range(100))}]).encode(), [10])
    assert not check.accepts(b"[" + b"{}," * 1_000_000 + b"{}]", [MAX_STEPS])
    assert not check.accepts(b"[{]", [MAX_STEPS])
