"""The documentation explains every metric correctly, and for each, a test shows that it changes."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from nakadi.common.metrics import Metrics
from nakadi.streaming.session import StreamEnd
from nakadi.subscriptions.stream.actions import SessionEnd

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(nakadi_\w+)` \| (\w+) \| (.*?) ?\| (.+) \|$", re.MULTILINE)

EXPLAINED = {name: rest for name, *rest in ROW.findall((ROOT / "docs" / "metrics.md").read_text())}

READERS = {"measure_change", "read_sample", "sample_value"}
"""The functions with which tests read a sample: `tests/support/metrics.py`, `tests/e2e/test_metrics.py`,
`tests/unit/common/test_metrics.py`."""


def find_measured_samples(source: str) -> set[str]:
    """The samples that a module of tests reads, except those that it only expects to be zero. If a function reads a
    sample whose name is in a variable, every metric counts that the function or its parameters name.
    """
    functions = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef)]
    return {name for function in functions for name in _samples_read_in(function)}


def _samples_read_in(function: ast.FunctionDef) -> Iterator[str]:
    zeros = {
        id(node.left) for node in ast.walk(function) if isinstance(node, ast.Compare) and _holds_without_counting(node)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and _name_of(node.func) in READERS and id(node) not in zeros:
            read = {name for argument in node.args for name in _texts_in(argument)}
            yield from read or _texts_in(function)


def _holds_without_counting(node: ast.Compare) -> bool:
    [operator, *_], [right, *_] = node.ops, node.comparators
    return isinstance(operator, ast.Eq | ast.GtE) and isinstance(right, ast.Constant) and right.value == 0


def _name_of(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else ""


def _texts_in(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.startswith("nakadi_"):
            yield each.value


@cache
def measured_samples() -> frozenset[str]:
    """The samples that any test reads."""
    return frozenset(
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        if "nakadi_" in (text := path.read_text())
        for name in find_measured_samples(text)
    )


@pytest.mark.parametrize("metric", Metrics().all, ids=lambda metric: metric.definition.name)
def test_a_metric_is_explained(metric):
    """Each metric has a row with its kind, labels and meaning, and a test that measures it."""
    definition = metric.definition
    labels = ", ".join(f"`{each}`" for each in definition.labels)

    assert EXPLAINED[definition.name] == [metric.kind, labels, definition.meaning]
    samples = {f"{definition.name}{ending}" for ending in ("", "_count", "_sum", "_bucket")}
    assert samples & measured_samples(), "no test shows that it moves"


@pytest.mark.parametrize(
    ("body", "measured"),
    [
        ("assert measure_change('nakadi_a_total') == 1", {"nakadi_a_total"}),
        ("until(lambda: sample_value(scrape(api), 'nakadi_a_count', reason='x') >= 1)", {"nakadi_a_count"}),
        (
            "for name in ('nakadi_a', 'nakadi_b'):\n        assert read_sample(metrics, name) > 0",
            {"nakadi_a", "nakadi_b"},
        ),
        ("assert 'nakadi_a_total' in text", set()),
        ("print('nakadi_b')\n    assert measure_change('nakadi_a_total') == 1", {"nakadi_a_total"}),
        ("assert measure_change('nakadi_a_total') == 0", set()),
    ],
    ids=["argument", "waiting", "variable", "named alone", "named beside another", "zero"],
)
def test_a_metric_that_a_test_names_is_not_measured_yet(body, measured):
    """Only a test that reads the value of a metric counts as measuring it; a test that merely contains the name does
    not.
    """
    assert find_measured_samples(f"def test_it():\n    {body}\n") == measured


def test_no_other_metric_is_explained():
    """The table has no row for a metric that does not exist."""
    assert set(EXPLAINED) == {metric.definition.name for metric in Metrics().all}


def test_every_end_of_a_stream_is_explained():
    """The page lists exactly the reasons with which streams end, for a person who looks for a stuck consumer."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    [line] = [each for each in page.splitlines() if each.startswith("* For ended streams,")]
    names = set(re.findall(r"`([a-z_]+)`", line)) - {"reason"}
    without_reason = {"cut_off", "failed"}
    assert names == {each.name.lower() for each in (*StreamEnd, *SessionEnd)} | without_reason


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_pages_name_metrics_that_there_are(page):
    """Every metric that a page names, alone or in a query, exists."""
    known = {metric.definition.name for metric in Metrics().all}
    named = set(re.findall(r"\bnakadi_\w+_(?:total|seconds|bytes|count|sum|bucket)\b", page.read_text()))

    assert {re.sub(r"_(count|sum|bucket)$", "", name) for name in named} <= known


def test_metrics_stand_under_the_heading_of_their_group():
    """The page and the dashboard show metrics in the same groups."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    found = {
        name: heading
        for heading, _, text in (each.partition("\n") for each in page.split("\n## ")[1:])
        for name, *_ in ROW.findall(text)
    }
    assert found == {metric.definition.name: metric.definition.group for metric in Metrics().all}
