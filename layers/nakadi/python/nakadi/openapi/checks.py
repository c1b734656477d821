"""Checks bodies against the description of the API. Its schemas are compiled by fastjsonschema.

Only the description says which fields are required, how long texts and lists may be, and how names are spelled. Rules
that relate fields to each other, or to stored data, are in the code that they protect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from nakadi.model.outcomes import Violation

NULL_REFUSED_MESSAGE = "must not be null"
NAME_FORMAT_MESSAGE = "format not allowed"

STORAGE_ID_MESSAGE = (
    "A storage id has 1 to 36 letters, digits, underscores, hyphens and dots, and does not begin with a hyphen or a dot"
)

# Messages by the path without its indices, and by the broken rule.
MESSAGES_BY_FIELD_AND_RULE: Mapping[tuple[str, str], str] = {
    ("name", "pattern"): NAME_FORMAT_MESSAGE,
    ("name", "minLength"): "the length of the name must be >= 1 and <= 255",
    ("name", "maxLength"): "the length of the name must be >= 1 and <= 255",
    ("event_owner_selector.name", "minLength"): "the length of the name must be >= 1",
    ("default_statistic.messages_per_minute", "minimum"): "can't be less then zero",
    ("default_statistic.message_size", "minimum"): "can't be less then 1",
    ("default_statistic.read_parallelism", "minimum"): "at least one reader expected",
    ("default_statistic.write_parallelism", "minimum"): "at least one writer expected",
    **{("deduplication.window_seconds", rule): "must be between 1 and 604800" for rule in ("minimum", "maximum")},
    **{("id", rule): STORAGE_ID_MESSAGE for rule in ("pattern", "minLength", "maxLength")},
    ("event_types", "minItems"): "must contain at least one element",
    **{
        (f"{parent}{name}", rule): f"must be between 1 and {most}"
        for parent in ("", "sink.")
        for name, most in (("batch_limit", 1000), ("timeout_seconds", 60), ("max_in_flight", 100))
        for rule in ("minimum", "maximum")
    },
    **{
        (f"{cursors}.{name}", "minLength"): f"cursor {name} cannot be empty"
        for cursors in ("initial_cursors", "items")
        for name in ("partition", "offset")
    },
}

# Messages for all other paths; `{}` stands for the value of the rule.
MESSAGES_BY_RULE: Mapping[str, str] = {
    "type": NULL_REFUSED_MESSAGE,
    "minLength": "must contain at least one character",
    "minItems": "must contain at least one attribute",
    "maxLength": "size must be between 0 and {}",
    "maxItems": "size must be between 0 and {}",
}

# The parts of a schema that the compiler gets. `enum` is not among them, because enumerated words are read earlier, in
# any letter case.
COPIED_KEYWORDS = (
    "type",
    "required",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
)

SCHEMAS_HEADING = "\n  schemas:\n"

_INDEX_PATTERN = re.compile(r"\[(\d+)\]")


def conforms_to_schema(name: str, body: Any) -> bool:
    """Whether a body conforms to the schema of this name, without conversions between texts and numbers."""
    return not _schema_errors(name, body)


def openapi_violations(name: str, body: Mapping[str, Any]) -> tuple[Violation, ...]:
    """The missing or malformed members of a parsed body, by the schema of this name, in the order of its fields.

    None stands for null, which counts as a missing member unless the member has a default. In a list that is too long,
    only the permitted number of items is checked.
    """
    errors = _schema_errors(name, body)
    if not errors:
        return ()
    limits = {_field_path_of_error(each): each.rule_definition for each in errors if each.rule == "maxItems"}
    found = dict.fromkeys(
        violation
        for each in errors
        if not _is_beyond_max_items(limits, _field_path_of_error(each))
        for violation in _violations_of_error(each)
    )
    places: dict[str, int] = {}
    for each in found:
        places.setdefault(each.path, len(places))
    return tuple(
        sorted(found, key=lambda each: (_sort_rank(each), places[each.path], each.message != NAME_FORMAT_MESSAGE))
    )


def compile_body_schemas(*names: str) -> None:
    """Compile the schemas of these names now, so that the first requests need not wait for it."""
    for name in names:
        _compiled_check(name)


@cache
def component_schema(name: str) -> Mapping[str, Any]:
    """The schema of this name, which may refer to others.

    Only the lines of this schema are parsed: parsing the whole description takes a fifth of a second, for which
    requests would wait while a function starts.
    """
    import yaml  # noqa: PLC0415  # as in `nakadi.openapi`: most processes never need it

    found = re.search(rf"^    {name}:\n((?:      .*\n|\s*\n)+)", _schema_lines_text(), re.MULTILINE)
    if found is None:
        raise KeyError(name)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    schema: dict[str, Any] = yaml.load(found[1], loader)  # noqa: S506  # both loaders are safe
    return schema


@cache
def _schema_lines_text() -> str:
    texts = (each.read_text("utf-8") for each in files(__package__).iterdir() if each.name.endswith(".yaml"))
    return "".join(f"{text.partition(SCHEMAS_HEADING)[2]}\n" for text in texts)


def _schema_errors(name: str, body: Any) -> list[Any]:
    from fastjsonschema import JsonSchemaValuesException  # noqa: PLC0415  # as above

    try:
        _compiled_check(name)(body)
    except JsonSchemaValuesException as found:
        return list(found.errors)
    return []


@cache
def _compiled_check(name: str) -> Callable[[Any], Any]:
    from fastjsonschema import compile as compiled  # noqa: PLC0415  # as above

    check: Callable[[Any], Any] = compiled(
        _as_json_schema(component_schema(name)), use_default=False, use_formats=False, fast_fail=False
    )
    return check


def _as_json_schema(schema: Mapping[str, Any], *, may_be_null: bool = False) -> dict[str, Any]:
    """An OpenAPI schema as a JSON Schema. Annotations and labels have separate rules for their keys."""
    if "$ref" in schema:
        return _as_json_schema(component_schema(schema["$ref"].rpartition("/")[2]), may_be_null=may_be_null)
    found = {rule: schema[rule] for rule in COPIED_KEYWORDS if rule in schema}
    if may_be_null or schema.get("nullable"):
        found["type"] = [schema["type"], "null"]
    if "items" in schema:
        found["items"] = _as_json_schema(schema["items"])
    if "properties" in schema:
        required = schema.get("required", ())
        found["properties"] = {
            name: _as_json_schema(each, may_be_null=name not in required and not _has_default(each))
            for name, each in schema["properties"].items()
        }
    return found


def _has_default(schema: Mapping[str, Any]) -> bool:
    return "default" in (component_schema(schema["$ref"].rpartition("/")[2]) if "$ref" in schema else schema)


def _field_path_of_error(error: Any) -> str:
    return str(error.name).removeprefix("data").removeprefix(".")


def _violations_of_error(error: Any) -> Iterator[Violation]:
    path = _field_path_of_error(error)
    if error.rule == "required":
        for name in error.rule_definition:
            if name not in error.value:
                yield Violation(f"{path}.{name}" if path else name, NULL_REFUSED_MESSAGE)
        return
    sentence = (
        MESSAGES_BY_FIELD_AND_RULE.get((_INDEX_PATTERN.sub("", path), error.rule)) or MESSAGES_BY_RULE[error.rule]
    )
    yield Violation(path, sentence.format(error.rule_definition))


def _is_beyond_max_items(limits: Mapping[str, int], path: str) -> bool:
    """Whether a path leads into a list after the last item that the list may have."""
    return any(
        path[: index.start()] in limits and int(index[1]) >= limits[path[: index.start()]]
        for index in _INDEX_PATTERN.finditer(path)
    )


def _sort_rank(violation: Violation) -> int:
    if violation.path == "name":
        return 0
    return 1 if violation.message == NULL_REFUSED_MESSAGE and not {".", "["} & set(violation.path) else 2
