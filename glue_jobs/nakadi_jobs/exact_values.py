"""Reads values that Spark's JSON reader would change: they become exact values or NULL.

Spark rounds a number with more digits than a double has. It reads 1e400 as infinite, and half of a surrogate pair as a
question mark. Where a line may have such a value, or a property had several types, this module rewrites the text: each
number becomes a string with a mark before it. Spark then reads strings, and the columns take what they can hold.

Expressions are Spark SQL as text: a wide table has thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from nakadi_jobs.columns import (
    DOUBLE,
    STRING,
    TIMESTAMP,
    Array,
    Field,
    Json,
    Kind,
    Scalar,
    Struct,
    Texts,
    ddl_of,
    decimal_scale,
    innermost_types,
    is_decimal,
    text_properties,
)

LITERAL, LIKE_JSON, BROKEN = "\u0001", "\u0002", "\u0003"
"""Marks in strings: before a number, true or false; before a string that looks like an object or a list; in place of
half of a surrogate pair, and of marks that publishers wrote themselves."""

_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_BROKEN = rf"\\u000[123]|{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}"

# From the end of the last match: strings and structure, then the part to mark. This pattern never backtracks.
_STRING = r'"(?:[^"\\]|\\.)*+"'
_LITERALS = rf'\G((?:[^"\-0-9tf]|{_STRING})*+)(-?[0-9][-+0-9.eE]*+|true|false)'
_JSON_STRINGS = r'\G((?:[^"]|"(?![{\[])(?:[^"\\]|\\.)*+")*+)"([{\[](?:[^"\\]|\\.)*+")'

ESCAPE, CODE, TWO_BACKSLASHES, BACKSLASH = "\\", r"\u", r"\\", r"\u005c"

# The replacement, in the syntax of Java.
LITERAL_REPLACEMENT, LIKE_JSON_REPLACEMENT, BROKEN_REPLACEMENT = r'$1"\\u0001$2"', r'$1"\\u0002$2', r"\\u0003"

CODE_LIKE_JSON, CODE_BROKEN = r"\u0002", r"\u0003"

_LITERAL_IN_JSON = r'"\\u0001([^"]*)"'

EXACT_DIGITS = 15
"""Numbers with at most this many digits are nearest to different doubles."""

MISFIT = "nakadi_misfit"
"""The field with the text of an unreadable line. A property with this name has no column."""

_OPTIONS = ("mode", "PERMISSIVE", "columnNameOfCorruptRecord", MISFIT)

_HIDDEN = r"[:,\[]\s*(?:-0[^0-9.]|-?[0-9.]+[eE])"
"""A number whose value, as Spark reads it, may not show how it was written."""
_FRACTION = r"[:,\[]-?[0-9]+[.]"
_DECIMALS = r"[:,\[]\s*-?[0-9]+[.][0-9]{%d}[0-9]*\s*[,}\]eE]"
_LONG_SECOND = r"[0-9]{2}[.][0-9]{7}"
_MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6}0*)?([Zz]|[-+][0-9]{2}:[0-9]{2})$"


def quote_text(text: str) -> str:
    """A text as a Spark SQL literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def read_quickly(text: str, line: Struct) -> str:
    """An expression that parses a text as a structure. A line with a number that may be too long is a misfit."""
    limit = ("maxNumLen", str(EXACT_DIGITS)) if _is_inexact(line) else ()
    return _from_json(text, Struct((*line.fields, Field(MISFIT, STRING))), (*_OPTIONS, *limit))


def is_misfit(text: str, read: str, line: Struct) -> str:
    """An expression for whether a quickly read text has a value of another type, not just a long number."""
    quickly = f"{read}.`{MISFIT}` is not null"
    if not _is_inexact(line):
        return quickly
    again = _from_json(text, Struct((*line.fields, Field(MISFIT, STRING))), _OPTIONS)
    return f"({quickly} and {again}.`{MISFIT}` is not null)"


def may_differ(text: str, read: str, line: Struct) -> str:
    """An expression for whether the quickly read values may differ from the text. It is cheap to compute, and has false
    positives.

    A number with few digits can be misread only if it has an exponent, and exceeds a double or decimal.
    """
    found = [f"contains({text}, {quote_text(CODE)})"]
    if _is_inexact(line):
        found.append(f"{read}.`{MISFIT}` is not null")
    scales = (decimal_scale(each.name) for each in innermost_types(line) if is_decimal(each))
    decimals = min(scales, default=EXACT_DIGITS)
    if decimals < EXACT_DIGITS - 1:
        # Spark rounds numbers with more decimal places. A moment ends with its offset from UTC, and a text with quotes.
        found.append(f"{text} rlike {quote_text(_DECIMALS % (decimals + 1))}")
    if TIMESTAMP in innermost_types(line):
        found.append(f"{text} rlike {quote_text(_LONG_SECOND)}")
    if hidden := _leaf_condition(read, line, _MAY_HIDE):
        found.append(f"(coalesce({hidden}, false) and {text} rlike {quote_text(_HIDDEN)})")
    if respelled := _leaf_condition(read, line, _IS_RESPELLED):
        found.append(f"coalesce({respelled}, false)")
    return f"({' or '.join(found)})"


def read_exactly(text: str, line: Struct) -> str:
    """An expression that parses a text as a structure, with every value exactly as written, or NULL."""
    parsed = _from_json(_mark_text(text), Struct((*_as_texts(line).fields, Field(MISFIT, STRING))), _OPTIONS)
    members = ", ".join([*_members("whole", line, 0), quote_text(MISFIT), f"whole.`{MISFIT}`"])
    return _let(parsed, "whole", f"named_struct({members})")


def _from_json(text: str, kind: Struct, options: Sequence[str]) -> str:
    return f"from_json({text}, {quote_text(ddl_of(kind))}, map({', '.join(map(quote_text, options))}))"


def _is_inexact(line: Struct) -> bool:
    """Whether a column of the line has a type whose values Spark could change: numbers, moments and unknown content."""
    return any(
        each in (DOUBLE, TIMESTAMP) or isinstance(each, Json) or is_decimal(each) for each in innermost_types(line)
    )


class _LeafConditions(NamedTuple):
    """Conditions on a value without parts, and on a list of such values; empty for none. Spark compiles no lambdas, so
    the conditions on lists have none.
    """

    on_value: Callable[[str, Kind], str]
    on_list: Callable[[str, Kind], str]


def _leaf_condition(value: str, kind: Kind, on: _LeafConditions, depth: int = 0) -> str:
    """An expression for whether a condition holds for any value inside this type; empty if none has a condition."""
    match kind:
        case Struct(fields):
            found = (_leaf_condition(f"{value}.`{field.name}`", field.kind, on, depth) for field in fields)
            return " or ".join(each for each in found if each)
        case Array(element):
            return " or ".join(_leaf_conditions_in_list(value, element, on, depth))
    return on.on_value(value, kind)


def _leaf_conditions_in_list(values: str, kind: Kind, on: _LeafConditions, depth: int) -> Iterator[str]:
    """Expressions like that of `_leaf_condition`, for a list of values of this type; any of them suffices. Only a list
    within a list needs a lambda.
    """
    match kind:
        case Struct(fields):
            for field in fields:
                yield from _leaf_conditions_in_list(f"{values}.`{field.name}`", field.kind, on, depth)
        case Array(element):
            inside = " or ".join(_leaf_conditions_in_list(f"each{depth}", element, on, depth + 1))
            if inside:
                yield f"exists({values}, each{depth} -> coalesce({inside}, false))"
        case _ if condition := on.on_list(values, kind):
            yield condition


def _may_hide(value: str, kind: Kind) -> str:
    """An expression for whether a number may be near the limit of its type, or in a text that Spark has written."""
    if isinstance(kind, Json) or is_decimal(kind):
        return f"{value} is not null"
    return f"not (abs({value}) between 1e-290 and 1e290)" if kind == DOUBLE else ""


def _list_may_hide(values: str, kind: Kind) -> str:
    """The expression of `_may_hide` for a list. Every number near zero becomes zero as a `float`."""
    if isinstance(kind, Json) or is_decimal(kind):
        return f"size({values}) > 0"
    if kind != DOUBLE:
        return ""
    small = f"array_contains(cast({values} as array<float>), float(0))"
    return f"array_max({values}) > 1e290 or array_min({values}) < -1e290 or {small}"


_MAY_HIDE = _LeafConditions(_may_hide, _list_may_hide)

# Spark rewrites the text of an open object: 1.10 becomes 1.1, and 0.0001 becomes 1.0E-4.
_IS_RESPELLED = _LeafConditions(
    lambda value, kind: f"{value} rlike {quote_text(_FRACTION)}" if isinstance(kind, Json) else "",
    lambda values, kind: f"concat_ws(',', {values}) rlike {quote_text(_FRACTION)}" if isinstance(kind, Json) else "",
)


def _mark_text(text: str) -> str:
    """An expression that adds marks to a text. It first replaces two backslashes by a code, so that each remaining
    backslash begins an escape.
    """
    plain = f"replace({text}, {quote_text(TWO_BACKSLASHES)}, {quote_text(BACKSLASH)})"
    checked = f"if(contains({text}, {quote_text(ESCAPE)}), {_replace(plain, _BROKEN, BROKEN_REPLACEMENT)}, {text})"
    return _replace(_replace(checked, _LITERALS, LITERAL_REPLACEMENT), _JSON_STRINGS, LIKE_JSON_REPLACEMENT)


def _replace(text: str, pattern: str, by: str) -> str:
    return f"regexp_replace({text}, {quote_text(pattern)}, {quote_text(by)})"


def _as_texts(kind: Struct) -> Struct:
    """The type for reading the marked text: every value is a string."""
    as_text = text_properties(kind)
    return Struct(
        tuple(
            Field(field.name, STRING if field.name in as_text else _as_text(field.kind))
            for field in kind.fields
            if not field.source
        )
    )


def _as_text(kind: Kind) -> Kind:
    match kind:
        case Struct():
            return _as_texts(kind)
        case Array(element):
            return Array(_as_text(element))
        case Texts():
            return kind
    return STRING


def _members(value: str, kind: Struct, depth: int) -> list[str]:
    """The names of the members of a structure, each followed by the expression for its exact value."""
    found: list[str] = []
    for field in kind.fields:
        read = f"{value}.`{field.source or field.name}`"
        found += [
            quote_text(field.name),
            (_from_text if field.has_several_types else _exact_expression)(read, field.kind, depth),
        ]
    return found


def _exact_expression(value: str, kind: Kind, depth: int) -> str:
    """An expression for the exact value of a property that has one type."""
    match kind:
        case Struct():
            return f"if({value} is null, null, named_struct({', '.join(_members(value, kind, depth))}))"
        case Array(element):
            return _array(value, element, depth)
        case Texts():
            # A string that begins like an object or a list has a mark before it, so an unmarked one is an object or a
            # list.
            marked = rf"^[{{\[]|[{LITERAL}{LIKE_JSON}{BROKEN}]"
            strange = f"each -> each rlike {quote_text(marked)}"
            return f"if(exists(map_values({value}), {strange}) or exists(map_keys({value}), {strange}), null, {value})"
        case Json():
            return f"if(substring({value}, 1, 1) in ('{{', '['), {_json(value)}, null)"
        case Scalar("string"):
            other = f"substring({value}, 1, 1) in ('{LITERAL}', '{{', '[')"
            return f"if({other}, null, {_string(value)})"
    assert isinstance(kind, Scalar)
    return _scalar(value, kind)


def _from_text(value: str, kind: Kind, depth: int) -> str:
    """Like `_exact_expression`, for a property that had several types. A string column can hold values of all types."""
    if kind == STRING:
        return f"if(substring({value}, 1, 1) in ('{{', '['), {_json(value)}, {_string(value)})"
    if isinstance(kind, Scalar | Json):
        return _exact_expression(value, kind, depth)
    begins = "[" if isinstance(kind, Array) else "{"
    name = f"read{depth}"
    structure = f"from_json({value}, {quote_text(ddl_of(_as_text(kind)))})"
    result = _let(structure, name, _exact_expression(name, kind, depth + 1))
    return f"if(substring({value}, 1, 1) = '{begins}', {result}, null)"


def _array(value: str, element: Kind, depth: int) -> str:
    """An expression for a list. If its type cannot hold an element, other than a structure, the whole list is NULL,
    which shows that it is incomplete.
    """
    each, made, read = f"each{depth}", f"made{depth}", f"list{depth}"
    exact = _exact_expression(each, element, depth + 1)
    if isinstance(element, Struct):
        return f"transform({value}, {each} -> {exact})"
    there = f"{each} -> {each} is not null"
    whole = f"if(size(filter({read}, {there})) = size(filter({made}, {there})), {made}, null)"
    return _let(value, read, _let(f"transform({read}, {each} -> {exact})", made, whole))


def _scalar(value: str, kind: Scalar) -> str:
    rest = f"substring({value}, 2)"
    is_literal = f"substring({value}, 1, 1) = '{LITERAL}'"
    cast = f"cast({rest} as {kind.name})"
    match kind.name:
        case "boolean":
            return f"if({rest} in ('true', 'false') and {is_literal}, {cast}, null)"
        case "int" | "bigint":
            return f"if({is_literal} and {rest} rlike '^-?[0-9]+$', {cast}, null)"
        case "timestamp":
            return f"if({value} rlike {quote_text(_MOMENT)}, cast(upper({value}) as timestamp), null)"
    # If the number has the written digits, it is the written number: the nearest number cannot be ten times as large.
    return f"if({is_literal} and {_digits(rest)} = {_digits(f'cast({cast} as string)')}, {cast}, null)"


def _digits(number: str) -> str:
    return f"trim('0' from replace(replace(substring_index(upper({number}), 'E', 1), '-', ''), '.', ''))"


def _string(value: str) -> str:
    plain = f"if(substring({value}, 1, 1) in ('{LITERAL}', '{LIKE_JSON}'), substring({value}, 2), {value})"
    return f"if(contains({value}, '{BROKEN}'), null, {plain})"


def _json(value: str) -> str:
    """An expression for the text of an object or list without marks, which are written as codes in such texts."""
    plain = f"replace({_replace(value, _LITERAL_IN_JSON, '$1')}, {quote_text(CODE_LIKE_JSON)}, '')"
    return f"if(contains({value}, {quote_text(CODE_BROKEN)}), null, {plain})"


def _let(value: str, name: str, result: str) -> str:
    """An expression in which `result` can use a value by its name, so that Spark computes the value only once."""
    return f"transform(array({value}), {name} -> {result})[0]"
