"""The lines of generated source."""

from nakadi.schemas.keywords import ALWAYS_TRUE, CodeCheck
from nakadi.schemas.validation import SourceLines


def test_lines_in_a_block_are_indented():
    """Lines that are written in a block are indented below its head. (P56)"""
    lines = SourceLines()
    with lines.indented_block("for item in value:"):
        lines.add_refusal_unless(CodeCheck("item"))
    lines.add_refusal_if("value")

    assert lines.written == [
        "    for item in value:",
        "        if not (item): return False",
        "    if value: return False",
    ]


def test_what_is_always_true():
    """A condition that is always true produces no line. (P56)"""
    lines = SourceLines()

    assert lines.add_refusal_unless(ALWAYS_TRUE) == 0
    assert lines.written == []
