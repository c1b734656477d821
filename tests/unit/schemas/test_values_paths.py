import pytest

from nakadi.schemas.values import NoValueAtPath, path_segments, value_at_path

EVENT = {"a": {"b": {"c": 1}, "x.y": 2, "'": 3}, "list": [{"c": 1}], "text": "t", "none": None, "": {"a": 9}}


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("a", ("a",)),
        ("a.b.c", ("a", "b", "c")),
        ("a.'x.y'", ("a", "x.y")),
        ("a.x\\.y", ("a", "x.y")),
        ("'a.b'.c", ("a.b", "c")),
        ("a\\'b", ("a'b",)),
        ("a\\\\b", ("a\\b",)),
        ("a..b", ("a",)),
        ("a.", ("a",)),
        (".a", ()),
        ("", ()),
        ("a\\", ("a",)),
    ],
)
def test_paths_are_split_at_dots(path, names):
    """Dots separate names; quotes and backslashes protect dots, and an empty name ends the path. (P88)"""
    assert path_segments(path) == names


@pytest.mark.parametrize(("path", "value"), [("a.b.c", 1), ("a.'x.y'", 2), ("none", None), ("a.\\'", 3), ("text", "t")])
def test_values_are_found(path, value):
    """The value at a path is found, even if it is null. (P88, P90)"""
    assert value_at_path(EVENT, path_segments(path)) == value


@pytest.mark.parametrize(
    ("path", "segment"),
    [("x", "x"), ("a.x", "x"), ("a.b.x.c", "x"), ("list.0", "0"), ("text.t", "t"), ("none.x", "x"), ("list.c", "c")],
)
def test_what_is_not_there(path, segment):
    """The message names the missing segment; arrays, strings and null contain no members. (P88, P89)"""
    with pytest.raises(NoValueAtPath) as caught:
        value_at_path(EVENT, path_segments(path))
    assert str(caught.value) == f"field {segment} doesn't exist."
