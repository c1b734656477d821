"""Checking the texts of events has the same result as checking their values; `test_batch_check` compares both on all
its examples."""

import json

import pytest

from nakadi.model.event_type import CleanupPolicy
from nakadi.schemas.batch_check import MAX_STEPS, make_batch_check
from nakadi.schemas.document import SchemaDocument, metadata_schema
from nakadi.schemas.text_check import make_text_check
from nakadi.schemas.validation import compile_validator

TEXT = {"type": "string", "pattern": "^x"}


def text_check_of(properties, prepare=None):
    schema = {"type": "object", "properties": properties, "$schema": "http://json-schema.org/draft-07/schema"}
    compile_parts = compile_validator(schema).compile_parts
    batch_check = make_batch_check(SchemaDocument.from_root(schema), compile_parts, has_metadata=False)
    return make_text_check(batch_check, prepare)


def find_doubtful(check, *events):
    return list(check.find_doubtful([json.dumps(each).encode() for each in events], [MAX_STEPS]))


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
    """Values that types do not express are checked in objects, lists and maps, whether these exist or are null."""
    check = text_check_of(properties)
    assert find_doubtful(check, *good) == []
    assert find_doubtful(check, bad, *good, bad) == [0, len(good) + 1]


def test_a_part_about_a_whole_object_needs_the_object():
    """If a part of a schema is about a whole object, events are parsed, because a type keeps only the members that it
    names.
    """
    whole = {"type": "object", "properties": {"b": {"type": "integer"}}, "minProperties": 2}
    for part, shape in ((whole, lambda a: {"a": a}), ({"type": "array", "items": whole}, lambda a: {"a": [a]})):
        check = text_check_of({"a": part})
        assert find_doubtful(check, shape({"b": 1, "c": 1}), shape({"b": 1}), shape({"b": "", "c": 1})) == [1, 2]


def test_events_are_prepared_before_they_are_checked():
    """Events are prepared before the check, so a member that is removed need not be valid."""
    check = text_check_of({"a": TEXT, "b": TEXT}, lambda event: {"b": event["b"]})
    assert find_doubtful(check, {"a": 1, "b": "x"}, {"a": "x", "b": 1}, {"a": "x", "b": "y"}) == [1, 2]


def test_among_many_only_the_doubtful_ones_are_found():
    """The check finds events with a wrong type, and events with a value that only code can check, in their order."""
    check = text_check_of({"a": TEXT})
    values = {3: 1, 17: "y", 40: "", 41: "y", 63: None}
    assert find_doubtful(check, *({"a": values.get(number, "x")} for number in range(64))) == list(values)


def test_an_event_is_found_by_any_of_its_values():
    """An event is found by any of its values, even if another event has no values, or null, in the same place."""
    lists = text_check_of({"a": {"type": "array", "items": TEXT}})
    assert find_doubtful(lists, {"a": ["x", "y"]}, {"a": []}) == [0]
    inner = {"type": ["object", "null"], "required": ["b"], "properties": {"b": TEXT}}
    assert find_doubtful(text_check_of({"a": inner}), {"a": None}, {"a": {"b": "x"}}, {"a": {"b": "y"}}) == [2]


def test_what_takes_too_much_is_not_known():
    """An event is doubtful if its check takes more steps than are left, if it has too many objects, or if its text is
    not JSON.
    """
    check = text_check_of({"a": {"type": "array", "uniqueItems": True}})
    long = json.dumps({"a": list(range(100))}).encode()
    assert list(check.find_doubtful([long, b"{}"], [10])) == [0]
    objects = b'{"b":[' + b"{}," * 1_000_000 + b"{}]}"
    assert list(check.find_doubtful([b"{}", objects, b"{}"], [MAX_STEPS])) == [1]
    assert list(check.find_doubtful([b"{}", b"{]"], [MAX_STEPS])) == [1]
