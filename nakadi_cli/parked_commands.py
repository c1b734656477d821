"""`nakadi parked`."""

from __future__ import annotations

from typing import Any

import click

from nakadi_cli.api import path
from nakadi_cli.commands import Group, connect, print_note, print_result, subcommand
from nakadi_cli.failures import BadInput

_SUBSCRIPTION = "0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11"
_EVENT = "order.placed:0:001-0001-000000000000000012"


@click.group(cls=Group)
def parked() -> None:
    """List events that no consumer could process; skip or redrive them."""


@subcommand(
    parked,
    "list",
    f"nakadi parked list {_SUBSCRIPTION}",
    f"nakadi parked list {_SUBSCRIPTION} --event-type order.placed --key 4711 -o json",
)
@click.argument("subscription")
@click.option("--event-type", help="Only events of this event type.")
@click.option("--partition", help="Only events of this partition.")
@click.option("--key", help="Only events with this key.")
def list_parked(subscription: str, event_type: str | None, partition: str | None, key: str | None) -> None:
    """List the parked events of a subscription, including those that wait after them with the same key."""
    filters: dict[str, Any] = {"event_type": event_type, "partition": partition, "key": key}
    chosen = {name: value for name, value in filters.items() if value is not None}
    found = list(connect().items(path("subscriptions", subscription, "parked-events"), **chosen))
    print_result(
        found,
        {
            "ID": lambda each: each["id"],
            "KEY": lambda each: each.get("key"),
            "STATE": lambda each: each["state"],
            "FAILED": lambda each: each["failed_commits"],
            "PARKED": lambda each: each["parked_at"],
        },
    )


@subcommand(parked, "show", f"nakadi parked show {_SUBSCRIPTION} {_EVENT}")
@click.argument("subscription")
@click.argument("event")
def show_parked(subscription: str, event: str) -> None:
    """Show the parked EVENT with this id, as it was published."""
    print_result(connect().get(path("subscriptions", subscription, "parked-events", event)))


@subcommand(parked, "skip", f"nakadi parked skip {_SUBSCRIPTION} {_EVENT}", shows=False)
@click.argument("subscription")
@click.argument("events", nargs=-1, required=True)
def skip(subscription: str, events: tuple[str, ...]) -> None:
    """Skip the parked EVENTS with these ids permanently."""
    api = connect()
    for event in events:
        api.delete(path("subscriptions", subscription, "parked-events", event))
        print_note(f"Skipped {event}.")


@subcommand(
    parked,
    "redrive",
    f"nakadi parked redrive {_SUBSCRIPTION} {_EVENT}",
    f"nakadi parked redrive {_SUBSCRIPTION} --all",
    shows=False,
)
@click.argument("subscription")
@click.argument("events", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All parked events of the subscription.")
def redrive(subscription: str, events: tuple[str, ...], everything: bool) -> None:
    """Redrive parked EVENTS, each with the others of its key, in order.

    The broker ends open streams.
    """
    if everything == bool(events):
        raise BadInput("Name the events to redrive, or pass --all.")
    api = connect()
    if everything:
        api.post(path("subscriptions", subscription, "parked-events", "redrive"))
        print_note("The next streams get all parked events.")
    for event in events:
        api.post(path("subscriptions", subscription, "parked-events", event, "redrive"))
        print_note(f"The next streams get {event} and the others of its key.")
