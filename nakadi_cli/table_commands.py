"""`nakadi tables`: the content and the quality of the jobs' tables."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nakadi_cli.api import Api, path
from nakadi_cli.commands import Group, connect, print_note, print_result, subcommand
from nakadi_cli.failures import BadInput
from nakadi_cli.output import as_yaml

if TYPE_CHECKING:
    from nakadi_cli.dbt_sources import TableSource

RUN_COLUMNS = {
    "ENDED": lambda run: run["ended_at"],
    "JOB": lambda run: run["job"],
    "ROWS": lambda run: run["rows"],
    "LATE": lambda run: run["late_events"],
    "DUPLICATES": lambda run: run["duplicates"],
    "MISSING": lambda run: run["missing_events"],
    "MISFITS": lambda run: run["misfits"],
    "UNMET": lambda run: sum(each["unmet"] for each in run["expectations"]),
    "LAG": lambda run: f"{run['lag_seconds']:.0f} s",
    "TOOK": lambda run: f"{run['cost']['seconds']:.1f} s",
}


OBJECTIVE_ANNOTATION = "nakadi.io/table-objective"
OBJECTIVE_COLUMNS = {
    "EVENT TYPE": lambda one: one["event_type"],
    "OBJECTIVE": lambda one: f"{one['percent']:g} % within {one['within_seconds']} s",
    "BURN 1 H": lambda one: one["windows"][0]["burn_rate"],
    "BURN 1 D": lambda one: one["windows"][1]["burn_rate"],
    "PRESSURE": lambda one: one["pressure"],
    "SLOWEST": lambda one: one["slowest_partition"]["partition"] if "slowest_partition" in one else "",
    "LAG": lambda one: f"{one['slowest_partition']['lag_seconds']} s" if "slowest_partition" in one else "",
}


@click.group("tables", cls=Group)
def tables() -> None:
    """Show the events that runs of jobs added to tables, and how soon, and describe tables for dbt."""


@subcommand(tables, "runs", "nakadi tables runs order.placed", "nakadi tables runs order.placed -o yaml")
@click.argument("name")
def list_runs(name: str) -> None:
    """List the newest runs that added events to the table of an event type, and the faults of these events.

    In other formats than a table, each run has its reasons, by rule and path.
    """
    print_result(connect().get(path("event-types", name, "table-runs"))["items"], RUN_COLUMNS)


@subcommand(tables, "objectives", "nakadi tables objectives", "nakadi tables objectives 'order.*' -o json")
@click.argument("pattern", default="*")
def list_objectives(pattern: str) -> None:
    """Show how well the tables meet their objectives, and which partition of each waits longest.

    The tables are those of the event types whose names match a PATTERN with * and ?, and that state an objective: the
    annotation nakadi.io/table-objective, such as 99% within 1 hour.
    """
    print_result(list(_find_objectives(connect(), pattern)), OBJECTIVE_COLUMNS)


@subcommand(
    tables,
    "dbt",
    "nakadi tables dbt --to models/nakadi.yml",
    "nakadi tables dbt 'order.*' --source events --database nakadi",
    shows=False,
)
@click.argument("pattern", default="*")
@click.option("--source", default="nakadi", show_default=True, help="The name by which models refer to the source.")
@click.option("--database", default="nakadi", show_default=True, help="The database of the tables: dbt's schema.")
@click.option("--to", help="The file to write, instead of standard output.")
def write_dbt(pattern: str, source: str, database: str, to: str | None) -> None:
    """Write the tables as a source of dbt: their columns, descriptions, owners and personal data.

    The tables belong to the event types that have JSON schemas and whose names match a PATTERN with * and ?.
    """
    from nakadi_cli.dbt_sources import write_sources

    found = list(_find_tables(connect(), pattern))
    text = as_yaml(write_sources(found, source, database))
    if to is None:
        click.echo(text, nl=False)
        return
    try:
        Path(to).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{to} cannot be written: {error.strerror}.") from error
    print_note(f"Wrote {to}.")


def _find_objectives(api: Api, pattern: str) -> Iterator[dict[str, Any]]:
    for listed in api.get("/event-types"):
        if fnmatchcase(listed["name"], pattern) and OBJECTIVE_ANNOTATION in listed["annotations"]:
            status = api.get(path("event-types", listed["name"])).get("table_objective")
            if status is not None:
                yield {"event_type": listed["name"], **status}


def _find_tables(api: Api, pattern: str) -> Iterator[TableSource]:
    from nakadi_cli.dbt_sources import TableSource, parse_schemas

    for listed in api.get("/event-types"):
        name = listed["name"]
        if not fnmatchcase(name, pattern):
            continue
        definition: dict[str, Any] = api.get(path("event-types", name))
        if "table" not in definition:
            continue
        schemas = parse_schemas(api.items(path("event-types", name, "schemas")))
        if schemas:
            yield TableSource(definition, schemas)
        else:
            print_note(f"{name} is left out: only tables of JSON schemas can be described.")
