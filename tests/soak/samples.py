"""Measures what a broker holds at a moment: the memory, descriptors and threads of its processes, and its files."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """`life` counts the restarts of the broker, and `events` the events published so far. Sizes are in bytes.

    `memory`, `descriptors`, `threads` and `cpu_seconds` are those of all processes of the broker together.
    """

    seconds: float
    life: int
    events: int
    processes: int
    memory: int
    descriptors: int
    threads: int
    cpu_seconds: float
    data_file: int
    write_ahead_log: int
    archive: int
    archive_objects: int
    tables: int
    temporary_files: int
    log: int
    other_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where a broker keeps its data, and its temporary files."""

    data: Path
    temporary: Path


def take_sample(
    processes: Iterable[psutil.Process], folders: Folders, *, seconds: float, life: int, events: int
) -> Sample:
    held = _measure_processes(processes)
    sizes = dict.fromkeys(("data_file", "write_ahead_log", "archive", "tables", "log", "other_files"), 0)
    archive_objects = 0
    for path, size in _list_files(folders.data):
        kind = _kind_of(path.relative_to(folders.data))
        sizes[kind] += size
        archive_objects += kind == "archive"
    return Sample(
        seconds=seconds,
        life=life,
        events=events,
        processes=held.processes,
        memory=held.memory,
        descriptors=held.descriptors,
        threads=held.threads,
        cpu_seconds=held.cpu_seconds,
        archive_objects=archive_objects,
        temporary_files=sum(1 for _ in _list_files(folders.temporary)),
        **sizes,
    )


@dataclass(slots=True)
class _Held:
    processes: int = 0
    memory: int = 0
    descriptors: int = 0
    threads: int = 0
    cpu_seconds: float = 0.0


def _measure_processes(processes: Iterable[psutil.Process]) -> _Held:
    """Add up what the processes hold, without a process that ends meanwhile."""
    held = _Held()
    for each in processes:
        with suppress(psutil.NoSuchProcess), each.oneshot():
            memory, descriptors, threads = each.memory_info().rss, each.num_fds(), each.num_threads()
            times = each.cpu_times()
            held.processes += 1
            held.memory += memory
            held.descriptors += descriptors
            held.threads += threads
            held.cpu_seconds += times.user + times.system
    return held


def _kind_of(path: Path) -> str:
    if path.parts[0] in ("archive", "tables"):
        return path.parts[0]
    if path.name.endswith(".log"):
        return "log"
    if path.name.endswith(".db"):
        return "data_file"
    return "write_ahead_log" if path.name.endswith(".db-wal") else "other_files"


def _list_files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files of a folder and their sizes, without files that the broker removes meanwhile."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            with suppress(FileNotFoundError):
                yield path, path.stat().st_size


@contextmanager
def recording(path: Path) -> Iterator[Callable[[Sample], None]]:
    """Yield a function that writes a sample at once as a line of CSV, so an interrupted run keeps its samples."""
    with path.open("w", newline="") as file:
        rows = csv.DictWriter(file, [each.name for each in fields(Sample)])
        rows.writeheader()

        def record(sample: Sample) -> None:
            rows.writerow(asdict(sample))
            file.flush()

        yield record


def read_samples(path: Path) -> list[Sample]:
    real = {"seconds", "cpu_seconds"}
    with path.open(newline="") as file:
        return [
            Sample(**{name: float(text) if name in real else int(text) for name, text in row.items()})  # type: ignore[arg-type]
            for row in csv.DictReader(file)
        ]


class Stopwatch:
    """The seconds since a run began."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._began
