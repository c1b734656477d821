"""Makes events that break exactly one rule of a schema: one event for each rule that can be broken alone. A rule is a
keyword at a place of the schema; for `required` and `dependencies`, each name is a rule. An event breaks exactly this
rule if the schema refuses it, and would accept it without the rule. Both questions go to the broker's own validator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct

from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import (
    COMBINATOR_KEYWORDS,
    Draft,
    SchemaDocument,
    count_schema_values,
    reachable_schemas,
    reference_steps,
)
from nakadi.schemas.validation import Validator, compile_validator
from nakadi_cli.generating.examples import is_valid, likely_values

_MOST_RULES = 300
_FEWEST_RULES = 10
# The schema is compiled once for each rule, so the work is rules times values.
_MOST_WORK = 100_000
# Events to try for one rule. Each is checked by two validators.
_MOST_TRIES = 60
_MOST_PLACES = 2_000
_TRIES_TO_NEGATE = 10
_LONGEST_TEXT = 100_000
_MOST_ITEMS = 1_000

_VALUES: Sequence[Any] = (
    "text",
    "",
    7,
    -7,
    0,
    1.5,
    True,
    None,
    [],
    {},
    "x" * 300,
    10**15,
    -(10**15),
    ["text"],
    {"x": 1},
)

Way = tuple[str | int, ...]


class Rule(Struct, frozen=True):
    """A keyword of a schema, or one of its names. `steps` lead to it from the root of the schema."""

    keyword: str
    steps: tuple[str, ...]

    @property
    def pointer(self) -> str:
        return "#/" + "/".join(each.replace("~", "~0").replace("/", "~1") for each in self.steps)


class Violation(Struct, frozen=True):
    """An event that breaks one rule, and how the broker explains that."""

    rule: Rule
    event: Any
    explanation: str


class Violations(Struct, frozen=True):
    """`unbroken` are the rules without an event: usually, breaking them also breaks another rule."""

    found: tuple[Violation, ...]
    unbroken: tuple[Rule, ...]
    is_complete: bool


def break_rules(schema: Mapping[str, Any], examples: Sequence[Any]) -> Violations:
    """Break each rule of an effective schema, or the first ones if there are very many.

    The examples are valid events.
    """
    validator = compile_validator(schema)
    places = [place for each in examples for place in _places(validator.document, each)]
    found: list[Violation] = []
    unbroken: list[Rule] = []
    rules = _rules_of(validator.document)
    most = max(_FEWEST_RULES, min(_MOST_RULES, _MOST_WORK // _size(validator.document)))
    for rule in rules[:most]:
        event = _break_rule(rule, schema, validator, places)
        if event is None:
            unbroken.append(rule)
        else:
            found.append(Violation(rule, event, validator.explain(event)))
    return Violations(tuple(found), tuple(unbroken), len(rules) <= most)


def _size(document: SchemaDocument) -> int:
    return sum(count_schema_values(each) for _, each in reachable_schemas(document))


def without_rule(schema: Mapping[str, Any], rule: Rule) -> dict[str, Any]:
    """The schema without this rule, and otherwise unchanged."""
    relaxed: dict[str, Any] = _remove_at(schema, rule.steps)
    return relaxed


def _remove_at(value: Any, steps: Sequence[str]) -> Any:
    if isinstance(value, list):
        if len(steps) == 1:
            return [each for each in value if each != steps[0]]
        return [_remove_at(each, steps[1:]) if str(at) == steps[0] else each for at, each in enumerate(value)]
    if len(steps) == 1:
        return {name: each for name, each in value.items() if name != steps[0]}
    return {name: _remove_at(each, steps[1:]) if name == steps[0] else each for name, each in value.items()}


# The rules of a schema

_SIMPLE_KEYWORDS = frozenset(
    """
    type enum const minLength maxLength pattern format minimum maximum multipleOf minItems maxItems uniqueItems
    minProperties maxProperties additionalProperties additionalItems anyOf oneOf not contains propertyNames
    """.split()  # noqa: SIM905  # a table reads better than twenty words in quotes
)
_NAMED_KEYWORDS = frozenset({"required", "dependencies"})
_BOUNDS = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def _rules_of(document: SchemaDocument) -> list[Rule]:
    return [
        Rule(keyword, (*path.steps, keyword, *name))
        for path, schema in reachable_schemas(document)
        if "$ref" not in schema
        for keyword, value in schema.items()
        for name in _names_in(keyword, value, document.draft)
    ]


def _names_in(keyword: str, value: Any, draft: Draft) -> Iterator[tuple[str, ...]]:
    """The separate rules of a keyword: one for each name in its value, or else one for the whole keyword."""
    if keyword in _NAMED_KEYWORDS:
        yield from ((each,) for each in value)
    elif keyword in _BOUNDS:
        # In draft 04, an exclusive bound is a flag; without the flag, the bound itself still applies.
        if value is True or not isinstance(value, bool):
            yield ()
    elif keyword in ("additionalProperties", "additionalItems"):
        if value is False:
            yield ()
    elif keyword == "if":
        if draft >= Draft.SEVEN:
            yield ()
    elif keyword in _SIMPLE_KEYWORDS and value not in ({}, False):
        yield ()


# Places in events, and their new values

Place = tuple[Any, Way, tuple[str, ...]]


def _places(document: SchemaDocument, event: Any) -> Iterator[Place]:
    """Each value of an event with each schema that applies to it: the event, the path of the value, and the path of the
    schema.
    """
    waiting: list[tuple[Way, tuple[str, ...]]] = [((), ())]
    seen: set[tuple[Way, tuple[str, ...]]] = set()
    while waiting and len(seen) < _MOST_PLACES:
        way, steps = waiting.pop(0)
        if (way, steps) in seen:
            continue
        seen.add((way, steps))
        yield event, way, steps
        schema = _value_at(document.root, steps)
        if isinstance(schema, Mapping):
            waiting += _steps_from(schema, steps, way, _value_at(event, way))


def _steps_from(
    schema: Mapping[str, Any], steps: tuple[str, ...], way: Way, value: Any
) -> Iterator[tuple[Way, tuple[str, ...]]]:
    if "$ref" in schema:
        yield way, tuple(reference_steps(schema["$ref"]) or ())
        return
    yield from ((way, (*steps, *more)) for more in _steps_for_same_value(schema))
    if isinstance(value, dict):
        yield from _steps_to_members(schema, steps, way, value)
    if isinstance(value, list):
        yield from _steps_to_items(schema, steps, way, len(value))


def _steps_for_same_value(schema: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for keyword in COMBINATOR_KEYWORDS:
        yield from ((keyword, str(at)) for at in range(len(schema.get(keyword, ()))))
    yield from ((each,) for each in ("if", "then", "else") if each in schema)
    for name, needed in schema.get("dependencies", {}).items():
        if not isinstance(needed, list):
            yield "dependencies", name


def _steps_to_items(
    schema: Mapping[str, Any], steps: tuple[str, ...], way: Way, count: int
) -> Iterator[tuple[Way, tuple[str, ...]]]:
    items = schema.get("items")
    for at in range(count):
        if isinstance(items, list):
            yield (*way, at), ((*steps, "items", str(at)) if at < len(items) else (*steps, "additionalItems"))
        elif items is not None:
            yield (*way, at), (*steps, "items")


def _steps_to_members(
    schema: Mapping[str, Any], steps: tuple[str, ...], way: Way, value: Mapping[str, Any]
) -> Iterator[tuple[Way, tuple[str, ...]]]:
    for name in value:
        if name in schema.get("properties", {}):
            yield (*way, name), (*steps, "properties", name)
        else:
            for pattern in schema.get("patternProperties", {}):
                yield (*way, name), (*steps, "patternProperties", pattern)
            if "additionalProperties" in schema:
                yield (*way, name), (*steps, "additionalProperties")


def _break_rule(rule: Rule, schema: Mapping[str, Any], validator: Validator, places: Sequence[Place]) -> Any:
    length = 2 if rule.keyword in _NAMED_KEYWORDS else 1
    at = rule.steps[:-length]
    holder = _value_at(schema, at)
    relaxed: Validator | None = None
    tries = 0
    for event, way, steps in places:
        if steps != at:
            continue
        values = _wrong_values(rule, holder, _value_at(event, way))
        if rule.keyword == "not":
            values = chain(likely_values(validator.document, holder["not"], _TRIES_TO_NEGATE), values)
        for value in values:
            tries += 1
            if tries > _MOST_TRIES:
                return None
            broken = _with_value(event, way, value)
            if not isinstance(broken, dict) or is_valid(validator, broken):
                continue
            relaxed = relaxed or _validator_without_rule(schema, rule)
            if relaxed is None:
                return None
            if is_valid(relaxed, broken):
                return broken
    return None


def _validator_without_rule(schema: Mapping[str, Any], rule: Rule) -> Validator | None:
    try:
        return compile_validator(without_rule(schema, rule))
    except Invalid:  # such as `exclusiveMinimum` without `minimum`
        return None


def _wrong_values(rule: Rule, schema: Mapping[str, Any], value: Any) -> Iterator[Any]:
    """Values to try in the place of a valid one, the likeliest first."""
    limit = schema.get(rule.keyword)
    likely = _LIKELY.get(rule.keyword)
    if likely is not None:
        yield from likely(value, limit, rule.steps[-1], schema)
    yield from _VALUES
    if isinstance(value, dict):
        for name in value:
            yield {other: each for other, each in value.items() if other != name}
        yield {**value, "unexpected": "text"}
    if isinstance(value, list):
        yield [*value, *value]
        yield value[:-1]


Likely = Callable[[Any, Any, str, Mapping[str, Any]], Iterator[Any]]


def _other_types(value: Any, limit: Any, _: str, __: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield value + 0.5
    if limit != "string":
        yield "not of this type"
    yield from (7, True, None, ["text"])


def _shorter(value: Any, limit: Any, _: str, __: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(value, str) and 0 < limit < _LONGEST_TEXT:
        yield value[: limit - 1]
        yield "a" * (limit - 1)
        yield "A" * (limit - 1)
        yield "1" * (limit - 1)


def _longer(value: Any, limit: Any, _: str, __: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(value, str) and limit < _LONGEST_TEXT:
        yield value + (value[-1:] or "a") * (limit + 1 - len(value))
        yield (value[:1] or "a") * (limit + 1 - len(value)) + value
        yield "a" * (limit + 1)


def _break_pattern(value: Any, _: Any, __: str, schema: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(value, str):
        length = max(1, schema.get("minLength", 0), min(len(value), schema.get("maxLength", 100)))
        yield from (sign * length for sign in "!a0A -é")
        yield value[::-1]
        yield f"!{value}"
        yield ""


def _go_below_minimum(value: Any, limit: Any, _: str, schema: Mapping[str, Any]) -> Iterator[Any]:
    yield from _go_beyond_bound(value, limit, schema, -1)


def _go_above_maximum(value: Any, limit: Any, _: str, schema: Mapping[str, Any]) -> Iterator[Any]:
    yield from _go_beyond_bound(value, limit, schema, 1)


def _go_beyond_bound(value: Any, limit: Any, schema: Mapping[str, Any], sign: int) -> Iterator[Any]:
    step = schema.get("multipleOf", 1)
    if isinstance(value, int | float) and not isinstance(value, bool):
        for each in (step, 1, 0.5, 1000 * step):
            yield limit + sign * each
        yield limit - limit % step + (sign * step if sign > 0 or limit % step == 0 else 0)


def _bound_itself(_: Any, limit: Any, step: str, schema: Mapping[str, Any]) -> Iterator[Any]:
    yield schema.get(_BOUNDS[step]) if limit is True else limit


def _break_multiple(value: Any, limit: Any, _: str, __: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield from (value + 1, value - 1, value + limit / 2, value - limit / 2, value + limit / 10, value - limit / 10)


def _fewer(value: Any, limit: Any, _: str, __: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(value, list):
        yield value[: limit - 1]
    if isinstance(value, dict):
        for name in reversed(value):
            value = {other: each for other, each in value.items() if other != name}
            if len(value) < limit:
                yield value


def _add_members(value: Any, limit: Any, _: str, __: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(value, list) and value and limit < _MOST_ITEMS:
        yield (value * (limit + 1))[: limit + 1]
        if isinstance(value[-1], str):
            yield [*value, *(f"{value[-1]}{each}" for each in range(limit + 1 - len(value)))]
        yield [*value, *range(limit + 1 - len(value))]
    if isinstance(value, list) and limit < _MOST_ITEMS:
        yield list(range(limit + 1))
    if isinstance(value, dict) and limit < _MOST_ITEMS:
        sample = next(iter(value.values()), "text")
        yield value | {f"unexpected{each}": sample for each in range(limit + 1 - len(value))}


def _repeat_items(value: Any, _: Any, __: str, ___: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(value, list) and value:
        yield [value[0], *value]
        yield [value[0], value[0], *value[2:]]


def _without_name(value: Any, _: Any, name: str, __: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(value, dict):
        yield {other: each for other, each in value.items() if other != name}


def _without_needed(value: Any, needed: Any, name: str, _: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(value, dict) and isinstance(needed[name], list):
        for missing in needed[name]:
            yield {other: each for other, each in value.items() if other != missing}
            yield {name: "text", **{other: each for other, each in value.items() if other != missing}}


def _misname_members(value: Any, _: Any, __: str, ___: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from ({**value, name: "text"} for name in ("UNEXPECTED", "unexpected", "0", "?", "x" * 300, ""))


def _with_unexpected(value: Any, _: Any, __: str, ___: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(value, dict):
        yield {**value, "unexpected": "text"}
    if isinstance(value, list):
        yield [*value, "unexpected"]


_LIKELY: Mapping[str, Likely] = {
    "type": _other_types,
    "enum": _break_pattern,
    "const": _break_pattern,
    "minLength": _shorter,
    "maxLength": _longer,
    "pattern": _break_pattern,
    "format": _break_pattern,
    "minimum": _go_below_minimum,
    "maximum": _go_above_maximum,
    "exclusiveMinimum": _bound_itself,
    "exclusiveMaximum": _bound_itself,
    "multipleOf": _break_multiple,
    "minItems": _fewer,
    "maxItems": _add_members,
    "minProperties": _fewer,
    "maxProperties": _add_members,
    "uniqueItems": _repeat_items,
    "propertyNames": _misname_members,
    "required": _without_name,
    "dependencies": _without_needed,
    "additionalProperties": _with_unexpected,
    "additionalItems": _with_unexpected,
}


def _value_at(value: Any, way: Sequence[str | int]) -> Any:
    for step in way:
        if isinstance(value, list):
            at = int(step)
            value = value[at] if at < len(value) else None
        elif isinstance(value, Mapping):
            value = value.get(step)
        else:
            return None
    return value


def _with_value(event: Any, way: Way, value: Any) -> Any:
    if not way:
        return value
    if isinstance(event, list):
        return [_with_value(each, way[1:], value) if at == way[0] else each for at, each in enumerate(event)]
    return {name: _with_value(each, way[1:], value) if name == way[0] else each for name, each in event.items()}
