"""`nakadi schema rehearse`: shows which stored events a new schema would reject."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from nakadi_cli.api import Api, path
from nakadi_cli.commands import chosen_format, command, connect, noticing_signals, print_note, print_result
from nakadi_cli.failures import BadInput, CheckFoundProblems, Failed
from nakadi_cli.files import parse_document, read_text
from nakadi_cli.output import compact, format_count, harmless
from nakadi_cli.schema_documents import schema_text, with_schema_as_text

_POLL_SECONDS = 1.0


@command(
    "rehearse",
    "nakadi schema rehearse order.placed order.schema.json --last 7d",
    "nakadi schema rehearse order.placed order.placed.json --events 100000 -o json",
    "nakadi schema rehearse order.placed order.schema.json --last 1d --mode compatible",
)
@click.argument("event_type")
@click.argument("file")
@click.option("--last", help="How far back the events go, for example 7d, 12h or 30m.")
@click.option("--events", type=int, help="How many of the newest events to check, instead of --last.")
@click.option(
    "--category", help="The category that the event type will have. Default: the one in FILE, or the current one."
)
@click.option(
    "--mode", help="The compatibility mode that the event type will have. Default: the one in FILE, or the current one."
)
def rehearse_schema(
    event_type: str, file: str, last: str | None, events: int | None, category: str | None, mode: str | None
) -> None:
    """Check stored events of EVENT_TYPE against the schema in FILE, and report those that it would refuse.

    FILE is a JSON schema, or the definition of an event type. This changes nothing. The exit code is 1 if events would
    be refused. Ctrl-C stops a rehearsal that is running.
    """
    if (last is None) == (events is None):
        raise BadInput("Say either --last or --events.")
    request = {
        **read_proposal(file),
        **{name: value for name, value in (("category", category), ("compatibility_mode", mode)) if value},
        **({"events": events} if last is None else {"last": last}),
    }
    api = connect()
    rehearsals = path("event-types", event_type, "schemas", "rehearsals")
    found = wait_for_result(api, rehearsals, api.post(rehearsals, request))
    if chosen_format("table") == "table":
        click.echo("\n".join(map(harmless, report_lines(found))))
    else:
        print_result(found)
    if found["state"] != "finished":
        raise Failed(f"The rehearsal is {found['state']}: {found.get('detail', 'its process is silent')}.")
    if found["events_failed"]:
        raise CheckFoundProblems(
            f"The schema would refuse {format_count(found['events_failed'], 'event')} of {event_type}."
        )


def read_proposal(file: str) -> dict[str, Any]:
    """Read a schema, or the relevant members of an event type's definition."""
    document = parse_document(read_text(file), file)
    if isinstance(document, dict) and "schema" in document and "name" in document:
        definition = with_schema_as_text(document)
        others: dict[str, Any] = {
            name: definition[name] for name in ("category", "compatibility_mode") if name in definition
        }
        return {"schema": definition["schema"], **others}
    return {"schema": {"type": "json_schema", "schema": schema_text(document)}}


def wait_for_result(api: Api, rehearsals: str, found: Any) -> Any:
    """Read the rehearsal repeatedly until it has ended; an interruption removes the rehearsal."""
    place = f"{rehearsals}/{found['id']}"
    with noticing_signals():
        try:
            while found["state"] == "running":
                print_note(
                    f"{found['events_seen']} of {found['events_expected']} events, {found['events_failed']} refused"
                )
                time.sleep(_POLL_SECONDS)
                found = api.get(place)
        except KeyboardInterrupt:
            api.delete(place)
            raise
    return found


def report_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The lines that report the findings to a person."""
    seen, failed = found["events_seen"], found["events_failed"]
    yield f"{found['event_type']}: the schema would refuse {failed} of {format_count(seen, 'event')}."
    for each in sorted(found["rules"], key=lambda each: -each["events"]):
        period = f"from {each['first_at']} to {each['last_at']}"
        yield f"{each['path']}: {each['rule']}: {format_count(each['events'], 'event')}, {period}"
    if found["other_rules"]:
        yield f"Other rules were broken {found['other_rules']} times."
    if found["events_unexplained"]:
        yield f"The rules of {format_count(found['events_unexplained'], 'event')} were not looked for."
    for each in found["published_by"]:
        yield f"Published by {each['application'] or 'an unknown application'}: {format_count(each['events'], 'event')}"
    for sample in found["samples"][:3]:
        cursor = sample["cursor"]
        yield f"Partition {cursor['partition']}, offset {cursor['offset']}: {compact(sample['event'])}"
