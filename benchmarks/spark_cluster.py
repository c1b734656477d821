"""What does a compaction take on a cluster with 1, 2 and 4 workers, and how much of it does the driver do?

    python benchmarks/spark_cluster.py [--events 10000000] [--workers 1 2 4] [--keep .cache/bench/jobs]
    python benchmarks/spark_cluster.py --memory

A worker is a process on this machine with one core. Each number of workers gets a new cluster and a new copy of the
data. The figures are seconds from the first to the last line of the job, and the CPU seconds of the driver and of the
executors, separately for Java and Python. The executors are already running when the clock starts, because a compaction
of an empty event type has started them.

`--memory` shows the greatest memory of a process that makes the files of a share, for shares of 1, 10 and 100 MB, in
members of 1.5 MB as the broker writes them, and as a single member.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path

from msgspec import Struct

from benchmarks.jobs import BEGUN, PARTITIONS, SCHEMA, texts_of
from nakadi.model.event_type import Category
from nakadi_jobs import plain_files
from nakadi_jobs.archive_ranges import NO_PROGRESS, unread_parts
from nakadi_jobs.event_type_tables import columns_of_all_versions
from nakadi_jobs.plain_files import StoreUrls, Target
from tests.support.jobs import DataFolder
from tests.support.spark_cluster import Cluster, Driver, open_cluster
from tests.support.table_forms import make_form

TEXTS = 500_000
"""The number of different events; further ones repeat them."""

A_MEMBER = 15_000
"""The number of events in a member of about 1.5 MB, packed."""

TICKS = os.sysconf("SC_CLK_TCK")


class ProcessCpu(Struct, frozen=True):
    """The CPU seconds of some processes, and of their children that have ended."""

    java: float
    python: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--keep", type=Path, default=Path(".cache/bench/cluster"), help="where the archive is kept")
    parser.add_argument("--batch-mb", type=int, default=2048)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.0f}, {os.cpu_count()} cores", flush=True)
    if options.memory:
        show_memory()
        return
    kept = options.keep.absolute() / str(options.events)
    make_archive(options.events, kept)
    for workers in options.workers:
        measure(kept, workers, options.events, options.batch_mb)
    print(f"load {os.getloadavg()[0]:.0f}")


def make_archive(events: int, folder: Path) -> None:
    if (folder / "done").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    data = DataFolder(folder)
    event_type = data.event_type("order.placed", SCHEMA, partitions=PARTITIONS, category=Category.BUSINESS)
    texts = cycle(list(texts_of(0, min(events, TEXTS))))
    for number in range(0, events, A_MEMBER):
        some = list(islice(texts, min(A_MEMBER, events - number)))
        at, partition = BEGUN + timedelta(seconds=number / 200), number // A_MEMBER % PARTITIONS
        data.archive_events(event_type, some, partition=partition, at=at, apart=timedelta(milliseconds=5))
    data.event_type("nothing.yet", SCHEMA)
    data.close()
    (folder / "done").touch()


def measure(kept: Path, workers: int, events: int, batch_mb: int) -> None:
    folder = kept.parent / f"{kept.name}-copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(kept, folder)
    size = sum(path.stat().st_size for path in (folder / "archive").rglob("*.gz"))
    with (
        tempfile.TemporaryDirectory(prefix="nakadi-cluster-") as place,
        open_cluster(Path(place), workers, cores=1) as cluster,
        cluster.driver() as driver,
    ):
        work = ("--data", str(folder), "--no-tidying", "--batch-mb", str(batch_mb))
        driver.run("compaction", *work, "--event-types", "nothing.yet")
        before, begun = cpu_of(cluster, driver), time.monotonic()
        told = driver.run("compaction", *work, "--event-types", "order.placed")
        taken, after = time.monotonic() - begun, cpu_of(cluster, driver)
    assert told.code == 0, told
    shutil.rmtree(folder)
    print(
        f"{workers} workers, {events} events, {size / 1e6:.0f} MB packed, {told.tasks} tasks: {taken:.1f} s; CPU "
        + ", ".join(
            f"{who} Java {after[who].java - before[who].java:.1f} Python {after[who].python - before[who].python:.1f}"
            for who in after
        ),
        flush=True,
    )


def cpu_of(cluster: Cluster, driver: Driver) -> Mapping[str, ProcessCpu]:
    return {"driver": sum_cpu(descendants(driver.process.pid)), "executors": sum_cpu(cluster.executors())}


def descendants(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from descendants(int(child))


def sum_cpu(pids: Sequence[int] | Iterator[int]) -> ProcessCpu:
    java = python = 0.0
    for pid in pids:
        name, _, fields = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        own = sum(map(int, fields.split()[11:13])) / TICKS
        if name == "java":
            java += own
        else:
            python += own + sum(map(int, fields.split()[13:15])) / TICKS
    return ProcessCpu(java, python)


# Memory


def show_memory() -> None:
    for events_per_member in (A_MEMBER, 0):
        for megabytes in (1, 10, 100):
            with tempfile.TemporaryDirectory(prefix="nakadi-share-") as place:
                run = subprocess.run(
                    [sys.executable, "-c", IN_PROCESS, place, str(megabytes), str(events_per_member)],
                    check=True,
                    capture_output=True,
                    text=True,
                )
            print(f"{megabytes} MB, members of {events_per_member or 'all'} events: {run.stdout.strip()}", flush=True)


IN_PROCESS = "import sys; from benchmarks.spark_cluster import make_share; make_share(*sys.argv[1:])"


def make_share(place: str, megabytes: str, events_per_member: str) -> None:
    """Make the files of a share in this process, and print the memory that it needed."""
    data = DataFolder(Path(place))
    event_type = data.event_type("order.placed", SCHEMA, category=Category.BUSINESS)
    events = int(megabytes) * A_MEMBER * 2 // 3
    texts, at_once = cycle(list(texts_of(0, min(events, 100_000)))), int(events_per_member) or events
    if os.fork() == 0:  # a child makes the archive, so the memory for that does not count
        for number in range(0, events, at_once):
            at = BEGUN + timedelta(seconds=number / 200)
            some = list(islice(texts, min(at_once, events - number)))
            data.archive_events(event_type, some, at=at, apart=timedelta(milliseconds=5))
        os._exit(0)
    os.wait()
    parts = list(unread_parts(data.index, event_type, NO_PROGRESS))
    columns = columns_of_all_versions(data.event_types, event_type)
    target = Target(make_form(columns), "t/data", "day", "_gathered/t/b", "b")
    places = StoreUrls(data.archive, f"file://{place}/tables")
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_megabytes("VmRSS")
    made = plain_files.make_in_task(places, target, parts)
    packed = sum(part.location.length for part in parts)
    size = sum(file.size for file in made.files)
    print(
        f"{packed / 1e6:.0f} MB in {len(parts)} members, {len(made.files)} files of {size / 1e6:.0f} MB, "
        f"{memory_megabytes('VmHWM') - before:.0f} MB more than {before:.0f} MB"
    )
    data.close()


def memory_megabytes(name: str) -> float:
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(name))
    return int(line.split()[1]) / 1000


if __name__ == "__main__":
    main()
