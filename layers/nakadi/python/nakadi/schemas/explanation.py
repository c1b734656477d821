"""Why an event is not valid: every violation of its schema, in the words that clients know.

This code sees only events that were already refused, so it may take longer, within bounds. Whether an event is valid
depends on everything in its schema. The explanation covers only the first of these that a schema has: listed values;
combined schemas; a type with the keywords about values of that type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, repeat
from typing import Any

from nakadi.schemas.document import COMBINATOR_KEYWORDS, Draft, RawSchema, SchemaDocument
from nakadi.schemas.formats import SchemaPatterns
from nakadi.schemas.keywords import (
    MAX_VIOLATION_LINES,
    REASON_FINDERS_BY_KEYWORD,
    REASON_FINDERS_FOR_ALLOWED_VALUES,
    BrokenRule,
    SchemaViolation,
    combined_violation,
    has_json_schema_type,
    member_pointer,
    quoted_value,
    truncated_text,
    type_mismatch_message,
)
from nakadi.schemas.values import RemainingSteps, StepsExhausted, spend_steps

Schema = Mapping[str, Any]
AcceptsPart = Callable[[Schema, Any, RemainingSteps], bool]
"""Whether a value is valid according to a part of the schema. Each part is compiled at its first use."""

# The deepest level of an event in which violations are searched for: events may be nested deeper than Python can call,
# and violations there help no reader.
_MAX_EXPLANATION_LEVELS = 100

# The code for a part contains the code for its inner parts, so each further level can add as much code as the whole
# schema has.
_MAX_LEVELS_OF_PARTS = 4

# The steps of a short explanation are enough for nearly every event, and take milliseconds; those of a long one are
# enough for lists of thousands of objects.
SHORT_EXPLANATION_MAX_STEPS = 100_000
LONG_EXPLANATION_MAX_STEPS = 5_000_000

_STEP_COST_OF_SCHEMA = 70
_STEPS_PER_MEMBER = 4

UNKNOWN_RULE = BrokenRule("unknown", "#")
NO_EXPLANATION_MESSAGE = "#: not valid, for a reason that is too deep inside or takes too many steps to tell"


def explain_violations(
    document: SchemaDocument, patterns: SchemaPatterns, event: Any, max_steps: int
) -> tuple[str, bool]:
    """The violations of an invalid event, one per line, as far as this number of steps finds them; if there are
    several, their number comes first. Also returns whether the steps were enough.
    """
    steps = [max_steps]
    violation = _find_violation(document, patterns, event, steps)
    text = (
        NO_EXPLANATION_MESSAGE
        if violation is None
        else "\n".join(islice(violation.message_lines(), MAX_VIOLATION_LINES + 1))
    )
    return text, steps[0] >= 0


def broken_rules(
    document: SchemaDocument, patterns: SchemaPatterns, event: Any, max_steps: int, accepts_part: AcceptsPart
) -> tuple[BrokenRule, ...]:
    """The rules that an invalid event breaks, each once, as far as this number of steps finds them. If no violation is
    found, the rule is `UNKNOWN_RULE`. `accepts_part` says which parts have no violation.
    """
    violation = _find_violation(document, patterns, event, [max_steps], accepts_part)
    return (UNKNOWN_RULE,) if violation is None else tuple(dict.fromkeys(violation.broken_rules()))


def _find_violation(
    document: SchemaDocument,
    patterns: SchemaPatterns,
    event: Any,
    steps: RemainingSteps,
    accepts_part: AcceptsPart | None = None,
) -> SchemaViolation | None:
    try:
        return _ViolationExplainer(document, patterns, steps, accepts_part).find_violation(document.root, event, "#")
    except RecursionError:
        return None


class _ViolationExplainer:
    def __init__(
        self,
        document: SchemaDocument,
        patterns: SchemaPatterns,
        steps: RemainingSteps,
        accepts_part: AcceptsPart | None,
    ) -> None:
        self._document = document
        self._patterns = patterns
        self._steps = steps
        self._accepts_part = accepts_part
        # The checks of parts have their own steps, so that they do not use up those of the search.
        self._steps_of_parts = [steps[0]]
        self._level = 0
        # False once a part was not searched to its end: finding no violation there then means nothing.
        self._is_exhaustive = True

    def find_violation(self, schema: RawSchema, value: Any, pointer: str) -> SchemaViolation | None:
        """All violations of a schema, combined into one; None if there is none, or none was found within the steps."""
        if self._is_known_to_be_valid(schema, value):
            return None
        return self._combine_violations(self._schema_violations(schema, value, pointer), pointer)

    def _is_known_to_be_valid(self, schema: RawSchema, value: Any) -> bool:
        if self._accepts_part is None or not 0 < self._level <= _MAX_LEVELS_OF_PARTS or self._steps_of_parts[0] < 0:
            return False
        try:
            return isinstance(schema, dict) and self._accepts_part(schema, value, self._steps_of_parts)
        except (StepsExhausted, RecursionError):
            return False

    def _combine_violations(self, violations: Iterator[SchemaViolation], pointer: str) -> SchemaViolation | None:
        if self._level == _MAX_EXPLANATION_LEVELS or self._steps[0] < 0:
            self._is_exhaustive = False
            return None
        self._level += 1
        try:
            return combined_violation(pointer, self._collect_violations(violations, pointer))
        finally:
            self._level -= 1

    def _collect_violations(self, violations: Iterator[SchemaViolation], pointer: str) -> tuple[SchemaViolation, ...]:
        """Collect the violations that are found before the steps run out."""
        found = []
        try:
            # Each place needs its own pointer, which is long for deep places and for places under long names.
            spend_steps(self._steps, _STEP_COST_OF_SCHEMA + len(pointer) // 100)
            for violation in islice(violations, MAX_VIOLATION_LINES + 1):
                found.append(violation)  # noqa: PERF402  # violations found so far stay when the next raises
        except StepsExhausted:
            self._is_exhaustive = False
        return tuple(found)

    def _schema_violations(self, schema: RawSchema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        if isinstance(schema, bool):
            if not schema:
                yield SchemaViolation(pointer, "false schema always fails", rule="false")
        elif "$ref" in schema:
            target = self._document.find_target(schema["$ref"])
            assert target is not None, "a schema is checked before events are"
            yield from self._subschema_violations(target, value, pointer)
        else:
            yield from _violations_of_first_failing(
                self._allowed_value_violations(schema, value, pointer),
                self._keyword_violations(schema, value, pointer),
                self._negation_violations(schema, value, pointer),
            )

    def _allowed_value_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        for keyword, reason in REASON_FINDERS_FOR_ALLOWED_VALUES.items():
            text = (
                reason(schema, value, self._patterns, self._steps) if self._keyword_applies(keyword, schema) else None
            )
            if text is not None:
                yield SchemaViolation(pointer, text, rule=keyword)
                return

    def _keyword_applies(self, keyword: str, schema: Schema) -> bool:
        return keyword in schema and self._document.draft >= _DRAFT_OF_KEYWORD.get(keyword, Draft.FOUR)

    def _keyword_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        combinator = next((each for each in COMBINATOR_KEYWORDS if each in schema), None)
        if combinator is None:
            yield from self._non_combinator_violations(schema, value, pointer)
        elif not any(self._keyword_applies(each, schema) for each in _NON_COMBINATOR_KEYWORDS):
            yield from _COMBINATOR_METHODS[combinator](self, schema, value, pointer)
        else:
            # The combinator and the keywords next to it are treated as two schemas that must both hold.
            pair = (
                self._non_combinator_violations(schema, value, pointer),
                _COMBINATOR_METHODS[combinator](self, schema, value, pointer),
            )
            causes = _without_none(self._combine_violations(each, pointer) for each in pair)
            if causes:
                yield SchemaViolation(pointer, _matches_only_message(len(pair) - len(causes), len(pair)), causes)

    def _non_combinator_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        """The violations of all keywords other than lists of values and combinators."""
        return _violations_of_first_failing(
            self._type_violations(schema, value, pointer), self._conditional_violations(schema, value, pointer)
        )

    def _type_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        """The violations of `type`. Several types act like several schemas, one of which must match."""
        types = schema.get("type")
        if isinstance(types, list):
            causes = _without_none(
                self._combine_violations(self._single_type_violations(each, schema, value, pointer), pointer)
                for each in types
            )
            if len(causes) == len(types):
                yield SchemaViolation(pointer, _no_match_message(len(types)), causes, rule="type")
        elif types is not None:
            yield from self._single_type_violations(types, schema, value, pointer)
        else:
            yield from self._violations_of_other_keywords(schema, value, pointer)

    def _single_type_violations(
        self, type_name: str, schema: Schema, value: Any, pointer: str
    ) -> Iterator[SchemaViolation]:
        if has_json_schema_type(value, type_name):
            yield from self._violations_of_other_keywords(schema, value, pointer)
        else:
            yield SchemaViolation(pointer, type_mismatch_message(type_name, value), rule="type")

    def _violations_of_other_keywords(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        for keyword, reason in REASON_FINDERS_BY_KEYWORD.items():
            text = reason(schema, value, self._patterns, self._steps) if keyword in schema else None
            if text is not None:
                yield SchemaViolation(pointer, text, rule=keyword)
        for keyword, violations in _METHODS_OF_MEMBER_KEYWORDS:
            if self._keyword_applies(keyword, schema):
                yield from violations(self, schema, value, pointer)

    def _subschema_violations(self, schema: RawSchema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        violation = self.find_violation(schema, value, pointer)
        if violation is not None:
            yield violation

    # One value, several schemas

    def all_of_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        members = schema["allOf"]
        causes = self._violations_of_each(members, value, pointer)
        if causes:
            text = _matches_only_message(len(members) - len(causes), len(members))
            yield SchemaViolation(pointer, text, causes, rule="allOf")

    def any_of_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        members = schema["anyOf"]
        causes = self._violations_of_each(members, value, pointer)
        if len(causes) == len(members):
            yield SchemaViolation(pointer, _no_match_message(len(members)), causes, rule="anyOf")

    def one_of_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        members = schema["oneOf"]
        causes = self._violations_of_each(members, value, pointer)
        matching = len(members) - len(causes)
        if matching != 1 and (not matching or self._is_exhaustive):
            text = f"#: {matching} subschemas matched instead of one"
            yield SchemaViolation(pointer, text, causes, rule="oneOf")

    def _violations_of_each(self, members: list[RawSchema], value: Any, pointer: str) -> tuple[SchemaViolation, ...]:
        return _without_none(self.find_violation(each, value, pointer) for each in members)

    def _negation_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        if "not" in schema and self.find_violation(schema["not"], value, pointer) is None and self._is_exhaustive:
            text = f"subject must not be valid against schema {quoted_value(schema['not'], self._steps)}"
            yield SchemaViolation(pointer, text, rule="not")

    def _conditional_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        if not self._keyword_applies("if", schema):
            return
        refused = self.find_violation(schema["if"], value, pointer)
        cause = self.find_violation(schema.get("else" if refused else "then", True), value, pointer)
        if cause is None or not self._is_exhaustive:
            return
        if refused is None:
            yield SchemaViolation(pointer, 'input is invalid against the "then" schema', (cause,), rule="if")
        else:
            text = 'input is invalid against both the "if" and "else" schema'
            yield SchemaViolation(pointer, text, (refused, cause), rule="if")

    # Objects

    def required_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        if isinstance(value, dict):
            spend_steps(self._steps, len(schema["required"]))
            for name in dict.fromkeys(schema["required"]):
                if name not in value:
                    text = f"required key [{truncated_text(name)}] not found"
                    yield SchemaViolation(pointer, text, rule="required", member=name)

    def property_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        if isinstance(value, dict):
            spend_steps(self._steps, len(schema["properties"]))
            for name, subschema in schema["properties"].items():
                if name in value:
                    yield from self._subschema_violations(subschema, value[name], member_pointer(pointer, name))

    def pattern_property_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        if isinstance(value, dict):
            spend_steps(self._steps, len(value) * _STEPS_PER_MEMBER)
            for name, each in value.items():
                for pattern, subschema in schema["patternProperties"].items():
                    if self._patterns.compile_once(pattern).is_found_in(name, self._steps):
                        yield from self._subschema_violations(subschema, each, member_pointer(pointer, name))

    def additional_property_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        if not isinstance(value, dict):
            return
        subschema = schema["additionalProperties"]
        spend_steps(self._steps, len(value) * _STEPS_PER_MEMBER)
        for name, each in value.items():
            if self._is_known_property(schema, name):
                continue
            if subschema is False:
                text = f"extraneous key [{truncated_text(name)}] is not permitted"
                yield SchemaViolation(pointer, text, rule="additionalProperties", member=name)
            else:
                yield from self._subschema_violations(subschema, each, member_pointer(pointer, name))

    def _is_known_property(self, schema: Schema, name: str) -> bool:
        patterns = schema.get("patternProperties", ())
        return name in schema.get("properties", ()) or any(
            self._patterns.compile_once(each).is_found_in(name, self._steps) for each in patterns
        )

    def name_dependency_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        if not isinstance(value, dict):
            return
        spend_steps(self._steps, len(schema["dependencies"]))
        for name, needed in schema["dependencies"].items():
            if name in value and isinstance(needed, list):
                spend_steps(self._steps, len(needed))
                for each in needed:
                    if each not in value:
                        text = f"property [{truncated_text(each)}] is required"
                        yield SchemaViolation(pointer, text, rule="dependencies", member=each)

    def schema_dependency_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        if not isinstance(value, dict):
            return
        spend_steps(self._steps, len(schema["dependencies"]))
        for name, needed in schema["dependencies"].items():
            if name in value and not isinstance(needed, list):
                yield from self._subschema_violations(needed, value, pointer)

    def property_name_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        if isinstance(value, dict):
            for name in value:
                yield from self._subschema_violations(schema["propertyNames"], name, member_pointer(pointer, name))

    # Arrays

    def item_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        if not isinstance(value, list):
            return
        items = schema["items"]
        subschemas = items if isinstance(items, list) else repeat(items)
        for place, (subschema, item) in enumerate(zip(subschemas, value, strict=False)):
            yield from self._subschema_violations(subschema, item, f"{pointer}/{place}")

    def additional_item_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        items, subschema = schema.get("items"), schema["additionalItems"]
        if not isinstance(value, list) or not isinstance(items, list) or len(value) <= len(items):
            return
        if subschema is False:
            text = f"expected: [{len(items)}] array items, found: [{len(value)}]"
            yield SchemaViolation(pointer, text, rule="additionalItems")
        else:
            for place in range(len(items), len(value)):
                yield from self._subschema_violations(subschema, value[place], f"{pointer}/{place}")

    def contains_violations(self, schema: Schema, value: Any, pointer: str) -> Iterator[SchemaViolation]:
        if isinstance(value, list):
            failures = (
                self.find_violation(schema["contains"], item, f"{pointer}/{at}") for at, item in enumerate(value)
            )
            if all(each is not None for each in failures):
                text = "expected at least one array item to match 'contains' schema"
                yield SchemaViolation(pointer, text, rule="contains")


def _violations_of_first_failing(*alternatives: Iterator[SchemaViolation]) -> Iterator[SchemaViolation]:
    """The violations of the first alternative that has any; those of later alternatives are not reported."""
    for violations in alternatives:
        found = next(violations, None)
        if found is not None:
            yield found
            yield from violations
            return


def _without_none(violations: Iterable[SchemaViolation | None]) -> tuple[SchemaViolation, ...]:
    return tuple(each for each in violations if each is not None)


# Each of these texts names a pointer of its own, in addition to the pointer of the value.


def _no_match_message(number: int) -> str:
    return f"#: no subschema matched out of the total {number} subschemas"


def _matches_only_message(matching: int, number: int) -> str:
    return f"#: only {matching} subschema matches out of {number}"


_KeywordMethod = Callable[[_ViolationExplainer, Schema, Any, str], Iterator[SchemaViolation]]

_COMBINATOR_METHODS: Mapping[str, _KeywordMethod] = {
    "allOf": _ViolationExplainer.all_of_violations,
    "anyOf": _ViolationExplainer.any_of_violations,
    "oneOf": _ViolationExplainer.one_of_violations,
}

# The keywords, in the order in which violations are reported.
_METHODS_OF_MEMBER_KEYWORDS: tuple[tuple[str, _KeywordMethod], ...] = (
    ("required", _ViolationExplainer.required_violations),
    ("propertyNames", _ViolationExplainer.property_name_violations),
    ("dependencies", _ViolationExplainer.name_dependency_violations),
    ("additionalProperties", _ViolationExplainer.additional_property_violations),
    ("patternProperties", _ViolationExplainer.pattern_property_violations),
    ("dependencies", _ViolationExplainer.schema_dependency_violations),
    ("properties", _ViolationExplainer.property_violations),
    ("items", _ViolationExplainer.item_violations),
    ("additionalItems", _ViolationExplainer.additional_item_violations),
    ("contains", _ViolationExplainer.contains_violations),
)

_NON_COMBINATOR_KEYWORDS = (
    "type",
    "if",
    *REASON_FINDERS_BY_KEYWORD,
    *(keyword for keyword, _ in _METHODS_OF_MEMBER_KEYWORDS),
)

_DRAFT_OF_KEYWORD = {"const": Draft.SIX, "propertyNames": Draft.SIX, "contains": Draft.SIX, "if": Draft.SEVEN}
