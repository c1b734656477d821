"""Schemas as documents."""

import pytest

from nakadi.schemas.document import Draft, SchemaDocument, draft_or_none


@pytest.mark.parametrize(
    ("schema", "draft"),
    [
        ({}, Draft.FOUR),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, Draft.FOUR),
        ({"$schema": "http://json-schema.org/draft-06/schema"}, Draft.SIX),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, Draft.SEVEN),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, None),
        ({"$schema": 4}, None),
    ],
)
def test_a_schema_names_its_draft(schema, draft):
    """`$schema` names the draft; draft 4 is the default. (R152)"""
    assert draft_or_none(schema) is draft


ROOT = {"a": {"b/c": [{"d": 1}, True]}, "~": {"%": {}}, "text": "t"}


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#", ROOT),
        ("#/a/b~1c/0", {"d": 1}),
        ("#/a/b~1c/1", True),
        ("#/~0/%25", {}),
        ("#/a/b~1c/2", None),
        ("#/a/b~1c/x", None),
        ("#/a/b~1c/99999999999999999999", None),
        ("#/text", None),
        ("#/text/0", None),
        ("#/a/b~1c", None),
        ("#name", None),
    ],
)
def test_references_are_json_pointers(reference, target):
    """A reference is a JSON Pointer from the root, with its escapes undone. (R153, R154)"""
    assert SchemaDocument.from_root(ROOT).find_target(reference) == target
