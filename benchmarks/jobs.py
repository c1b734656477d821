"""What do the jobs on the archive cost, compared with the least that Spark needs for the same files?

    python benchmarks/jobs.py [--events 1000000 4000000] [--keep .cache/bench/jobs]

Compaction is compared with Spark reading the same JSON with a given schema and writing Parquet, statistics with
counting the rows of the table. Statistics run again after one percent of new events. Each task runs in two alternating
rounds. The output shows the seconds of CPU of the better round and, beside them, those of the first, in which Java
loads its classes. Events have about 0.7 KB. With several numbers of events, the last lines show the fixed cost of a
job, and the cost of each further million.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from uuid import UUID

from nakadi.model.event_type import Category, EventType
from nakadi_jobs import compaction, statistics
from nakadi_jobs.columns import Field, Struct, ddl_of
from nakadi_jobs.event_type_tables import columns_of_all_versions
from nakadi_jobs.session import CATALOG, open_spark
from nakadi_jobs.transform import HEADER
from tests.support.jobs import ORDERS, DataFolder

PARTITIONS = 4
A_MEMBER = 20_000
BEGUN = datetime(2026, 11, 20, tzinfo=UTC)
NEW = 1.01
"""The number of events after one percent was added, as a multiple of the number before."""
SCHEMA = {
    "properties": {
        **ORDERS["properties"],
        "customer": {"properties": {name: {"type": "string"} for name in ("id", "name", "country")}},
        "items": {
            "type": "array",
            "items": {
                "properties": {
                    "sku": {"type": "string"},
                    "quantity": {"type": "integer"},
                    "price": {"properties": {"amount": {"type": "number"}, "currency": {"type": "string"}}},
                }
            },
        },
        "total": {"properties": {"amount": {"type": "number"}, "currency": {"type": "string"}}},
        "ordered_at": {"type": "string"},
    }
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000])
    parser.add_argument(
        "--keep", type=Path, default=Path(".cache/bench/jobs"), help="where the archive is made, and kept"
    )
    parser.add_argument("--memory", default="3g")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.0f}")
    measurements = []
    for events in sorted(options.events):
        kept = options.keep.absolute() / str(events)
        archive_of(events, kept).close()
        measurements.append(measure_jobs(options, events, kept))
        print_figures(measurements[-1])
    if len(measurements) > 1:
        print_figures(fixed_and_marginal_costs(measurements[0], measurements[-1]))
    print(f"load {os.getloadavg()[0]:.0f}")
    if options.json:
        options.json.write_text(json.dumps(measurements))


def print_figures(figures: Mapping[str, float]) -> None:
    for name, value in figures.items():
        print(f"{name:52s} {value:12.2f}", flush=True)


def fixed_and_marginal_costs(few: Mapping[str, float], many: Mapping[str, float]) -> Mapping[str, float]:
    """The fixed cost of each task, and its cost per further million events."""
    millions = (many["events"] - few["events"]) / 1e6
    found = {}
    for name in TASKS:
        each = (many[name] - few[name]) / millions
        found[f"{name}, each further million"] = each
        found[f"{name}, at all"] = few[name] - each * few["events"] / 1e6
    for job, write_floor in ((COMPACTION, WRITING), (STATISTICS, COUNTING), (MORE_STATISTICS, COUNTING)):
        of_job, of_floor = (found[f"{name}, each further million"] for name in (job, write_floor))
        found[f"{job} / {write_floor}, each further million"] = of_job / of_floor
    return found


def archive_of(events: int, folder: Path) -> DataFolder:
    done = folder / "done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
    data = DataFolder(folder)
    if not done.exists():
        event_type = data.event_type("order.placed", SCHEMA, partitions=PARTITIONS, category=Category.BUSINESS)
        add(data, event_type, 0, events)
        done.touch()
    return data


def add(data: DataFolder, event_type: EventType, first: int, end: int) -> None:
    """Archive the events with these numbers."""
    for number in range(first, end, A_MEMBER):
        texts = list(texts_of(number, min(A_MEMBER, end - number)))
        at = BEGUN + timedelta(seconds=number / 200)
        partition = number // A_MEMBER % PARTITIONS
        data.archive_events(event_type, texts, partition=partition, at=at, apart=timedelta(milliseconds=5))


def texts_of(first: int, count: int) -> Iterator[bytes]:
    """Events that are about as varied as those of a shop."""
    drawn = random.Random(first)
    for number in range(first, first + count):
        bits = drawn.getrandbits(128)
        items = ",".join(
            f'{{"sku":"sku-{drawn.getrandbits(32):x}","quantity":{1 + bits % 4},'
            f'"price":{{"amount":{drawn.randrange(10_000) / 100},"currency":"EUR"}}}}'
            for _ in range(3)
        )
        yield (
            f'{{"metadata":{{"eid":"{UUID(int=bits)}","occurred_at":"2026-11-20T00:00:00Z","flow_id":"{bits >> 64:x}",'
            f'"published_by":"app{number % 5}","received_at":"2026-11-20T00:00:00.123Z","event_type":"order.placed",'
            f'"version":"1.0.0","partition":"0"}},"order_number":"o-{number}","customer":{{"id":"c-{bits % 100_000}",'
            f'"name":"Jane Example {bits >> 80:x}","country":"DE"}},"items":[{items}],'
            f'"total":{{"amount":{bits % 10_000 / 100},"currency":"EUR"}},"ordered_at":"2026-11-20T00:00:00Z"}}'
        ).encode()


WRITING, COMPACTION, COUNTING, STATISTICS, MORE_STATISTICS = TASKS = (
    "floor: JSON to Parquet, s",
    "compaction, s",
    "floor: count, s",
    "statistics, s",
    "statistics after 1 % of new events, s",
)


def measure_jobs(options: argparse.Namespace, events: int, kept: Path) -> dict[str, float]:
    """Measure one task after the other. Each round works on a new copy of the data, since tasks add to it."""
    folder = kept.parent / f"{kept.name}-copy"
    data = copy_data_folder(kept, folder)
    tables = folder / "tables"
    spark = open_spark("benchmark", f"file://{tables.absolute()}", "hadoop", "local[*]", options.memory)
    event_type = data.event_types.get("order.placed")
    columns = columns_of_all_versions(data.event_types, event_type)
    schema = spark.createDataFrame([], ddl_of(Struct((*HEADER, Field("event", columns))))).schema
    files = str((data.folder / "archive").absolute())
    out = str((data.folder / "floor").absolute())
    until = (BEGUN + timedelta(seconds=events * NEW / 200 + 3600)).isoformat()
    hours = str(int(events / 200 / 3600) + 2)

    def write_floor() -> None:
        reader = spark.read.option("recursiveFileLookup", "true").option("lineSep", "\n")
        writer = reader.schema(schema).json(files).write.mode("overwrite").option("compression", "zstd")
        writer.parquet(out)

    def count() -> None:
        # A filter is necessary, because Iceberg knows the number of all rows without reading any.
        spark.table(f"{CATALOG}.nakadi.order_placed").where("nakadi_time >= '2000-01-01' or nakadi_size < 0").agg(
            {"nakadi_size": "sum"}
        ).collect()

    def job(main: Callable[[list[str]], int], *arguments: str) -> Callable[[], object]:
        def run() -> None:
            with redirect_stderr(StringIO()) as told, redirect_stdout(StringIO()):
                code = main(["--data", str(data.folder), *arguments])
            assert code == 0, told.getvalue()

        return run

    compact, measure = job(compaction.main, "--no-tidying"), job(statistics.main, "--until", until, "--hours", hours)

    def add_new() -> None:
        add(data, event_type, events, int(events * NEW))
        compact()

    tasks = {WRITING: write_floor, COMPACTION: compact, COUNTING: count, STATISTICS: measure, MORE_STATISTICS: measure}
    first: dict[str, float] = {}
    best = dict.fromkeys(tasks, float("inf"))
    peaks = dict.fromkeys(tasks, 0.0)
    for number in range(options.rounds):
        if number:
            data.close()
            data = copy_data_folder(kept, folder)
        for name, task in tasks.items():
            if name == MORE_STATISTICS:
                add_new()
            _forget_peak()
            begun = cpu_seconds()
            task()
            taken = cpu_seconds() - begun
            first.setdefault(name, taken)
            best[name] = min(best[name], taken)
            peaks[name] = max(peaks[name], _peak_memory())
    data.close()
    write_floor, compacted, count, counted, counted_more = best.values()
    size = sum(path.stat().st_size for path in tables.parent.joinpath("archive").rglob("*.gz"))
    return {
        "events": events,
        "archive, MB": size / 1e6,
        **best,
        **{f"first round: {name}": taken for name, taken in first.items()},
        "compaction / floor": compacted / write_floor,
        "statistics / count": counted / count,
        "statistics after 1 % of new events / count": counted_more / count,
        "events compacted a second": events / compacted,
        **{f"peak of Java, MB: {name.removesuffix(', s')}": peak for name, peak in peaks.items()},
    }


def copy_data_folder(kept: Path, folder: Path) -> DataFolder:
    """A copy of the kept data without the results of earlier runs."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("tables", "floor"):
        shutil.rmtree(kept / name, ignore_errors=True)
    shutil.copytree(kept, folder)
    return DataFolder(folder)


def cpu_seconds() -> float:
    """The CPU seconds of this process and of Spark."""
    ticks = 0
    for process in _java_status_files():
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _java_status_files() -> Iterator[Path]:
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            text = status.read_text()
            if f"\nPPid:\t{os.getpid()}\n" in text and text.startswith("Name:\tjava"):
                yield status.parent


def _forget_peak() -> None:
    for process in _java_status_files():
        (process / "clear_refs").write_text("5")


def _peak_memory() -> float:
    for process in _java_status_files():
        line = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1000
    return 0.0


if __name__ == "__main__":
    main()
