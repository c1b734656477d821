"""Patterns that clients write."""

import pytest
import re2

from nakadi.schemas import formats
from nakadi.schemas.formats import (
    MAX_LARGE_PATTERNS,
    MAX_PATTERN_INSTRUCTIONS,
    BadPattern,
    SchemaPatterns,
    compile_pattern,
)
from nakadi.schemas.values import MAX_EVENT_STEPS, StepsExhausted


def is_found(pattern: str, text: str, steps: int = MAX_EVENT_STEPS) -> bool:
    return compile_pattern(pattern).is_found_in(text, [steps])


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("b", "abc", True),
        ("^b", "abc", False),
        ("^abc$", "abc", True),
        ("^abc$", "abc\n", False),
        (r"^\d+$", "123", True),
        (r"^\d+$", "\u0661", False),
        (r"^\p{L}+$", "äöß", True),
        ("^.$", "\U0001f40d", True),
        ("", "", True),
        ("a", "\ud800a", True),
        ("(?P<first>a)(?P<second>b)", "cab", True),
        ("(?P<first>a)", "b", False),
    ],
)
def test_search(pattern, text, expected):
    """A pattern may match anywhere in a string unless it is anchored; no anchor matches before a last line feed."""
    assert is_found(pattern, text) is expected


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a(?!b)", 'invalid or unsupported Perl syntax "(?!"'),
        ("(?=a)", 'invalid or unsupported Perl syntax "(?="'),
        ("(?<=a)b", 'invalid or unsupported Perl syntax "(?<"'),
        (r"(a)\1", r'invalid escape sequence "\1"'),
        (r"a\Z", r'invalid escape sequence "\Z"'),
        ("a{1001}", 'invalid repeat count "{1001}"'),
        ("(a{100}){100}", 'invalid repeat count "{100}"'),
        ("a**", 'invalid nested repetition operator "**"'),
        ("*a", 'missing argument to repetition operator "*"'),
        ("(a", 'missing closing ) "(a"'),
        ("a)", 'unexpected ) "a)"'),
        ("[a", 'missing closing ] "[a"'),
        ("[z-a]", 'invalid character class range "z-a"'),
        ("(?P<a b>c)", 'invalid named capture "(?P<a b>"'),
        ("\\", 'trailing backslash at end of expression ""'),
        ("a\ud800", "invalid UTF-8 \"'\\ud800'\""),
    ],
)
def test_bad_patterns(pattern, words):
    """A pattern that RE2 does not accept is refused with RE2's reason and the invalid part. (R155)"""
    with pytest.raises(BadPattern) as refused:
        compile_pattern(pattern)
    assert str(refused.value) == words


@pytest.mark.parametrize("pattern", ["a{1000}", "^[A-Za-z ]{1,255}$", ".{0,1000}", r"^[\p{L}\p{N} .'-]{1,80}$"])
def test_repeats(pattern):
    """Counted repeats of up to 1000 are accepted, even of large character classes. (R155)"""
    assert compile_pattern(pattern).instruction_count > 500


@pytest.mark.parametrize("pattern", [r"\pL{1000}", "x{0,1000}" * 60, r"\pL" * 3000, "(?:a?){1000}" * 50])
def test_patterns_that_are_too_large(pattern):
    """A pattern that takes too much memory, or too long to compile, is refused. (R155)"""
    with pytest.raises(BadPattern, match="pattern too large"):
        compile_pattern(pattern)


def test_patterns_of_a_schema():
    """Each pattern in a schema is compiled once."""
    ours = SchemaPatterns()

    assert ours.compile_once("a") is ours.compile_once("a")


def test_too_many_large_patterns():
    """A schema may have only a few large patterns."""
    ours = SchemaPatterns()
    for number in range(MAX_LARGE_PATTERNS):
        ours.compile_once(rf"\pL{{{20 + number}}}")

    with pytest.raises(BadPattern, match="too large together"):
        ours.compile_once(r"\pL{30}")


def test_too_many_usual_patterns():
    """The memory of all patterns of a schema is limited."""
    ours = SchemaPatterns()
    size = ours.compile_once("0a{1000}").instruction_count
    for number in range(1, MAX_PATTERN_INSTRUCTIONS // size):
        ours.compile_once(f"{number % 10}a{{{1000 - number // 10}}}")

    with pytest.raises(BadPattern, match="too large together"):
        ours.compile_once("b{999}c{999}")


def test_searches_cost_steps():
    """A search takes steps: a few for a short string, and its real cost for a long one. (R155)"""
    short, long = [MAX_EVENT_STEPS], [MAX_EVENT_STEPS]
    compile_pattern("^[a-z]+$").is_found_in("abc", short)
    compile_pattern("^[a-z]{1,1000}$").is_found_in("a" * 10_000, long)

    assert 1 <= MAX_EVENT_STEPS - short[0] < 100
    assert 1 <= MAX_EVENT_STEPS - long[0] < MAX_EVENT_STEPS // 2


def test_searches_that_could_take_too_long():
    """A search is not begun if its worst case takes more steps than are left."""
    with pytest.raises(StepsExhausted):
        is_found("(?:a?){500}b", "a" * 1_000_000)


def test_nothing_is_left_in_the_cache_of_the_library():
    """Patterns are freed with their schema: the library that runs them keeps none."""
    compile_pattern("^something-that-nobody-else-uses$")

    assert re2._Regexp._make.cache_info().currsize == 0


def test_nothing_is_written_about_bad_patterns(capfd):
    """Patterns that clients send do not fill the broker's logs."""
    with pytest.raises(BadPattern):
        compile_pattern("a(?!b)")
    assert capfd.readouterr() == ("", "")


def test_memory_for_instructions():
    """A pattern for which the usual memory is too small is compiled with more memory."""
    with pytest.raises(re2.error):
        re2.compile(r"\pL{20}", formats._re2_options(formats._RE2_MEMORY_BYTES))
    assert compile_pattern(r"\pL{20}").instruction_count > formats._MAX_INSTRUCTIONS_OF_USUAL_PATTERN
