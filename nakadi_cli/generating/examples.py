"""Makes sample events that a schema accepts: candidates from its keywords that the broker's validator accepts.

The same schema gives the same events each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from random import Random
from typing import Any

from msgspec import Struct, field

from nakadi.schemas.document import Draft, SchemaDocument
from nakadi.schemas.validation import Validator, compile_validator
from nakadi.schemas.values import StepsExhausted
from nakadi_cli.failures import BadInput
from nakadi_cli.generating.texts import FORMATS, text_matching

_SEED = 20261121
_TRIES_FOR_EACH = 100
_MOST_STEPS = 20_000
_MOST_LEVELS = 40
# Below this depth, a value has only its required members.
_GENEROUS_LEVELS = 8
_LONGEST_TEXT = 100_000
_MOST_ITEMS = 1_000
_ANY_VALUES: Sequence[Any] = ("text", 1, True, 1.5, [], {}, None)
_NAMES = ("more", "note", "x", "id", "a1", "other")

RawSchema = Mapping[str, Any] | bool


class _Impossible(Exception):  # it ends only this candidate
    """Raised if a candidate would be infinite, or if a part of the schema allows no value."""


def make_examples(schema: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return different events that are valid under an effective schema: the first has all members, the second few.

    It returns fewer if it finds no more, and raises `BadInput` if it finds none.
    """
    validator = compile_validator(schema)
    found: list[dict[str, Any]] = []
    nearest: Any = None
    for candidate in likely_values(validator.document, validator.document.root, _TRIES_FOR_EACH * count):
        if is_valid(validator, candidate):
            if candidate not in found:
                found.append(candidate)
            if len(found) == count:
                return found
        elif nearest is None:
            nearest = candidate
    if not found:
        raise BadInput(f"No example was found that the schema accepts. {_reason_of_failure(validator, nearest)}.")
    return found


def _reason_of_failure(validator: Validator, nearest: Any) -> str:
    if nearest is None:
        return "Its rules contradict each other, or it contains itself without end"
    return f"The nearest one is refused: {validator.explain(nearest).splitlines()[0]}"


def is_valid(validator: Validator, event: Any) -> bool:
    try:
        return validator.accepts(event)
    except StepsExhausted:
        return False


def likely_values(document: SchemaDocument, schema: RawSchema, tries: int) -> Iterator[Any]:
    """Values that a part of a document may accept; they are not checked yet."""
    for number in range(tries):
        # The first value has everything, the second as little as possible, and the others vary at random.
        likelihood = (1.0, 0.0, 0.5)[min(number, 2)]
        try:
            yield _ExampleMaker(document, Random(_SEED + number), likelihood).make(schema, 0)  # noqa: S311
        except (_Impossible, ArithmeticError):
            continue


class _Rules(Struct):
    """The combined rules of several schemas for a value."""

    types: list[str] | None = None
    values: list[Any] | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    divisors: list[Any] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    form: str = ""
    members: dict[str, list[RawSchema]] = field(default_factory=dict)
    required: dict[str, None] = field(default_factory=dict)
    needed_with: list[tuple[str, list[str]]] = field(default_factory=list)
    named: list[tuple[str, RawSchema]] = field(default_factory=list)
    others: list[RawSchema] = field(default_factory=list)
    item_lists: list[list[RawSchema]] = field(default_factory=list)
    items: list[RawSchema] = field(default_factory=list)
    contained: list[RawSchema] = field(default_factory=list)
    is_unique: bool = False


class _ExampleMaker:
    def __init__(self, document: SchemaDocument, draw: Random, likelihood: float) -> None:
        self._document = document
        self._draw = draw
        self._likelihood = likelihood
        self._steps = 0

    def make(self, schema: RawSchema, level: int) -> Any:
        return self.make_all([schema], level)

    def make_all(self, schemas: Sequence[RawSchema], level: int) -> Any:
        """Make a value that all of these schemas accept."""
        rules = _Rules()
        for each in schemas:
            self._collect(each, rules)
        if level > _MOST_LEVELS:
            raise _Impossible
        if rules.values is not None:
            return self._draw.choice(_not_empty(rules.values))
        kinds = _not_empty(self._implied_types(rules) if rules.types is None else rules.types)
        return self._value_of(kinds[0] if self._likelihood == 1.0 else self._draw.choice(kinds), rules, level)

    def _value_of(self, kind: str, rules: _Rules, level: int) -> Any:
        make: dict[str, Callable[[], Any]] = {
            "object": lambda: self._object(rules, level),
            "array": lambda: self._array(rules, level),
            "string": lambda: self._text(rules),
            "integer": lambda: self._number(rules, is_whole=True),
            "number": lambda: self._number(rules, is_whole=False),
            "boolean": lambda: self._draw.random() < 0.5,
            "null": lambda: None,
            "anything": lambda: self._draw.choice(_ANY_VALUES),
        }
        return make[kind]()

    def _implied_types(self, rules: _Rules) -> list[str]:
        if rules.members or rules.required or rules.named or "minProperties" in rules.numbers:
            return ["object"]
        if rules.items or rules.item_lists or rules.contained or "minItems" in rules.numbers:
            return ["array"]
        if rules.patterns or rules.form or "minLength" in rules.numbers or "maxLength" in rules.numbers:
            return ["string"]
        return ["number"] if rules.divisors or rules.numbers else ["anything"]

    # Rules of schemas

    def _collect(self, schema: RawSchema, rules: _Rules) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS or schema is False:
            raise _Impossible
        if isinstance(schema, bool):
            return None
        while "$ref" in schema:
            target = self._document.find_target(schema["$ref"])
            if not isinstance(target, Mapping):
                return self._collect(bool(target), rules)
            schema = target
        self._collect_values(schema, rules)
        self._collect_numbers(schema, rules)
        self._collect_object(schema, rules)
        self._collect_array(schema, rules)
        for each in schema.get("allOf", ()):
            self._collect(each, rules)
        for keyword in ("anyOf", "oneOf"):
            if schema.get(keyword):
                self._collect(self._draw.choice(schema[keyword]), rules)
        if "if" in schema and self._document.draft >= Draft.SEVEN:
            if self._draw.random() < 0.5:
                self._collect(schema["if"], rules)
                self._collect(schema.get("then", True), rules)
            else:
                self._collect(schema.get("else", True), rules)
        return None

    def _collect_values(self, schema: Mapping[str, Any], rules: _Rules) -> None:
        named = schema.get("type")
        if named is not None:
            listed = [named] if isinstance(named, str) else list(named)
            rules.types = listed if rules.types is None else _common_types(rules.types, listed)
        values = schema.get("enum")
        if "const" in schema and self._document.draft >= Draft.SIX:
            values = [schema["const"]]
        if values is not None:
            rules.values = list(values) if rules.values is None else [each for each in rules.values if each in values]
        if "pattern" in schema:
            rules.patterns.append(schema["pattern"])
        rules.form = rules.form or schema.get("format", "")

    def _collect_numbers(self, schema: Mapping[str, Any], rules: _Rules) -> None:
        for keyword, tighter in _TIGHTER.items():
            if keyword in schema and not isinstance(schema[keyword], bool):
                rules.numbers[keyword] = tighter(schema[keyword], rules.numbers.get(keyword, schema[keyword]))
        for keyword, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if schema.get(keyword) is True and bound in schema:
                rules.numbers[keyword] = schema[bound]
        if "multipleOf" in schema:
            rules.divisors.append(schema["multipleOf"])

    def _collect_object(self, schema: Mapping[str, Any], rules: _Rules) -> None:
        for name, each in schema.get("properties", {}).items():
            rules.members.setdefault(name, []).append(each)
        rules.required |= dict.fromkeys(schema.get("required", ()))
        rules.named += schema.get("patternProperties", {}).items()
        if "additionalProperties" in schema:
            rules.others.append(schema["additionalProperties"])
        for name, needed in schema.get("dependencies", {}).items():
            if isinstance(needed, list):
                rules.needed_with.append((name, needed))
            elif self._draw.random() < self._likelihood:
                self._collect(needed, rules)
            else:
                rules.members[name] = [*rules.members.get(name, []), False]

    def _collect_array(self, schema: Mapping[str, Any], rules: _Rules) -> None:
        items = schema.get("items")
        if isinstance(items, list):
            rules.item_lists.append(items)
            rules.items += [schema["additionalItems"]] if "additionalItems" in schema else []
        elif items is not None:
            rules.items.append(items)
        if "contains" in schema and self._document.draft >= Draft.SIX:
            rules.contained.append(schema["contains"])
        rules.is_unique |= schema.get("uniqueItems") is True

    # Values

    def _object(self, rules: _Rules, level: int) -> dict[str, Any]:
        least, most = rules.numbers.get("minProperties", 0), rules.numbers.get("maxProperties", _MOST_ITEMS)
        likelihood = self._likelihood if level < _GENEROUS_LEVELS else 0.0
        wanted = dict(rules.required)
        for name in rules.members:
            if len(wanted) < most and (len(wanted) < least or self._draw.random() < likelihood):
                wanted[name] = None
        for name, needed in rules.needed_with * 2:
            if name in wanted:
                wanted |= dict.fromkeys(needed)
        made: dict[str, Any] = {}
        for name in [*rules.members, *(each for each in wanted if each not in rules.members)]:
            if name in wanted:
                try:
                    made[name] = self.make_all(self._schemas_of(name, rules), level + 1)
                except _Impossible:
                    if name in rules.required:
                        raise
        self._fill_up(made, least, most, rules, level, likelihood)
        return made

    def _fill_up(
        self, made: dict[str, Any], least: int, most: int, rules: _Rules, level: int, likelihood: float
    ) -> None:
        """Add members that no schema names if more are required, or to fill a map."""
        is_map = not rules.members and (rules.named or any(isinstance(each, Mapping) for each in rules.others))
        goal = max(least, min(most, 2) if is_map and likelihood else 0)
        if goal > _MOST_ITEMS:
            raise _Impossible
        names = chain(self._names_of_patterns(rules), _NAMES, (f"member{number}" for number in range(goal)))
        while len(made) < goal:
            name = next(names, None)
            if name is None:
                return
            if name not in made:
                try:
                    made[name] = self.make_all(self._schemas_of(name, rules), level + 1)
                except _Impossible:
                    continue

    def _names_of_patterns(self, rules: _Rules) -> list[str]:
        found = (text_matching(pattern, self._draw) for pattern, _ in rules.named for _ in range(3))
        return [each for each in found if each is not None]

    def _schemas_of(self, name: str, rules: _Rules) -> list[RawSchema]:
        """The schemas for a member. The validator decides whether a pattern matches its name."""
        named = [schema for pattern, schema in rules.named if pattern.strip("^$") in name]
        if name in rules.members:
            return [*rules.members[name], *named]
        if rules.named and name not in rules.members:
            named = named or ([] if rules.others else [rules.named[0][1]])
        return named or rules.others or [True]

    def _array(self, rules: _Rules, level: int) -> list[Any]:
        least, most = rules.numbers.get("minItems", 0), rules.numbers.get("maxItems", _MOST_ITEMS)
        places = max(map(len, rules.item_lists), default=0)
        usual = places or (self._draw.randint(1, 2) if level < _GENEROUS_LEVELS and self._likelihood else 0)
        count = max(least, min(usual, most), len(rules.contained))
        if count > _MOST_ITEMS:
            raise _Impossible
        made: list[Any] = []
        for place in range(count):
            listed = [each[place] for each in rules.item_lists if place < len(each)]
            contained = rules.contained[place : place + 1]
            schemas = [*(listed or rules.items), *contained] or [True]
            made.append(self._item(schemas, made, level, is_unique=rules.is_unique))
        return made

    def _item(self, schemas: Sequence[RawSchema], others: list[Any], level: int, *, is_unique: bool) -> Any:
        for _ in range(20):
            value = self.make_all(schemas, level + 1)
            if not is_unique or value not in others:
                return value
        raise _Impossible

    def _text(self, rules: _Rules) -> str:
        least: int = rules.numbers.get("minLength", 0)
        most: int = rules.numbers.get("maxLength", _LONGEST_TEXT)
        if least > _LONGEST_TEXT:
            raise _Impossible
        if rules.patterns:
            text = text_matching(rules.patterns[0], self._draw)
            if text is None:
                raise _Impossible
            # A pattern may match anywhere; the validator decides whether it allows more text before or after the match.
            return text + (text[-1:] or "a") * (least - len(text))
        if rules.form in FORMATS:
            return FORMATS[rules.form](self._draw)
        text = self._draw.choice(("apple", "river", "stone", "cloud", "green")) + str(self._draw.randint(1, 99))
        return (text + "x" * (least - len(text)))[:most]

    def _number(self, rules: _Rules, *, is_whole: bool) -> float:
        low, high = _bounds(rules.numbers)
        step = Decimal(1 if is_whole else 0)
        for each in rules.divisors:
            step = _common_multiple(step, _exact(each))
        step = step or Decimal("0.5")
        first, last = self._multiples_between(low, high, step, rules.numbers)
        value = step * self._draw.randint(first, min(last, first + 99)) if first <= last else _number_between(low, high)
        return int(value) if value == value.to_integral_value() else float(value)

    def _multiples_between(
        self, low: Decimal | None, high: Decimal | None, step: Decimal, numbers: Mapping[str, Any]
    ) -> tuple[int, int]:
        """The multiples of the step that the bounds allow: the first and the last."""
        first = None if low is None else int((low / step).to_integral_value("ROUND_CEILING"))
        last = None if high is None else int((high / step).to_integral_value("ROUND_FLOOR"))
        if first is not None and "exclusiveMinimum" in numbers:
            first += step * first == _exact(numbers["exclusiveMinimum"])
        if last is not None and "exclusiveMaximum" in numbers:
            last -= step * last == _exact(numbers["exclusiveMaximum"])
        if first is None:
            first = 1 if last is None else last - 98
        return first, first + 98 if last is None else last


_TIGHTER = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}


def _not_empty(values: list[Any]) -> list[Any]:
    if not values:
        raise _Impossible
    return values


def _bounds(numbers: Mapping[str, Any]) -> tuple[Decimal | None, Decimal | None]:
    low = [_exact(numbers[each]) for each in ("minimum", "exclusiveMinimum") if each in numbers]
    high = [_exact(numbers[each]) for each in ("maximum", "exclusiveMaximum") if each in numbers]
    return max(low, default=None), min(high, default=None)


def _number_between(low: Decimal | None, high: Decimal | None) -> Decimal:
    """A number within bounds that are too close for the usual steps between numbers."""
    if low is None or high is None:
        raise _Impossible
    return (low + high) / 2


def _exact(number: float) -> Decimal:
    return Decimal(str(number))


def _common_multiple(first: Decimal, second: Decimal) -> Decimal:
    """The least number that is a multiple of both; 0 has no multiples and requires nothing."""
    if not first or not second:
        return first or second
    multiple = first
    for _ in range(1_000):
        if multiple % second == 0:
            return multiple
        multiple += first
    raise _Impossible


def _common_types(some: Sequence[str], others: Sequence[str]) -> list[str]:
    found = [each for each in some if each in others]
    if ("integer" in others and "number" in some) or ("integer" in some and "number" in others):
        found.append("integer")
    return list(dict.fromkeys(found))
