"""Paths in a schema."""

from nakadi.schemas.document import ROOT_PATH


def test_a_path_is_written_in_three_ways():
    """Reports of changes show names unchanged, paths of forbidden keywords escape them, and a fault's path is part of a
    URL. (R205)"""
    path = ROOT_PATH / "properties" / "a/b~c" / "$ref *-._ü"
    assert (ROOT_PATH.text, ROOT_PATH.pointer, ROOT_PATH.url_fragment) == ("#/", "#", "#")
    assert path.text == "#/properties/a/b~c/$ref *-._ü"
    assert path.pointer == "#/properties/a~1b~0c/$ref *-._ü"
    assert path.url_fragment == "#/properties/a%2Fb%7Ec/%24ref+*-._%C3%BC"


def test_steps_lead_down_from_a_path():
    """Several steps at once lead to the same path as the steps one after another. (R205)"""
    assert (ROOT_PATH / "items").with_appended_steps(["0", "a"]).text == "#/items/0/a"
    assert ROOT_PATH.with_appended_steps([]) is ROOT_PATH


def test_a_path_may_be_deeper_than_the_call_stack():
    """A path may be deeper than any call stack. (R205)"""
    path = ROOT_PATH
    for _ in range(20_000):
        path = path / "a"
    assert len(path.text) == 1 + 2 * 20_000
