"""`nakadi subscriptions`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from time import sleep
from typing import Any

import click

from nakadi_cli.api import Api, path
from nakadi_cli.commands import (
    Group,
    ask_for,
    chosen_format,
    connect,
    noticing_signals,
    print_note,
    print_result,
    subcommand,
)
from nakadi_cli.cursors import Start, chosen_partitions, fetch_cursors, parse_start
from nakadi_cli.failures import BadInput, NotPermitted
from nakadi_cli.files import read_definition
from nakadi_cli.output import format_count

TROUBLES = ("unreadable", "stalled")
"""The members of a partition's statistics that say what is wrong with it, the cause before its consequence."""

LAG_COLUMNS: dict[str, Callable[[Any], object]] = {
    "EVENT TYPE": lambda row: row["event_type"],
    "PARTITION": lambda row: row["partition"],
    "STATE": lambda row: next((state for state in TROUBLES if row.get(state)), row["state"]),
    "WAITING": lambda row: row.get("unconsumed_events"),
    "SECONDS": lambda row: row.get("consumer_lag_seconds"),
    "STREAM": lambda row: row["stream_id"],
    "CURSOR": lambda row: row["committed"],
}
LIST_COLUMNS: dict[str, Callable[[Any], object]] = {
    "ID": lambda each: each["id"],
    "OWNER": lambda each: each["owning_application"],
    "GROUP": lambda each: each["consumer_group"],
    "EVENT TYPES": lambda each: ", ".join(each["event_types"]),
    "CREATED": lambda each: each["created_at"],
}
RESET_COLUMNS: dict[str, Callable[[Any], object]] = {
    "EVENT TYPE": lambda row: row["event_type"],
    "PARTITION": lambda row: row["partition"],
    "COMMITTED": lambda row: row["committed"],
    "TO": lambda row: row["to"],
    "WAITING": lambda row: row["waiting"],
    "WAITING THEN": lambda row: row["waiting_then"],
}


@click.group(cls=Group)
def subscriptions() -> None:
    """List, show, create, change, delete and reset subscriptions; see their lag."""


@subcommand(
    subscriptions,
    "list",
    "nakadi subscriptions list",
    "nakadi subscriptions list --owner shipping --event-type order.placed -o json",
    "nakadi subscriptions list --lag",
)
@click.option("--owner", help="Only those of this application.")
@click.option(
    "--event-type",
    multiple=True,
    help="Only those that read this event type; with several, only those that read all of them.",
)
@click.option("--lag", "with_lag", is_flag=True, help="Show the lag, beginning with those that are furthest behind.")
def list_subscriptions(owner: str | None, event_type: tuple[str, ...], with_lag: bool) -> None:
    """List subscriptions, the newest first.

    --lag shows how many events wait for each one, and for how many seconds the first of them has been waiting.
    """
    filters: dict[str, Any] = {"owning_application": owner, "event_type": event_type or None}
    filters = {name: value for name, value in filters.items() if value}
    api = connect()
    if not with_lag:
        print_result(list(api.items("/subscriptions", **filters)), LIST_COLUMNS)
        return
    found = sorted(_with_status(api, filters), key=lambda each: each["waiting"] or 0, reverse=True)
    columns = dict(list(LIST_COLUMNS.items())[:-1])
    print_result(
        found,
        {
            **columns,
            "STATE": lambda each: each["state"],
            "WAITING": lambda each: each["waiting"],
            "SECONDS": lambda each: each["seconds"],
        },
    )


@subcommand(subscriptions, "get", "nakadi subscriptions get 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11")
@click.argument("subscription")
def get_subscription(subscription: str) -> None:
    """Show a subscription."""
    print_result(connect().get(path("subscriptions", subscription)))


@subcommand(
    subscriptions,
    "create",
    "nakadi subscriptions create order.placed --owner shipping --from begin",
    "ID=$(nakadi subscriptions create order.placed order.paid --owner billing --group live)",
    "nakadi subscriptions create order.placed --owner billing --reads order_number,customer.id --projection",
    "nakadi subscriptions create -f subscription.yaml",
    shows=False,
)
@click.argument("event_types", nargs=-1)
@click.option("--owner", help="The application that consumes.")
@click.option("--group", help="Distinguishes subscriptions of one application to the same event types.")
@click.option("--from", "start", default="end", show_default=True, help="begin, end, a time, or an age.")
@click.option("--reads", multiple=True, help="The members of events that the subscription reads, separated by commas.")
@click.option("--projection", is_flag=True, help="Have the broker send only these members.")
@click.option("-f", "--file", "file", help="A whole definition in JSON or YAML instead; - reads standard input.")
def create_subscription(  # Click passes every option by its name
    event_types: tuple[str, ...],
    owner: str | None,
    group: str | None,
    start: str,
    reads: tuple[str, ...],
    projection: bool,
    file: str | None,
) -> None:
    """Create a subscription to EVENT_TYPES, and print its id. If it exists already, print its id."""
    api = connect()
    if file is not None:
        if event_types or owner or group or reads or projection:
            raise BadInput("Give the definition in the file or on the command line, not in both.")
        definition = read_definition(file, "a subscription")
    elif not event_types or not owner:
        raise BadInput("Give event types and --owner, or -f with a definition.")
    else:
        definition = {"owning_application": owner, "event_types": list(event_types)}
        definition |= {"consumer_group": group} if group else {}
        definition |= {"reads": [each for text in reads for each in text.split(",")]} if reads else {}
        definition |= {"projection": True} if projection else {}
        definition |= _read_from(api, event_types, parse_start(start, datetime.now(UTC)))
    click.echo(api.post("/subscriptions", definition)["id"])


@subcommand(
    subscriptions,
    "update",
    "nakadi subscriptions update 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11 -f subscription.yaml",
    shows=False,
)
@click.argument("subscription")
@click.option("-f", "--file", "file", required=True, help="A whole definition in JSON or YAML; - reads standard input.")
def update_subscription(subscription: str, file: str) -> None:
    """Change the authorization, labels, annotations and reads of a subscription to match a definition."""
    connect().put(path("subscriptions", subscription), read_definition(file, "a subscription"))
    print_note(f"Changed subscription {subscription}.")


@subcommand(
    subscriptions,
    "delete",
    "nakadi subscriptions delete 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11",
    shows=False,
)
@click.argument("subscription")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete_subscription(subscription: str, yes: bool) -> None:
    """Delete a subscription and its cursors. The command asks you to type its application."""
    api = connect()
    owner = api.get(path("subscriptions", subscription))["owning_application"]
    ask_for(owner, f"It belongs to {owner}. Type that to delete it", skip=yes)
    api.delete(path("subscriptions", subscription))
    print_note(f"Deleted subscription {subscription}.")


@subcommand(
    subscriptions,
    "objective",
    "nakadi subscriptions objective 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11",
    "nakadi subscriptions objective 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11 --percent 99 --within 30",
    "nakadi subscriptions objective 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11 --remove",
)
@click.argument("subscription")
@click.option("--percent", type=float, help="The share of events to consume in time.")
@click.option(
    "--within", type=int, help="The time within which consumers should commit an event, in seconds after it was stored."
)
@click.option("--remove", is_flag=True, help="Remove the objective.")
def subscription_objective(subscription: str, percent: float | None, within: int | None, remove: bool) -> None:
    """Show how well a subscription meets its objective and what delays it, or set the objective."""
    api, place = connect(), path("subscriptions", subscription, "objective")
    if (percent is None) != (within is None):
        raise BadInput("Give both --percent and --within.")
    if remove:
        if percent is not None:
            raise BadInput("Give an objective, or --remove, and not both.")
        api.delete(place)
        return
    if percent is not None:
        api.put(place, {"percent": percent, "within_seconds": within})
    print_result(api.get(place))


@subcommand(
    subscriptions,
    "lag",
    "nakadi subscriptions lag 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11",
    "nakadi subscriptions lag 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11 --watch --every 5",
)
@click.argument("subscription")
@click.option("--watch", is_flag=True, help="Keep showing it until Ctrl-C.")
@click.option("--every", type=click.IntRange(1), default=2, show_default=True, help="Seconds between two requests.")
def lag(subscription: str, watch: bool, every: int) -> None:
    """Show the reader of each partition, how many events wait there, for how many seconds the first one has waited,
    and the committed cursor.
    """
    api = connect()
    with noticing_signals():
        while True:
            committed = _committed_if_permitted(api, subscription)
            rows = [{**row, "committed": committed.get(_key(row))} for row in _lags(api, subscription)]
            if watch and sys.stdout.isatty():
                click.clear()
            print_result(rows, LAG_COLUMNS)
            if chosen_format("table") == "table":
                known = [row["unconsumed_events"] for row in rows if row.get("unconsumed_events") is not None]
                unknown = (
                    ""
                    if len(known) == len(rows)
                    else " Before its first stream, the broker does not know how many wait."
                )
                print_note(f"{format_count(sum(known), 'event')} waiting.{unknown}" if known else unknown.strip())
            if not watch:
                return
            sleep(every)


@subcommand(
    subscriptions,
    "reset",
    "nakadi subscriptions reset 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11 --to begin --dry-run",
    "nakadi subscriptions reset 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11 --to 2026-11-21T12:00:00Z",
    "nakadi subscriptions reset 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11 --to order.placed:0=001-0001-000000000000000012 "
    "--to order.placed:1=001-0001-000000000000000034",
)
@click.argument("subscription")
@click.option(
    "--to",
    "starts",
    required=True,
    multiple=True,
    help="begin, end, a time, an age, or the offset of a partition; repeat it for several partitions.",
)
@click.option("--dry-run", is_flag=True, help="Show the effect, and change nothing.")
def reset(subscription: str, starts: tuple[str, ...], dry_run: bool) -> None:
    """Move the cursors of a subscription, and show how many events wait after that.

    The broker ends open streams. Partitions without a given offset keep their cursors.
    """
    api = connect()
    place = parse_start(",".join(starts), datetime.now(UTC))
    event_types = api.get(path("subscriptions", subscription))["event_types"]
    rows = [row for each in event_types for row in _moves(api, each, place)]
    _check_that_all_are_meant(place, rows)
    committed = _committed_offsets(api, subscription)
    waiting = {_key(each): each.get("unconsumed_events") for each in _lags(api, subscription)}
    for row in rows:
        row |= {"committed": committed.get(_key(row)), "waiting": waiting.get(_key(row))}
    if not dry_run:
        items = [{"event_type": row["event_type"], "partition": row["partition"], "offset": row["to"]} for row in rows]
        api.patch(path("subscriptions", subscription, "cursors"), {"items": items})
    print_result(rows, RESET_COLUMNS)
    print_note("Nothing was changed." if dry_run else f"{format_count(len(rows), 'partition')} reset.")


def _read_from(api: Api, event_types: tuple[str, ...], start: Start) -> dict[str, Any]:
    if start in {Start(), Start("BEGIN")}:
        return {"read_from": "begin" if start.offset else "end"}
    found = [
        {"event_type": event_type, **cursor}
        for event_type in event_types
        for cursor in fetch_cursors(api, event_type, start, chosen_partitions(api, event_type))
    ]
    return {"read_from": "cursors", "initial_cursors": found}


def _lags(api: Api, subscription: str) -> Iterator[dict[str, Any]]:
    for each in _stats(api, subscription):
        for partition in each["partitions"]:
            yield {"event_type": each["event_type"], **partition}


def _committed_offsets(api: Api, subscription: str) -> dict[tuple[str, str], str]:
    return {_key(each): each["offset"] for each in api.get(path("subscriptions", subscription, "cursors"))["items"]}


def _committed_if_permitted(api: Api, subscription: str) -> dict[tuple[str, str], str]:
    """The committed cursors. They are empty if the caller may not see them, as while the subscription is blocked; the
    broker still shows its statistics then.
    """
    try:
        return _committed_offsets(api, subscription)
    except NotPermitted:
        return {}


def _with_status(api: Api, filters: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """List subscriptions with the number of events that wait in all their partitions, and for how long; None if
    unknown.
    """
    asked = {"show_stats": "true", "show_time_lag": "true", "token": "new"}
    for each in api.items("/subscriptions", **asked, **filters):
        # Other brokers' lists contain no statistics.
        status = each["status"] if "status" in each else _stats(api, each["id"])
        partitions = [partition for item in status for partition in item["partitions"]]
        read = any(partition["stream_id"] for partition in partitions)
        troubles = (each for each in TROUBLES if any(partition.get(each) for partition in partitions))
        yield {
            **each,
            "state": next(troubles, "read" if read else "not read"),
            "waiting": _combine_known(sum, partitions, "unconsumed_events"),
            "seconds": _combine_known(max, partitions, "consumer_lag_seconds"),
        }


def _stats(api: Api, subscription: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(path("subscriptions", subscription, "stats"), show_time_lag="true")["items"]
    return found


def _combine_known(together: Callable[[list[int]], int], partitions: list[dict[str, Any]], name: str) -> int | None:
    found = [each[name] for each in partitions if name in each]
    return together(found) if found else None


def _moves(api: Api, event_type: str, place: Start) -> Iterator[dict[str, Any]]:
    places = fetch_cursors(api, event_type, place, chosen_partitions(api, event_type))
    behind = api.post(path("event-types", event_type, "cursors-lag"), places) if places else []
    for cursor, found in zip(places, behind, strict=True):
        yield {
            "event_type": event_type,
            "partition": cursor["partition"],
            "to": cursor["offset"],
            "waiting_then": found["unconsumed_events"],
        }


def _check_that_all_are_meant(place: Start, rows: list[dict[str, Any]]) -> None:
    """Reject offsets of partitions that do not exist, because a typing error would otherwise go unnoticed."""
    meant = {name for row in rows for name in (row["partition"], f"{row['event_type']}:{row['partition']}")}
    if unknown := sorted(set(place.by_partition or ()) - meant):
        raise BadInput(f"The subscription has no partition {unknown[0]}.")


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["event_type"], row["partition"]
