"""How fast does `nakadi_spark.read` read events, compared with Spark reading the same files as Parquet, or by Iceberg?

    python benchmarks/spark.py [--events 10000000] [--rounds 5] [--memory 3g]

At first the table has all events; then there are also a few that only the log of the broker has. All ways read the
same files of the table, in alternating rounds of one Spark with as many tasks as this machine has processors. The
figures are medians of seconds of CPU of Java and of this process, which is the driver and the broker, from opening to
the last row. Opening takes the same time however many events there are, so it is shown beside the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import httpx
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

import nakadi_spark
from benchmarks.jobs import PARTITIONS, cpu_seconds, texts_of
from benchmarks.spark_cluster import make_archive
from nakadi.app.engines import open_event_log
from nakadi.engines.sqlite.reading import ROW_HEAD_FORMAT
from nakadi.ports.clock import SystemClock
from nakadi_jobs import compaction
from nakadi_jobs.session import open_spark
from tests.support.jobs import DataFolder
from tests.support.served import ServedBroker

IN_LOG = 1000
"""The number of events that are only in the log at the end."""

WARM_UP_ROUNDS = 3
"""Java compiles the code of a query in its first rounds."""

Columns = tuple[str, ...] | None
Ask = Callable[[DataFrame], object]


def _read_all(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


SHAPES: Mapping[str, tuple[Columns, Ask]] = {
    "count": (None, lambda rows: rows.count()),
    "count of a column": (("order_number",), lambda rows: rows.agg(F.count("order_number")).collect()),
    "sum of a member": (("total",), lambda rows: rows.agg(F.sum("total.amount")).collect()),
    "count by a member": (("customer",), lambda rows: rows.groupBy("customer.country").count().collect()),
    "one column": (("order_number",), _read_all),
    "all columns": (None, _read_all),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", default="3g")
    parser.add_argument("--keep", type=Path, default=Path(".cache/bench/spark"), help="where the table is kept")
    options = parser.parse_args()
    folder = options.keep.absolute() / str(options.events)
    make_table(options.events, folder, options.memory)
    spark = open_spark("benchmark", f"file://{folder}/tables", "hadoop", "local[*]", options.memory)
    file = f"sqlite:///{folder / 'nakadi.db'}"
    print(f"load {os.getloadavg()[0]:.0f}, {os.cpu_count()} cores, {options.events} events", flush=True)
    archive = str(folder / "archive")
    with ServedBroker(registry=file, event_log=file, log_index=file, archive=archive, archiver="function") as broker:
        source = nakadi_spark.Broker(broker.url, tables="nakadi.nakadi")
        print("\nThe table has all events.\n")
        compare(spark, source, options.rounds)
        publish_missing(broker.url, options.events)
        print(f"\nOnly the log has {IN_LOG} events.\n")
        compare(spark, source, options.rounds)
    print(f"load {os.getloadavg()[0]:.0f}")


def make_table(events: int, folder: Path, memory: str) -> None:
    """Make the archive and the table, and a log whose events have all moved to the archive."""
    if (folder / "table").exists():
        return
    make_archive(events, folder)
    with redirect_stderr(StringIO()) as told, redirect_stdout(StringIO()):
        code = compaction.main(["--data", str(folder), "--no-tidying", "--no-quality", "--memory", memory])
    assert code == 0, told.getvalue()
    data = DataFolder(folder)
    topic = data.event_types.get("order.placed").timeline.topic
    with closing(open_event_log(f"sqlite:///{folder / 'nakadi.db'}", SystemClock())) as log:
        log.create_topic(topic, PARTITIONS)
    heads = data.index.index_heads([(topic, number) for number in range(PARTITIONS)])
    data.close()
    with closing(sqlite3.connect(folder / "nakadi.db")) as connection, connection:
        for (_, number), head in heads.items():
            oldest, stored_at = head.state.next_offset, head.state.latest_stored_at
            if not oldest:
                continue  # few events do not reach every partition
            [(log_id,)] = connection.execute(
                "UPDATE logs SET oldest = ? WHERE partition = ? AND topic = (SELECT id FROM topics WHERE name = ?)"
                " RETURNING id",
                (oldest, number, topic),
            ).fetchall()
            # The last frame stays even if all its events are trimmed, because it marks the end of the partition.
            connection.execute(
                "INSERT INTO frames (log, first, count, stored_at, size, body) VALUES (?, ?, 1, ?, 0, ?)",
                (log_id, oldest - 1, stored_at, ROW_HEAD_FORMAT.pack(oldest - 1, 1, stored_at, 0)),
            )
    (folder / "table").touch()


def publish_missing(url: str, events: int) -> None:
    with httpx.Client(base_url=url, timeout=60) as api:
        missing = [json.loads(text) for text in texts_of(events, IN_LOG)]
        for event in missing:
            event["metadata"] = {name: event["metadata"][name] for name in ("eid", "occurred_at")}
        answer = api.post("/event-types/order.placed/events", json=missing)
        assert answer.status_code == 200, answer.text


def compare(spark: SparkSession, broker: nakadi_spark.Broker, rounds: int) -> None:
    table = "nakadi.nakadi.order_placed"
    paths = [row[0] for row in spark.table(f"{table}.files").select("file_path").collect()]
    print("| | Parquet: opening, the rest | Iceberg | events | speed |\n|---|---|---|---|---|")

    def choose(rows: DataFrame, columns: Columns) -> DataFrame:
        return rows if columns is None else rows.select(*columns)

    ways: Sequence[Callable[[Columns], DataFrame]] = (
        lambda columns: choose(spark.read.parquet(*paths), columns),
        lambda columns: choose(spark.table(table), columns),
        lambda columns: nakadi_spark.read(spark, broker, "order.placed", columns=columns),
    )
    for name, (columns, ask) in SHAPES.items():
        taken = [[cpu_of(partial(way, columns), ask) for way in ways] for _ in range(WARM_UP_ROUNDS + rounds)]
        taken = taken[WARM_UP_ROUNDS:]
        figures = [[statistics.median(each) for each in zip(*way, strict=True)] for way in zip(*taken, strict=True)]
        speed = statistics.median(sum(parquet) / sum(events) for parquet, _, events in taken)
        shown = " | ".join(f"{opening:.2f}, {rest:.2f}" for opening, rest in figures)
        print(f"| {name} | {shown} | {100 * speed:.0f} % |", flush=True)


def cpu_of(open_rows: Callable[[], DataFrame], ask: Ask) -> tuple[float, float]:
    """The CPU seconds of opening, and of the rest."""
    begun = cpu_seconds()
    rows = open_rows()
    opened = cpu_seconds()
    ask(rows)
    return opened - begun, cpu_seconds() - opened


if __name__ == "__main__":
    main()
