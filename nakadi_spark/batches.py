"""A stream of events for Spark 3.5, which has no sources written in Python: a function handles batch after batch.

def add(rows, batch):
    rows.write.mode("overwrite").parquet(f"orders/batch={batch}")

nakadi_spark.for_each_batch(spark, "https://events.example.org", "order.placed", add, "checkpoint")
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct, to_builtins
from msgspec.json import decode
from pyspark.sql import DataFrame, SparkSession

from nakadi_spark.batch_bounds import Offsets, end_of_batch
from nakadi_spark.errors import BadRead
from nakadi_spark.reading import rows_of_log
from nakadi_spark.shares import want_log
from nakadi_spark.sources import Broker, OpenSource, Source
from nakadi_sql.http_source import ranges_between
from nakadi_sql.sources import EventTypeInfo


class Batch(Struct, frozen=True):
    """A numbered batch: for each partition, the events after `start` and up to `end`. `done` says whether it has been
    handled.
    """

    number: int
    start: Offsets
    end: Offsets
    done: bool


def for_each_batch(
    spark: SparkSession,
    source: str | Source,
    event_type: str,
    handle: Callable[[DataFrame, int], None],
    checkpoint: str | Path,
    *,
    columns: Sequence[str] | None = None,
    max_events: int | None = None,
    every_seconds: float | None = None,
) -> None:
    """Call `handle` with the rows of new events and the number of the batch, until there are none.

    The folder `checkpoint` stores where a batch begins and ends before `handle` gets it. After a failure, the same
    batch comes again with the same number and the same events. So the results have each event exactly once if `handle`
    ignores, or replaces the result of, a batch whose number it has had before. The first batch begins with the oldest
    event.

    every_seconds  The interval at which to look for new events, endlessly. Without it, the function returns when there
                   are none.
    max_events     A batch has at most this many events, but at least one of each partition that has new ones.
                   Default: all new events.
    columns        The names of the columns to read. Default: all.
    """
    if max_events is not None and max_events < 1:
        raise BadRead(f"max_events is no number of events: {max_events}")
    named = Broker(source) if isinstance(source, str) else source
    file = Path(checkpoint) / f"{quote(event_type, safe='')}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    latest = decode(file.read_bytes(), type=Batch) if file.exists() else None
    while True:
        with named.open() as opened:
            wanted = want_log(opened, event_type, columns)
            if latest is None or latest.done:
                following = _plan_batch(opened, wanted.event_type, latest, max_events)
                if not ranges_between(following.start, following.end):
                    if every_seconds is None:
                        return
                    time.sleep(every_seconds)
                    continue
                latest = following
                _replace_file(file, to_builtins(latest))
        handle(rows_of_log(spark, named, wanted, ranges_between(latest.start, latest.end)), latest.number)
        latest = Batch(latest.number, latest.start, latest.end, done=True)
        _replace_file(file, to_builtins(latest))


def _plan_batch(opened: OpenSource, event_type: EventTypeInfo, latest: Batch | None, max_events: int | None) -> Batch:
    number, start = (0, opened.first_offsets(event_type)) if latest is None else (latest.number + 1, latest.end)
    end = end_of_batch(opened, event_type, start, opened.last_offsets(event_type), max_events)
    return Batch(number, start, end, done=False)


def _replace_file(file: Path, known: Any) -> None:
    """Replace a file so that a crash leaves the old or the new one."""
    new = file.with_suffix(".new")
    with new.open("w") as written:
        json.dump(known, written)
        written.flush()
        os.fsync(written.fileno())
    new.replace(file)
