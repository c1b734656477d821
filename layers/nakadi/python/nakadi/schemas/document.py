"""A schema as a document: its draft, its paths and references, and the effective schema of whole events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any
from urllib.parse import quote_plus, unquote

from msgspec import Struct, field

from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode
from nakadi.model.outcomes import Invalid


class SchemaPath(Struct, frozen=True):
    """A path in a schema, as its last step and the path before it.

    It becomes a text only for an answer, because names may be long, and many paths begin with the same names.
    """

    step: str = ""
    parent: SchemaPath | None = None

    def __truediv__(self, step: str) -> SchemaPath:
        return SchemaPath(step, self)

    @property
    def text(self) -> str:
        """The path as the API writes it for changes: `#/properties/a`, and `#/` for the root."""
        return "#/" + "/".join(self.steps)

    @property
    def pointer(self) -> str:
        """The path as a JSON pointer, the API's form for forbidden keywords: `#/properties/a`, `#` for the root."""
        return "#" + "".join(f"/{escaped_step(step)}" for step in self.steps)

    @property
    def url_fragment(self) -> str:
        """The path as a part of a URL, the API's form for faults: `#/properties/a%2Fb`, `#` for the root."""
        return "#" + "".join(
            f"/{quote_plus(step, safe='*', errors='replace').replace('~', '%7E')}" for step in self.steps
        )

    def with_appended_steps(self, steps: Iterable[str]) -> SchemaPath:
        path = self
        for step in steps:
            path /= step
        return path

    @property
    def steps(self) -> list[str]:
        """The steps from the root."""
        steps = []
        path = self
        while path.parent is not None:
            steps.append(path.step)
            path = path.parent
        return steps[::-1]


ROOT_PATH = SchemaPath()


def escaped_step(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


RawSchema = Mapping[str, Any] | bool


class Draft(IntEnum):
    FOUR = 4
    SIX = 6
    SEVEN = 7

    @property
    def id_keyword(self) -> str:
        return "id" if self is Draft.FOUR else "$id"


_DRAFT_BY_URL = {f"http://json-schema.org/draft-{draft:02d}/schema": draft for draft in Draft}


def draft_or_none(root: Mapping[str, Any]) -> Draft | None:
    """The draft that `$schema` names, or the oldest if it names none; None if the draft is unsupported."""
    url = root.get("$schema", "http://json-schema.org/draft-04/schema")
    return next(
        (draft for known, draft in _DRAFT_BY_URL.items() if isinstance(url, str) and url.startswith(known)), None
    )


class SchemaDocument(Struct, frozen=True):
    root: Mapping[str, Any]
    draft: Draft
    _target_by_reference: dict[str, RawSchema | None] = field(default_factory=dict)

    @classmethod
    def from_root(cls, root: Mapping[str, Any]) -> SchemaDocument:
        return cls(root, draft_or_none(root) or Draft.FOUR)

    def find_target(self, reference: str) -> RawSchema | None:
        # The target is cached, because a reference may be long, and may be followed many times.
        if reference not in self._target_by_reference:
            self._target_by_reference[reference] = self._find_target(reference)
        return self._target_by_reference[reference]

    def _find_target(self, reference: str) -> RawSchema | None:
        steps = reference_steps(reference)
        if steps is None:
            return None
        found: Any = self.root
        for step in steps:
            found = value_at_step(found, step)
        return found if isinstance(found, Mapping | bool) else None


def reference_steps(reference: str) -> list[str] | None:
    """The steps from the root to the target of a reference; None if the reference is a name."""
    fragment = unquote(reference.removeprefix("#"))
    if fragment and not fragment.startswith("/"):
        return None
    return [step.replace("~1", "/").replace("~0", "~") for step in fragment.split("/")[1:]]


def is_local_reference(reference: str) -> bool:
    return reference.startswith("#")


def value_at_step(value: Any, step: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(step)
    if isinstance(value, list) and step.isdecimal() and len(step) < 10 and int(step) < len(value):
        return value[int(step)]
    return None


# The keywords whose values have schemas: under names, in a list, or a single one (though `items` may also be a list).
KEYWORDS_WITH_NAMED_SCHEMAS = ("properties", "patternProperties", "dependencies")
COMBINATOR_KEYWORDS = ("allOf", "anyOf", "oneOf")
KEYWORDS_WITH_ONE_SCHEMA = ("items", "additionalItems", "additionalProperties", "not")
ADDED_KEYWORDS_BY_DRAFT = {
    Draft.FOUR: (),
    Draft.SIX: ("contains", "propertyNames"),
    Draft.SEVEN: ("contains", "propertyNames", "if", "then", "else"),
}

# A schema under one of these keywords applies to the same value as the schema around it.
KEYWORDS_ABOUT_SAME_VALUE = frozenset({*COMBINATOR_KEYWORDS, "dependencies", "not", "if", "then", "else"})


def keywords_with_schemas(draft: Draft) -> tuple[str, ...]:
    return (
        *KEYWORDS_WITH_NAMED_SCHEMAS,
        *COMBINATOR_KEYWORDS,
        *KEYWORDS_WITH_ONE_SCHEMA,
        *ADDED_KEYWORDS_BY_DRAFT[draft],
    )


def subschemas(schema: Mapping[str, Any], draft: Draft) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """The schemas directly inside this one: the keyword, the steps after it, and the value."""
    for keyword in keywords_with_schemas(draft):
        match schema.get(keyword):
            case dict() as named if keyword in KEYWORDS_WITH_NAMED_SCHEMAS:
                yield from ((keyword, (name,), value) for name, value in named.items())
            case list() as listed:
                yield from ((keyword, (str(index),), value) for index, value in enumerate(listed))
            case None:
                pass
            case value:
                yield keyword, (), value


def count_schema_values(schema: Any) -> int:
    """The cost of checking a schema without inner ones: its keywords and their lists.

    Allowed values are counted with all their content, and the cost of a schema for several types is counted for each
    type.
    """
    if not isinstance(schema, Mapping):
        return 1
    keywords = 1 + sum(len(value) if isinstance(value, dict | list) else 1 for value in schema.values())
    types = schema.get("type")
    return keywords * (1 + len(types) if isinstance(types, list) else 1) + _count_values(schema.get("enum"))


def _count_values(value: Any) -> int:
    if isinstance(value, Mapping):
        return len(value) + sum(map(_count_values, value.values()))
    return len(value) + sum(map(_count_values, value)) if isinstance(value, list) else 0


SchemaAtPath = tuple[SchemaPath, Mapping[str, Any]]


def reachable_schemas(document: SchemaDocument) -> Iterator[SchemaAtPath]:
    """Every schema in use, each once, outer schemas before inner ones."""
    seen: set[int] = set()
    waiting: list[tuple[SchemaPath, Any]] = [(ROOT_PATH, document.root)]
    while waiting:
        path, schema = waiting.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield path, schema
        within = [
            ((path / keyword).with_appended_steps(way), value)
            for keyword, way, value in subschemas(schema, document.draft)
        ]
        waiting.extend(reversed([*within, *referenced_schemas(schema, document)]))


def referenced_schemas(schema: Mapping[str, Any], document: SchemaDocument) -> list[tuple[SchemaPath, Any]]:
    reference = schema.get("$ref")
    return (
        [(ROOT_PATH.with_appended_steps(reference_steps(reference) or ()), document.find_target(reference))]
        if reference and is_local_reference(reference)
        else []
    )


Schema = dict[str, Any]

COMPACTION_KEY = "partition_compaction_key"
EID_PATTERN = "^[a-fA-F0-9]{8}-[a-fA-F0-9]{4}-[a-fA-F0-9]{4}-[a-fA-F0-9]{4}-[a-fA-F0-9]{12}$"

_KEYWORDS_IMPLYING_OBJECT = frozenset({"properties", "required", "minProperties", "maxProperties"})
_KEYWORDS_IMPLYING_ARRAY = frozenset({"minItems", "maxItems", "uniqueItems", "items"})
_KEYWORDS_IMPLYING_CONTENT = (
    _KEYWORDS_IMPLYING_OBJECT | _KEYWORDS_IMPLYING_ARRAY | {*COMBINATOR_KEYWORDS, "$ref", "type"}
)

_KEYWORDS_WITH_NAMED_SCHEMAS_OR_DEFINITIONS = frozenset(
    {"properties", "patternProperties", "dependencies", "definitions"}
)
_KEYWORDS_TO_CLOSE = ("properties", "definitions", "dependencies", "items", *COMBINATOR_KEYWORDS)

# Keywords of the registered schema that move to the root of the schema for data events, because they describe the whole
# document.
_ROOT_KEYWORDS = ("$schema", "definitions")


def effective_schema(
    schema: Mapping[str, Any],
    *,
    event_type: str,
    category: Category,
    mode: CompatibilityMode,
    cleanup_policy: CleanupPolicy,
) -> Schema:
    """The schema that validates events; `schema` stays unchanged."""
    body = schema_forbidding_additions(schema) if mode is CompatibilityMode.COMPATIBLE else dict(schema)
    match category:
        case Category.UNDEFINED:
            return body
        case Category.BUSINESS:
            return _with_metadata(body, metadata_schema(event_type, cleanup_policy))
        case Category.DATA:
            return _data_event_envelope(body, metadata_schema(event_type, cleanup_policy))


def metadata_schema(event_type: str, cleanup_policy: CleanupPolicy) -> Schema:
    properties: Schema = {
        "eid": {"type": "string", "pattern": EID_PATTERN},
        "occurred_at": {"type": "string"},
        "event_type": {"type": "string", "enum": [event_type]},
        "partition": {"type": "string"},
        "flow_id": {"type": "string"},
        "span_ctx": {"type": "object", "additionalProperties": {"type": "string"}},
        "cloudevent": {"type": "object", "additionalProperties": {"type": "string"}},
        "parent_eids": {"type": "array", "items": {"type": "string", "pattern": EID_PATTERN}},
    }
    required = ["eid", "occurred_at"]
    if cleanup_policy.compacts:
        properties[COMPACTION_KEY] = {"type": "string", "minLength": 1}
        required.append(COMPACTION_KEY)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _with_metadata(schema: Schema, metadata: Schema) -> Schema:
    root = _with_root_resolved(schema)
    return root | {
        "type": "object",
        "properties": {**root.get("properties", {}), "metadata": metadata},
        "required": [*root.get("required", []), "metadata"],
    }


def _with_root_resolved(schema: Schema) -> Schema:
    """If the root refers to another schema, return that one: keywords next to a reference are ignored, even a
    definition of `metadata`.
    """
    document, target = SchemaDocument.from_root(schema), schema
    seen: set[str] = set()
    while "$ref" in target and target["$ref"] not in seen:
        seen.add(target["$ref"])
        found = document.find_target(target["$ref"])
        target = dict(found) if isinstance(found, Mapping) else {}
    return {keyword: schema[keyword] for keyword in _ROOT_KEYWORDS if keyword in schema} | target


def _data_event_envelope(schema: Schema, metadata: Schema) -> Schema:
    moved = _with_references_moved(schema)
    data = {keyword: value for keyword, value in moved.items() if keyword not in _ROOT_KEYWORDS}
    envelope: Schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "metadata": metadata,
            "data_type": {"type": "string"},
            "data_op": {"type": "string", "enum": ["C", "U", "D", "S"]},
            "data": data,
        },
        "required": ["metadata", "data_type", "data_op", "data"],
    }
    return {keyword: moved[keyword] for keyword in _ROOT_KEYWORDS if keyword in moved} | envelope


def _with_references_moved(schema: Schema) -> Schema:
    """The schema with adjusted references, so that they keep their targets when the schema moves to the member
    `data`.
    """
    keywords = ("definitions", *keywords_with_schemas(SchemaDocument.from_root(schema).draft))

    def move_definitions(value: Any, _: str) -> Any:
        if not isinstance(value, dict):
            return value
        rebuilt = _with_subschemas_changed(value, keywords, move_definitions)
        return (
            rebuilt | {"$ref": _moved_reference(rebuilt["$ref"])} if isinstance(rebuilt.get("$ref"), str) else rebuilt
        )

    root: Schema = move_definitions(schema, "")
    return root


def _moved_reference(reference: str) -> str:
    if reference == "#/definitions" or reference.startswith("#/definitions/"):
        return reference
    return f"#/properties/data{reference.removeprefix('#')}"


def schema_forbidding_additions(schema: Mapping[str, Any]) -> Schema:
    """The schema, in which no object or array permits members or items that it does not name."""
    for combinator in COMBINATOR_KEYWORDS:
        if not isinstance(schema.get(combinator, []), list):
            raise Invalid(f'schema must be a valid json: JSONObject["{combinator}"] is not a JSONArray.')
    closed = _with_subschemas_changed(schema, _KEYWORDS_TO_CLOSE, _subschema_forbidding_additions)
    if "enum" in schema:
        # A value on the list is permitted with all its members.
        return dict(schema)
    types = schema.get("type", [])
    named = types if isinstance(types, list) else [types]
    if (
        "object" in named
        or not _KEYWORDS_IMPLYING_OBJECT.isdisjoint(schema)
        or _KEYWORDS_IMPLYING_CONTENT.isdisjoint(schema)
    ):
        closed["additionalProperties"] = False
    if "array" in named or not _KEYWORDS_IMPLYING_ARRAY.isdisjoint(schema):
        closed["additionalItems"] = False
    return closed


def _subschema_forbidding_additions(value: Any, place: str) -> Schema:
    if not isinstance(value, dict):
        raise Invalid(f"schema must be a valid json: {place} is not a JSONObject.")
    return schema_forbidding_additions(value)


def _with_subschemas_changed(
    schema: Mapping[str, Any], keywords: tuple[str, ...], change_subschema: Callable[[Any, str], Any]
) -> Schema:
    """A copy in which the schemas under these keywords are changed; `change_subschema` gets each schema and its
    keyword.
    """
    rebuilt = dict(schema)
    for keyword in (each for each in keywords if each in schema):
        match schema[keyword]:
            case dict() as named if keyword in _KEYWORDS_WITH_NAMED_SCHEMAS_OR_DEFINITIONS:
                rebuilt[keyword] = {
                    name: change_subschema(each, f'JSONObject["{name}"]') for name, each in named.items()
                }
            case list() as listed if keyword not in _KEYWORDS_WITH_NAMED_SCHEMAS_OR_DEFINITIONS:
                rebuilt[keyword] = [change_subschema(each, f"JSONArray[{index}]") for index, each in enumerate(listed)]
            case dict() as alone:
                rebuilt[keyword] = change_subschema(alone, f'JSONObject["{keyword}"]')
    return rebuilt
