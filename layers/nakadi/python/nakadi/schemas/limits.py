"""How large a schema may be, so that it compiles within a second and in little memory, and how far it may expand:
against how many schemas a value of an event may be checked. References and combinators multiply this number. Twenty
definitions that each name the previous one twice require a million checks, in less than a kilobyte, and so do twenty
levels of properties whose schemas occur twice in an `anyOf`. These counts are valid for every event: no value in it, at
any depth, is checked against more schemas.

* All alternatives count, because an event can be made that fails each of them at its very end.
* A name may match all of the patterns.
* A schema that contains itself is followed once around the cycle. It may contain itself in several alternatives, of
  which mostly one is taken; but if a value is checked against it twice, the number doubles with each level of an event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import SchemaDocument, reachable_schemas, subschemas
from nakadi.schemas.values import RemainingSteps, StepsExhausted, spend_steps

MAX_SCHEMA_CHARACTERS = 256 * 1024
MAX_SCHEMA_DEPTH = 100
MAX_SCHEMA_VALUES = 10_000
MAX_ENUM_VALUES = 5_000
MAX_PATTERNS = 200
MAX_PATTERN_CHARACTERS = 10_000


def check_schema_length(text: str) -> None:
    _check_at_most("characters", len(text), MAX_SCHEMA_CHARACTERS)


def check_schema_size(schema: Mapping[str, Any], *, added_levels: int = 0, added_values: int = 0) -> None:
    """Raises `Invalid` if the schema is nested too deeply, or has too many values.

    The additions of the broker are allowed on top of these limits.
    """
    patterns: set[str] = set()
    for number, (depth, value) in enumerate(_values_with_depth(schema), start=1):
        _check_at_most("levels of nesting", depth - added_levels, MAX_SCHEMA_DEPTH)
        _check_at_most("values", number - added_values, MAX_SCHEMA_VALUES)
        if isinstance(value, Mapping):
            patterns.update(_find_patterns(value))
            _check_at_most("patterns", len(patterns), MAX_PATTERNS)
            _check_enum_length(value.get("enum"))
    _check_at_most("characters in patterns", sum(map(len, patterns)), MAX_PATTERN_CHARACTERS)


def _values_with_depth(schema: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    waiting: list[tuple[int, Any]] = [(1, schema)]
    while waiting:
        depth, value = waiting.pop()
        yield depth, value
        if isinstance(value, Mapping):
            waiting.extend((depth + 1, each) for each in value.values())
        elif isinstance(value, list):
            waiting.extend((depth + 1, each) for each in value)


def _find_patterns(value: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value.get("pattern"), str):
        yield value["pattern"]
    if isinstance(value.get("patternProperties"), Mapping):
        yield from value["patternProperties"]


def _check_enum_length(allowed: Any) -> None:
    if isinstance(allowed, list):
        _check_at_most("values in an enum", len(allowed), MAX_ENUM_VALUES)


def _check_at_most(what: str, found: int, most: int) -> None:
    if found > most:
        raise Invalid(f"schema is too large: at most {most} {what} are possible, found {found}")


# As many as a schema may have values, so that a schema without references never expands too far.
MAX_SCHEMAS_PER_VALUE = 10_000

MAX_EXPANSION_STEPS = 300_000

Schema = Mapping[str, Any]
MemberNameOrIndex = str | int
CombineCounts = Callable[[Iterable[int]], int]

_ALTERNATIVE_KEYWORDS = frozenset({"anyOf", "oneOf", "then", "else"})


def check_expansion(document: SchemaDocument) -> None:
    """Raise `Invalid` if the schema expands too far. It must have passed `loading.check_loadable`."""
    try:
        widest = _SchemaExpansion(document).max_schemas_per_value()
    except StepsExhausted as error:
        raise Invalid("schema expands too far: its parts combine in too many ways") from error
    if widest > MAX_SCHEMAS_PER_VALUE:
        found = widest if widest < 10**12 else "far more"
        raise Invalid(
            f"schema expands too far: at most {MAX_SCHEMAS_PER_VALUE} schemas can be about one value, found {found}"
        )


class _CountsByName(Struct, frozen=True):
    """A number for each mentioned name (or index), and one for all others."""

    count_by_name: Mapping[MemberNameOrIndex, int] = field(default_factory=dict)
    count_of_others: int = 0

    def count_of(self, name: MemberNameOrIndex) -> int:
        return self.count_by_name.get(name, self.count_of_others)

    def largest_count(self) -> int:
        return max(self.count_of_others, *self.count_by_name.values()) if self.count_by_name else self.count_of_others


_NO_COUNTS = _CountsByName()


class _SchemaCounts(Struct, frozen=True):
    """How many schemas apply to a value itself, to each of its members, to its items, and to its names."""

    for_value: int
    for_members: _CountsByName
    for_items: _CountsByName
    for_names: int

    def largest_count(self) -> int:
        return max(self.for_value, self.for_members.largest_count(), self.for_items.largest_count(), self.for_names)


class _InnerSchemas(Struct, frozen=True):
    """Schemas of the values inside a value: under one name, under all names, and under names without a schema."""

    by_name: dict[MemberNameOrIndex, list[Schema]] = field(default_factory=dict)
    for_all_names: list[Schema] = field(default_factory=list)
    for_other_names: list[Schema] = field(default_factory=list)

    def all_schemas(self) -> Iterator[Schema]:
        for each in (*self.by_name.values(), self.for_all_names, self.for_other_names):
            yield from each

    def combined_counts(self, count: Callable[[Schema], int], combine: CombineCounts) -> _CountsByName:
        if not (self.by_name or self.for_all_names or self.for_other_names):
            return _NO_COUNTS
        anywhere = combine([0, *map(count, self.for_all_names)])
        return _CountsByName(
            {name: combine([anywhere, *map(count, each)]) for name, each in self.by_name.items()},
            combine([anywhere, *map(count, self.for_other_names)]),
        )


class _SubschemasByUse:
    """The inner schemas of a schema, by the values to which they apply."""

    def __init__(self, schema: Schema, document: SchemaDocument) -> None:
        self.applied_together: list[Schema] = []
        self.alternatives: list[Schema] = []
        self.members, self.items = _InnerSchemas(), _InnerSchemas()
        self.names: list[Schema] = []
        if "$ref" in schema:
            target = document.find_target(schema["$ref"])
            self.applied_together = [target] if isinstance(target, Mapping) else []
        else:
            for keyword, way, value in subschemas(schema, document.draft):
                self._add_subschema(keyword, way, value)

    def _add_subschema(self, keyword: str, way: tuple[str, ...], value: Any) -> None:
        schemas = [value] if isinstance(value, Mapping) else []
        match keyword:
            case "properties" if way:
                self.members.by_name[way[0]] = schemas
            case "items" if way:
                self.items.by_name[int(way[0])] = schemas
            case "patternProperties":
                self.members.for_all_names.extend(schemas)
            case "additionalProperties":
                self.members.for_other_names.extend(schemas)
            case "items" | "contains":
                self.items.for_all_names.extend(schemas)
            case "additionalItems":
                self.items.for_other_names.extend(schemas)
            case "propertyNames":
                self.names.extend(schemas)
            case _ if keyword in _ALTERNATIVE_KEYWORDS:
                self.alternatives.extend(schemas)
            case _:
                self.applied_together.extend(schemas)

    def schema_ids(self) -> list[int]:
        inside = (*self.members.all_schemas(), *self.items.all_schemas(), *self.names)
        return [id(each) for each in (*self.applied_together, *self.alternatives, *inside)]


class _SchemaExpansion:
    def __init__(self, document: SchemaDocument) -> None:
        self._steps: RemainingSteps = [MAX_EXPANSION_STEPS]
        self._subschemas_by_schema_id = {
            id(schema): _SubschemasByUse(schema, document) for _, schema in reachable_schemas(document)
        }
        self._cycle_number_by_schema_id: dict[int, int] = {}
        self._counts_by_schema_id: dict[int, _SchemaCounts] = {}
        self._recursion_counts_by_schema_id: dict[int, _SchemaCounts] = {}
        self._largest_count_by_schema_id: dict[int, int] = {}

    def max_schemas_per_value(self) -> int:
        """How many schemas may apply to one value; raises `Invalid` if their number has no limit."""
        within = {each: parts.schema_ids() for each, parts in self._subschemas_by_schema_id.items()}
        for number, circle in enumerate(_groups_of_mutual_references(within)):
            self._cycle_number_by_schema_id.update(dict.fromkeys(circle, number))
            for each in circle:
                if len(circle) > 1 or each in within[each]:
                    self._check_recursion_of_schema(each)
            # The counts are stored only here, because schemas of the same cycle count as zero until all of them are
            # known.
            self._largest_count_by_schema_id.update({each: self._counts_of(each).largest_count() for each in circle})
        return max(self._largest_count_by_schema_id.values())

    def _check_recursion_of_schema(self, schema: int) -> None:
        """Raise if one pass through a cycle leads a schema back to the same value twice."""
        turns = self._recursion_counts(schema)
        if max(turns.for_members.largest_count(), turns.for_items.largest_count(), turns.for_names) > 1:
            raise Invalid("schema expands too far: it contains itself more than once for one and the same value")

    def _counts_of(self, schema: int) -> _SchemaCounts:
        if schema not in self._counts_by_schema_id:
            parts = self._subschemas_by_schema_id[schema]
            own = _own_counts(parts, 1, lambda each: self._largest_count_by_schema_id.get(id(each), 0), sum)
            others = [self._counts_of(id(each)) for each in (*parts.applied_together, *parts.alternatives)]
            self._counts_by_schema_id[schema] = self._combined_counts([own, *others], sum) if others else own
        return self._counts_by_schema_id[schema]

    def _recursion_counts(self, schema: int) -> _SchemaCounts:
        """The ways back into the cycle of this schema, one for each alternative."""
        if schema not in self._recursion_counts_by_schema_id:
            parts, circle = self._subschemas_by_schema_id[schema], self._cycle_number_by_schema_id[schema]

            def counts_in_cycle(schemas: Iterable[Schema]) -> list[_SchemaCounts]:
                return [
                    self._recursion_counts(id(each))
                    for each in schemas
                    if self._cycle_number_by_schema_id[id(each)] == circle
                ]

            own = _own_counts(parts, 0, lambda each: int(self._cycle_number_by_schema_id.get(id(each)) == circle), max)
            alternatives = self._combined_counts(counts_in_cycle(parts.alternatives), max)
            self._recursion_counts_by_schema_id[schema] = self._combined_counts(
                [own, *counts_in_cycle(parts.applied_together), alternatives], sum
            )
        return self._recursion_counts_by_schema_id[schema]

    def _combined_counts(self, tallies: Sequence[_SchemaCounts], combine: CombineCounts) -> _SchemaCounts:
        return _SchemaCounts(
            combine([0, *(each.for_value for each in tallies)]),
            self._combined_by_name([each.for_members for each in tallies], combine),
            self._combined_by_name([each.for_items for each in tallies], combine),
            combine([0, *(each.for_names for each in tallies)]),
        )

    def _combined_by_name(self, several: Sequence[_CountsByName], combine: CombineCounts) -> _CountsByName:
        several = [each for each in several if each.count_by_name or each.count_of_others]
        if len(several) < 2:
            return several[0] if several else _NO_COUNTS
        names = {name for each in several for name in each.count_by_name}
        spend_steps(self._steps, len(names) * len(several))
        return _CountsByName(
            {name: combine(each.count_of(name) for each in several) for name in names},
            combine(each.count_of_others for each in several),
        )


def _own_counts(
    parts: _SubschemasByUse, itself: int, count: Callable[[Schema], int], combine_for_name: CombineCounts
) -> _SchemaCounts:
    """The counts of the schema itself. `combine_for_name` combines all schemas that may apply to one name; an item
    has all of them."""
    members = parts.members.combined_counts(count, combine_for_name)
    items = parts.items.combined_counts(count, sum)
    return _SchemaCounts(itself, members, items, sum(map(count, parts.names)))


def _groups_of_mutual_references(edges: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
    """The schemas in groups that contain each other; each group comes after the groups that it refers to (Tarjan's
    algorithm).
    """
    low: dict[int, int] = {}
    done: set[int] = set()
    open_: list[int] = []
    for root in edges:
        if root in low:
            continue
        low[root] = len(low)
        open_.append(root)
        stack = [(root, low[root], iter(edges[root]))]
        while stack:
            node, number, following = stack[-1]
            successor = next(following, None)
            if successor is None:
                stack.pop()
                if stack:
                    low[stack[-1][0]] = min(low[stack[-1][0]], low[node])
                if low[node] == number:
                    group = [open_.pop()]
                    while group[-1] != node:
                        group.append(open_.pop())
                    done.update(group)
                    yield group
            elif successor not in low:
                low[successor] = len(low)
                open_.append(successor)
                stack.append((successor, low[successor], iter(edges[successor])))
            elif successor not in done:
                low[node] = min(low[node], low[successor])
