"""What can be said of a value without looking into it, as one boolean expression of Python.

Generated code knows its constants by names that are made here, never by what they say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nakadi.schemas.bounds import Steps, spend
from nakadi.schemas.document import Draft
from nakadi.schemas.effective import EID
from nakadi.schemas.formats import FORMATS, UNBOUNDED
from nakadi.schemas.patterns import Patterns
from nakadi.schemas.values import exact, is_multiple, key


class Constants:
    """`namespace` is what the code can see: the given names, and a new one for each value."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.namespace: dict[str, Any] = {"__builtins__": {}, **given}
        self._names: dict[Hashable, str] = {}
        self.patterns = Patterns()

    def name(self, value: Any) -> str:
        name = f"k{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def text(self, text: str) -> str:
        """The same text has one name, for property names come again and again."""
        if text not in self._names:
            self._names[text] = self.name(text)
        return self._names[text]

    def texts(self, texts: Iterable[str]) -> str:
        return self.name(frozenset(texts))


# Expressions ----------------------------------------------------------------------------------------------------------

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """An expression that is true of valid values, and about how many steps it takes."""

    expression: str
    cost: int = 1

    @property
    def always(self) -> bool:
        return self.expression == "True"


ALWAYS = Check("True", 0)
NEVER = Check("False")

TYPES = {
    "array": "type({0}) is list",
    "boolean": "({0} is True or {0} is False)",
    "integer": "type({0}) is int",
    "null": "{0} is None",
    "number": "(type({0}) is int or type({0}) is float)",
    "object": "type({0}) is dict",
    "string": "type({0}) is str",
}

_OF_STRINGS = ("minLength", "maxLength", "pattern", "format")
_OF_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COST_OF_MULTIPLE = 100
_COST_OF_FORMAT = 40
_STEPS_PER_CHARACTER = 2

# Every event has one of these, and this is one and the same pattern: it cannot run wild, and `re` is nearer than RE2.
_eid = re.compile(EID.strip("^$"), re.ASCII).fullmatch


def scalar_check(schema: Schema, draft: Draft, value: str, constants: Constants) -> Check:
    """What `type`, `enum`, `const` and the keywords for strings and numbers say about the variable `value`."""
    types = _listed(schema.get("type", []))
    checks = [
        *_typed("type" in schema, types, value),
        *_enumerated(schema, draft, value, constants, is_text=types == ["string"]),
        *_grouped(types, ["string"], value, _strings(schema, value, constants)),
        *_grouped(types, ["integer", "number"], value, _numbers(schema, value, constants)),
    ]
    return all_of(checks)


def all_of(checks: list[Check]) -> Check:
    needed = [each for each in checks if not each.always]
    if not needed:
        return ALWAYS
    return Check(" and ".join(each.expression for each in needed), sum(each.cost for each in needed))


def _listed(types: str | list[str]) -> list[str]:
    return types if isinstance(types, list) else [types]


def _typed(told: bool, types: list[str], value: str) -> list[Check]:
    if not told:
        return []
    if not types:
        return [NEVER]
    tests = [TYPES[each].format(value) for each in types]
    return [Check(tests[0] if len(tests) == 1 else f"({' or '.join(tests)})")]


def _grouped(types: list[str], group: list[str], value: str, checks: list[Check]) -> list[Check]:
    """Checks that mean only one type of value are no matter to values of other types."""
    if not checks or (len(types) == 1 and types[0] in group):
        return checks
    together = all_of(checks)
    return [Check(f"(not {TYPES[group[-1]].format(value)} or ({together.expression}))", together.cost + 1)]


def _enumerated(schema: Schema, draft: Draft, value: str, constants: Constants, *, is_text: bool) -> list[Check]:
    checks = [_one_of(schema["enum"], value, constants, is_text)] if "enum" in schema else []
    if "const" in schema and draft >= Draft.SIX:
        checks.append(_one_of([schema["const"]], value, constants, is_text))
    return checks


def _one_of(allowed: list[Any], value: str, constants: Constants, is_text: bool) -> Check:
    """That a value is a text must be known before it is looked up among texts: not every value can be."""
    texts = [each for each in allowed if isinstance(each, str)]
    others = [each for each in allowed if each is not None and not isinstance(each, str)]
    tests = [f"{value} is None"] if None in allowed else []
    if len(texts) == 1:
        tests.append(f"{value} == {constants.text(texts[0])}")
    elif texts:
        among = f"{value} in {constants.texts(texts)}"
        tests.append(among if is_text else f"({TYPES['string'].format(value)} and {among})")
    if others:
        keys = frozenset(key(each, [_ample(each)]) for each in others)
        tests.append(f"{constants.name(_member_of(keys))}({value}, steps)")
    return Check(f"({' or '.join(tests)})" if tests else "False", 1 + 10 * bool(others))


def _ample(value: Any) -> int:
    """Steps that are enough to know a value of the schema."""
    if isinstance(value, dict):
        return 4 * len(value) + sum(map(_ample, value.values()))
    return len(value) + sum(map(_ample, value)) if isinstance(value, list) else 0


def _member_of(keys: frozenset[Any]) -> Callable[[Any, Steps], bool]:
    return lambda value, steps: key(value, steps) in keys


def _strings(schema: Schema, value: str, constants: Constants) -> list[Check]:
    return [_STRINGS[each](schema[each], value, constants) for each in _OF_STRINGS if each in schema]


def _pattern(text: str, value: str, constants: Constants) -> Check:
    if text == EID:
        return Check(f"{constants.name(_eid)}({value}) is not None", 5)
    return Check(f"{constants.name(constants.patterns.of(text).found_in)}({value}, steps)")


def _format(name: str, value: str, constants: Constants) -> Check:
    if name not in FORMATS:
        return ALWAYS
    if name in UNBOUNDED:
        return Check(f"{constants.name(_metered(FORMATS[name]))}({value}, steps)")
    return Check(f"{constants.name(FORMATS[name])}({value}) is None", _COST_OF_FORMAT)


def _metered(problem_with: Callable[[str], str | None]) -> Callable[[str, Steps], bool]:
    def well_formed(text: str, steps: Steps) -> bool:
        spend(steps, _COST_OF_FORMAT + len(text) * _STEPS_PER_CHARACTER)
        return problem_with(text) is None

    return well_formed


_STRINGS: Mapping[str, Callable[[Any, str, Constants], Check]] = {
    "minLength": lambda least, value, constants: Check(f"len({value}) >= {constants.name(least)}"),
    "maxLength": lambda most, value, constants: Check(f"len({value}) <= {constants.name(most)}"),
    "pattern": _pattern,
    "format": _format,
}


def _numbers(schema: Schema, value: str, constants: Constants) -> list[Check]:
    return [_NUMBERS[each](schema, value, constants) for each in _OF_NUMBERS if each in schema]


def _bound(keyword: str, exclusive: str, sign: str) -> Callable[[Schema, str, Constants], Check]:
    """The oldest draft says with a flag that a bound is exclusive; the others have a bound of its own for that."""

    def check(schema: Schema, value: str, constants: Constants) -> Check:
        relation = sign if schema.get(exclusive) is True else f"{sign}="
        return Check(f"{value} {relation} {constants.name(schema[keyword])}")

    return check


def _exclusive_bound(keyword: str, sign: str) -> Callable[[Schema, str, Constants], Check]:
    def check(schema: Schema, value: str, constants: Constants) -> Check:
        bound = schema[keyword]
        return ALWAYS if isinstance(bound, bool) else Check(f"{value} {sign} {constants.name(bound)}")

    return check


def _multiple_of(schema: Schema, value: str, constants: Constants) -> Check:
    divisor = constants.name(exact(schema["multipleOf"]))
    return Check(f"{constants.name(is_multiple)}({value}, {divisor})", _COST_OF_MULTIPLE)


_NUMBERS: Mapping[str, Callable[[Schema, str, Constants], Check]] = {
    "minimum": _bound("minimum", "exclusiveMinimum", ">"),
    "maximum": _bound("maximum", "exclusiveMaximum", "<"),
    "exclusiveMinimum": _exclusive_bound("exclusiveMinimum", ">"),
    "exclusiveMaximum": _exclusive_bound("exclusiveMaximum", "<"),
    "multipleOf": _multiple_of,
}
