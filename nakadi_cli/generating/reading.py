"""Turns the schemas of event types into declarations that all languages can write.

A type has the members of most events, and accepts every valid event. Rules that no type system can express (bounds,
patterns, formats) are left to the broker. Alternatives of whole objects become a union; alternatives beside an
object's own members become optional members of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from nakadi.model.event_type import Category, CleanupPolicy
from nakadi.schemas.document import SchemaDocument, metadata_schema
from nakadi_cli.failures import BadInput
from nakadi_cli.generating.declarations import (
    Choice,
    Declarations,
    Field,
    ListOf,
    MapOf,
    Nullable,
    Record,
    Reference,
    Scalar,
    Type,
    one_of,
    references_in,
)
from nakadi_cli.generating.event_types import EventTypeSchema
from nakadi_cli.generating.names import TYPE_NAMES_IN_USE, Identifiers, pascal_case, singular

METADATA = "EventMetadata"

# A schema may refer to the same part in many places, each of which counts as a step.
_MOST_STEPS = 50_000
_MOST_LEVELS = 100
_MOST_CHOICES = 200
_LONGEST_CHOICE = 200
_LONGEST_MEMBER_NAME = 1_000

_ADDED_BY_BROKER = {
    "received_at": {"type": "string", "format": "date-time"},
    "version": {"type": "string"},
    "published_by": {"type": "string"},
}
_DESCRIPTIONS = {
    "eid": "The event's own id, which the producer assigns.",
    "occurred_at": "When the event happened, according to the producer.",
    "flow_id": "The flow id of the publishing request.",
    "span_ctx": "The producer's trace context.",
    "parent_eids": "The events that caused this one.",
    "partition_compaction_key": "The key for compaction.",
    "received_at": "When the broker received the event.",
    "version": "The version of the schema against which the broker validated the event.",
    "published_by": "The publisher.",
}

_SCALARS = {
    "string": Scalar.TEXT,
    "integer": Scalar.INTEGER,
    "number": Scalar.NUMBER,
    "boolean": Scalar.BOOLEAN,
}

RawSchema = Mapping[str, Any] | bool


def read_declarations(event_types: Sequence[EventTypeSchema], *, reserved: Sequence[str] = ()) -> Declarations:
    """Declare the types of these events, in their order. Raises `BadInput` for a schema that expands too far."""
    names = Identifiers([*TYPE_NAMES_IN_USE, METADATA, *reserved], substitute="Type", ignores_case=True)
    # The events' own names come first, so that no other type takes one of them.
    roots = [names.claim(pascal_case(each.name)) for each in event_types]
    declared: list[Record | Choice] = []
    for event_type, name in zip(event_types, roots, strict=True):
        declared += _Reader(event_type, names, name).read()
    if any(each.category is not Category.UNDEFINED for each in event_types):
        declared += _Reader(EventTypeSchema(METADATA, _metadata_schema()), names, METADATA).read()
    return Declarations(tuple(each.label for each in event_types), tuple(declared))


def _metadata_schema() -> dict[str, Any]:
    """The metadata that consumers read: the members that any event type has, and those that the broker adds."""
    known = metadata_schema("", CleanupPolicy.COMPACT)
    members = {
        **known["properties"],
        "occurred_at": {"type": "string", "format": "date-time"},
        "event_type": {"type": "string"},
        **_ADDED_BY_BROKER,
    }
    described = {name: {**each, "description": _DESCRIPTIONS.get(name, "")} for name, each in members.items()}
    return {
        "type": "object",
        "description": "What the producer and the broker say about an event.",
        "properties": described,
        "required": ["eid", "occurred_at"],
    }


class _Parts(Struct, frozen=True):
    """The schemas that hold for a value: certainly, perhaps, or one of several."""

    certain: list[Mapping[str, Any]]
    possible: list[Mapping[str, Any]]
    alternatives: list[list[RawSchema]]

    def first(self, *keywords: str) -> Any:
        return next((part[each] for part in self.certain for each in keywords if each in part), None)

    @property
    def types(self) -> list[str] | None:
        found: list[str] | None = None
        for part in self.certain:
            named = part.get("type")
            if named is not None:
                listed = [named] if isinstance(named, str) else named
                found = list(dict.fromkeys(each for each in listed if found is None or each in found))
        return found


class _Reader:
    """Reads one event type. `_name_by_schema` contains the records whose declaration has begun."""

    def __init__(self, event_type: EventTypeSchema, names: Identifiers, root_name: str) -> None:
        self._event_type = event_type
        self._document = SchemaDocument.from_root(event_type.schema)
        self._names = names
        self._root_name = root_name
        self._declared: list[Record | Choice] = []
        self._name_by_schema: dict[int, str] = {}
        self._open: set[int] = set()
        self._steps = 0

    def read(self) -> list[Record | Choice]:
        schema = self._event_type.schema
        match self._event_type.category:
            case Category.UNDEFINED:
                self._read_record(schema, self._root_name)
            case Category.BUSINESS:
                metadata = Field("metadata", Reference(METADATA), is_required=True)
                self._read_record(schema, self._root_name, first_field=metadata)
            case Category.DATA:
                self._read_data_event(schema)
        return list(_used_from(self._root_name, self._declared))

    def _read_data_event(self, schema: Mapping[str, Any]) -> None:
        operation = Choice(self._names.claim(f"{self._root_name}DataOp"), ("C", "U", "D", "S"))
        at = len(self._declared)
        data = self._read_type(schema, f"{self._root_name}Data", 1)
        fields = (
            Field("metadata", Reference(METADATA), is_required=True),
            Field("data_type", Scalar.TEXT, is_required=True, description="The kind of object."),
            Field(
                "data_op",
                Reference(operation.name, is_record=False),
                is_required=True,
                description="What happened: created, updated, deleted, or a snapshot.",
            ),
            Field("data", data, is_required=True),
        )
        self._declared[at:at] = [Record(self._root_name, fields, _description(schema)), operation]

    def _read_type(self, schema: RawSchema, name: str, level: int) -> Type:
        self._spend(level)
        if isinstance(schema, bool):
            return Scalar.ANYTHING
        schema, name = self._follow(schema, name)
        if id(schema) in self._name_by_schema:
            return Reference(self._name_by_schema[id(schema)], is_recursive=id(schema) in self._open)
        if id(schema) in self._open:  # a list that contains itself has no name
            return Scalar.ANYTHING
        self._open.add(id(schema))
        try:
            return self._read_open_type(schema, name, level)
        finally:
            self._open.discard(id(schema))

    def _read_open_type(self, schema: Mapping[str, Any], name: str, level: int) -> Type:
        parts = self._parts_of(schema)
        allowed = self._allowed_values(parts)
        if allowed is not None:
            return self._choice_of(allowed, name)
        types = parts.types
        if types is None:
            types = self._implied_types(parts)
        if types is None or (types == ["object"] and not self._members(parts, certain_only=True)):
            union = self._union_of_alternatives(parts, name, level)
            if union is not None:
                return union
        if types is None:
            return Scalar.ANYTHING
        kinds = [self._type_named(each, schema, parts, name, level) for each in types if each != "null"]
        if not kinds:
            return Scalar.ANYTHING
        return one_of([*kinds, *([Nullable(kinds[0])] if "null" in types else ())])

    def _type_named(self, type_name: str, schema: Mapping[str, Any], parts: _Parts, name: str, level: int) -> Type:
        match type_name:
            case "object" if self._members(parts):
                return Reference(self._read_record(schema, self._names.claim(name), level=level, parts=parts))
            case "object":
                return MapOf(self._map_value_type(parts, name, level))
            case "array":
                return ListOf(self._item_type(parts, name, level))
            case "string" if parts.first("format") == "date-time":
                return Scalar.MOMENT
        return _SCALARS[type_name]

    def _item_type(self, parts: _Parts, name: str, level: int) -> Type:
        items = parts.first("items")
        if isinstance(items, list):
            types = [self._read_type(each, f"{name}{number}", level + 1) for number, each in enumerate(items, 1)]
            further = parts.first("additionalItems")
            if further is False:
                return one_of(types)
            return one_of([*types, self._read_type(True if further is None else further, f"{name}Further", level + 1)])
        return Scalar.ANYTHING if items is None else self._read_type(items, singular(name), level + 1)

    def _map_value_type(self, parts: _Parts, name: str, level: int) -> Type:
        schemas = list((parts.first("patternProperties") or {}).values())
        further = parts.first("additionalProperties")
        if further is not False or not schemas:
            schemas.append(True if further in (None, False) else further)
        return one_of([self._read_type(each, f"{name}Value", level + 1) for each in schemas])

    def _union_of_alternatives(self, parts: _Parts, name: str, level: int) -> Type | None:
        for alternatives in parts.alternatives:
            types = [
                Nullable(Scalar.ANYTHING) if _is_null(each) else self._read_type(each, name, level + 1)
                for each in alternatives
            ]
            known = [each for each in types if each != Nullable(Scalar.ANYTHING)]
            if Scalar.ANYTHING not in known and known:
                whole = one_of(known)
                return one_of([whole, Nullable(whole)]) if len(known) < len(types) else whole
        return None

    def _read_record(
        self,
        schema: Mapping[str, Any],
        name: str,
        *,
        level: int = 1,
        parts: _Parts | None = None,
        first_field: Field | None = None,
    ) -> str:
        """Declare a record before the records within it, and return its name."""
        schema, _ = self._follow(schema, name)
        parts = parts or self._parts_of(schema)
        self._name_by_schema[id(schema)] = name
        self._open.add(id(schema))
        at = len(self._declared)
        required = {each for part in parts.certain for each in part.get("required", ())}
        fields = [] if first_field is None else [first_field]
        taken = {each.member for each in fields}
        for member, schemas in self._members(parts).items():
            if member and member not in taken:
                fields.append(self._read_field(member, schemas, name, level, is_required=member in required))
        self._open.discard(id(schema))
        self._declared.insert(at, Record(name, tuple(fields), _description(schema)))
        return name

    def _read_field(
        self, member: str, schemas: list[tuple[RawSchema, bool]], record: str, level: int, *, is_required: bool
    ) -> Field:
        if len(member) > _LONGEST_MEMBER_NAME:
            raise BadInput(
                f"The name of a member of {self._event_type.name} has {len(member)} characters;"
                f" names in types have {_LONGEST_MEMBER_NAME} at most."
            )
        name = f"{record}{pascal_case(member)}"
        types = [(self._read_type(schema, name, level + 1), is_certain) for schema, is_certain in schemas]
        certain = [kind for kind, is_certain in types if is_certain]
        kind = (
            next((each for each in certain if each is not Scalar.ANYTHING), Scalar.ANYTHING)
            if certain
            else one_of([kind for kind, _ in types])
        )
        text = next((_description(each) for each, _ in schemas if isinstance(each, Mapping)), "")
        return Field(member, kind, is_required, text)

    def _members(self, parts: _Parts, *, certain_only: bool = False) -> dict[str, list[tuple[RawSchema, bool]]]:
        """The schemas of each member, and whether each holds in any case."""
        members: dict[str, list[tuple[RawSchema, bool]]] = {}
        groups = [(parts.certain, True)]
        if not certain_only:
            groups.append((parts.possible, False))
            groups += [(list(self._certain_parts(each)), False) for choices in parts.alternatives for each in choices]
        for group, is_certain in groups:
            for part in group:
                for member, schema in part.get("properties", {}).items():
                    members.setdefault(member, []).append((schema, is_certain))
        return members

    def _certain_parts(self, schema: RawSchema) -> Iterator[Mapping[str, Any]]:
        if isinstance(schema, Mapping):
            yield from self._parts_of(self._follow(schema, "")[0]).certain

    def _parts_of(self, schema: Mapping[str, Any]) -> _Parts:
        parts = _Parts([], [], [])
        self._collect_parts(schema, parts, is_certain=True)
        return parts

    def _collect_parts(self, schema: RawSchema, parts: _Parts, *, is_certain: bool) -> None:
        """Add a schema, and those that it combines, to `parts`. The broker's rules for schemas prevent endless ones."""
        if isinstance(schema, bool):
            return
        self._spend(1)
        schema, _ = self._follow(schema, "")
        (parts.certain if is_certain else parts.possible).append(schema)
        for each in schema.get("allOf", ()):
            self._collect_parts(each, parts, is_certain=is_certain)
        for keyword in ("anyOf", "oneOf"):
            if is_certain and keyword in schema:
                parts.alternatives.append(schema[keyword])
        conditional = [schema[each] for each in ("then", "else") if "if" in schema and each in schema]
        for each in (*conditional, *schema.get("dependencies", {}).values()):
            if not isinstance(each, list):
                self._collect_parts(each, parts, is_certain=False)

    def _follow(self, schema: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], str]:
        """The schema that a reference means, and its name, which is the last step of the reference."""
        for _ in range(_MOST_LEVELS):
            if "$ref" not in schema:
                return schema, name
            reference = schema["$ref"]
            target = self._document.find_target(reference)
            if not isinstance(target, Mapping):
                return {}, name
            if "definitions" in reference:
                name = f"{self._root_name}{pascal_case(reference.rpartition('/')[2])}"
            schema = target
        raise self._expands_too_far()

    def _allowed_values(self, parts: _Parts) -> list[Any] | None:
        for part in parts.certain:
            if "const" in part and self._document.draft >= 6:
                return [part["const"]]
            if "enum" in part:
                return list(part["enum"])
        return None

    def _choice_of(self, values: list[Any], name: str) -> Type:
        kinds: list[Type] = [_type_of_value(each) for each in values if each is not None]
        texts = [each for each in values if isinstance(each, str)]
        # Jackson treats an empty name as no name.
        is_short = len(texts) <= _MOST_CHOICES and all(0 < len(each) <= _LONGEST_CHOICE for each in texts)
        if texts and set(kinds) == {Scalar.TEXT} and is_short:
            choice = Choice(self._names.claim(name), tuple(dict.fromkeys(texts)))
            self._declared.append(choice)
            kinds = [Reference(choice.name, is_record=False)]
        if not kinds:
            return Scalar.ANYTHING
        whole = one_of(kinds)
        return one_of([whole, Nullable(whole)]) if None in values else whole

    def _implied_types(self, parts: _Parts) -> list[str] | None:
        if any("properties" in part for part in parts.certain):
            return ["object"]
        return ["array"] if parts.first("items") is not None else None

    def _spend(self, level: int) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS or level > _MOST_LEVELS:
            raise self._expands_too_far()

    def _expands_too_far(self) -> BadInput:
        return BadInput(
            f"The schema of {self._event_type.name} expands too far for types: at most {_MOST_STEPS} parts, with"
            f" references followed, and {_MOST_LEVELS} levels of nesting are possible."
        )


def _used_from(root: str, declared: list[Record | Choice]) -> Iterator[Record | Choice]:
    """The root and the types that it refers to, directly or through others, in the order of declaration. Declared types
    that no type refers to any more are left out.
    """
    by_name = {each.name: each for each in declared}
    used, waiting = set(), [root]
    while waiting:
        name = waiting.pop()
        if name in used:
            continue
        used.add(name)
        found = by_name.get(name)
        if isinstance(found, Record):
            waiting += [each.name for field in found.fields for each in references_in(field.type)]
    yield from (each for each in declared if each.name in used)


def _is_null(schema: RawSchema) -> bool:
    return isinstance(schema, Mapping) and (schema.get("type") in ("null", ["null"]) or schema.get("enum") == [None])


def _type_of_value(value: Any) -> Type:
    match value:
        case bool():
            return Scalar.BOOLEAN
        case int():
            return Scalar.INTEGER
        case float():
            return Scalar.NUMBER
        case str():
            return Scalar.TEXT
    return Scalar.ANYTHING


def _description(schema: Mapping[str, Any]) -> str:
    return str(schema.get("description") or schema.get("title") or "")
