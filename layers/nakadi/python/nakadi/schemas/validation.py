"""Validators: schemas compiled to functions that check events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from nakadi.common.work import check_may_block
from nakadi.model.outcomes import Invalid
from nakadi.schemas.batch_check import MAX_STEPS, BatchCheck
from nakadi.schemas.document import Draft, RawSchema, SchemaDocument, reachable_schemas
from nakadi.schemas.explanation import (
    LONG_EXPLANATION_MAX_STEPS,
    SHORT_EXPLANATION_MAX_STEPS,
    broken_rules,
    explain_violations,
)
from nakadi.schemas.formats import BadPattern, SchemaPatterns
from nakadi.schemas.keywords import (
    ALWAYS_TRUE,
    NEVER_TRUE,
    TYPE_TEST_CODE,
    BrokenRule,
    CodeCheck,
    CodeConstants,
    combined_check,
    scalar_check,
)
from nakadi.schemas.limits import check_schema_size
from nakadi.schemas.submission import check_loadable, check_references_are_local
from nakadi.schemas.untyped_parts import AcceptsValue
from nakadi.schemas.values import MAX_EVENT_STEPS, RemainingSteps, StepsExhausted, all_differ

# How many levels, and how many values, the broker's additions for metadata and for the envelope of data events have at
# most, with a margin.
_LEVELS_ADDED_BY_ENVELOPE = 5
_VALUES_ADDED_BY_ENVELOPE = 100


class Validator:
    """A schema compiled to a function, for any number of threads.

    `check` is that function: it says whether an event is valid, raises `RecursionError` for one that is too deep, and
    `StepsExhausted` for one that takes too many steps. `batch_check`, if there is one, recognizes most valid events
    quickly.
    """

    __slots__ = ("_accepts_by_part", "_patterns", "batch_check", "check", "document")

    def __init__(self, document: SchemaDocument, check: AcceptsValue, patterns: SchemaPatterns) -> None:
        self.document = document
        self.check = check
        self.batch_check: BatchCheck | None = None
        self._patterns = patterns
        self._accepts_by_part: dict[int, AcceptsValue] = {}

    def accepts(self, event: Any, steps: RemainingSteps | None = None) -> bool:
        """Whether the event is valid; one that is too deep is not. Raises `StepsExhausted` when the steps are used
        up.
        """
        try:
            return self.check(event, [MAX_EVENT_STEPS] if steps is None else steps)
        except RecursionError:
            return False

    def quick_check(self, text: bytes) -> Callable[[Sequence[Any]], bool]:
        """A function that says whether events of a batch of this text are certainly valid."""
        if self.batch_check is None or not self.batch_check.fits([text]):
            return _knows_of_no_event
        return partial(self.batch_check.accepts, steps=[MAX_STEPS])

    def explain(self, event: Any, before_long_work: Callable[[], None] = lambda: None) -> str:
        check_may_block()
        for max_steps in (SHORT_EXPLANATION_MAX_STEPS, LONG_EXPLANATION_MAX_STEPS):
            if max_steps == LONG_EXPLANATION_MAX_STEPS:
                before_long_work()
            text, is_finished = explain_violations(self.document, self._patterns, event, max_steps)
            if is_finished:
                break
        return text

    def broken_rules(self, event: Any) -> tuple[BrokenRule, ...]:
        """The rules that an invalid event breaks."""
        check_may_block()
        return broken_rules(self.document, self._patterns, event, SHORT_EXPLANATION_MAX_STEPS, self._accepts_part)

    def _accepts_part(self, schema: Schema, value: Any, steps: RemainingSteps) -> bool:
        accepts = self._accepts_by_part.get(id(schema))
        if accepts is None:
            # Two threads may compile a part at the same time, with the same result.
            [accepts] = self.compile_parts([schema])
            self._accepts_by_part[id(schema)] = accepts
        return accepts(value, steps)

    def compile_parts(self, parts: Sequence[Mapping[str, Any]]) -> Sequence[AcceptsValue]:
        """For each of these parts of the schema, a function that checks a value against it."""
        return compile_validation_functions(self.document, parts)[0]


def _knows_of_no_event(_events: Sequence[Any]) -> bool:
    return False


def compile_validator(effective: Mapping[str, Any]) -> Validator:
    check_schema_size(effective, added_levels=_LEVELS_ADDED_BY_ENVELOPE, added_values=_VALUES_ADDED_BY_ENVELOPE)
    document = SchemaDocument.from_root(effective)
    check_loadable(document)
    check_references_are_local(document)
    try:
        accepts, constants = compile_validation_function(document)
    except BadPattern as error:
        raise Invalid(f"invalid regex pattern in the schema: {error}") from error
    return Validator(document, accepts, constants.patterns)


class SourceLines:
    """Growing source code; lines written within `indented_block` are indented under the block's head."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self._indent = "    "

    def add(self, line: str) -> None:
        self.written.append(self._indent + line)

    @contextmanager
    def indented_block(self, head: str) -> Iterator[None]:
        self.add(head)
        self._indent += "    "
        yield
        self._indent = self._indent[:-4]

    def add_refusal_if(self, condition: str) -> None:
        self.add(f"if {condition}: return False")

    def add_refusal_unless(self, check: CodeCheck) -> int:
        """Add a check. Returns its cost, for the total of the function."""
        if not check.is_always_true:
            self.add_refusal_if(f"not ({check.valid_if})")
        return check.cost

    def add_spending(self, steps: str) -> None:
        self.add(f"steps[0] -= {steps}")
        self.add("if steps[0] < 0: raise StepsExhausted")


Schema = Mapping[str, Any]

NAMES_IN_GENERATED_CODE = {
    **{each.__name__: each for each in (type, len, str, int, float, list, dict, KeyError)},
    "StepsExhausted": StepsExhausted,
    "all_differ": all_differ,
}

_CHECKED_OBJECT_KEYWORDS = frozenset(
    {
        *("required", "properties", "patternProperties", "additionalProperties"),
        *("minProperties", "maxProperties", "dependencies", "propertyNames"),
    }
)
_CHECKED_ARRAY_KEYWORDS = frozenset({"items", "minItems", "maxItems", "uniqueItems", "contains"})
_COMBINING_KEYWORDS = frozenset({"allOf", "anyOf", "oneOf", "not", "if"})
_DRAFT_OF_KEYWORD = {"propertyNames": Draft.SIX, "contains": Draft.SIX, "if": Draft.SEVEN}
_COST_OF_UNIQUENESS = 5
_FUNCTIONS_PER_COMPILATION = 50


def compile_validation_function(document: SchemaDocument) -> tuple[AcceptsValue, CodeConstants]:
    """A function that says whether a value is valid against the whole document, and the constants that it uses."""
    [check], constants = compile_validation_functions(document, [document.root])
    return check, constants


def compile_validation_functions(
    document: SchemaDocument, schemas: Sequence[Schema]
) -> tuple[Sequence[AcceptsValue], CodeConstants]:
    """Functions that say whether a value is valid against each of these schemas of a document."""
    constants = CodeConstants(NAMES_IN_GENERATED_CODE)
    generator = _CodeGenerator(document, constants)
    names = [generator.queue_function_once(each) for each in schemas]
    for source in generator.generate_sources():
        code = compile(source, "<a schema>", "exec", dont_inherit=True)
        exec(code, constants.namespace)  # noqa: S102  # made from templates, which a test holds to the promise above
    return [constants.namespace[name] for name in names], constants


def _allows_type(kind: type, type_name: str, schema: Schema) -> bool:
    types = schema.get("type", type_name)
    return type_name in types and ("enum" not in schema or any(isinstance(each, kind) for each in schema["enum"]))


def _find_reference_target_ids(document: SchemaDocument) -> frozenset[int]:
    """The targets of references, which become code once, wherever else they occur."""
    references = {schema["$ref"] for _, schema in reachable_schemas(document) if "$ref" in schema}
    return frozenset(id(document.find_target(each)) for each in references)


class _CodeGenerator:
    def __init__(self, document: SchemaDocument, constants: CodeConstants) -> None:
        self._document = document
        self._constants = constants
        self._function_sources: list[str] = []
        self._reference_target_ids = _find_reference_target_ids(document)
        self._functions_by_schema: dict[int, str] = {}
        self._scalar_checks: dict[tuple[int, str], CodeCheck] = {}
        self._functions_to_write: list[tuple[str, Schema]] = []
        self._function_count = 0

    def generate_sources(self) -> Iterator[str]:
        """The functions, some at a time, because Python takes a lot of memory to compile many at once."""
        self._write_functions()
        for start in range(0, len(self._function_sources), _FUNCTIONS_PER_COMPILATION):
            yield "\n".join(self._function_sources[start : start + _FUNCTIONS_PER_COMPILATION])

    def _write_functions(self) -> None:
        """Write every function that waits, and those that these functions call."""
        while self._functions_to_write:
            name, schema = self._functions_to_write.pop()
            lines = SourceLines()
            cost = self._write_function_body(schema, lines)
            # References can multiply and form cycles, so each call of a function costs a step.
            self._add_function(
                name, [f"    steps[0] -= {cost + 1}", "    if steps[0] < 0: raise StepsExhausted", *lines.written]
            )

    def queue_function_once(self, schema: Schema) -> str:
        """The name of the function for a schema. A schema to which several others refer has one function."""
        if id(schema) not in self._functions_by_schema:
            self._functions_by_schema[id(schema)] = self._new_function_name()
            self._functions_to_write.append((self._functions_by_schema[id(schema)], schema))
        return self._functions_by_schema[id(schema)]

    def _new_function_name(self) -> str:
        self._function_count += 1
        return f"f{self._function_count}"

    def _add_function(self, name: str, lines: list[str]) -> None:
        self._function_sources.append("\n".join([f"def {name}(value, steps):", *lines, "    return True"]))

    def _make_check(self, schema: RawSchema, value: str) -> CodeCheck:
        """An expression for the variable `value`; longer code becomes a separate function."""
        if isinstance(schema, bool):
            return ALWAYS_TRUE if schema else NEVER_TRUE
        if "$ref" in schema:
            return self._make_reference_check(schema["$ref"], value)
        if not self._applicable_keywords(schema):
            return self._cached_scalar_check(schema, value)
        if id(schema) in self._reference_target_ids:
            return CodeCheck(f"{self.queue_function_once(schema)}({value}, steps)")
        name, lines = self._new_function_name(), SourceLines()
        cost = self._write_function_body(schema, lines)
        self._add_function(name, lines.written)
        return CodeCheck(f"{name}({value}, steps)", cost + 1)

    def _make_reference_check(self, reference: str, value: str) -> CodeCheck:
        target = self._document.find_target(reference)
        assert target is not None, "a schema is checked before code is made from it"
        if isinstance(target, Mapping) and "$ref" in target:
            return CodeCheck(f"{self.queue_function_once(target)}({value}, steps)")
        return self._make_check(target, value)

    def _applicable_keywords(self, schema: Schema) -> frozenset[str]:
        """The keywords of a schema that its draft knows, and that can matter for a value whose type the schema
        allows.
        """
        matter = _COMBINING_KEYWORDS
        if _allows_type(dict, "object", schema):
            matter |= _CHECKED_OBJECT_KEYWORDS
        if _allows_type(list, "array", schema):
            matter |= _CHECKED_ARRAY_KEYWORDS
        return frozenset(
            each for each in matter & schema.keys() if self._document.draft >= _DRAFT_OF_KEYWORD.get(each, Draft.FOUR)
        )

    def _cached_scalar_check(self, schema: Schema, value: str) -> CodeCheck:
        """The check of a schema, cached by variable name, because there may be a thousand references to a schema."""
        if (id(schema), value) not in self._scalar_checks:
            check = scalar_check(schema, self._document.draft, value, self._constants)
            self._scalar_checks[id(schema), value] = check
        return self._scalar_checks[id(schema), value]

    def _write_function_body(self, schema: Schema, lines: SourceLines) -> int:
        """Write the body of a function, and return the approximate number of steps that it takes."""
        if "$ref" in schema:
            return lines.add_refusal_unless(self._make_reference_check(schema["$ref"], "value"))
        keywords = self._applicable_keywords(schema)
        cost = lines.add_refusal_unless(self._cached_scalar_check(schema, "value"))
        cost += self._write_combinators(schema, lines)
        if "if" in keywords:
            cost += self._write_conditional(schema, lines)
        for type_name, about, write in (
            ("object", _CHECKED_OBJECT_KEYWORDS, self._write_object),
            ("array", _CHECKED_ARRAY_KEYWORDS, self._write_array),
        ):
            if about & keywords:
                cost += self._write_for_type(type_name, write, schema, lines)
        return cost

    def _write_for_type(
        self, type_name: str, write: Callable[[Schema, SourceLines], int], schema: Schema, lines: SourceLines
    ) -> int:
        """Write checks that apply only to values of this type: keywords for objects do not restrict other values."""
        if schema.get("type") == type_name:
            return write(schema, lines)
        with lines.indented_block(f"if {TYPE_TEST_CODE[type_name].format('value')}:"):
            lines.add("pass")
            return write(schema, lines)

    # One value, several schemas

    def _write_combinators(self, schema: Schema, lines: SourceLines) -> int:
        cost = sum(lines.add_refusal_unless(self._make_check(each, "value")) for each in schema.get("allOf", ()))
        if "anyOf" in schema:
            checks = [self._make_check(each, "value") for each in schema["anyOf"]]
            lines.add_refusal_if(f"not ({' or '.join(f'({each.valid_if})' for each in checks) or 'False'})")
            cost += sum(each.cost for each in checks)
        if "oneOf" in schema:
            cost += self._write_one_of(schema["oneOf"], lines)
        if "not" in schema:
            check = self._make_check(schema["not"], "value")
            lines.add_refusal_if(check.valid_if)
            cost += check.cost
        return cost

    def _write_one_of(self, members: list[RawSchema], lines: SourceLines) -> int:
        checks = [self._make_check(each, "value") for each in members]
        lines.add("matching = 0")
        for check in checks:
            lines.add(f"if {check.valid_if}: matching += 1")
        lines.add_refusal_if("matching != 1")
        return sum(each.cost for each in checks)

    def _write_conditional(self, schema: Schema, lines: SourceLines) -> int:
        condition = self._make_check(schema["if"], "value")
        consequence = self._make_check(schema.get("then", True), "value")
        alternative = self._make_check(schema.get("else", True), "value")
        lines.add_refusal_if(f"not (({consequence.valid_if}) if ({condition.valid_if}) else ({alternative.valid_if}))")
        return condition.cost + consequence.cost + alternative.cost

    # Objects

    def _write_object(self, schema: Schema, lines: SourceLines) -> int:
        cost = self._write_size_bounds(schema, "minProperties", "maxProperties", lines)
        cost += self._write_properties(schema, lines)
        cost += self._write_pattern_and_other_members(schema, lines)
        cost += self._write_dependencies(schema, lines)
        return cost + self._write_property_names_loop(schema, lines)

    def _write_size_bounds(self, schema: Schema, least: str, most: str, lines: SourceLines) -> int:
        for keyword, relation in ((least, "<"), (most, ">")):
            if keyword in schema:
                lines.add_refusal_if(f"len(value) {relation} {self._constants.add_constant(schema[keyword])}")
        return 1

    def _write_properties(self, schema: Schema, lines: SourceLines) -> int:
        """Write the checks of properties. Required properties are fetched without a test; if no others are allowed, it
        is enough to count the known ones.
        """
        properties: Schema = schema.get("properties", {})
        required = dict.fromkeys(schema.get("required", ()))
        closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        optional = {name: each for name, each in properties.items() if name not in required}
        cost = self._write_required(required, properties, lines)
        if closed and optional:
            lines.add(f"known = {len(properties) - len(optional)}")
        for name, each in optional.items():
            cost += 1 + self._write_optional(name, each, closed, lines)
        if closed:
            lines.add_refusal_if(f"len(value) != {'known' if optional else len(properties)}")
        return cost

    def _write_required(self, required: dict[str, None], properties: Schema, lines: SourceLines) -> int:
        if not required:
            return 0
        variables = {name: f"v{number}" for number, name in enumerate(required)}
        with lines.indented_block("try:"):
            for name, variable in variables.items():
                lines.add(f"{variable} = value[{self._constants.add_text_once(name)}]")
        lines.add("except KeyError: return False")
        checks = (self._make_check(properties.get(name, True), variable) for name, variable in variables.items())
        return len(required) + sum(lines.add_refusal_unless(each) for each in checks)

    def _write_optional(self, name: str, schema: RawSchema, counted: bool, lines: SourceLines) -> int:
        check = self._make_check(schema, "member")
        if check.is_always_true and not counted:
            return 0
        constant = self._constants.add_text_once(name)
        with lines.indented_block(f"if {constant} in value:"):
            if counted:
                lines.add("known += 1")
            if not check.is_always_true:
                lines.add(f"member = value[{constant}]")
                lines.add_refusal_unless(check)
        return check.cost

    def _write_pattern_and_other_members(self, schema: Schema, lines: SourceLines) -> int:
        """Write the checks of members that match a pattern, and of those that match none and have no schema by name;
        `_write_properties` handles the named ones.
        """
        patterns = [
            (
                self._constants.add_constant(self._constants.patterns.compile_once(text).is_found_in),
                self._make_check(each, "member"),
            )
            for text, each in schema.get("patternProperties", {}).items()
        ]
        additional = self._make_check(schema.get("additionalProperties", True), "member")
        if not patterns and (additional.is_always_true or schema["additionalProperties"] is False):
            return 0
        if not patterns and not schema.get("properties"):
            self._write_loop("member", "value.values()", additional, lines)
            return 1
        named = self._constants.add_text_set(schema.get("properties", ()))
        lines.add_spending(f"len(value) * {1 + additional.cost + sum(each.cost for _, each in patterns)}")
        with lines.indented_block("for name, member in value.items():"):
            lines.add(f"known = name in {named}")
            for pattern, check in patterns:
                with lines.indented_block(f"if {pattern}(name, steps):"):
                    lines.add("known = True")
                    lines.add_refusal_unless(check)
            lines.add_refusal_if(f"not (known or ({additional.valid_if}))")
        return 1

    def _write_dependencies(self, schema: Schema, lines: SourceLines) -> int:
        cost = 0
        for name, needed in schema.get("dependencies", {}).items():
            check = self._presence_check(needed) if isinstance(needed, list) else self._make_check(needed, "value")
            lines.add_refusal_if(f"{self._constants.add_text_once(name)} in value and not ({check.valid_if})")
            cost += 1 + check.cost
        return cost

    def _presence_check(self, names: list[str]) -> CodeCheck:
        return combined_check([CodeCheck(f"{self._constants.add_text_once(each)} in value") for each in names])

    def _write_property_names_loop(self, schema: Schema, lines: SourceLines) -> int:
        if "propertyNames" not in schema or self._document.draft < Draft.SIX:
            return 0
        self._write_loop("name", "value", self._make_check(schema["propertyNames"], "name"), lines)
        return 1

    # Arrays

    def _write_array(self, schema: Schema, lines: SourceLines) -> int:
        cost = self._write_size_bounds(schema, "minItems", "maxItems", lines)
        if schema.get("uniqueItems"):
            lines.add_refusal_if("not all_differ(value, steps)")
            cost += _COST_OF_UNIQUENESS
        items = schema.get("items", True)
        if isinstance(items, list):
            cost += self._write_items_by_position(items, schema.get("additionalItems", True), lines)
        else:
            self._write_loop("item", "value", self._make_check(items, "item"), lines)
        if "contains" in schema and self._document.draft >= Draft.SIX:
            self._write_contains(self._make_check(schema["contains"], "item"), lines)
        return cost + 1

    def _write_loop(self, variable: str, values: str, check: CodeCheck, lines: SourceLines) -> None:
        if check.is_always_true:
            return
        lines.add_spending(f"len(value) * {1 + check.cost}")
        with lines.indented_block(f"for {variable} in {values}:"):
            lines.add_refusal_unless(check)

    def _write_items_by_position(self, items: list[RawSchema], additional: RawSchema, lines: SourceLines) -> int:
        cost = 0
        for place, each in enumerate(items):
            check = self._make_check(each, "item")
            cost += 1 + check.cost
            if not check.is_always_true:
                with lines.indented_block(f"if len(value) > {place}:"):
                    lines.add(f"item = value[{place}]")
                    lines.add_refusal_unless(check)
        self._write_loop("item", f"value[{len(items)}:]", self._make_check(additional, "item"), lines)
        return cost

    def _write_contains(self, check: CodeCheck, lines: SourceLines) -> None:
        lines.add_spending(f"len(value) * {1 + check.cost}")
        with lines.indented_block("for item in value:"):
            lines.add(f"if {check.valid_if}: break")
        lines.add("else: return False")
