"""Parsing strict JSON."""

import json
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nakadi.schemas.strict_json import MAX_JSON_DEPTH, StrictJsonError, parse_leading_value, parse_strict
from tests.support.patience import measure_cpu

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda values: st.lists(values) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), values),
)


def refusal(text: str) -> str:
    with pytest.raises(StrictJsonError) as refused:
        parse_strict(text)
    return str(refused.value)


@given(JSON_VALUES)
def test_reads_whatever_is_json(value):
    """Any value that was written as JSON is read as the same value, including its types. (R9)"""
    text = json.dumps([value])
    assert repr(parse_strict(text)) == repr([value])


@pytest.mark.parametrize(
    "text",
    [
        "{'a': 1}",
        "{a: 1}",
        "{\"a\": 'b'}",
        '{"a": 1,}',
        "[1,]",
        "[,]",
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": -Infinity}',
        '{"a": nope}',
        '{"a": tru}',
        '{"a": .5}',
        '{"a": +1}',
        '{"a": -}',
        '{"a": "tab\there"}',
        '{"a": "line\nbreak"}',
        '{"a": "\x00"}',
        '{"a\x1f": 1}',
        '{"a": "\\x"}',
        '{"a": "\\u12"}',
        '{"a": 9223372036854775808}',
        '{"a": -9223372036854775809}',
        '{"a": 1e999}',
        '{"a": 1, "a": 2}',
        '{"a": {"b": 1, "b": 1}}',
        '{"a" 1}',
        '{"a": 1 "b": 2}',
        '{"a": 1',
        '{"a',
        '{"a":',
        "{",
        "[1",
        "",
        "  ",
        '{"a": 1} x',
        "{}{}",
    ],
)
def test_refuses_what_only_lenient_parsers_take(text):
    """Any text that is not strict JSON is refused. (R9, P33, P34)"""
    assert refusal(text)


@pytest.mark.parametrize("text", ['{"a": "\\\'"}', '{"a": 01}', '{"a": -01}', '{"a": 1.}', '{"a": 1.e5}'])
def test_refuses_forms_that_would_break_other_parsers(text):
    """An escaped apostrophe, a leading zero or a bare dot is refused, because other parsers could not read it. (R9,
    P35, deviation)"""
    assert refusal(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\b\t\n\f\r\"\\\/A"', '\b\t\n\f\r"\\/A'),
        (r'"\u0041\u00e9\u20AC"', "Aé€"),
        (r'"\ud83d\ude00"', "😀"),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("1.50", 1.5),
        ("-0.0", -0.0),
        ("2e3", 2000.0),
        (" \t\r\n[ ] ", []),
    ],
)
def test_reads_escapes_and_numbers(text, value):
    """The escapes of JSON, all 64-bit integers and all finite floats are read. (R9)"""
    assert repr(parse_strict(text)) == repr(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "Unexpected symbol 'x' at pos 1"),
        ("", "Unexpected end of data at pos 0"),
        ('{"properties": { }}}', "Unexpected symbol '}' at pos 20"),
        ('{"properties": {', "Unexpected end of data at pos 16"),
        ("{a:1}", "Unexpected symbol 'a' at pos 2"),
        ("{,}", "Unexpected symbol ',' at pos 2"),
        ('{"a":}', "Unexpected symbol '}' at pos 6"),
        ('{"a": 1, }', "Not allowed to finish object with comma at pos 10"),
        ('{"a":1,,}', "Unexpected symbol ',' at pos 8"),
        ('{"a" 1}', "Waiting for name-value separator : while parsing object at pos 6"),
        ('{"a"}', "Waiting for name-value separator : while parsing object at pos 5"),
        ('{"a":1 "b":2}', "Unexpected symbol '\"' while parsing object at pos 8"),
        ('{"a":1]', "Unexpected symbol ']' while parsing object at pos 7"),
        ("[1, ]", "Unexpected symbol ']' at pos 5"),
        ("[1 2]", "Unexpected separator '2' at pos 4"),
        ("[1}", "Unexpected separator '}' at pos 3"),
        ("[NaN]", "Unexpected symbol 'N' at pos 2"),
        ("[tree]", "Expected true value at pos 5"),
        ("[falso]", "Expected false value at pos 6"),
        ("[nulo]", "Expected null value at pos 5"),
        ('{"a":tru}', "Unexpected end of data at pos 6"),
        ("[truex]", "Unexpected separator 'x' at pos 6"),
        ("[9223372036854775808]", "Can not use long value '9223372036854775808' cause it is too big at pos 20"),
        ("[-9223372036854775809, 1]", "Can not use long value '-9223372036854775809' cause it is too big at pos 21"),
        ("[1-2]", "Can not use long value '1-2' cause it is too big at pos 4"),
        ("[-]", "Can not use long value '-' cause it is too big at pos 2"),
        ("[1e999 ]", "1e999 can not be used at pos 6"),
        ("[1.2.3]", "The provided value '1.2.3' cannot be parsed to float at pos 6"),
        ("[1e+]", "The provided value '1e+' cannot be parsed to float at pos 4"),
        ("[01]", "The provided value '01' begins with a needless zero at pos 3"),
        ('["a\tb"]', "Illegal escape. at pos 4"),
        ('["\\x"]', "Illegal escape. at pos 4"),
        ('["\\u12G4"]', "Illegal codepoint 12G4 at pos 8"),
        ('["\\u12"', "Unexpected end of data at pos 4"),
        ('["a', "Unexpected end of data at pos 3"),
        ('{"😀": x}', "Unexpected symbol 'x' at pos 8"),
        ('{"a": 1, "b": {"c": 0, "c": 1}}', 'Duplicate key "c"'),
        ('{"a": 1, "a": x}', "Unexpected symbol 'x' at pos 15"),
    ],
)
def test_messages_tell_what_and_where(text, message):
    """A refusal names the character, and the position after it or after the whole number, in UTF-16 units.

    (R9, R10, P29, P30, P31, P32, P33, P34)
    """
    assert refusal(text) == message


@pytest.mark.parametrize("text", [r'"\ud800"', r'"\udc00"', r'"\ud800A"', r'"\ud800\ud800"', r'"\udc00\udc00"'])
def test_refuses_half_a_character(text):
    """Half a surrogate pair is refused, because it cannot be sent in UTF-8. (R9)"""
    assert refusal(text).startswith("Illegal escape.")


def test_reads_one_value_out_of_a_longer_text():
    """A value at the beginning of a longer text is read up to the end of the value. (P36)"""
    assert parse_leading_value('{"a": 1}, {"b": x}]') == ({"a": 1}, 8)


def test_depth_has_a_limit():
    """Nesting that could exhaust the interpreter is refused long before it does. (R9)"""
    assert parse_strict("[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH)
    assert refusal("[" * 100_000) == f"Nested more than {MAX_JSON_DEPTH} levels deep at pos {MAX_JSON_DEPTH + 1}"
    assert sys.getrecursionlimit() > 3 * MAX_JSON_DEPTH


@pytest.mark.parametrize(
    "text",
    [
        "[" + "1" * 500_000 + "]",
        "[0." + "1" * 500_000 + "]",
        '"' + "\\\\" * 250_000,
        "{" + ",".join(f'"k{n}":{n}' for n in range(50_000)) + "}",
    ],
    ids=["long integer", "long float", "escapes without end", "many keys"],
)
def test_takes_time_in_proportion_to_the_text(text):
    """Half a megabyte of any text is read or refused quickly. (R9)"""

    def try_to_parse():
        with suppress(StrictJsonError):
            parse_strict(text)

    assert measure_cpu(try_to_parse) < 5000
