"""Events of a broker as DataFrames of Spark, over HTTP, with cursors as offsets.

    read = read_events(spark, "http://localhost:8080", "order.placed")
    read.rows.show()
    later = read_events(spark, "http://localhost:8080", "order.placed", after=read.cursors)

`for_each_batch` does that again and again, and remembers the cursors in a folder. Spark 3.5 takes no sources that are
written in Python, so these are functions and not `spark.read.format("nakadi")`. What is older than a minute or so is
read with less effort from the tables and the archive; see docs/analytics.md.
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
"""What the events of a batch stand behind. A cursor comes before it, which has no text of publishers'."""

QUIET_TIMEOUT_SECONDS = 5
ATTEMPTS = 3

Cursors = Mapping[str, str]
"""The offset of the last event that was read of each partition."""


class ReadFailed(Exception):
    """Raised when a broker refuses, or does not send what it says that it has."""


class Read(NamedTuple):
    """`rows` has a row for each event: `partition`, `offset` and the `event` as JSON. They are read by each action of
    Spark anew, and are the same ones each time, for as long as the broker keeps them. `cursors` are behind them."""

    rows: DataFrame
    cursors: Cursors


class Range(NamedTuple):
    """Events of a partition behind an offset, up to and with another."""

    url: str
    event_type: str
    partition: str
    after: str
    last: str
    token: str


def read_events(
    spark: SparkSession, url: str, event_type: str, *, after: Cursors | None = None, token: str = ""
) -> Read:
    """Read the events that there are now, behind the cursors of an earlier read or from the oldest. Raises `NotRead`.

    Each partition is read by a task of its own, on the executors, which have to reach the broker.
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

    With `every_seconds` it goes on for ever, and looks so often. As with `foreachBatch`, what a batch has is written
    to the folder `checkpoint` before it is handled: after a failure the same batch comes again, with the same number,
    so a `handle` that does nothing for a number that it has had gets each event once.
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
            # The token is not for a file.
            planned = [each._replace(token="") for each in ranges]
            known = {"batch": known["batch"] + 1, "ranges": planned, "cursors": dict(cursors), "done": False}
            _replace_file(file, known)
        ranges = [Range(*each)._replace(url=url.rstrip("/"), token=token) for each in known["ranges"]]
        handle(_rows(spark, ranges), known["batch"])
        known = {**known, "ranges": [], "done": True}
        _replace_file(file, known)


def _plan(url: str, event_type: str, after: Cursors, token: str) -> tuple[Sequence[Range], Cursors]:
    """What there is to read of each partition now, and the cursors behind it."""
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
        # From the oldest event on, that one is wanted too; where there is none, the newest is before it.
        if pair["distance"] > (0 if name in after else -1):
            ranges.append(Range(url, event_type, name, after.get(name, BEGIN), last, token))
            cursors[name] = last
    return ranges, cursors


def _rows(spark: SparkSession, ranges: Sequence[Range]) -> DataFrame:
    if not ranges:
        return spark.createDataFrame([], SCHEMA)
    return spark.createDataFrame(spark.sparkContext.parallelize(ranges, len(ranges)).flatMap(read_range), SCHEMA)


def read_range(wanted: Range) -> Iterator[tuple[str, str, str]]:
    """Read a range: partition, offset and text of each event. Raises `NotRead` rather than leave any out."""
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
            # The broker may be starting again, and have cut a line off; what is read is known, so it goes on there.
            time.sleep(attempts)
    raise ReadFailed(
        f"Partition {wanted.partition} of {wanted.event_type} sends nothing behind {after}, "
        f"but {wanted.last} is its newest offset: the broker is not reached, or the last events were erased"
    )


def _stream_events(wanted: Range, after: str) -> Iterator[tuple[str, str]]:
    """One stream, in batches of one event, so that each has its offset; it ends when nothing comes for a while."""
    path = f"event-types/{quote(wanted.event_type, safe='')}/events"
    limits = f"batch_limit=1&batch_flush_timeout={QUIET_TIMEOUT_SECONDS}&stream_keep_alive_limit=1"
    cursors = json.dumps([{"partition": wanted.partition, "offset": after}])
    with _open_url(f"{wanted.url}/{path}?{limits}", wanted.token, {"X-Nakadi-Cursors": cursors}) as lines:
        for line in lines:
            batch = json.loads(line)
            if batch.get("events"):
                yield batch["cursor"]["offset"], _first_event(line.decode())


def _first_event(line: str) -> str:
    """The text of the event as it was sent: parsing it would change numbers that a `float` cannot hold."""
    start = line.index(EVENTS_MARKER) + len(EVENTS_MARKER)
    _, end = json.JSONDecoder().raw_decode(line, start)
    return line[start:end]


def _is_behind(offset: str, last: str) -> bool:
    """Offsets of one broker are texts of one length, which sort as their events do."""
    return len(offset) == len(last) and offset > last


def _request_json(url: str, token: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with _open_url(url, token, {"Content-Type": "application/json"}, data) as answer:
        return json.load(answer)


def _open_url(url: str, token: str, headers: Mapping[str, str], data: bytes | None = None) -> Any:
    if not url.startswith(("http://", "https://")):
        raise ReadFailed(f"{url} is not the address of a broker")
    credentials = {"Authorization": f"Bearer {token}"} if token else {}
    request = Request(url, data, {**headers, **credentials})  # noqa: S310  # looked at above
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
