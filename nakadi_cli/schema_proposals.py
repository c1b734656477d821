"""`nakadi schema infer`, `from-model` and `example`."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from nakadi_cli.commands import chosen_format, command, connect, noticing_signals, print_note
from nakadi_cli.failures import BadInput
from nakadi_cli.output import as_json, as_yaml, format_count
from nakadi_cli.reading_events import open_input, read_events

if TYPE_CHECKING:
    pass

CATEGORIES = ("undefined", "business", "data")
_MOST_EXAMPLES = 1_000
_EXAMPLES_TO_BREAK = 8

_category = click.option(
    "--category",
    type=click.Choice(CATEGORIES),
    help="The category of the event type: the schema leaves out metadata and the members that data events add."
    "  [default: inferred from the events]",
)


@command(
    "infer",
    "nakadi schema infer orders.ndjson > order.schema.json",
    "nakadi schema infer --event-type order.placed --last 1000",
    "nakadi tail order.placed --from begin --no-follow -o json | nakadi schema infer - --no-enums",
)
@click.argument("file", required=False)
@click.option("--event-type", help="Read events of this event type, instead of a file.")
@click.option(
    "--last",
    type=click.IntRange(1, 1_000_000),
    default=1_000,
    show_default=True,
    help="How many events of each partition of the event type to read.",
)
@click.option("--no-enums", is_flag=True, help="Do not propose enums for texts that occur repeatedly.")
@_category
def infer_schema(file: str | None, event_type: str | None, last: int, no_enums: bool, category: str | None) -> None:
    """Propose a schema from the events in FILE, one on each line or a JSON array; - is standard input.

    Each of these events is valid under the schema, which names the members, their types, and the required ones. It
    recognizes null, the formats date-time, uuid and email, and enums of a few texts. An object with many or numbered
    names becomes a map. Read the proposal before you use it: a sample does not show future events.
    """
    from nakadi.model.event_type import Category
    from nakadi_cli.generating.inference import infer_from_events

    if (file is None) == (event_type is None):
        raise BadInput("Name a file, or an event type with --event-type.")
    texts = _texts_in_file(file) if file else _texts_of_event_type(event_type or "", last)
    with noticing_signals():
        inferred = infer_from_events(texts, Category(category) if category else None, has_enums=not no_enums)
    _show_schema(inferred.schema)
    print_note(f"Read {format_count(inferred.count, 'event')} of the category {inferred.category.value}.")


@command(
    "from-model",
    "nakadi schema from-model shop.events:OrderPlaced > order.schema.json",
    "nakadi schema from-model shop.events:OrderPlaced --category undefined",
    connects=False,
)
@click.argument("model", metavar="MODULE:CLASS")
@_category
def schema_from_model(model: str, category: str | None) -> None:
    """Write the schema of a class: a pydantic model, a msgspec Struct, or a dataclass.

    The module is imported from the current folder or from installed packages, so its code runs.
    """
    from nakadi.model.event_type import Category
    from nakadi_cli.generating.model_schemas import as_draft_4, guessed_category, owned_part
    from nakadi_cli.schema_sources import parse_schema

    schema = as_draft_4(_schema_of_class(model))
    chosen = Category(category) if category else guessed_category(schema.get("properties", {}))
    owned = owned_part(schema, chosen)
    parse_schema(json.dumps(owned), model, chosen)
    _show_schema(owned)
    _note_language(owned)


@command(
    "example",
    "nakadi schema example order.placed -n 3 | nakadi publish order.placed -",
    "nakadi schema example order.placed@1.0.0",
    "nakadi schema example order.schema.json --invalid",
)
@click.argument("source", metavar="EVENT_TYPE[@VERSION]|FILE")
@click.option(
    "-n", "--number", type=click.IntRange(1, _MOST_EXAMPLES), default=1, show_default=True, help="How many events."
)
@click.option("--invalid", is_flag=True, help="Generate invalid events: one for each rule of the schema.")
def example_events(source: str, number: int, invalid: bool) -> None:
    """Generate events that the schema accepts, one on each line. An argument that is not a file is an event type.

    The first event has every member, the second only the required ones. The same schema gives the same events.

    With --invalid, each line has an event that breaks exactly one rule, with the rule's position in the schema and the
    broker's explanation. The command omits and counts rules that cannot be broken alone.
    """
    from nakadi_cli.generating.examples import make_examples
    from nakadi_cli.generating.violations import break_rules
    from nakadi_cli.schema_sources import fetch_event_type, read_event_type

    is_file = source == "-" or os.path.exists(source) or source.endswith((".json", ".yaml", ".yml"))  # noqa: PTH110
    event_type = read_event_type(source) if is_file else fetch_event_type(source)
    examples = make_examples(event_type.sample_schema, _EXAMPLES_TO_BREAK if invalid else number)
    if not invalid:
        _show_lines(examples)
        return
    violations = break_rules(event_type.effective_schema, examples)
    _show_lines(
        {"rule": each.rule.keyword, "at": each.rule.pointer, "explanation": each.explanation, "event": each.event}
        for each in violations.found
    )
    print_note(f"{format_count(len(violations.unbroken), 'rule')} cannot be broken alone, or no event was found.")
    if not violations.is_complete:
        print_note("The schema has more rules; these are the first ones.")


def _texts_in_file(file: str) -> Iterable[bytes]:
    with open_input(file) as stream:
        yield from (each.text for each in read_events(stream, file))


def _texts_of_event_type(event_type: str, last: int) -> Iterable[bytes]:
    """The newest events of each partition."""
    import msgspec

    from nakadi_cli.cursors import cursors_of_newest
    from nakadi_cli.patience import PATIENCE, client_failures, show_trouble
    from nakadi_client import read

    api = connect()
    start = cursors_of_newest(api, event_type, last)
    batches = read(
        api.connection.of_client,
        event_type,
        model=msgspec.Raw,
        start=start,
        follow=False,
        patience=PATIENCE,
        on_trouble=show_trouble,
    )
    with client_failures(), closing(batches):
        for batch in batches:
            yield from (bytes(each) for each in batch.events)


def _schema_of_class(model: str) -> Mapping[str, Any]:
    import msgspec

    module_name, colon, class_name = model.partition(":")
    if not colon:
        raise BadInput(f"{model} is not of the form MODULE:CLASS.")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  # as `python -m` does
    try:
        found: Any = importlib.import_module(module_name)
        for name in class_name.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise BadInput(f"{model} cannot be imported: {error}.") from error
    finally:
        sys.path.pop(0)
    try:
        if hasattr(found, "model_json_schema"):
            schema: Mapping[str, Any] = found.model_json_schema(mode="serialization")
            return schema
        return msgspec.json.schema(found)
    except Exception as error:  # libraries raise errors of many kinds for classes without a schema
        raise BadInput(f"{model} has no schema: {error}") from error


def _show_schema(schema: Mapping[str, Any]) -> None:
    if chosen_format("json") == "yaml":
        click.echo(as_yaml(schema), nl=False)
    else:
        click.echo(as_json(schema, indent=2))


def _show_lines(values: Iterable[Any]) -> None:
    for each in values:
        if chosen_format("json") == "yaml":
            click.echo(f"---\n{as_yaml(each)}", nl=False)
        else:
            click.echo(as_json(each))


def _note_language(schema: dict[str, Any]) -> None:
    """Print a note if an event type in mode `compatible` cannot have the schema."""
    from nakadi.model.outcomes import Invalid
    from nakadi.schemas.submission import check_restricted_language

    try:
        check_restricted_language(schema)
    except Invalid as error:
        print_note(f"The compatibility mode `compatible` does not allow this schema: {error}")
