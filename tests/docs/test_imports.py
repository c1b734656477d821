"""How the modules of the package import each other."""

import re
from pathlib import Path

from tests.support.imports import circles, imports_by_module, imports_inside_functions

PAGE = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
TABLE = PAGE[PAGE.index("## What is loaded late") :].partition("\n## ")[0]


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside of functions count, and so do those for types alone: a reader has to follow them too."""
    assert circles(imports_by_module()) == []


def test_a_circle_is_found():
    """The search itself."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c", "b"], ["c", "b", "c"]]


def test_what_is_imported_inside_functions_is_in_the_table():
    """An import inside a function hides what a module needs. The table says what each is worth, and has no others."""
    allowed = {
        (importer, imported)
        for importer, imports in re.findall(r"^\| `([\w/]+\.py)` \| ([^|]+) \|", TABLE, re.MULTILINE)
        for imported in re.findall(r"`([\w.]+)`", imports)
    }
    assert imports_inside_functions() == allowed
