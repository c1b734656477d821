"""`nakadi event-types`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from nakadi_cli.api import path
from nakadi_cli.commands import Group, ask_for, chosen_format, connect, print_note, print_result, subcommand
from nakadi_cli.cursors import fetch_partitions
from nakadi_cli.failures import BadInput
from nakadi_cli.files import read_definition
from nakadi_cli.schema_documents import with_readable_schema, with_schema_as_text

COLUMNS = {
    "NAME": lambda each: each["name"],
    "CATEGORY": lambda each: each["category"],
    "OWNER": lambda each: each["owning_application"],
    "SCHEMA": lambda each: each["schema"]["version"],
    "COMPATIBILITY": lambda each: each["compatibility_mode"],
    "CLEANUP": lambda each: each["cleanup_policy"],
    "UPDATED": lambda each: each["updated_at"],
}


@click.group(cls=Group)
def event_types() -> None:
    """List, show, create, change and delete event types."""


@subcommand(
    event_types,
    "list",
    "nakadi event-types list",
    "nakadi event-types list --owner shop --category business",
    "nakadi event-types list 'order.*' -o json",
)
@click.argument("pattern", default="*")
@click.option("--owner", help="Only those of this application.")
@click.option("--category", type=click.Choice(["business", "data", "undefined"]), help="Only those of this category.")
def list_event_types(pattern: str, owner: str | None, category: str | None) -> None:
    """List event types: all, or those whose names match a PATTERN with * and ?."""
    from fnmatch import fnmatchcase

    found = connect().get("/event-types", **({"owning_application": owner} if owner else {}))
    fit = (each for each in found if fnmatchcase(each["name"], pattern))
    print_result([each for each in fit if category in {None, each["category"]}], COLUMNS)


@subcommand(event_types, "get", "nakadi event-types get order.placed", "nakadi event-types get order.placed -o json")
@click.argument("name")
def get_event_type(name: str) -> None:
    """Show an event type, with its schema as an object instead of text."""
    found = connect().get(path("event-types", name))
    print_result(with_readable_schema(found))


@subcommand(event_types, "partitions", "nakadi event-types partitions order.placed")
@click.argument("name")
def list_partitions(name: str) -> None:
    """List the partitions of an event type, with their oldest and newest offsets."""
    print_result(
        fetch_partitions(connect(), name),
        {
            "PARTITION": lambda each: each["partition"],
            "OLDEST": lambda each: each["oldest_available_offset"],
            "NEWEST": lambda each: each["newest_available_offset"],
        },
    )


@subcommand(
    event_types,
    "create",
    "nakadi event-types create -f order.placed.json",
    "nakadi event-types get order.placed | sed 's/order.placed/order.test/' | nakadi event-types create -f -",
    shows=False,
)
@click.option("-f", "--file", "file", required=True, help="The definition in JSON or YAML; - reads standard input.")
def create_event_type(file: str) -> None:
    """Create an event type. You can write its schema as an object instead of text."""
    definition = read_definition(file, "an event type")
    connect().post("/event-types", with_schema_as_text(definition))
    print_note(f"Created event type {definition.get('name')}.")


@subcommand(
    event_types,
    "update",
    "nakadi event-types update -f order.placed.yaml",
    "nakadi event-types get order.placed > it.yaml && vi it.yaml && nakadi event-types update -f it.yaml",
    shows=False,
)
@click.option("-f", "--file", "file", required=True, help="The definition in JSON or YAML; - reads standard input.")
@click.option("--force", multiple=True, help="A subscription that may lose the members that the new schema removes.")
def update_event_type(file: str, force: tuple[str, ...]) -> None:
    """Change an event type to match a definition, such as the edited output of `get`.

    The broker refuses a schema that removes declared members of subscriptions, unless you name these with
    --force.
    """
    definition = read_definition(file, "an event type")
    if not isinstance(name := definition.get("name"), str):
        raise BadInput(f"{file} does not name an event type.")
    connect().put(path("event-types", name), with_schema_as_text(definition), **({"force": force} if force else {}))
    print_note(f"Changed event type {name}.")


READER_COLUMNS: dict[str, Callable[[Any], object]] = {
    "SUBSCRIPTION": lambda each: each["subscription_id"],
    "OWNER": lambda each: each["owning_application"],
    "GROUP": lambda each: each["consumer_group"],
    "READS": lambda each: "unknown" if each["reads"] is None else ", ".join(each["reads"]),
}


@subcommand(
    event_types,
    "readers",
    "nakadi event-types readers order.placed",
    "nakadi event-types readers order.placed -o json",
)
@click.argument("name")
def list_readers(name: str) -> None:
    """Show the readers of an event type's members, and the members that no subscription declares."""
    found = connect().get(path("event-types", name, "readers"))
    if chosen_format("table") != "table":
        print_result(found)
        return
    print_result(found["readers"], READER_COLUMNS)
    if found["unread"]:
        print_note(f"No subscription declares that it reads {', '.join(found['unread'])}.")


@subcommand(event_types, "delete", "nakadi event-types delete order.test", "nakadi event-types delete order.test --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete_event_type(name: str, yes: bool) -> None:
    """Delete an event type, with all its events. The command asks you to type the name."""
    api = connect()
    ask_for(name, f"This deletes all events of {name}. Type its name", skip=yes)
    api.delete(path("event-types", name))
    print_note(f"Deleted event type {name}.")
