"""The values at the locations of changes in both schemas."""

import pytest

from nakadi.schemas.changes import find_schema_changes
from nakadi.schemas.places import values_of_change

S, INT = {"type": "string"}, {"type": "integer"}


def values(old, new):
    (change,) = find_schema_changes(old, new)
    return values_of_change(change, old, new)


def test_a_property_that_is_gone_has_an_old_value_alone():
    """For a removed property, the old value is shown unchanged. (R296)"""
    assert values({"properties": {"a": S, "b": INT}}, {"properties": {"a": S}})[0] == INT


def test_added_properties_are_shown_without_the_others():
    """For a change that adds properties, only these properties are shown. (R296)"""
    old, new = values({"properties": {"a": S}}, {"properties": {"a": S, "b": INT}})
    assert new == {"b": INT}
    assert old != S


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"title": "a"}, {"title": "b"}, ("a", "b")),
        ({"properties": {"a": {"description": "x"}}}, {"properties": {"a": {"description": "y"}}}, ("x", "y")),
        ({"properties": {"a": S | {"maxLength": 1}}}, {"properties": {"a": S | {"maxLength": 2}}}, (1, 2)),
        ({"properties": {"a": {"anyOf": [S]}}}, {"properties": {"a": {"anyOf": [S, INT]}}}, ([S], [S, INT])),
    ],
)
def test_a_change_of_a_keyword_shows_both_values(old, new, expected):
    """Both values of the changed keyword are shown. (R296)"""
    assert values(old, new) == expected


def test_references_lead_to_definitions():
    """The value in a definition is found in each schema by that schema's own reference. (R296)"""
    old = {"properties": {"a": {"$ref": "#/definitions/x~1y"}}, "definitions": {"x/y": S | {"minLength": 1}}}
    new = {"properties": {"a": {"$ref": "#/definitions/z"}}, "definitions": {"z": S | {"minLength": 2}}}
    assert values(old, new) == (1, 2)


def test_several_types_have_one_place():
    """If the text has a list of types rather than a choice, the location of each member is the schema itself. (R296)"""
    old = {"properties": {"a": {"type": ["string", "null"], "maxLength": 3}}}
    new = {"properties": {"a": {"type": ["string", "null"], "maxLength": 4}}}
    assert values(old, new) == (3, 4)


def test_what_stands_beside_a_combinator_is_found():
    """A change of a keyword beside `anyOf` is found, too. (R296)"""
    choice = {"anyOf": [{"required": ["a"]}]}
    old, new = (
        {"properties": {"a": S | {"maxLength": 3}}} | choice,
        {"properties": {"a": S | {"maxLength": 4}}} | choice,
    )
    assert values(old, new) == (3, 4)
