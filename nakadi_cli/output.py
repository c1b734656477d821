"""Prints results as JSON, as YAML, or as a table."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import click

Format = Literal["json", "yaml", "table"]
FORMATS: tuple[Format, ...] = ("json", "yaml", "table")

# Terminals interpret these characters, which events and names from other people may contain.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# JSON leaves these unchanged, and some terminals obey them.
_OBEYED = re.compile(r"[\x7f-\x9f]")
_WIDEST = 10_000


def show_value(value: Any, how: Format, columns: Mapping[str, Callable[[Any], object]] | None = None) -> None:
    """Print a value; `columns` name the columns of a table for a list."""
    if how == "json":
        click.echo(as_json(value, indent=2))
    elif how == "yaml":
        click.echo(as_yaml(value), nl=False)
    else:
        _show_table(value, columns)


def as_yaml(value: Any) -> str:
    """Write a value as YAML, with long texts in separate lines."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    written = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
    return written.removesuffix("...\n")


def format_count(number: int, noun: str) -> str:
    """Write a number with a noun, which gets an s unless the number is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def harmless(text: str) -> str:
    """Replace characters that a terminal would interpret."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def compact(value: object) -> str:
    """Write a value into one cell or line."""
    if value is None:
        return ""
    return value if isinstance(value, str) else as_json(value)


def as_json(value: object, indent: int | None = None) -> str:
    """Write a value as readable JSON that no terminal interprets."""
    return harmless_json(json.dumps(value, ensure_ascii=False, indent=indent))


def harmless_json(text: str) -> str:
    """Escape the characters that a terminal would interpret, in JSON that somebody else wrote."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _show_table(value: Any, columns: Mapping[str, Callable[[Any], object]] | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if columns is None:
        pairs: Iterable[Any] = value.items() if isinstance(value, dict) else enumerate(value)
        value, columns = list(pairs), {"FIELD": lambda pair: pair[0], "VALUE": lambda pair: pair[1]}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for item in value:
        table.add_row(*(Text(harmless(compact(cell(item)))) for cell in columns.values()))
    # The terminal wraps a long row, so that copied text stays whole.
    console = Console(file=sys.stdout, highlight=False, width=_WIDEST)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()), color=True)
