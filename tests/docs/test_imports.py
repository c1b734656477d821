"""The modules of the package import each other without circles, and inside functions only for a stated benefit."""

import ast
import re
from pathlib import Path

from tests.support.imports import circles, imports_by_module, imports_inside_functions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
TABLE = PAGE[PAGE.index("## What is loaded late") :].partition("\n## ")[0]


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside functions and imports only for types count, too, because a reader has to follow them."""
    assert circles(imports_by_module()) == []


def test_a_circle_is_found():
    """A circle of imports is found, with the path around it."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c", "b"], ["c", "b", "c"]]


def test_what_is_imported_inside_functions_is_in_the_table():
    """An import inside a function hides what a module needs, so the table states the benefit of each such import, and
    has no other rows.
    """
    allowed = {
        (importer, imported)
        for importer, imports in re.findall(r"^\| `([\w/]+\.py)` \| ([^|]+) \|", TABLE, re.MULTILINE)
        for imported in re.findall(r"`([\w.]+)`", imports)
    }
    assert imports_inside_functions() == allowed


def test_tests_import_the_cdk_when_they_run():
    """Each process of a run imports every module of tests, and the CDK starts node: with `LazyModule`, only the
    process that runs the tests of the CDK does.
    """
    starts_node = {"aws_cdk", "constructs", "cdk_nag", "infra.app", "infra.review", "infra.stack"}
    for path in (ROOT / "nakadi_cdk").glob("*.py"):
        if re.search(r"^(from|import) (aws_cdk|constructs)\b", path.read_text("utf-8"), re.MULTILINE):
            starts_node.add(f"nakadi_cdk.{path.stem}")
    assert "nakadi_cdk.broker" in starts_node
    assert "nakadi_cdk.context" not in starts_node
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.parse(text).body if any(each in text for each in starts_node) else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                assert module not in starts_node, f"{path.relative_to(ROOT)}:{node.lineno}"
