"""JSON values as strings."""

import pytest

from nakadi.schemas.values import java_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-17, "-17"),
        (9223372036854775807, "9223372036854775807"),
        (1.50, "1.5"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (0.0, "0.0"),
        (1e3, "1000.0"),
        (123456.789, "123456.789"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (1e10, "1.0E10"),
        (2e23, "2.0E23"),
        (-1.5e300, "-1.5E300"),
        (0.001, "0.001"),
        (0.00001, "1.0E-5"),
        (0.00099, "9.9E-4"),
        (5e-324, "4.9E-324"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_values_become_the_text_that_java_makes_of_them(value, text):
    """Strings stay, literals and integers are as in JSON, and doubles are spelled as in Java. (P90, P91)"""
    assert java_text(value) == text


@pytest.mark.parametrize("value", [{"b": 1, "a": [1.5, {"d": None, "c": "é"}]}, [{"b": 1, "a": 2}]])
def test_structured_values_have_their_keys_in_order(value):
    """Objects and arrays become compact JSON with sorted keys, so that equal values have equal strings. (P92)"""
    reordered = dict(reversed(value.items())) if isinstance(value, dict) else value
    assert java_text(value) == java_text(reordered)
    assert java_text({"b": 1, "a": [2]}) == '{"a":[2],"b":1}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1.0, 1.50, 100.0, -0.0, 0.25], "[1,1.5,100,-0,0.25]"),
        ([1e10, 1e-5, 10, 12345678.0], "[1.0E10,1.0E-5,10,1.2345678E7]"),
        ([True, None, "", []], '[true,null,"",[]]'),
        ({"n": 1.0, "m": {"x": [2.0]}}, '{"m":{"x":[2]},"n":1}'),
        (['a"b\\c', "\b\t\n\f\r\x01"], r'["a\"b\\c","\b\t\n\f\r\u0001"]'),
        (
            ["a/b", "</b>", "\x7f", "\x80\x9f\xa0", "\u1fff\u2000\u20ff\u2100", "é😀"],
            '["a/b","<\\/b>","\x7f","\\u0080\\u009f\xa0","\u1fff\\u2000\\u20ff\u2100","é😀"]',
        ),
    ],
)
def test_values_within_objects_and_arrays_are_spelled_as_org_json_does(value, text):
    """Within objects and arrays, a number has no trailing zeros, and some characters are escaped. (P92)"""
    assert java_text(value) == text
