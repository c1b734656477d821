"""Is every metric explained, as it is in the code, and shown to move?"""

import re
from pathlib import Path

import pytest

from nakadi.common.metrics import Metrics
from nakadi.streaming.session import StreamEnd
from nakadi.subscriptions.stream.actions import SessionEnd

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(nakadi_\w+)` \| (\w+) \| (.*?) ?\| (.+) \|$", re.MULTILINE)

EXPLAINED = {name: rest for name, *rest in ROW.findall((ROOT / "docs" / "metrics.md").read_text())}
TESTS = "\n".join(each.read_text() for each in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("metric", Metrics().all, ids=lambda metric: metric.definition.name)
def test_a_metric_is_explained(metric):
    """Each metric has a row with its kind, its labels and its meaning, and a test that names it."""
    definition = metric.definition
    labels = ", ".join(f"`{each}`" for each in definition.labels)

    assert EXPLAINED[definition.name] == [metric.kind, labels, definition.meaning]
    assert re.search(rf'"{definition.name}(_count|_sum|_bucket)?"', TESTS), "no test shows that it moves"


def test_no_other_metric_is_explained():
    """A row for a metric that does not exist would mislead."""
    assert set(EXPLAINED) == {metric.definition.name for metric in Metrics().all}


def test_every_end_of_a_stream_is_explained():
    """Whoever looks for a consumer that is stuck finds the reasons why streams ended, and no others."""
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
