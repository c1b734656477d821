"""Checking many strings at once for a pattern or a format has the same result as checking them one by one."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from nakadi.schemas.document import EID_PATTERN
from nakadi.schemas.formats import FORMAT_CHECKS, USUAL_FORMS, BadPattern, compile_pattern, make_lines
from nakadi.schemas.values import StepsExhausted
from tests.support.everything import choose_by_suite

STEPS = 200_000
ATOMS = (
    *("a", "b", "-", "é", ".", "\\d", "\\w", "\\.", "\\$", "\\\\", "[ab]", "[a-c.$]", "[\\w-]", "\\s", "\\W", "[^a]"),
    *("\\n", "[\n]", "(?:", "(", ")", "|", "*", "+?", "?", "{2}", "{1,}", "{,2}", "^", "$", "(?s)", "(?i)", "(?m)"),
    *("\\b", "\\x0a", "[[:^alpha:]]", "\\pL", "\\Q", "\\z", "[\\n]", "[!-a]", "[\t-z]", "#", "<"),
)
PATTERNS = some.builds(
    lambda start, atoms, end: start + "".join(atoms) + end,
    some.sampled_from(["", "^"]),
    some.lists(some.sampled_from(ATOMS), max_size=6),
    some.sampled_from(["", "$"]),
)
TEXTS = some.lists(some.text(some.sampled_from("ab1-é.$ \n\\A#"), max_size=5), min_size=1, max_size=4)


@settings(max_examples=choose_by_suite(200, 3000), deadline=None)
@given(PATTERNS, TEXTS)
@example("^a|b$", ["xb"])
@example("^(a|b)$", ["a", "b"])
@example("a[^b]c", ["a", "c"])
@example("^a$", ["a\na"])
def test_lines_match_as_texts_do(pattern, texts):
    """Strings that are accepted together also match alone; strings with line breaks are not accepted together."""
    try:
        alone = compile_pattern(pattern)
    except BadPattern:
        return
    lines = make_lines(pattern=pattern)
    if lines is None:
        return
    expected = all(alone.is_found_in(text, [STEPS]) and "\n" not in text for text in texts)
    assert lines.accepts(texts, [STEPS]) is expected


@pytest.mark.parametrize(
    "pattern",
    [
        *("^[A-Z]{2}$", "^o-[0-9]+$", "^s-", "@", "^(new|paid)$", "^[0-9a-f]{8}-[0-9a-f]{4}$", "^\\d{4}-\\d\\d$", ""),
        *("^(?:a|b(?:c|d))$", "a|b", "^[\\w.-]+@example\\.(com|org)$", "^.{1,3}$", "^[A-Z][A-Za-z0-9 ]*$", "[(|]$"),
    ],
)
def test_usual_patterns_are_for_lines(pattern):
    """The patterns and formats that most schemas use are checked for many strings at once."""
    assert make_lines(pattern=pattern) is not None


@pytest.mark.parametrize("pattern", ["^a|b$", "|a$", "[^a]", "\\s", "(?s).", "a^b", "\\W", "^(a)|(b)$", "\\n", "a\nb"])
def test_what_may_reach_beyond_a_line(pattern):
    """Patterns that might match a line break, or whose anchors belong to only a part of them, are checked for each
    string."""
    assert make_lines(pattern=pattern) is None


@settings(max_examples=choose_by_suite(100, 1000), deadline=None)
@given(some.data())
def test_usual_forms_are_valid(data):
    """Every string in a usual form has the format, and no line break."""
    form = data.draw(some.sampled_from(sorted(USUAL_FORMS)))
    text = data.draw(some.from_regex(rf"(?a:\A(?:{USUAL_FORMS[form]})\Z)"))
    assert FORMAT_CHECKS[form](text.removesuffix("\n")) is None
    assert make_lines(form=form).accepts([text.removesuffix("\n")] * 3, [STEPS])


@pytest.mark.parametrize(
    ("form", "usual"),
    [
        *(("date-time", "2026-11-21T12:00:00+01:00"), ("email", "jane.doe+x@mail.example.org"), ("ipv4", "10.0.0.255")),
        *(("uri", "https://example.org:8080/a/b.html?c=d&e=f"), ("hostname", "www.example.org")),
    ],
)
def test_what_is_usual(form, usual):
    """The check accepts common values together, even among nulls; if one of many is invalid, each is checked."""
    lines, wrong = make_lines(form=form), "no good text"
    assert lines.accepts([usual, None] * 150, [STEPS])
    for place in (0, 99, 100, 299):
        texts = [usual] * 300
        texts[place] = wrong
        assert not lines.accepts(texts, [STEPS])
    for other in (1, [], {}, f"{usual}\n{usual}"):
        assert not lines.accepts([usual, other], [STEPS])
    assert make_lines(form="uuid") is None
    assert make_lines(pattern="a", form=form) is None


def test_texts_at_once_take_their_steps():
    """Matching strings against a pattern begins only if the steps for the worst case are left, and takes those actually
    used."""
    lines = make_lines(pattern="^[a-z]{50}$")
    texts, steps = ["a" * 50] * 300, [STEPS]
    assert lines.accepts(texts, steps)
    assert STEPS - 100_000 < steps[0] <= STEPS - 3 * 30
    assert not lines.accepts(texts, [1000])
    assert not lines.accepts(["a" * 1_000_000], [STEPS])


EIDS = some.from_regex(EID_PATTERN.removesuffix("$"), fullmatch=True)


@settings(max_examples=choose_by_suite(100, 2000), deadline=None)
@given(some.lists(EIDS | some.text(some.sampled_from("0aF-g\né"), max_size=40) | some.none(), max_size=5), some.data())
def test_eids_match_as_texts_do(texts, data):
    """The quick check accepts ids only if each matches alone, even if an invalid id consists of valid ones."""
    if texts and data.draw(some.booleans()):
        at = data.draw(some.integers(0, len(texts) - 1))
        wrong = str(texts[at])
        place = data.draw(some.integers(0, len(wrong)))
        texts[at] = (
            wrong[:place] + data.draw(some.sampled_from(["", "\n", "0", "-", "g", "\n" + wrong])) + wrong[place + 1 :]
        )
    alone, sent = compile_pattern(EID_PATTERN), [each for each in texts if each is not None]
    expected = all(len(each) == 36 and alone.is_found_in(each, [STEPS]) for each in sent)
    # Only batches of nulls are left to the check of each id.
    assert make_lines(pattern=EID_PATTERN).accepts(texts, [STEPS]) is (expected and bool(sent))


def test_eids_take_their_steps():
    """A step covers some dozens of bytes; other types than strings are checked one by one."""
    steps = [STEPS]
    assert make_lines(pattern=EID_PATTERN).accepts(["00000000-0000-0000-0000-00000000000F"] * 3200, steps)
    assert steps[0] == STEPS - 3700
    with pytest.raises(StepsExhausted):
        make_lines(pattern=EID_PATTERN).accepts(["x" * 3200], [99])
    assert not make_lines(pattern=EID_PATTERN).accepts([1], [STEPS])
