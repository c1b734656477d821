"""The page on operations helps the person who receives an alert."""

import re

import pytest

from nakadi_cli.monitoring.alerts import ALERTS
from tests.support.cli import count_parsed_calls
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()
CHAPTER = PAGE[PAGE.index("## Alerts of Prometheus") :].partition("\n## ")[0]
SECTIONS = {name: text for name, _, text in (each.partition("\n") for each in CHAPTER.split("\n### ")[1:])}
COMMANDS = sorted({each for each in re.findall(r"`(nakadi [^`]+)`", CHAPTER) if "serve" not in each})


def test_each_alert_has_a_section():
    """The page has a section for each alert, in the order of the alerts."""
    assert list(SECTIONS) == [each.name for each in ALERTS]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_a_section_says_what_to_do(alert):
    """The section of an alert says what it means, how to look, and what to do; the alert links to the section."""
    headings = re.findall(r"^\*\*(\w+)\*\*: .", SECTIONS[alert.name], re.MULTILINE)

    assert headings == ["Meaning", "Look", "Do"]
    assert alert.page == f"docs/operations.md#{alert.name.lower()}"


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_in_a_section_can_be_parsed(line):
    """Each command on the page, even behind a pipe, exists with its options and arguments."""
    assert count_parsed_calls(line) == 1 + line.count(" | nakadi ")
