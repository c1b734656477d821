"""Paths to members of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nakadi.schemas.read_paths import MAX_READ_PATH_STEPS, BadReadPath, parse_read_path, read_path_text


@pytest.mark.parametrize(
    ("text", "path"),
    [("a", ("a",)), ("a.b-c.ü", ("a", "b-c", "ü")), (r"a\.b.c\\", ("a.b", "c\\")), ("a b.*", ("a b", "*"))],
)
def test_dots_separate_names(text, path):
    """A dot or a backslash in a name is escaped with a backslash. (D2)"""
    assert parse_read_path(text) == path


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a\\", r"a\b", "\\"])
def test_texts_without_names_are_no_paths(text):
    """Empty names and stray backslashes are refused. (D2)"""
    with pytest.raises(BadReadPath, match="names with dots between them"):
        parse_read_path(text)


def test_paths_have_an_end():
    """A path has at most 64 names. (D2)"""
    assert len(parse_read_path(".".join(["a"] * MAX_READ_PATH_STEPS))) == MAX_READ_PATH_STEPS
    with pytest.raises(BadReadPath, match="at most 64 names"):
        parse_read_path(".".join(["a"] * (MAX_READ_PATH_STEPS + 1)))


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_every_name_can_be_written(names):
    """The text of any path is parsed to the same path. (D2)"""
    assert parse_read_path(read_path_text(names)) == tuple(names)
