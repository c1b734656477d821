"""Places in a schema."""

from nakadi.schemas.place import ROOT


def test_places_are_told_in_two_ways():
    """A change and a fault at the same place differ in how they tell the root only. (R205)"""
    place = ROOT / "properties" / "a/b"
    assert (ROOT.path, ROOT.pointer) == ("#/", "#")
    assert place.path == place.pointer == "#/properties/a/b"


def test_deep_places_are_no_trouble():
    """A place may be deeper than any call stack. (R205)"""
    place = ROOT
    for _ in range(20_000):
        place = place / "a"
    assert len(place.path) == 1 + 2 * 20_000
