"""`nakadi publish` and `nakadi tail`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from nakadi.schemas.conditions import BadCondition, Condition, parse_condition
from nakadi_cli.api import Api, path, read_lines
from nakadi_cli.commands import attentive, chosen_format, command, connect, note, show
from nakadi_cli.cursors import chosen_partitions, cursors, parse_start
from nakadi_cli.failures import BadInput, Failed, NotAnswered, PartlyDone, Refused
from nakadi_cli.output import harmless, harmless_json
from nakadi_cli.publishing import Outcome, Publisher
from nakadi_cli.reading_events import batches, keep_refused, open_input, read_events, split_texts

_MOST_BYTES = 4_000_000
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
)
@click.argument("event_type")
@click.argument("file", default="-")
@click.option("--batch-size", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Events in a batch.")
@click.option(
    "--retries",
    type=click.IntRange(0, 100),
    default=5,
    show_default=True,
    help="How often to resend events that the broker could not store.",
)
@click.option("--keep-going", is_flag=True, help="Leave out events that the broker rejects, and publish the others.")
@click.option("--refused", "refused_file", help="A file for unpublished events, so that you can send them again.")
@click.option("--tombstones", is_flag=True, help="Delete events by their compaction keys, instead of publishing.")
@click.option("--for", "only_for", help="The id of the only subscription that may see the events.")
def publish(
    event_type: str,
    file: str,
    batch_size: int,
    retries: int,
    keep_going: bool,
    refused_file: str | None,
    tombstones: bool,
    only_for: str | None,
) -> None:
    """Publish the events in FILE, or from standard input: one on each line, or a JSON array.

    The command sends one batch after the other. If the broker stored a batch in part, it resends only the rest. If the
    broker rejects an event, it stores none of the batch, and publishing ends there, unless you pass --keep-going. If an
    answer is lost, a resent batch may be stored twice; consumers recognize that by metadata.eid.

    --refused writes each unpublished event to a file, as it was read: the rejected ones, and everything after the point
    at which publishing ended. You can correct that file and publish it.

    With --tombstones, each input needs metadata.partition_compaction_key, and whatever chooses its partition. The next
    compaction of the event type removes older events with that key.
    """
    if tombstones and only_for:
        raise BadInput("Every subscription sees tombstones: --tombstones and --for exclude each other.")
    failure: Failed | None = None
    with open_input(file) as stream, keep_refused(refused_file, file) as keep, _progress() as after_each, attentive():
        publisher = Publisher(
            connect(),
            event_type,
            retries=retries,
            keep_going=keep_going,
            pause=time.sleep,
            keep=keep,
            tombstones=tombstones,
            only_for=only_for,
        )
        waiting = batches(read_events(stream, file), batch_size, _MOST_BYTES)
        try:
            publisher.publish(waiting, after_each)
        except Failed as failed:
            failure = failed
        except KeyboardInterrupt:
            note(f"Interrupted; {publisher.outcome.published} published, and perhaps the current batch.")
            raise
        if refused_file is not None:
            for batch in waiting:
                keep(batch)
    _conclude(publisher.outcome, failure)


@command(
    "tail",
    "nakadi tail order.placed",
    "nakadi tail order.placed --from begin --no-follow -o json > orders.ndjson",
    "nakadi tail order.placed --from 15m --where 'total.amount > 100 and metadata.partition == \"0\"'",
    "nakadi tail order.placed --from 2026-11-21T12:00:00Z --partitions 0,1 -n 10",
    "nakadi tail order.placed --from 001-0001-000000000000000012 --partitions 0",
)
@click.argument("event_type")
@click.option(
    "--from",
    "start",
    default="end",
    show_default=True,
    help="Where to start: begin, end, a time, an age (90s, 15m, 2h, 7d), or an offset behind which to start.",
)
@click.option(
    "--where", help="Show only events that meet this condition, such as 'data.total > 100 and not data.test'."
)
@click.option("--partitions", help="Read only these partitions, separated by commas.")
@click.option("-n", "--limit", type=click.IntRange(1), help="End after this many events.")
@click.option("--no-follow", is_flag=True, help="End after the events that existed at the start.")
def tail(
    event_type: str, start: str, where: str | None, partitions: str | None, limit: int | None, no_follow: bool
) -> None:
    """Show the events of an event type as they arrive, one on each line.

    With -o json, each line is only the event. With -o table, the default in a terminal, its partition, its offset and
    its time precede it.
    """
    fits = _parse_condition(where) if where else _always
    api = connect()
    places = cursors(
        api, event_type, parse_start(start, datetime.now(UTC)), chosen_partitions(api, event_type, partitions)
    )
    how = chosen_format("table" if sys.stdout.isatty() else "json")
    shown = 0
    # A batch has one cursor: for each event to be shown with its own it has to be alone.
    size = 1 if how == "table" else _BATCH
    with attentive():
        for cursor, event, text in read(api, event_type, places, size, follow=not no_follow):
            if fits(event):
                click.echo(_line(cursor, event, text, how))
                shown += 1
                if shown == limit:
                    return


def read(
    api: Api, event_type: str, places: list[dict[str, str]], size: int, *, follow: bool
) -> Iterator[tuple[dict[str, str], Any, str]]:
    """Read events behind the places, and go on when a stream ends or breaks.

    Each comes with the cursor of its batch, as a value, and as the text that was stored.

    Without `follow` it ends when every partition is read up to where it ended at the beginning.
    """
    where = path("event-types", event_type, "events")
    at = {each["partition"]: each["offset"] for each in places}
    lags = [] if follow else api.post(path("event-types", event_type, "cursors-lag"), places)
    waits_for = {each["partition"]: each["newest_available_offset"] for each in lags if each["unconsumed_events"] > 0}
    # As many as there are ends the stream at once; fewer come where compaction has taken some away.
    waiting = sum(max(0, each["unconsumed_events"]) for each in lags)
    broken = 0
    while follow or waits_for:
        now = [{"partition": partition, "offset": offset} for partition, offset in at.items()]
        parameters = {"batch_limit": min(size, waiting or size), "batch_flush_timeout": 1, "stream_limit": waiting}
        try:
            with api.stream(where, params=parameters, headers={"X-Nakadi-Cursors": json.dumps(now)}) as answer:
                for line in read_lines(answer):
                    batch = _batch(line)
                    cursor = batch["cursor"]
                    events = batch.get("events", ())
                    for event, text in zip(events, split_texts(line, len(events)), strict=True):
                        yield cursor, event, text
                    broken = 0
                    at[cursor["partition"]] = cursor["offset"]
                    # A line without events means that there is nothing more now.
                    end = waits_for.get(cursor["partition"])
                    if end is not None and ("events" not in batch or cursor["offset"] >= end):
                        del waits_for[cursor["partition"]]
                        if not waits_for:
                            return
        except NotAnswered as gone:
            broken += 1
            if broken > 5:
                raise
            note(f"{gone.message} Trying again.")
            time.sleep(min(10.0, 0.2 * 2**broken))


def _batch(line: str) -> Any:
    batch = json.loads(line)
    if "cursor" not in batch:
        # The broker ends a stream with a Problem when something has changed, such as permission.
        raise Refused(harmless(f"The stream has ended: {batch.get('detail') or batch.get('title')}"))
    return batch


def _line(cursor: dict[str, str], event: Any, text: str, how: str) -> str:
    text = harmless_json(text)
    if how == "json":
        return text
    if how == "yaml":
        from nakadi_cli.output import as_yaml

        return f"---\n{as_yaml(event)}".removesuffix("\n")
    metadata = event.get("metadata") if isinstance(event, dict) else None
    moment = metadata.get("received_at", "") if isinstance(metadata, dict) else ""
    return harmless(f"{cursor['partition']:>3} {cursor['offset']}  {moment:24}  {text}")


def _always(_event: Any) -> bool:
    return True


def _parse_condition(text: str) -> Condition:
    try:
        return parse_condition(text)
    except BadCondition as error:
        raise BadInput(str(error)) from error


@contextmanager
def _progress() -> Iterator[Callable[[Outcome], None]]:
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


def _conclude(outcome: Outcome, failure: Failed | None) -> None:
    lost = [*outcome.refused, *outcome.failed]
    how = chosen_format("table")
    if how == "table":
        for each in lost[:_MOST_SHOWN]:
            note(harmless(f"event {each['event']}: {each['reason']}"))
        if len(lost) > _MOST_SHOWN:
            note(f"and {len(lost) - _MOST_SHOWN} more; -o json lists all of them")
        note(f"{outcome.published} published, {len(outcome.refused)} refused, {len(outcome.failed)} failed.")
        if outcome.ended_at:
            note(
                f"Events from number {outcome.ended_at} on are not published; --keep-going leaves out rejected events."
            )
    else:
        show(
            {
                "published": outcome.published,
                "refused": outcome.refused,
                "failed": outcome.failed,
                "ended_at": outcome.ended_at,
            }
        )
    if (lost or failure) and outcome.published:
        raise PartlyDone(failure.message if failure else "Some events are not published.")
    if failure:
        raise failure
    if outcome.refused:
        raise Refused("No event is published.")
    if outcome.failed:
        raise NotAnswered("No event is published.")
