"""`nakadi types`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from nakadi_cli.commands import command, print_note
from nakadi_cli.failures import BadInput, CheckFoundProblems
from nakadi_cli.files import read_text
from nakadi_cli.schema_sources import fetch_event_type, read_event_type

if TYPE_CHECKING:
    from nakadi_cli.generating.declarations import Declarations

LANGUAGES = ("python", "typescript", "kotlin", "go", "java")
MODELS = ("pydantic", "msgspec", "dataclass")

# The languages with a type for moments, without another library.
_WITH_DATES = ("python", "go", "java")
_WITH_PACKAGE = ("kotlin", "go", "java")
_PACKAGE = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*")
_CLASS = re.compile(r"[A-Z][A-Za-z0-9_]*")
_DEFAULT_CLASS = "Events"


@command(
    "types",
    "nakadi types python order.placed shipment.delayed --to events.py",
    "nakadi types python order.placed@1.0.0 --models msgspec",
    "nakadi types typescript -f order.placed.json",
    "nakadi types kotlin order.placed --package shop.events --to OrderPlaced.kt",
    "nakadi types go order.placed --package events --to events.go --check",
    "nakadi types java order.placed --package shop --to src/main/java/shop/Events.java",
    shows=False,
)
@click.argument("language", type=click.Choice(LANGUAGES))
@click.argument("event_types", nargs=-1, metavar="[EVENT_TYPE[@VERSION]]...")
@click.option("-f", "--file", "files", multiple=True, help="A JSON schema, or the definition of an event type.")
@click.option("--to", help="The file to write, instead of standard output.")
@click.option("--check", is_flag=True, help="Write nothing, and exit with 1 if the file in --to has other types.")
@click.option("--models", type=click.Choice(MODELS), help="The classes for Python.  [default: pydantic]")
@click.option("--package", help="The package for Kotlin, Go or Java.")
@click.option("--native-dates", is_flag=True, help="Use the language's own type for date-time, instead of text.")
@click.option(
    "--without-metadata",
    is_flag=True,
    help="Omit the members that the category adds: metadata, and those of data events.",
)
def types(
    language: str,
    event_types: tuple[str, ...],
    files: tuple[str, ...],
    to: str | None,
    check: bool,
    without_metadata: bool,
    **style: Any,
) -> None:
    """Write the types of events as source text in LANGUAGE: python, typescript, kotlin, go or java.

    Without a version, the newest schema is used; the text names its version. The same schemas give the same text, so
    --check in a pipeline notices a schema that changed.
    """
    from nakadi_cli.generating.reading import read_declarations

    chosen = Style(language, **style)
    chosen.check()
    if not event_types and not files:
        raise BadInput("Name an event type, or a file with -f.")
    if check and to is None:
        raise BadInput("Name the file to check with --to.")
    class_name = _java_class(to) if language == "java" else _DEFAULT_CLASS
    sources = [fetch_event_type(each) for each in event_types] + [read_event_type(each) for each in files]
    declarations = read_declarations(
        [each.without_metadata() if without_metadata else each for each in sources], reserved=[class_name]
    )
    text = chosen.write(declarations, class_name)
    if to is None:
        click.echo(text, nl=False)
    elif not check:
        _write_file(to, text)
        print_note(f"Wrote {to}.")
    elif read_text(to) != text:
        raise CheckFoundProblems(f"{to} does not have the types of these schemas; write it again without --check.")


class Style(Struct, frozen=True):
    """How to write the types; None means the language's default."""

    language: str
    models: str | None
    package: str | None
    native_dates: bool

    def check(self) -> None:
        """Raise `BadInput` for an option that has no meaning for the language."""
        if self.models is not None and self.language != "python":
            raise BadInput(f"--models has no meaning for {self.language}.")
        if self.package is not None and (self.language not in _WITH_PACKAGE or not _is_package(self.package)):
            raise BadInput(f"{self.package} is not a package for {self.language}.")
        if self.native_dates and (self.language not in _WITH_DATES or self.models == "dataclass"):
            raise BadInput(
                f"--native-dates is for {', '.join(_WITH_DATES)}, and not for dataclasses, which nothing converts."
            )

    def write(self, declarations: Declarations, class_name: str) -> str:
        """Return source text. `class_name` is for Java."""
        match self.language:
            case "python":
                from nakadi_cli.generating.python import Models, write_python

                return write_python(declarations, Models(self.models or "pydantic"), has_native_dates=self.native_dates)
            case "typescript":
                from nakadi_cli.generating.typescript import write_typescript

                return write_typescript(declarations)
            case "kotlin":
                from nakadi_cli.generating.kotlin import write_kotlin

                return write_kotlin(declarations, self.package)
            case "go":
                from nakadi_cli.generating.go import write_go

                return write_go(declarations, self.package, has_native_dates=self.native_dates)
        from nakadi_cli.generating.java import write_java

        return write_java(declarations, self.package, class_name, has_native_dates=self.native_dates)


def _is_package(text: str) -> bool:
    """Whether this names a package, in small letters; the compiler refuses keywords."""
    return _PACKAGE.fullmatch(text) is not None


def _java_class(to: str | None) -> str:
    """The class of a file: Java requires that it has the file's name."""
    if to is None:
        return _DEFAULT_CLASS
    name = Path(to).stem
    if not _CLASS.fullmatch(name):
        raise BadInput(f"{to} cannot be a file of Java: {name} is not the name of a class.")
    return name


def _write_file(to: str, text: str) -> None:
    try:
        Path(to).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{to} cannot be written: {error.strerror}.") from error
