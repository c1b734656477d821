"""The page on the command line names existing commands, and all of them."""

import re

import pytest

from nakadi_cli import failures
from tests.support.cli import count_parsed_calls, every_command
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "command-line.md").read_text()
README = (ROOT / "README.md").read_text()
EXAMPLES = [
    line
    for text in (PAGE, README)
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    for line in block.splitlines()
    if "nakadi " in line.split("#")[0] and not line.startswith(("make", "curl"))
]
CODES = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_can_be_parsed(line):
    """Every example is a command with existing options and arguments."""
    assert count_parsed_calls(re.sub(r"^ID=\$\((.*)\)$", r"\1", re.sub(r"source <\((.*)\)", r"\1", line))) > 0


@pytest.mark.parametrize("name", [name for name, _ in every_command()])
def test_a_command_is_on_the_page(name):
    """Every command has an example on the page."""
    assert any(re.search(rf"\bnakadi {name}\b", line) for line in EXAMPLES)


def test_every_exit_code_is_explained():
    """The page's table has every exit code with which a command can fail."""
    kinds = [each for each in vars(failures).values() if isinstance(each, type) and issubclass(each, failures.Failed)]

    assert {kind.exit_code for kind in kinds} <= CODES
