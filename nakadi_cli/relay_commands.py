"""`nakadi relay`: sends events from an outbox in PostgreSQL to the broker."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from nakadi_cli.commands import Group, chosen_connection, print_note, print_result, subcommand
from nakadi_cli.failures import BadInput, Failed, NotFound
from nakadi_cli.output import format_count

if TYPE_CHECKING:
    from nakadi_relay import Feed, Relay
    from nakadi_relay.outbox import Outbox

DSN_VARIABLE = "NAKADI_RELAY_DSN"


def outbox_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the outbox."""
    dsn = click.option(
        "--dsn",
        envvar=DSN_VARIABLE,
        default="",
        show_default=False,
        help=f"The database, as a URL or as key=value pairs. {DSN_VARIABLE} keeps it out of the list of processes.",
    )
    return dsn(table_option(command))


def table_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option that names the outbox."""
    return click.option(
        "--table",
        default="nakadi_outbox",
        show_default=True,
        help="The outbox table, optionally with its schema, as in shop.outbox.",
    )(command)


@click.group(cls=Group)
def relay() -> None:
    """Publish events that an application wrote into an outbox table in its own PostgreSQL database."""


@subcommand(
    relay,
    "postgres",
    "nakadi relay postgres --dsn postgresql://relay@db/shop",
    "nakadi relay postgres --table shop.outbox --workers 4 --keep",
    "nakadi relay postgres --once",
    "nakadi relay postgres --changes public.customer --event-type customer.changed",
    shows=False,
)
@outbox_options
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 64), help="Threads that publish.")
@click.option("--keep", is_flag=True, help="Mark published rows instead of deleting them.")
@click.option("--once", is_flag=True, help="Publish the rows that wait, and end.")
@click.option("--changes", metavar="TABLE", help="Also publish the rows of this table, and every later change.")
@click.option("--event-type", help="The event type of the category data for these changes.")
def relay_postgres(
    dsn: str, table: str, workers: int, keep: bool, once: bool, changes: str | None, event_type: str | None
) -> None:
    """Publish the rows of an outbox, in order by key, until you interrupt it.

    Several relays may share an outbox. A row that the broker refuses blocks only the rows with its key: see the command
    refused. The command waits out faults of the database and of the broker.
    """
    with _relay_errors():
        _require_dsn(dsn)
        from nakadi_relay import Feed, Relay

        broker = chosen_connection()
        logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
        connection = broker.of_client
        if (changes is None) is not (event_type is None) or (changes and once):
            raise BadInput("--changes and --event-type belong together, and not to --once.")
        feed = None if changes is None or event_type is None else Feed(dsn, changes, event_type, table=table)
        with Relay(dsn, connection, table=table, workers=workers, keep=keep) as publishing:
            if once:
                publishing.run_once()
            else:
                _run_until_interrupted(publishing, feed)
            status = publishing.status
    print_note(f"Published {format_count(status.published, 'event')}, and {status.refused} were refused.")
    if once and status.refused:
        raise Failed("The broker refused events: nakadi relay refused lists them.")


def _run_until_interrupted(publishing: Relay, feed: Feed | None) -> None:
    """Publish until a signal comes. A feed that cannot continue ends the command."""
    failures: list[Exception] = []

    def stop(*_: object) -> None:
        publishing.stop()
        if feed is not None:
            feed.stop()

    def follow(feed: Feed) -> None:
        try:
            feed.run()
        except Exception as error:  # noqa: BLE001  # the main thread raises it
            failures.append(error)
            publishing.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    following = [] if feed is None else [threading.Thread(target=follow, args=(feed,), name="nakadi-feed")]
    for thread in following:
        thread.start()
    try:
        publishing.run()
    finally:
        stop()
        for thread in following:
            thread.join()
    if failures:
        raise failures[0]


@subcommand(
    relay,
    "schema",
    "nakadi relay schema",
    "nakadi relay schema --table shop.outbox | psql shop",
    connects=False,
    shows=False,
)
@table_option
def relay_schema(table: str) -> None:
    """Print the SQL statements that create an outbox. Add them to the migrations of the application."""
    with _relay_errors():
        from nakadi_relay.schema import OutboxNames, outbox_schema

        click.echo(outbox_schema(OutboxNames(table)), nl=False)


@subcommand(relay, "refused", "nakadi relay refused", "nakadi relay refused -o json", connects=False)
@outbox_options
def list_refused(dsn: str, table: str) -> None:
    """List the rows that the broker refused, with the reasons. Later rows with their keys wait."""
    with _open_outbox(dsn, table) as outbox:
        found = [
            {
                "id": row.id,
                "event_type": row.event_type,
                "key": row.key,
                "eid": str(row.eid),
                "written_at": row.written_at.isoformat(),
                "refused_at": row.refused_at.isoformat(),
                "reason": row.reason,
            }
            for row in outbox.refused_rows()
        ]
    columns = {
        "ID": lambda each: each["id"],
        "EVENT TYPE": lambda each: each["event_type"],
        "KEY": lambda each: each["key"],
        "REFUSED": lambda each: each["refused_at"],
        "REASON": lambda each: each["reason"],
    }
    print_result(found, columns)


@subcommand(relay, "retry", "nakadi relay retry 4711", connects=False, shows=False)
@click.argument("row_id", type=int)
@outbox_options
def retry_refused(row_id: int, dsn: str, table: str) -> None:
    """Put the refused row ROW_ID back in its place: the relay publishes it again."""
    with _open_outbox(dsn, table) as outbox:
        _fail_unless_refused(outbox.retry(row_id), row_id)
    print_note(f"Row {row_id} waits to be published.")


@subcommand(relay, "skip", "nakadi relay skip 4711", connects=False, shows=False)
@click.argument("row_id", type=int)
@outbox_options
def skip_refused(row_id: int, dsn: str, table: str) -> None:
    """Delete the refused row ROW_ID. Later rows with its key are published."""
    with _open_outbox(dsn, table) as outbox:
        _fail_unless_refused(outbox.skip(row_id), row_id)
    print_note(f"Row {row_id} is skipped.")


def _require_dsn(dsn: str) -> None:
    if not dsn:
        raise BadInput(f"Which database? Name it with --dsn or {DSN_VARIABLE}.")


def _fail_unless_refused(found: bool, row_id: int) -> None:
    if not found:
        raise NotFound(f"No row {row_id} was refused.")


@contextmanager
def _open_outbox(dsn: str, table: str) -> Iterator[Outbox]:
    with _relay_errors():
        _require_dsn(dsn)
        from nakadi_relay.outbox import Outbox
        from nakadi_relay.schema import OutboxNames

        outbox = Outbox(dsn, OutboxNames(table))
        try:
            yield outbox
        finally:
            outbox.close()


@contextmanager
def _relay_errors() -> Iterator[None]:
    """Turn the errors of the database and its library into sentences."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise Failed(f"{missing.name} is missing: pip install 'nakadi-serverless[relay]'") from missing
    except ValueError as error:
        raise BadInput(str(error)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "psycopg":
            raise
        raise Failed(f"The database: {str(error).strip()}") from error
