"""How the modules of the package import each other."""

from tests.support.imports import circles, imports_by_module


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside of functions count, and so do those for types alone: a reader has to follow them too."""
    assert circles(imports_by_module()) == []


def test_a_circle_is_found():
    """The search itself."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c", "b"], ["c", "b", "c"]]
