"""A schema's statements about the members of events that subscriptions read, and the effect of a schema change on them.

A value may be described by several schemas at once (`allOf`, keywords beside a combinator) or by one of several
(`anyOf`, `oneOf`, a list of types). So a member is described by a shape: one schema, or several schemas, of which all
or any must hold. Lists are transparent: a list has the members of its items.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from msgspec import UNSET, Struct

from nakadi.model.outcomes import Invalid
from nakadi.model.reads import ReadChange, ReadChangeKind
from nakadi.schemas.changes import ChangeKind, SchemaChange
from nakadi.schemas.document import COMBINATOR_KEYWORDS, RawSchema, SchemaDocument, SchemaPath
from nakadi.schemas.formats import Pattern, compile_pattern
from nakadi.schemas.places import values_of_change
from nakadi.schemas.read_paths import ReadPath, parse_read_path, read_path_text
from nakadi.schemas.values import RemainingSteps, StepsExhausted, canonical_text, spend_steps

MAX_STEPS_TO_MEMBER = 1000

# Definitions that refer to each other unfold into more schemas than can be compared.
MAX_STEPS = 300_000
MAX_DEPTH = 100
# A longer list would help no reader.
MAX_CHANGES = 100
MAX_LISTED_MEMBERS = 1_000

TOO_ENTANGLED_MESSAGE = "schema is too entangled to find the members in it that are read"

_ALL_TYPES = frozenset({"null", "boolean", "integer", "fraction", "string", "object", "array"})
_TYPE_NAMES = {"number": frozenset({"integer", "fraction"})}
_KINDS_BY_PYTHON_TYPE = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "fraction",
    str: "string",
    dict: "object",
    list: "array",
}
_MEMBER_OF_ANY_NAME = "*"


class _AllOf(Struct, frozen=True):
    """All of these schemas hold."""

    parts: tuple[_Shape, ...]


class _AnyOf(Struct, frozen=True):
    """Alternatives, one of which holds."""

    parts: tuple[_Shape, ...]


_Shape = Mapping[str, Any] | bool | _AllOf | _AnyOf


def unknown_paths(effective_schema: Mapping[str, Any], paths: Sequence[str]) -> tuple[str, ...]:
    """The paths that lead to no member of a schema. Raises `Invalid` if it takes too long to find them."""
    search = MemberSearch(effective_schema, [MAX_STEPS])
    try:
        return tuple(each for each in paths if not search.declares(parse_read_path(each)))
    except StepsExhausted as error:
        raise Invalid(TOO_ENTANGLED_MESSAGE) from error


def declared_members(effective_schema: Mapping[str, Any]) -> tuple[ReadPath, ...]:
    """The innermost members that a schema declares, the first `MAX_LISTED_MEMBERS` of them."""
    found: list[ReadPath] = []
    search = MemberSearch(effective_schema, [MAX_STEPS])
    try:
        for path in search.innermost_members():
            found.append(path)
            if len(found) == MAX_LISTED_MEMBERS:
                break
    except StepsExhausted as error:
        raise Invalid(TOO_ENTANGLED_MESSAGE) from error
    return tuple(found)


def find_read_changes(
    old: Mapping[str, Any], new: Mapping[str, Any], paths: Sequence[str], steps: RemainingSteps | None = None
) -> tuple[ReadChange, ...]:
    """The effects of a schema change on the members that are read, at most `MAX_CHANGES` of them.

    Paths that the old schema does not have are not affected. The search spends `steps`; paths for which no steps are
    left are reported as perhaps changed.
    """
    steps = [MAX_STEPS] if steps is None else steps
    comparison = _Comparison(MemberSearch(old, steps), MemberSearch(new, steps))
    return tuple(islice((change for path in paths for change in _changes_at(comparison, path)), MAX_CHANGES))


def _changes_at(comparison: _Comparison, path: str) -> Iterator[ReadChange]:
    try:
        yield from comparison.changes(path)
    except StepsExhausted:
        # This change is a mere possibility, and is no reason for a refusal: otherwise a subscription that declares such
        # a path could prevent all changes of the schema.
        yield _change(path, path, ReadChangeKind.UNKNOWN, "may have changed: it takes too long to compare it")


class MemberSearch:
    """Finds the members that a schema describes. Raises `StepsExhausted` for one that expands too far."""

    def __init__(self, effective_schema: Mapping[str, Any], steps: RemainingSteps) -> None:
        self._document = SchemaDocument.from_root(effective_schema)
        self._steps = steps
        self._patterns: dict[str, Pattern] = {}

    @property
    def root(self) -> _Shape:
        return self._document.root

    def declares(self, path: ReadPath) -> bool:
        shape: _Shape | None = self.root
        for name in path:
            shape = self.member(shape, name) if shape is not None else None
        return shape is not None

    def innermost_members(self) -> Iterator[ReadPath]:
        waiting: list[tuple[ReadPath, _Shape, frozenset[int]]] = [((), self.root, frozenset())]
        while waiting:
            path, shape, around = waiting.pop()
            schemas = frozenset(self._schemas_in(shape))
            names = [] if schemas & around or len(path) > MAX_DEPTH else self.names(shape)
            if path and not names:
                yield path
            inner = [((*path, name), self.member(shape, name)) for name in names]
            waiting += [(way, each, around | schemas) for way, each in reversed(inner) if each is not None]

    def member(self, shape: _Shape, name: str, depth: int = 0) -> _Shape | None:
        """The schema of the member with this name; None if there is no such member."""
        if isinstance(shape, _AllOf | _AnyOf):
            parts = [found for each in shape.parts if (found := self.member(each, name, depth + 1)) is not None]
            return type(shape)(tuple(parts)) if len(parts) > 1 else (parts[0] if parts else None)
        unfolded = self._unfold(shape, depth)
        if unfolded is not shape:
            return self.member(unfolded, name, depth + 1)
        if isinstance(shape, bool):
            return None
        inner = [self.member(item, name, depth + 1) for item in _items(shape)]
        described = [each for each in (*self._own_members(shape, name), *inner) if each is not None]
        return _AnyOf(tuple(described)) if len(described) > 1 else (described[0] if described else None)

    def is_required(self, shape: _Shape, name: str, depth: int = 0) -> bool:
        """Whether each object, or each object in a list, must have a member of this name."""
        if isinstance(shape, _AllOf | _AnyOf):
            holds = any if isinstance(shape, _AllOf) else all
            return bool(shape.parts) and holds(self.is_required(each, name, depth + 1) for each in shape.parts)
        unfolded = self._unfold(shape, depth)
        if unfolded is not shape:
            return self.is_required(unfolded, name, depth + 1)
        if isinstance(shape, bool):
            return False
        if name in shape.get("required", ()):
            return True
        items = list(_items(shape))
        return bool(items) and all(self.is_required(each, name, depth + 1) for each in items)

    def types(self, shape: _Shape, depth: int = 0) -> frozenset[str]:
        """The types that a value may have; types of a list's items begin with `[]`."""
        if isinstance(shape, _AllOf):
            return frozenset.intersection(*(self.types(each, depth + 1) for each in shape.parts))
        if isinstance(shape, _AnyOf):
            return frozenset().union(*(self.types(each, depth + 1) for each in shape.parts))
        unfolded = self._unfold(shape, depth)
        if unfolded is not shape:
            return self.types(unfolded, depth + 1)
        if isinstance(shape, bool):
            return _ALL_TYPES if shape else frozenset()
        return _own_types(shape)

    def item_shapes(self, shape: _Shape, depth: int = 0) -> tuple[_Shape, ...]:
        """The schemas that describe the items of a list."""
        if isinstance(shape, _AllOf | _AnyOf):
            return tuple(found for each in shape.parts for found in self.item_shapes(each, depth + 1))
        unfolded = self._unfold(shape, depth)
        if unfolded is not shape:
            return self.item_shapes(unfolded, depth + 1)
        return () if isinstance(shape, bool) else tuple(_items(shape))

    def names(self, shape: _Shape, depth: int = 0) -> list[str]:
        """The names of the members that are described; `*` if they may have any name."""
        if isinstance(shape, _AllOf | _AnyOf):
            return list(dict.fromkeys(name for each in shape.parts for name in self.names(each, depth + 1)))
        unfolded = self._unfold(shape, depth)
        if unfolded is not shape:
            return self.names(unfolded, depth + 1)
        if isinstance(shape, bool):
            return []
        listed = [*shape.get("properties", ())]
        spend_steps(self._steps, len(listed))
        listed += [_MEMBER_OF_ANY_NAME] * isinstance(shape.get("additionalProperties"), Mapping)
        listed += [name for each in _items(shape) for name in self.names(each, depth + 1)]
        return list(dict.fromkeys(listed))

    def identity(self, shape: _Shape | None) -> tuple[int, ...]:
        """A key that is the same for the same schemas. The schemas live as long as the document, so no other object can
        have their ids.
        """
        return () if shape is None else tuple(self._schemas_in(shape))

    def _schemas_in(self, shape: _Shape) -> Iterator[int]:
        if isinstance(shape, _AllOf | _AnyOf):
            for each in shape.parts:
                yield from self._schemas_in(each)
        elif not isinstance(shape, bool):
            yield id(self._resolve(shape))

    def _own_members(self, schema: Mapping[str, Any], name: str) -> Iterator[_Shape]:
        if name in (properties := schema.get("properties", {})):
            yield properties[name]
            return
        matching = [
            each for text, each in schema.get("patternProperties", {}).items() if self._pattern_matches(text, name)
        ]
        if matching:
            yield _AllOf(tuple(matching))
        elif isinstance(additional := schema.get("additionalProperties"), Mapping):
            yield additional

    def _pattern_matches(self, pattern: str, name: str) -> bool:
        if pattern not in self._patterns:
            self._patterns[pattern] = compile_pattern(pattern)
        return self._patterns[pattern].is_found_in(name, self._steps)

    def _unfold(self, schema: Mapping[str, Any] | bool, depth: int) -> _Shape:
        """The parts of a schema that combines or refers to other schemas; of any other schema, the schema itself."""
        if depth > MAX_DEPTH:
            raise StepsExhausted
        spend_steps(self._steps, _steps_to_look_at(schema))
        resolved = self._resolve(schema)
        if resolved is not schema:
            return resolved
        if isinstance(schema, bool):
            return schema
        combined: list[_Shape] = [*schema.get("allOf", ())]
        combined += [_AnyOf(tuple(schema[each])) for each in ("anyOf", "oneOf") if schema.get(each)]
        if "if" in schema:
            combined.append(_AnyOf((schema.get("then", True), schema.get("else", True))))
        combined += [
            _AnyOf((True, each)) for each in schema.get("dependencies", {}).values() if not isinstance(each, list)
        ]
        if not combined:
            return schema
        beside = {
            keyword: value
            for keyword, value in schema.items()
            if keyword not in ("allOf", "anyOf", "oneOf", "if", "then", "else", "dependencies")
        }
        return _AllOf((beside, *combined))

    def _resolve(self, schema: RawSchema) -> RawSchema:
        """The target to which references finally lead; a reference that leads nowhere counts as a schema that describes
        nothing.
        """
        for _ in range(MAX_DEPTH):
            if isinstance(schema, bool) or not isinstance(reference := schema.get("$ref"), str):
                return schema
            target = self._document.find_target(reference)
            schema = True if target is None else target
        raise StepsExhausted


_KEYWORDS_LOOKED_THROUGH = (*COMBINATOR_KEYWORDS, "dependencies", "patternProperties", "enum", "required")


def _steps_to_look_at(schema: Mapping[str, Any] | bool) -> int:
    """The cost of reading a schema in steps. Properties are found by name, at no cost."""
    if isinstance(schema, bool):
        return 1
    return 1 + sum(len(schema.get(keyword, ())) for keyword in _KEYWORDS_LOOKED_THROUGH)


def _items(schema: Mapping[str, Any]) -> Iterator[_Shape]:
    items = schema.get("items")
    if isinstance(items, list):
        yield from items
        if isinstance(additional := schema.get("additionalItems"), Mapping):
            yield additional
    elif items is not None:
        yield items


def _own_types(schema: Mapping[str, Any]) -> frozenset[str]:
    if "enum" in schema:
        return frozenset(_KINDS_BY_PYTHON_TYPE[type(each)] for each in schema["enum"])
    named = schema.get("type")
    if named is None:
        return _ALL_TYPES
    return frozenset[str]().union(
        *(_TYPE_NAMES.get(each, frozenset({each})) for each in (named if isinstance(named, list) else [named]))
    )


class _Comparison:
    """Compares two schemas' statements about the members that are read."""

    def __init__(self, old: MemberSearch, new: MemberSearch) -> None:
        self._old = old
        self._new = new

    def changes(self, path: str) -> Iterator[ReadChange]:
        """The changes of members on the way to a path and of its target; if there are none, the changes inside the
        target.
        """
        names = parse_read_path(path)
        if not self._old.declares(names):
            return
        old, new = self._old.root, self._new.root
        for at, name in enumerate(names, start=1):
            change, pair = self._compare_member(path, names[:at], old, new, name)
            if change is not None:
                yield change
            if pair is None:
                return
            old, new = pair
        yield from self._changes_inside(path, names, old, new)

    def _changes_inside(self, path: str, names: ReadPath, old: _Shape, new: _Shape) -> Iterator[ReadChange]:
        waiting = [(names, old, new)]
        seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        while waiting:
            way, before, after = waiting.pop()
            pair_identity = self._old.identity(before), self._new.identity(after)
            if pair_identity in seen:
                continue
            seen.add(pair_identity)
            for name in self._old.names(before):
                change, pair = self._compare_member(path, (*way, name), before, after, name)
                if change is not None:
                    yield change
                if pair is not None:
                    waiting.append(((*way, name), *pair))

    def _compare_member(
        self, path: str, names: ReadPath, old: _Shape, new: _Shape, name: str
    ) -> tuple[ReadChange | None, tuple[_Shape, _Shape] | None]:
        """The change of a member, and its schemas before and after the change, unless it was removed."""
        before, after = self._old.member(old, name), self._new.member(new, name)
        assert before is not None
        member = read_path_text(names)
        if after is None:
            renamed = self._new_name(old, new, before)
            if renamed is None:
                return _change(path, member, ReadChangeKind.REMOVED, "was removed"), None
            text = f"was renamed to `{read_path_text((*names[:-1], renamed))}`"
            return _change(path, member, ReadChangeKind.RENAMED, text), None
        if added := self._added_types(before, after):
            text = f"may now be {_join_types(added)}, but was always {_join_types(self._old.types(before))}"
            if self._old.types(before) >= self._new.types(after):
                text = f"may now have items that are {_join_types(added)}"
            return _change(path, member, ReadChangeKind.RETYPED, text), (before, after)
        if self._old.is_required(old, name) and not self._new.is_required(new, name):
            return _change(path, member, ReadChangeKind.OPTIONAL, "is no longer required"), (before, after)
        return None, (before, after)

    def _added_types(self, before: _Shape, after: _Shape) -> frozenset[str]:
        """The types that a value, or an item of a list, can have only after the change."""
        for _ in range(MAX_DEPTH):
            added = self._new.types(after) - self._old.types(before)
            if added:
                return added
            old_items, new_items = self._old.item_shapes(before), self._new.item_shapes(after)
            if not old_items:
                return frozenset()
            # `True` stands for items of any type, which a list without a schema for its items may have.
            before, after = _AnyOf(old_items), _AnyOf(new_items or (True,))
        return frozenset()

    def _new_name(self, old: _Shape, new: _Shape, before: _Shape) -> str | None:
        """The name of the only new member whose description equals that of the removed one."""
        known = {*self._old.names(old)}
        same = [
            name
            for name in self._new.names(new)
            if name not in known and _same_words(before, self._new.member(new, name))
        ]
        return same[0] if len(same) == 1 else None


def _same_words(before: _Shape, after: _Shape | None) -> bool:
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return False
    return canonical_text(before) == canonical_text(after)


def _change(path: str, member: str, kind: ReadChangeKind, text: str) -> ReadChange:
    return ReadChange(path=path, member=member, kind=kind, explanation=f"`{member}` {text}.")


def _join_types(types: frozenset[str]) -> str:
    """Types in plain words: a number is an integer or a fraction."""
    if types == _ALL_TYPES:
        return "of any type"
    names = {*types}
    if {"integer", "fraction"} <= names:
        names = names - {"integer", "fraction"} | {"number"}
    words = sorted(_WORDS[each] for each in names) or ["nothing"]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


_WORDS = {
    "null": "null",
    "boolean": "a boolean",
    "integer": "an integer",
    "fraction": "a fraction",
    "number": "a number",
    "string": "a string",
    "object": "an object",
    "array": "a list",
}


def lost_members(change: SchemaChange, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[ReadPath, ...]:
    """The members that a change of a schema removes, retypes or makes optional; none for any other change."""
    steps = change.path.steps
    if change.kind in (ChangeKind.PROPERTY_REMOVED, ChangeKind.TYPE_CHANGED, ChangeKind.TYPE_NARROWED):
        path = _members_on_way(steps)
        return (path,) if path else ()
    if change.kind is ChangeKind.REQUIRED_ARRAY_CHANGED:
        before, now = values_of_change(change, old, new)
        kept = now if isinstance(now, list) else []
        around = _members_on_way(steps[:-1])
        return tuple((*around, name) for name in before if name not in kept) if isinstance(before, list) else ()
    return ()


def changes_of_members(
    changes: Sequence[SchemaChange], members: Sequence[ReadPath], old: Mapping[str, Any], new: Mapping[str, Any]
) -> Sequence[SchemaChange]:
    """The schema changes that cause the missing members; all changes if the cause cannot be determined.

    The rules of compatibility do not distinguish an integer from a fraction, so a member may also be missed without
    such a change. Then the change is reported at the place where the old schema declares the member.
    """
    found = [each for each in changes if any(_is_about(path, members) for path in _touched_members(each, old, new))]
    document = SchemaDocument.from_root(old)
    for member in members:
        place = _place_of_member(document, member)
        if place and not any(_is_about(member, _touched_members(each, old, new)) for each in found):
            change = SchemaChange(ChangeKind.TYPE_CHANGED, place)
            before, now = values_of_change(change, old, new)
            if now is not UNSET and before != now:
                found.append(change)
    return found or changes


def _touched_members(change: SchemaChange, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[ReadPath, ...]:
    """The members that a change removes, or otherwise the member that it affects."""
    way = _members_on_way(change.path.steps)
    return lost_members(change, old, new) or ((way,) if way else ())


def _is_about(path: ReadPath, members: Sequence[ReadPath]) -> bool:
    """Whether a member is one of these, on the way to one of them, or inside one."""
    return any(all(one == other for one, other in zip(path, each, strict=False)) for each in members)


def _place_of_member(document: SchemaDocument, member: ReadPath) -> SchemaPath | None:
    """Where a schema declares a member; None if it does so in several ways, or by a pattern."""
    place, schema = SchemaPath(), cast(Any, document.root)
    names, steps = deque(member), 0
    # A reference may lead to itself.
    while names and steps < MAX_STEPS_TO_MEMBER:
        steps += 1
        match schema:
            case {"$ref": str(reference)}:
                place, schema = place / "$ref", document.find_target(reference)
            case {"properties": {**properties}} if names[0] in properties:
                name = names.popleft()
                place, schema = place / "properties" / name, properties[name]
            case {"items": {**items}}:
                place, schema = place / "items", items
            case _:
                return None
    return None if names else place


def _members_on_way(steps: Sequence[str]) -> ReadPath:
    """The members on the path through a schema."""
    names: list[str] = []
    rest = deque(steps)
    while rest:
        match rest.popleft():
            case "properties" | "patternProperties" if rest:
                names.append(rest.popleft())
            case "additionalProperties":
                names.append(_MEMBER_OF_ANY_NAME)
            case "dependencies" if rest:
                rest.popleft()
            case "items" | "allOf" | "anyOf" | "oneOf" if rest and rest[0].isdecimal():
                rest.popleft()
    return tuple(names)
