"""How tests are dealt out to two processes, and where the figures go that they record."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# What takes long to begin is begun in one process only: a Spark session, templates, the AWS shape.
TOGETHER = ("glue_jobs", "infra")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares a module, and its fixtures, stays together."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))


def _group(item: pytest.Item) -> str:
    folder, *_ = parts = item.path.relative_to(TESTS).parts
    if folder == "e2e" and "aws-local" in item.name:
        return "aws-local"
    return folder if folder in TOGETHER else "/".join(parts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests counted: `record_property("figures", "acknowledged 7 found 7 lost 0")`."""
    figures = [
        f"{report.head_line}: {value}"
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "figures"
    ]
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)
