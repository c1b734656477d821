"""The page on releases names existing commands, and the changelog names changes that cannot be reverted."""

import importlib
import re

import pytest

from nakadi.engines.sqlite.file import FILE_VERSION
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "releasing.md").read_text()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
TARGETS = sorted({each for line in re.findall(r"`make ([a-z -]+)", PAGE) for each in line.split()})
PYTHON = next(line for line in PAGE.splitlines() if line.startswith("| Python |"))
PUBLIC = [each for each in re.findall(r"`(nakadi_[\w.]+)`", PYTHON) if each != "nakadi_broker"]


@pytest.mark.parametrize("target", TARGETS)
def test_the_checklist_has_commands_that_exist(target):
    """Each command of the checklist is a target of `make`."""
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_modules_name_what_is_public(name):
    """Each public module has `__all__`. The test does not look up the names, because those of the constructs would
    start node.
    """
    assert importlib.import_module(name).__all__


def test_the_changelog_says_what_there_is_no_way_back_from():
    """The newest version that gave the data file its format says so in its first paragraph."""
    sections = re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]
    said = [section for section in sections if f"the file has format {FILE_VERSION}" in section]

    assert len(said) == 1
    assert said[0].split("\n\n")[1].startswith("**No way back:**")
