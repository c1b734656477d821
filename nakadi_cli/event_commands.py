"""`nakadi publish` and `nakadi tail`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import click

from nakadi_cli.commands import chosen_format, command, connect, noticing_signals, print_note, print_result
from nakadi_cli.cursors import chosen_partitions, fetch_cursors, parse_start
from nakadi_cli.failures import BadInput, Failed, NotAnswered, PartlyFailed, Refused
from nakadi_cli.output import harmless, harmless_json
from nakadi_cli.reading_events import batches, keep_refused, open_input, read_events

if TYPE_CHECKING:
    import msgspec

    from nakadi.schemas.conditions import Condition
    from nakadi_cli.publishing import Outcome
    from nakadi_client import Batch

_MOST_SHOWN = 10
_BATCH = 100


@command(
    "publish",
    "nakadi publish order.placed orders.ndjson",
    "nakadi publish order.placed --keep-going < orders.json",
    """echo '{"order_number": "1", "items": [{"sku": "a", "quantity": 1}]}' | nakadi publish order.placed -""",
    "nakadi publish order.placed orders.ndjson --keep-going --refused refused.ndjson",
    """echo '{"metadata": {"partition_compaction_key": "4711"}}' | nakadi publish order.state --tombstones""",
    "nakadi publish order.placed orders.ndjson --for 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11",
    "nakadi publish order.placed cloud-events.ndjson --cloudevents",
)
@click.argument("event_type")
@click.argument("file", default="-")
@click.option(
    "--batch-size",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="The maximum number of events in a batch.",
)
@click.option(
    "--retries",
    type=click.IntRange(0, 100),
    default=5,
    show_default=True,
    help="How often to resend events that the broker could not store.",
)
@click.option("--keep-going", is_flag=True, help="Skip events that the broker rejects, and publish the others.")
@click.option("--refused", "refused_file", help="A file for unpublished events, so that you can send them again.")
@click.option(
    "--tombstones",
    "form",
    flag_value="tombstones",
    help="Delete events by their compaction keys, instead of publishing.",
)
@click.option("--cloudevents", "form", flag_value="cloudevents", help="Each input is a CloudEvent 1.0.")
@click.option("--for", "only_for", help="The id of the only subscription that may see the events.")
def publish(
    event_type: str,
    file: str,
    batch_size: int,
    retries: int,
    keep_going: bool,
    refused_file: str | None,
    form: Literal["tombstones", "cloudevents"] | None,
    only_for: str | None,
) -> None:
    """Publish the events in FILE, or from standard input: one on each line, or a JSON array.

    The command sends one batch after the other. If the broker stored a batch in part, it resends only the rest. If the
    broker rejects an event, it stores none of the batch, and publishing ends there, unless you pass --keep-going. If an
    answer is lost, a resent batch may be stored twice; consumers recognize that by metadata.eid.

    --refused writes each unpublished event to a file, unchanged: the rejected events, and all events after the point
    at which publishing ended. You can correct that file and publish it.

    With --tombstones, each input needs metadata.partition_compaction_key, and the members that choose its partition.
    The next compaction of the event type removes older events with that key.
    """
    from nakadi_cli.publishing import MOST_BYTES, Publisher

    if form == "tombstones" and only_for:
        raise BadInput("Every subscription sees tombstones: --tombstones and --for exclude each other.")
    failure: Failed | None = None
    with (
        open_input(file) as stream,
        keep_refused(refused_file, file) as keep,
        _show_progress() as after_each,
        noticing_signals(),
    ):
        publisher = Publisher(
            connect().connection.of_client,
            event_type,
            batch_size=batch_size,
            retries=retries,
            keep_going=keep_going,
            keep=keep,
            form=form,
            only_for=only_for,
        )
        waiting = batches(read_events(stream, file), batch_size, MOST_BYTES)
        try:
            publisher.publish(waiting, after_each)
        except Failed as failed:
            failure = failed
        except KeyboardInterrupt:
            print_note(f"Interrupted; {publisher.outcome.published} published, and perhaps the current batch.")
            raise
        finally:
            publisher.close()
        if refused_file is not None:
            for batch in waiting:
                keep(batch)
    _report_outcome(publisher.outcome, failure)


@command(
    "tail",
    "nakadi tail order.placed",
    "nakadi tail order.placed --from begin --no-follow -o json > orders.ndjson",
    "nakadi tail order.placed --from 15m --where 'total.amount > 100 and metadata.partition == \"0\"'",
    "nakadi tail order.placed --from 2026-11-21T12:00:00Z --partitions 0,1 -n 10",
    "nakadi tail order.placed --cloudevents -o json",
    "nakadi tail order.placed --from 001-0001-000000000000000012 --partitions 0",
)
@click.argument("event_type")
@click.option(
    "--from",
    "start",
    default="end",
    show_default=True,
    help="Where to start: begin, end, a time, an age (90s, 15m, 2h, 7d), or an offset after which to start.",
)
@click.option(
    "--where", help="Show only events that meet this condition, such as 'data.total > 100 and not data.test'."
)
@click.option("--partitions", help="Read only these partitions, separated by commas.")
@click.option("-n", "--limit", type=click.IntRange(1), help="End after this many events.")
@click.option("--no-follow", is_flag=True, help="End after the events that existed at the start.")
@click.option("--cloudevents", "cloud_events", is_flag=True, help="Show events as CloudEvents 1.0.")
def tail(  # each parameter is an option
    *,
    event_type: str,
    start: str,
    where: str | None,
    partitions: str | None,
    limit: int | None,
    no_follow: bool,
    cloud_events: bool,
) -> None:
    """Show the events of an event type as they arrive, one on each line.

    With -o json, each line is only the event. With -o table, the default in a terminal, its partition, its offset and
    its time precede it.
    """
    import msgspec

    from nakadi_cli.patience import PATIENCE, client_failures, show_trouble
    from nakadi_client import read

    fits = _parse_condition(where) if where else None
    api = connect()
    places = fetch_cursors(
        api, event_type, parse_start(start, datetime.now(UTC)), chosen_partitions(api, event_type, partitions)
    )
    how = chosen_format("table" if sys.stdout.isatty() else "json")
    shown = 0
    # A batch has one cursor, so each event that is shown with its own cursor must be alone in its batch.
    size = 1 if how == "table" else _BATCH
    start_at = {each["partition"]: each["offset"] for each in places}
    batches_read = read(
        api.connection.of_client,
        event_type,
        model=msgspec.Raw,
        start=start_at,
        follow=not no_follow,
        batch_limit=size,
        patience=PATIENCE,
        cloud_events=cloud_events,
        on_trouble=show_trouble,
    )
    with noticing_signals(), client_failures(), closing(batches_read):
        for batch in batches_read:
            for raw in batch.events:
                text = bytes(raw).decode()
                if fits is None or fits(json.loads(text)):
                    click.echo(_line(batch, text, how))
                    shown += 1
                    if shown == limit:
                        return


def _line(batch: Batch[msgspec.Raw], text: str, how: str) -> str:
    if how == "json":
        return harmless_json(text)
    event = json.loads(text)
    if how == "yaml":
        from nakadi_cli.output import as_yaml

        return f"---\n{as_yaml(event)}".removesuffix("\n")
    metadata = event.get("metadata") if isinstance(event, dict) else None
    moment = metadata.get("received_at", "") if isinstance(metadata, dict) else ""
    return harmless(f"{batch.partition:>3} {batch.offset}  {moment:24}  {harmless_json(text)}")


def _parse_condition(text: str) -> Condition:
    from nakadi.schemas.conditions import BadCondition, parse_condition

    try:
        return parse_condition(text)
    except BadCondition as error:
        raise BadInput(str(error)) from error


@contextmanager
def _show_progress() -> Iterator[Callable[[Outcome], None]]:
    """Show on a terminal how many events are published."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed} events published"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda outcome: progress.update(task, completed=outcome.published)


def _report_outcome(outcome: Outcome, failure: Failed | None) -> None:
    lost = [*outcome.refused, *outcome.failed]
    how = chosen_format("table")
    if how == "table":
        for each in lost[:_MOST_SHOWN]:
            print_note(harmless(f"event {each['event']}: {each['reason']}"))
        if len(lost) > _MOST_SHOWN:
            print_note(f"and {len(lost) - _MOST_SHOWN} more; -o json lists all of them")
        print_note(f"{outcome.published} published, {len(outcome.refused)} refused, {len(outcome.failed)} failed.")
        if outcome.ended_at:
            print_note(
                f"Events from number {outcome.ended_at} on are not published; --keep-going leaves out rejected events."
            )
    else:
        print_result(
            {
                "published": outcome.published,
                "refused": outcome.refused,
                "failed": outcome.failed,
                "ended_at": outcome.ended_at,
            }
        )
    if (lost or failure) and outcome.published:
        raise PartlyFailed(failure.message if failure else "Some events are not published.")
    if failure:
        raise failure
    if outcome.refused:
        raise Refused("No event is published.")
    if outcome.failed:
        raise NotAnswered("No event is published.")
