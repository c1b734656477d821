"""Reads events of a broker over HTTP as Spark DataFrames, with cursors as offsets.

    read = read_events(spark, "http://localhost:8080", "order.placed")
    read.rows.show()
    later = read_events(spark, "http://localhost:8080", "order.placed", after=read.cursors)

`for_each_batch` repeats that, and stores the cursors in a folder. Spark 3.5 has no sources written in Python, so these
are functions instead of `spark.read.format("nakadi")`. Reading events older than a minute from the tables or from the
archive takes less effort; see docs/analytics.md.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from pyspark.sql import DataFrame, SparkSession

SCHEMA = "partition string, offset string, event string"

BEGIN = "BEGIN"
EVENTS_MARKER = '"events":['
"""The text before the events of a batch. Only a cursor comes before it, which has no text of publishers."""

QUIET_TIMEOUT_SECONDS = 5
ATTEMPTS = 3

Cursors = Mapping[str, str]
"""The offset of the last event that was read from each partition."""


class ReadFailed(Exception):
    """Raised if a broker rejects a request, or does not send the events that it claims to have."""


class Read(NamedTuple):
    """Events. `rows` has a row for each one: `partition`, `offset` and the `event` as JSON.

    Each Spark action reads the rows again; they are the same each time, as long as the broker keeps them. `cursors` are
    those of the last rows.
    """

    rows: DataFrame
    cursors: Cursors


class Range(NamedTuple):
    """The events of a partition after one offset, up to and including another."""

    url: str
    event_type: str
    partition: str
    after: str
    last: str
    token: str


def read_events(
    spark: SparkSession, url: str, event_type: str, *, after: Cursors | None = None, token: str = ""
) -> Read:
    """Read all present events, after the cursors of an earlier read or from the oldest. Raises `ReadFailed`.

    Each partition has its own task, so all executors must reach the broker.
    """
    ranges, cursors = _plan(url.rstrip("/"), event_type, after or {}, token)
    return Read(_rows(spark, ranges), cursors)


def for_each_batch(
    spark: SparkSession,
    url: str,
    event_type: str,
    handle: Callable[[DataFrame, int], None],
    checkpoint: Path,
    *,
    every_seconds: float | None = None,
    token: str = "",
) -> None:
    """Call `handle` with the rows of new events and the number of the batch, until there are none.

    With `every_seconds`, it never ends, and looks for events at this interval. As with `foreachBatch`, the folder
    `checkpoint` stores the ranges of a batch before `handle` gets it. After a failure, the same batch comes again with
    the same number, so a `handle` that ignores repeated numbers gets each event exactly once.
    """
    checkpoint.mkdir(parents=True, exist_ok=True)
    file = checkpoint / f"{quote(event_type, safe='')}.json"
    known: dict[str, Any] = {"batch": -1, "ranges": [], "cursors": {}, "done": True}
    if file.exists():
        known = json.loads(file.read_text())
    while True:
        if known["done"]:
            ranges, cursors = _plan(url.rstrip("/"), event_type, known["cursors"], token)
            if not ranges:
                if every_seconds is None:
                    return
                time.sleep(every_seconds)
                continue
            # Tokens do not belong in files.
            planned = [each._replace(token="") for each in ranges]
            known = {"batch": known["batch"] + 1, "ranges": planned, "cursors": dict(cursors), "done": False}
            _replace_file(file, known)
        ranges = [Range(*each)._replace(url=url.rstrip("/"), token=token) for each in known["ranges"]]
        handle(_rows(spark, ranges), known["batch"])
        known = {**known, "ranges": [], "done": True}
        _replace_file(file, known)


def _plan(url: str, event_type: str, after: Cursors, token: str) -> tuple[Sequence[Range], Cursors]:
    """The ranges to read from each partition now, and the cursors after them."""
    base = f"{url}/event-types/{quote(event_type, safe='')}"
    partitions = {each["partition"]: each for each in _request_json(f"{base}/partitions", token)}
    pairs: Any = [
        {
            "initial_cursor": {"partition": name, "offset": after.get(name, each["oldest_available_offset"])},
            "final_cursor": {"partition": name, "offset": each["newest_available_offset"]},
        }
        for name, each in partitions.items()
    ]
    ranges: list[Range] = []
    cursors = dict(after)
    for pair in _request_json(f"{base}/cursor-distances", token, pairs):
        name, last = pair["final_cursor"]["partition"], pair["final_cursor"]["offset"]
        # A first read includes the oldest event; if a partition is empty, its newest offset is one below its oldest.
        if pair["distance"] > (0 if name in after else -1):
            ranges.append(Range(url, event_type, name, after.get(name, BEGIN), last, token))
            cursors[name] = last
    return ranges, cursors


def _rows(spark: SparkSession, ranges: Sequence[Range]) -> DataFrame:
    if not ranges:
        return spark.createDataFrame([], SCHEMA)
    return spark.createDataFrame(spark.sparkContext.parallelize(ranges, len(ranges)).flatMap(read_range), SCHEMA)


def read_range(wanted: Range) -> Iterator[tuple[str, str, str]]:
    """Read a range: partition, offset and text of each event. Raises `ReadFailed` rather than leave any out."""
    after, attempts = wanted.after, 0
    while attempts < ATTEMPTS:
        attempts += 1
        try:
            for offset, event in _stream_events(wanted, after):
                if _is_behind(offset, wanted.last):
                    return
                yield wanted.partition, offset, event
                if offset == wanted.last:
                    return
                after, attempts = offset, 0
        except (OSError, HTTPException, ValueError):
            # The broker may be restarting, and have cut off a line. Reading continues after the last complete event.
            time.sleep(attempts)
    raise ReadFailed(
        f"Partition {wanted.partition} of {wanted.event_type} sends nothing behind {after}, "
        f"but {wanted.last} is its newest offset: the broker is not reached, or the last events were erased"
    )


def _stream_events(wanted: Range, after: str) -> Iterator[tuple[str, str]]:
    """Read one stream in batches of one event, so that each has its offset. It ends when nothing comes for a while."""
    path = f"event-types/{quote(wanted.event_type, safe='')}/events"
    limits = f"batch_limit=1&batch_flush_timeout={QUIET_TIMEOUT_SECONDS}&stream_keep_alive_limit=1"
    cursors = json.dumps([{"partition": wanted.partition, "offset": after}])
    with _open_url(f"{wanted.url}/{path}?{limits}", wanted.token, {"X-Nakadi-Cursors": cursors}) as lines:
        for line in lines:
            batch = json.loads(line)
            if batch.get("events"):
                yield batch["cursor"]["offset"], _first_event(line.decode())


def _first_event(line: str) -> str:
    """The text of the event as the broker sent it: parsing it would change numbers that a `float` cannot hold."""
    start = line.index(EVENTS_MARKER) + len(EVENTS_MARKER)
    _, end = json.JSONDecoder().raw_decode(line, start)
    return line[start:end]


def _is_behind(offset: str, last: str) -> bool:
    """Whether an offset is greater. Offsets of one broker are texts of equal length, which sort like their events."""
    return len(offset) == len(last) and offset > last


def _request_json(url: str, token: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with _open_url(url, token, {"Content-Type": "application/json"}, data) as answer:
        return json.load(answer)


def _open_url(url: str, token: str, headers: Mapping[str, str], data: bytes | None = None) -> Any:
    if not url.startswith(("http://", "https://")):
        raise ReadFailed(f"{url} is not the address of a broker")
    credentials = {"Authorization": f"Bearer {token}"} if token else {}
    request = Request(url, data, {**headers, **credentials})  # noqa: S310  # checked above
    try:
        return urlopen(request, timeout=12 * QUIET_TIMEOUT_SECONDS)  # noqa: S310  # as above
    except HTTPError as error:
        with error:
            text = error.read().decode(errors="replace")
        raise ReadFailed(f"{url} answered {error.code}: {text}") from error


def _replace_file(file: Path, known: Mapping[str, Any]) -> None:
    """Write a file so that a crash leaves the old or the new one."""
    new = file.with_suffix(".new")
    with new.open("w") as written:
        json.dump(known, written)
        written.flush()
        os.fsync(written.fileno())
    new.replace(file)
