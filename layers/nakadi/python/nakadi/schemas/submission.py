"""Whether a schema that somebody submits may be stored."""

from __future__ import annotations

from typing import Any

from nakadi.model.event_type import Category, CompatibilityMode
from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import Document, draft_of
from nakadi.schemas.expansion import check_expansion
from nakadi.schemas.limits import check_tree
from nakadi.schemas.loading import check_divisors, check_loadable, check_patterns, check_references
from nakadi.schemas.paths import defines
from nakadi.schemas.restricted import check_restricted
from nakadi.schemas.strict_json import StrictJsonError, parse


def checked(text: str, *, category: Category) -> dict[str, Any]:
    """The schema that the text says; raises `Invalid` with the first reason against it."""
    schema = _parsed(text)
    _check_root_type(schema)
    document = _document(schema)
    check_tree(schema)
    check_loadable(document)
    check_references(document)
    check_expansion(document)
    check_patterns(document)
    if category is Category.BUSINESS and defines(schema, "metadata"):
        raise Invalid('"metadata" property is reserved')
    return schema


def check_language(schema: dict[str, Any], mode: CompatibilityMode) -> None:
    """Raises `Invalid` for what a sound schema may not say: the language that its mode permits comes last."""
    if mode is CompatibilityMode.COMPATIBLE:
        check_restricted(schema)
    check_divisors(Document.of(schema))


def _parsed(text: str) -> dict[str, Any]:
    try:
        schema = parse(text)
    except StrictJsonError as error:
        raise _not_json(str(error)) from error
    if not isinstance(schema, dict):
        raise _not_json("a schema must begin with '{'")
    return schema


def _check_root_type(schema: dict[str, Any]) -> None:
    root_type = schema.get("type", "object")
    if not isinstance(root_type, str):
        raise _not_json('JSONObject["type"] not a string.')
    if root_type != "object":
        raise Invalid('"type" of root element in schema can only be "object"')


def _document(schema: dict[str, Any]) -> Document:
    draft = draft_of(schema)
    if draft is None:
        url = schema["$schema"]
        raise Invalid(f"could not determine schema version: no meta-schema is known with URL [{url}]")
    return Document(schema, draft)


def _not_json(reason: str) -> Invalid:
    return Invalid(f"schema must be a valid json: {reason}")
