"""Lists the commands of the command line, and checks whether examples of them can be parsed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from unittest.mock import patch

import click

from nakadi_cli.commands import Command
from nakadi_cli.program import nakadi

OPERATORS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "2>"}


def every_command() -> list[tuple[str, click.Command]]:
    """All commands, each as the list of its words."""
    return list(_commands(nakadi, ""))


def count_parsed_calls(line: str) -> int:
    """Parse each call of `nakadi` in a line for a shell without running it, and return how many there were."""
    calls = 0
    words: list[str] = []
    for word in [*shlex.split(line, comments=True), ";"]:
        if word not in OPERATORS:
            words.append(word)
            continue
        if words and words[0] == "nakadi":
            parse(words[1:])
            calls += 1
        words = []
    return calls


def parse(arguments: list[str]) -> None:
    """Parse a command's arguments without running it; a mistake is raised as UsageError."""
    with patch.object(Command, "invoke", lambda _command, _context: None):
        nakadi.main(arguments, prog_name="nakadi", standalone_mode=False)


def _commands(group: click.Group, before: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command
