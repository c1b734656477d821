"""Makes checks that need not look inside a value: each is one boolean expression in Python.

Generated code refers to constants by generated names; the words of a schema never become code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import takewhile
from operator import gt, lt
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import force_setattr

from nakadi.schemas.document import EID_PATTERN, Draft, escaped_step
from nakadi.schemas.formats import FORMAT_CHECKS, FORMATS_THAT_SPEND_STEPS, SchemaPatterns
from nakadi.schemas.values import (
    Divisor,
    RemainingSteps,
    all_differ,
    equality_key,
    is_multiple_of,
    java_text,
    spend_steps,
)


class CodeConstants:
    """`namespace` contains the names that the code can use: the given ones, and a new one for each value."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.namespace: dict[str, Any] = {"__builtins__": {}, **given}
        self._names: dict[Hashable, str] = {}
        self.patterns = SchemaPatterns()

    def add_constant(self, value: Any) -> str:
        name = f"k{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def add_text_once(self, text: str) -> str:
        """Each text has one name, because property names repeat often."""
        if text not in self._names:
            self._names[text] = self.add_constant(text)
        return self._names[text]

    def add_text_set(self, texts: Iterable[str]) -> str:
        return self.add_constant(frozenset(texts))


Schema = Mapping[str, Any]


class CodeCheck(Struct, frozen=True):
    """An expression that is true for valid values, and the approximate number of steps that it takes."""

    valid_if: str
    cost: int = 1

    @property
    def is_always_true(self) -> bool:
        return self.valid_if == "True"


ALWAYS_TRUE = CodeCheck("True", 0)
NEVER_TRUE = CodeCheck("False")

TYPE_TEST_CODE = {
    "array": "type({0}) is list",
    "boolean": "({0} is True or {0} is False)",
    "integer": "type({0}) is int",
    "null": "{0} is None",
    "number": "(type({0}) is int or type({0}) is float)",
    "object": "type({0}) is dict",
    "string": "type({0}) is str",
}

_STRING_KEYWORDS = ("minLength", "maxLength", "pattern", "format")
_NUMBER_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COST_OF_MULTIPLE_OF = 100
_COST_OF_FORMAT = 40
_STEPS_PER_FORMAT_CHARACTER = 2

# Every event has an id, and its pattern is always the same: this pattern takes little time on any text, so `re` is
# safe, and faster to call than RE2.
_matches_eid = re.compile(EID_PATTERN.strip("^$"), re.ASCII).fullmatch


def scalar_check(schema: Schema, draft: Draft, value: str, constants: CodeConstants) -> CodeCheck:
    """The checks of `type`, `enum`, `const` and the keywords for strings and numbers on the variable `value`."""
    types = _as_list(schema.get("type", []))
    checks = [
        *_type_checks("type" in schema, types, value),
        *_enum_checks(schema, draft, value, constants, is_text=types == ["string"]),
        *_checks_for_types(types, ["string"], value, _string_checks(schema, value, constants)),
        *_checks_for_types(types, ["integer", "number"], value, _number_checks(schema, value, constants)),
    ]
    return combined_check(checks)


def combined_check(checks: list[CodeCheck]) -> CodeCheck:
    needed = [each for each in checks if not each.is_always_true]
    if not needed:
        return ALWAYS_TRUE
    return CodeCheck(" and ".join(each.valid_if for each in needed), sum(each.cost for each in needed))


def _as_list(types: str | list[str]) -> list[str]:
    return types if isinstance(types, list) else [types]


def _type_checks(is_given: bool, types: list[str], value: str) -> list[CodeCheck]:
    if not is_given:
        return []
    if not types:
        return [NEVER_TRUE]
    tests = [TYPE_TEST_CODE[each].format(value) for each in types]
    return [CodeCheck(tests[0] if len(tests) == 1 else f"({' or '.join(tests)})")]


def _checks_for_types(types: list[str], group: list[str], value: str, checks: list[CodeCheck]) -> list[CodeCheck]:
    """Checks for some types, which ignore values of other types."""
    if not checks or (len(types) == 1 and types[0] in group):
        return checks
    combined = combined_check(checks)
    return [CodeCheck(f"(not {TYPE_TEST_CODE[group[-1]].format(value)} or ({combined.valid_if}))", combined.cost + 1)]


def _enum_checks(
    schema: Schema, draft: Draft, value: str, constants: CodeConstants, *, is_text: bool
) -> list[CodeCheck]:
    checks = [_equals_one_of_check(schema["enum"], value, constants, is_text)] if "enum" in schema else []
    if "const" in schema and draft >= Draft.SIX:
        checks.append(_equals_one_of_check([schema["const"]], value, constants, is_text))
    return checks


def _equals_one_of_check(allowed: list[Any], value: str, constants: CodeConstants, is_text: bool) -> CodeCheck:
    """A check that the value is one of the allowed values. Before a value is looked up among texts, it must be a text,
    because not every value is hashable.
    """
    texts = [each for each in allowed if isinstance(each, str)]
    others = [each for each in allowed if each is not None and not isinstance(each, str)]
    tests = [f"{value} is None"] if None in allowed else []
    if len(texts) == 1:
        tests.append(f"{value} == {constants.add_text_once(texts[0])}")
    elif texts:
        among = f"{value} in {constants.add_text_set(texts)}"
        tests.append(among if is_text else f"({TYPE_TEST_CODE['string'].format(value)} and {among})")
    if others:
        keys = frozenset(equality_key(each, [_steps_to_compare(each)]) for each in others)
        tests.append(f"{constants.add_constant(_make_membership_test(keys))}({value}, steps)")
    return CodeCheck(f"({' or '.join(tests)})" if tests else "False", 1 + 10 * bool(others))


def _steps_to_compare(value: Any) -> int:
    """The steps that are enough to compare any value with this value of the schema."""
    if isinstance(value, dict):
        return 4 * len(value) + sum(map(_steps_to_compare, value.values()))
    return len(value) + sum(map(_steps_to_compare, value)) if isinstance(value, list) else 0


def _make_membership_test(keys: frozenset[Any]) -> Callable[[Any, RemainingSteps], bool]:
    return lambda value, steps: equality_key(value, steps) in keys


def _string_checks(schema: Schema, value: str, constants: CodeConstants) -> list[CodeCheck]:
    return [_STRING_CHECK_MAKERS[each](schema[each], value, constants) for each in _STRING_KEYWORDS if each in schema]


def _pattern_check(text: str, value: str, constants: CodeConstants) -> CodeCheck:
    if text == EID_PATTERN:
        return CodeCheck(f"{constants.add_constant(_matches_eid)}({value}) is not None", 5)
    return CodeCheck(f"{constants.add_constant(constants.patterns.compile_once(text).is_found_in)}({value}, steps)")


def _format_check(name: str, value: str, constants: CodeConstants) -> CodeCheck:
    if name not in FORMAT_CHECKS:
        return ALWAYS_TRUE
    if name in FORMATS_THAT_SPEND_STEPS:
        return CodeCheck(f"{constants.add_constant(_make_format_test_with_steps(FORMAT_CHECKS[name]))}({value}, steps)")
    return CodeCheck(f"{constants.add_constant(FORMAT_CHECKS[name])}({value}) is None", _COST_OF_FORMAT)


def _make_format_test_with_steps(find_problem: Callable[[str], str | None]) -> Callable[[str, RemainingSteps], bool]:
    def well_formed(text: str, steps: RemainingSteps) -> bool:
        spend_steps(steps, _COST_OF_FORMAT + len(text) * _STEPS_PER_FORMAT_CHARACTER)
        return find_problem(text) is None

    return well_formed


_STRING_CHECK_MAKERS: Mapping[str, Callable[[Any, str, CodeConstants], CodeCheck]] = {
    "minLength": lambda least, value, constants: CodeCheck(f"len({value}) >= {constants.add_constant(least)}"),
    "maxLength": lambda most, value, constants: CodeCheck(f"len({value}) <= {constants.add_constant(most)}"),
    "pattern": _pattern_check,
    "format": _format_check,
}


def _number_checks(schema: Schema, value: str, constants: CodeConstants) -> list[CodeCheck]:
    return [_NUMBER_CHECK_MAKERS[each](schema, value, constants) for each in _NUMBER_KEYWORDS if each in schema]


def _bound_check_maker(keyword: str, exclusive: str, sign: str) -> Callable[[Schema, str, CodeConstants], CodeCheck]:
    """A function that makes the check of a bound. In the oldest draft, a flag makes a bound exclusive; later drafts
    have a separate keyword for that.
    """

    def check(schema: Schema, value: str, constants: CodeConstants) -> CodeCheck:
        relation = sign if schema.get(exclusive) is True else f"{sign}="
        return CodeCheck(f"{value} {relation} {constants.add_constant(schema[keyword])}")

    return check


def _exclusive_bound_check_maker(keyword: str, sign: str) -> Callable[[Schema, str, CodeConstants], CodeCheck]:
    def check(schema: Schema, value: str, constants: CodeConstants) -> CodeCheck:
        bound = schema[keyword]
        return ALWAYS_TRUE if isinstance(bound, bool) else CodeCheck(f"{value} {sign} {constants.add_constant(bound)}")

    return check


def _multiple_check(schema: Schema, value: str, constants: CodeConstants) -> CodeCheck:
    divisor = constants.add_constant(Divisor.from_number(schema["multipleOf"]))
    return CodeCheck(f"{constants.add_constant(is_multiple_of)}({value}, {divisor})", _COST_OF_MULTIPLE_OF)


_NUMBER_CHECK_MAKERS: Mapping[str, Callable[[Schema, str, CodeConstants], CodeCheck]] = {
    "minimum": _bound_check_maker("minimum", "exclusiveMinimum", ">"),
    "maximum": _bound_check_maker("maximum", "exclusiveMaximum", "<"),
    "exclusiveMinimum": _exclusive_bound_check_maker("exclusiveMinimum", ">"),
    "exclusiveMaximum": _exclusive_bound_check_maker("exclusiveMaximum", "<"),
    "multipleOf": _multiple_check,
}


MAX_VIOLATION_LINES = 100

_MAX_QUOTED_VALUE_CHARACTERS = 1_000
_STEPS_PER_QUOTED_CHARACTER = 5
_STEPS_PER_SORTED_NAME = 5

_EXPECTED_TYPE_TEXTS = {
    "array": "expected type: JSONArray",
    "boolean": "expected type: Boolean",
    "integer": "expected type: Number",
    "null": "expected: null",
    "number": "expected type: Number",
    "object": "expected type: JSONObject",
    "string": "expected type: String",
}

_FOUND_TYPE_NAMES = {
    bool: "Boolean",
    float: "Double",
    str: "String",
    list: "JSONArray",
    dict: "JSONObject",
    type(None): "Null",
}


class BrokenRule(NamedTuple):
    """A keyword that events violate, and where. In `path`, `*` stands for any index of a list, and for any name that is
    a number.
    """

    rule: str
    path: str


_NUMBER_STEP_PATTERN = re.compile(r"/[0-9]+(?=/|$)")


class SchemaViolation(Struct, frozen=True):
    """A fault at a place of the event, and the inner faults that caused it."""

    pointer: str
    text: str
    causes: tuple[SchemaViolation, ...] = ()
    count: int = 0
    """The number of violations that this one combines; 1 if it has no causes."""
    rule: str = ""
    """The keyword that is violated; empty for a violation that only combines others."""
    member: str | None = None
    """The member that is missing or not permitted, if the violation is about one."""

    def __post_init__(self) -> None:
        force_setattr(self, "count", sum(each.count for each in self.causes) or 1)

    def message_lines(self) -> Iterator[str]:
        yield f"{truncated_text(self.pointer)}: {self.text}"
        for each in self.causes:
            yield from each.message_lines()

    def broken_rules(self) -> Iterator[BrokenRule]:
        """The rules that the event breaks. Alternatives count as one rule, because it is unknown which of them the
        publisher meant.
        """
        if self.causes and self.rule in ("", "allOf"):
            for each in self.causes:
                yield from each.broken_rules()
        else:
            pointer = self.pointer if self.member is None else member_pointer(self.pointer, self.member)
            yield BrokenRule(self.rule, _NUMBER_STEP_PATTERN.sub("/*", truncated_text(pointer)))


def combined_violation(pointer: str, violations: tuple[SchemaViolation, ...]) -> SchemaViolation | None:
    """Several violations as one that counts them."""
    if len(violations) < 2:
        return violations[0] if violations else None
    count = sum(each.count for each in violations)
    number = str(count) if count <= MAX_VIOLATION_LINES else f"more than {MAX_VIOLATION_LINES}"
    return SchemaViolation(pointer, f"{number} schema violations found", violations)


def type_mismatch_message(type_name: str, value: Any) -> str:
    expected = (
        "expected type: Integer"
        if type_name == "integer" and isinstance(value, float)
        else _EXPECTED_TYPE_TEXTS[type_name]
    )
    return f"{expected}, found: {_java_type_name(value)}"


def _java_type_name(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return "Integer" if -(2**31) <= value < 2**31 else "Long"
    return _FOUND_TYPE_NAMES[type(value)]


def member_pointer(pointer: str, name: str) -> str:
    return f"{pointer}/{truncated_text(escaped_step(name[: _MAX_QUOTED_VALUE_CHARACTERS + 1]))}"


def quoted_value(value: Any, steps: RemainingSteps) -> str:
    """A value in a message: texts unchanged, objects and arrays as JSON, and numbers as Java writes them."""
    room = [_MAX_QUOTED_VALUE_CHARACTERS]
    beginning = _truncated_value(value, room, steps)
    spend_steps(steps, (_MAX_QUOTED_VALUE_CHARACTERS - room[0]) * _STEPS_PER_QUOTED_CHARACTER)
    return truncated_text(java_text(beginning))


def _truncated_value(value: Any, room: list[int], steps: RemainingSteps) -> Any:
    """A shortened value, which has the same text as the whole value, as far as the message has room."""
    if isinstance(value, str):
        room[0] -= min(len(value), _MAX_QUOTED_VALUE_CHARACTERS + 1)
        return value[: _MAX_QUOTED_VALUE_CHARACTERS + 1]
    room[0] -= 1
    if isinstance(value, list):
        return [_truncated_value(each, room, steps) for each in takewhile(lambda _: room[0] >= 0, value)]
    if isinstance(value, dict):
        spend_steps(steps, len(value) * _STEPS_PER_SORTED_NAME)
        names = takewhile(lambda _: room[0] >= 0, sorted(value))
        return {_truncated_value(name, room, steps): _truncated_value(value[name], room, steps) for name in names}
    return value


def truncated_text(text: str) -> str:
    return text if len(text) <= _MAX_QUOTED_VALUE_CHARACTERS else f"{text[:_MAX_QUOTED_VALUE_CHARACTERS]}…"


_SizedValue = str | list[Any] | dict[str, Any]
FindReason = Callable[[Schema, Any, SchemaPatterns, RemainingSteps], str | None]

_TYPE_TESTS: Mapping[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}

_STEPS_PER_ALLOWED_VALUE = 20
_STEPS_PER_MULTIPLE_OF = 100


def has_json_schema_type(value: Any, type_name: str) -> bool:
    return _TYPE_TESTS[type_name](value)


def _enum_reason(schema: Schema, value: Any, _: SchemaPatterns, steps: RemainingSteps) -> str | None:
    spend_steps(steps, len(schema["enum"]) * _STEPS_PER_ALLOWED_VALUE)
    allowed = {equality_key(each, steps) for each in schema["enum"]}
    return None if equality_key(value, steps) in allowed else f"{quoted_value(value, steps)} is not a valid enum value"


def _const_reason(schema: Schema, value: Any, _: SchemaPatterns, steps: RemainingSteps) -> str | None:
    if equality_key(value, steps) == equality_key(schema["const"], steps):
        return None
    return f"{quoted_value(value, steps)} is not the expected value {quoted_value(schema['const'], steps)}"


def _pattern_reason(schema: Schema, value: Any, patterns: SchemaPatterns, steps: RemainingSteps) -> str | None:
    if not isinstance(value, str) or patterns.compile_once(schema["pattern"]).is_found_in(value, steps):
        return None
    return f"string [{truncated_text(value)}] does not match pattern {truncated_text(schema['pattern'])}"


def _format_reason(schema: Schema, value: Any, _: SchemaPatterns, steps: RemainingSteps) -> str | None:
    if not isinstance(value, str) or schema["format"] not in FORMAT_CHECKS:
        return None
    spend_steps(steps, len(value) * _STEPS_PER_FORMAT_CHARACTER)
    problem = FORMAT_CHECKS[schema["format"]](value)
    return None if problem is None else truncated_text(problem)


def _minimum_reason(schema: Schema, value: Any, _: SchemaPatterns, __: RemainingSteps) -> str | None:
    bound = schema["minimum"]
    if not has_json_schema_type(value, "number"):
        return None
    if schema.get("exclusiveMinimum") is True:
        return f"{java_text(value)} is not greater than {java_text(bound)}" if value <= bound else None
    return f"{java_text(value)} is not greater or equal to {java_text(bound)}" if value < bound else None


def _maximum_reason(schema: Schema, value: Any, _: SchemaPatterns, __: RemainingSteps) -> str | None:
    bound = schema["maximum"]
    if not has_json_schema_type(value, "number"):
        return None
    if schema.get("exclusiveMaximum") is True:
        return f"{java_text(value)} is not less than {java_text(bound)}" if value >= bound else None
    return f"{java_text(value)} is not less or equal to {java_text(bound)}" if value > bound else None


def _exclusive_minimum_reason(schema: Schema, value: Any, _: SchemaPatterns, __: RemainingSteps) -> str | None:
    bound = schema["exclusiveMinimum"]
    broken = not isinstance(bound, bool) and has_json_schema_type(value, "number") and value <= bound
    return f"{java_text(value)} is not greater than {java_text(bound)}" if broken else None


def _exclusive_maximum_reason(schema: Schema, value: Any, _: SchemaPatterns, __: RemainingSteps) -> str | None:
    bound = schema["exclusiveMaximum"]
    broken = not isinstance(bound, bool) and has_json_schema_type(value, "number") and value >= bound
    return f"{java_text(value)} is not less than {java_text(bound)}" if broken else None


def _multiple_of_reason(schema: Schema, value: Any, _: SchemaPatterns, steps: RemainingSteps) -> str | None:
    spend_steps(steps, _STEPS_PER_MULTIPLE_OF)
    if not has_json_schema_type(value, "number") or is_multiple_of(value, Divisor.from_number(schema["multipleOf"])):
        return None
    return f"{java_text(value)} is not a multiple of {java_text(schema['multipleOf'])}"


def _size_reason_finder(
    keyword: str, kind: type[_SizedValue], is_broken: Callable[[int, int], bool], words: str
) -> FindReason:
    def reason(schema: Schema, value: Any, _: SchemaPatterns, __: RemainingSteps) -> str | None:
        bound = schema[keyword]
        broken = isinstance(value, kind) and is_broken(len(value), bound)
        return words.format(bound, len(value)) if broken else None

    return reason


def _uniqueness_reason(schema: Schema, value: Any, _: SchemaPatterns, steps: RemainingSteps) -> str | None:
    broken = schema["uniqueItems"] and isinstance(value, list) and not all_differ(value, steps)
    return "array items are not unique" if broken else None


# If a value does not match one of these keywords, no other violation of the schema is reported.
REASON_FINDERS_FOR_ALLOWED_VALUES: Mapping[str, FindReason] = {"enum": _enum_reason, "const": _const_reason}

# The keywords, in the order in which violations are reported.
REASON_FINDERS_BY_KEYWORD: Mapping[str, FindReason] = {
    "minLength": _size_reason_finder("minLength", str, lt, "expected minLength: {}, actual: {}"),
    "maxLength": _size_reason_finder("maxLength", str, gt, "expected maxLength: {}, actual: {}"),
    "pattern": _pattern_reason,
    "format": _format_reason,
    "minimum": _minimum_reason,
    "exclusiveMinimum": _exclusive_minimum_reason,
    "maximum": _maximum_reason,
    "exclusiveMaximum": _exclusive_maximum_reason,
    "multipleOf": _multiple_of_reason,
    "minItems": _size_reason_finder("minItems", list, lt, "expected minimum item count: {}, found: {}"),
    "maxItems": _size_reason_finder("maxItems", list, gt, "expected maximum item count: {}, found: {}"),
    "uniqueItems": _uniqueness_reason,
    "minProperties": _size_reason_finder("minProperties", dict, lt, "minimum size: [{}], found: [{}]"),
    "maxProperties": _size_reason_finder("maxProperties", dict, gt, "maximum size: [{}], found: [{}]"),
}
