"""Places in a schema."""

from nakadi.schemas.place import ROOT


def test_places_are_told_in_three_ways():
    """A change tells names as they are, what is not permitted escapes them, and a fault is a part of a URL. (R205)"""
    place = ROOT / "properties" / "a/b~c" / "$ref *-._ü"
    assert (ROOT.path, ROOT.pointer, ROOT.fragment) == ("#/", "#", "#")
    assert place.path == "#/properties/a/b~c/$ref *-._ü"
    assert place.pointer == "#/properties/a~1b~0c/$ref *-._ü"
    assert place.fragment == "#/properties/a%2Fb%7Ec/%24ref+*-._%C3%BC"


def test_a_way_leads_down():
    """A way of several steps leads where the steps lead. (R205)"""
    assert (ROOT / "items").down(["0", "a"]).path == "#/items/0/a"
    assert ROOT.down([]) is ROOT


def test_deep_places_are_no_trouble():
    """A place may be deeper than any call stack. (R205)"""
    place = ROOT
    for _ in range(20_000):
        place = place / "a"
    assert len(place.path) == 1 + 2 * 20_000
