"""Why an event is not valid: every violation of its schema.

Only events that were refused already come here, so this may take its time, within bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from nakadi.schemas.document import Document, Draft, RawSchema
from nakadi.schemas.patterns import Patterns
from nakadi.schemas.scalar_violations import REASONS, fits
from nakadi.schemas.steps import MOST_STEPS, Exhausted, Steps, spend
from nakadi.schemas.violation import MOST_LINES, Violation, cut, member, mismatch, quoted, together

Schema = Mapping[str, Any]

# An event may be nested deeper than Python can call; so deep, nobody reads on.
_MOST_LEVELS = 100
_STEPS_PER_SCHEMA = 70

UNTOLD = "#: not valid, for a reason that is too deep inside or takes too many steps to tell"


def explained(document: Document, patterns: Patterns, event: Any) -> str:
    """The violations of an event that is known not to be valid, one a line; several have their number in front."""
    try:
        violation = _Explainer(document, patterns).failure(document.root, event, "#")
    except RecursionError:
        return UNTOLD
    return UNTOLD if violation is None else "\n".join(islice(violation.lines(), MOST_LINES + 1))


class _Explainer:
    def __init__(self, document: Document, patterns: Patterns) -> None:
        self._document = document
        self._patterns = patterns
        self._steps: Steps = [MOST_STEPS]
        self._level = 0
        # Once something was not followed to its end, that no violation was found there says nothing.
        self._complete = True

    def failure(self, schema: RawSchema, value: Any, pointer: str) -> Violation | None:
        """All violations of one schema as one; None when there is none, or none that is worth the search."""
        if self._level == _MOST_LEVELS or self._steps[0] < 0:
            self._complete = False
            return None
        self._level += 1
        try:
            return together(pointer, self._found(schema, value, pointer))
        finally:
            self._level -= 1

    def _found(self, schema: RawSchema, value: Any, pointer: str) -> tuple[Violation, ...]:
        """What is found before the steps run out is worth telling."""
        found = []
        try:
            spend(self._steps, _STEPS_PER_SCHEMA)
            for violation in islice(self._violations(schema, value, pointer), MOST_LINES + 1):
                found.append(violation)  # noqa: PERF402  # what is found stays found when the next raises
        except Exhausted:
            self._complete = False
        return tuple(found)

    def _violations(self, schema: RawSchema, value: Any, pointer: str) -> Iterator[Violation]:
        if isinstance(schema, bool):
            if not schema:
                yield Violation(pointer, "nothing is valid here")
        elif "$ref" in schema:
            target = self._document.target(schema["$ref"])
            assert target is not None, "a schema is checked before events are"
            yield from self._within(target, value, pointer)
        else:
            yield from self._violations_of_keywords(schema, value, pointer)

    def _violations_of_keywords(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        for keyword in schema:
            if self._document.draft < _SINCE.get(keyword, Draft.FOUR):
                continue
            if keyword in REASONS:
                text = REASONS[keyword](schema, value, self._patterns, self._steps)
                if text is not None:
                    yield Violation(pointer, text)
            if keyword in _EXPLAINED:
                yield from _EXPLAINED[keyword](self, schema, value, pointer)

    def _within(self, schema: RawSchema, value: Any, pointer: str) -> Iterator[Violation]:
        violation = self.failure(schema, value, pointer)
        if violation is not None:
            yield violation

    # One value, several schemas

    def types(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        types = schema["type"]
        if isinstance(types, list) and "enum" not in schema and not fits(value, types):
            causes = tuple(Violation(pointer, mismatch(each, value)) for each in types)
            yield Violation(pointer, _none_matches(len(types)), causes)

    def all_of(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        members = schema["allOf"]
        causes = self._failures(members, value, pointer)
        if causes:
            text = f"only {len(members) - len(causes)} subschema matches out of {len(members)}"
            yield Violation(pointer, text, causes)

    def any_of(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        members = schema["anyOf"]
        causes = self._failures(members, value, pointer)
        if len(causes) == len(members):
            yield Violation(pointer, _none_matches(len(members)), causes)

    def one_of(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        members = schema["oneOf"]
        causes = self._failures(members, value, pointer)
        matching = len(members) - len(causes)
        if matching != 1 and (not matching or self._complete):
            yield Violation(pointer, f"{matching} subschemas matched instead of one", causes)

    def _failures(self, members: list[RawSchema], value: Any, pointer: str) -> tuple[Violation, ...]:
        failures = (self.failure(each, value, pointer) for each in members)
        return tuple(each for each in failures if each is not None)

    def negated(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        if self.failure(schema["not"], value, pointer) is None and self._complete:
            yield Violation(pointer, f"subject must not be valid against schema {quoted(schema['not'])}")

    def conditional(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        branch = "then" if self.failure(schema["if"], value, pointer) is None else "else"
        cause = self.failure(schema.get(branch, True), value, pointer) if self._complete else None
        if cause is not None:
            yield Violation(pointer, f'input is invalid against the "{branch}" schema', (cause,))

    # Objects

    def required(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        if isinstance(value, dict):
            spend(self._steps, len(schema["required"]))
            for name in dict.fromkeys(schema["required"]):
                if name not in value:
                    yield Violation(pointer, f"required key [{cut(name)}] not found")

    def properties(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        if isinstance(value, dict):
            spend(self._steps, len(schema["properties"]))
            for name, judge in schema["properties"].items():
                if name in value:
                    yield from self._within(judge, value[name], member(pointer, name))

    def patterned(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        if isinstance(value, dict):
            for name, each in value.items():
                for pattern, judge in schema["patternProperties"].items():
                    if self._patterns.of(pattern).found_in(name, self._steps):
                        yield from self._within(judge, each, member(pointer, name))

    def additional(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        if not isinstance(value, dict):
            return
        judge = schema["additionalProperties"]
        for name, each in value.items():
            if self._is_known(schema, name):
                continue
            if judge is False:
                yield Violation(pointer, f"extraneous key [{cut(name)}] is not permitted")
            else:
                yield from self._within(judge, each, member(pointer, name))

    def _is_known(self, schema: Schema, name: str) -> bool:
        patterns = schema.get("patternProperties", ())
        return name in schema.get("properties", ()) or any(
            self._patterns.of(each).found_in(name, self._steps) for each in patterns
        )

    def dependencies(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        if not isinstance(value, dict):
            return
        spend(self._steps, len(schema["dependencies"]))
        for name, needed in schema["dependencies"].items():
            if name in value and isinstance(needed, list):
                missing = (each for each in needed if each not in value)
                yield from (Violation(pointer, f"property [{cut(each)}] is required") for each in missing)
            elif name in value:
                yield from self._within(needed, value, pointer)

    def names(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        if isinstance(value, dict):
            for name in value:
                yield from self._within(schema["propertyNames"], name, member(pointer, name))

    # Arrays

    def items(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        if not isinstance(value, list):
            return
        judges = schema["items"]
        for place, item in enumerate(value):
            if not isinstance(judges, list):
                yield from self._within(judges, item, f"{pointer}/{place}")
            elif place < len(judges):
                yield from self._within(judges[place], item, f"{pointer}/{place}")

    def additional_items(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        items, judge = schema.get("items"), schema["additionalItems"]
        if not isinstance(value, list) or not isinstance(items, list) or len(value) <= len(items):
            return
        if judge is False:
            yield Violation(pointer, f"expected: [{len(items)}] array items, found: [{len(value)}]")
        else:
            for place in range(len(items), len(value)):
                yield from self._within(judge, value[place], f"{pointer}/{place}")

    def containing(self, schema: Schema, value: Any, pointer: str) -> Iterator[Violation]:
        if isinstance(value, list):
            failures = (self.failure(schema["contains"], item, f"{pointer}/{at}") for at, item in enumerate(value))
            if all(each is not None for each in failures):
                yield Violation(pointer, "expected at least one array item to match 'contains' schema")


def _none_matches(number: int) -> str:
    return f"no subschema matched out of the total {number} subschemas"


_EXPLAINED: Mapping[str, Callable[[_Explainer, Schema, Any, str], Iterator[Violation]]] = {
    "type": _Explainer.types,
    "required": _Explainer.required,
    "properties": _Explainer.properties,
    "patternProperties": _Explainer.patterned,
    "additionalProperties": _Explainer.additional,
    "propertyNames": _Explainer.names,
    "dependencies": _Explainer.dependencies,
    "items": _Explainer.items,
    "additionalItems": _Explainer.additional_items,
    "contains": _Explainer.containing,
    "allOf": _Explainer.all_of,
    "anyOf": _Explainer.any_of,
    "oneOf": _Explainer.one_of,
    "not": _Explainer.negated,
    "if": _Explainer.conditional,
}

_SINCE = {"const": Draft.SIX, "propertyNames": Draft.SIX, "contains": Draft.SIX, "if": Draft.SEVEN}
