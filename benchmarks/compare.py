"""Two brokers that speak this API, side by side: the same load, alternately, on the same machine.

    python benchmarks/compare.py URL URL [--pids PID,PID PID] [--rounds 3] [--seconds 1] [--only shapes,delivery]
                                 [--rows TEXT] [--json FILE] [--minutes 10] [--anywhere]

Each round measures both brokers, the next one in reverse order, so that other work on the machine affects both. Each
round yields a ratio; the table shows the median, least and greatest ratio. Above 1, the first broker is better,
regardless of the kind of figure. The last column is the median of an `fdatasync` of 4 KiB in the folder for temporary
files in the same rounds. With `--pids`, the table also shows the CPU time and memory of the brokers' processes and
their children. The whole table takes about twelve minutes.

With `--json`, each row is written as soon as it is measured, and a later run with the same file measures only the
missing loads. `--minutes` begins no further load after that time, so a table can be measured in several runs. A load
at which a broker failed in all attempts is in the file with the reason, and is measured again next time.

The brokers must be idle otherwise; the script finally removes everything that it created. Addresses must be on
loopback, except with `--anywhere`.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import math
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from benchmarks.compare_rows import PARTS, Figure, Figures, Load, Measure, measure_publishing
from benchmarks.compared_broker import BenchmarkFailed, ComparedBroker

MAX_ATTEMPTS = 3
MAX_REASON_LENGTH = 300
FAILURES = (BenchmarkFailed, httpx.HTTPError, OSError, asyncio.IncompleteReadError)
SYNCS = 100


@dataclass(frozen=True)
class Row:
    name: str
    first: float
    second: float
    ratio: float
    """The median of the rounds; above 1, the first broker is better."""
    least: float
    greatest: float
    fdatasync_ms: float
    load: str
    """The load whose measurement gave this row; a load can give several rows."""

    def __str__(self) -> str:
        ratio = f"{self.ratio:.2f} ({self.least:.2f} to {self.greatest:.2f})"
        figures = f"{format_value(self.first)} | {format_value(self.second)}"
        return f"| {self.name} | {figures} | {ratio} | {self.fdatasync_ms:.2f} |"


def format_value(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


@dataclass(frozen=True)
class Failure:
    """A load at which a broker failed, and why."""

    load: str
    reason: str

    def __str__(self) -> str:
        return f"| {self.load} | **failed** | | {self.reason.splitlines()[0]} | |"


@dataclass
class Table:
    """The rows and failures so far. With `file`, they are also stored in this file."""

    file: Path | None
    rows: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @classmethod
    def open(cls, file: Path | None) -> Table:
        if file is None or not file.exists():
            return cls(file)
        return cls(file, [Row(**each) for each in json.loads(file.read_text())["rows"]])

    @property
    def measured_loads(self) -> set[str]:
        return {row.load for row in self.rows}

    def add(self, found: Row | Failure) -> None:
        if isinstance(found, Row):
            self.rows.append(found)
        else:
            self.failures.append(found)
        if self.file is not None:
            part = self.file.with_suffix(".part")
            found_so_far = {"rows": list(map(asdict, self.rows)), "failures": list(map(asdict, self.failures))}
            part.write_text(json.dumps(found_so_far, indent=2) + "\n")
            part.replace(self.file)


def row_of_rounds(load: str, name: str, rounds: Sequence[tuple[Figure, Figure]], fdatasync_ms: float) -> Row:
    ratios = [(first.value / second.value) ** first.better for first, second in rounds]
    return Row(
        name,
        statistics.median(first.value for first, _ in rounds),
        statistics.median(second.value for _, second in rounds),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        fdatasync_ms,
        load,
    )


def compare(
    first: ComparedBroker,
    second: ComparedBroker,
    measures: Mapping[str, Measure],
    rounds: int,
    seconds: float,
    end: float = math.inf,
) -> Iterator[Row | Failure]:
    """Yield the rows of the table as soon as they are measured. No load begins after `end`, on the monotonic clock."""
    try:
        for name, measure in measures.items():
            if time.monotonic() > end:
                return
            try:
                pairs = [measured_pair(first, second, number, name, measure, seconds) for number in range(rounds)]
            except FAILURES as error:
                yield Failure(name, reason_of(error))
                continue
            sync = statistics.median(each for _, _, each in pairs)
            for figure in pairs[0][0]:
                seen = [
                    (ours[figure], theirs[figure]) for ours, theirs, _ in pairs if figure in ours and figure in theirs
                ]
                if seen:
                    yield row_of_rounds(name, figure, seen, sync)
    finally:
        # Resources are deleted only at the end: a Kafka producer that remembers deleted topics keeps looking for them.
        for broker in (first, second):
            broker.delete_all()


def measured_pair(
    first: ComparedBroker, second: ComparedBroker, number: int, name: str, measure: Measure, seconds: float
) -> tuple[Figures, Figures, float]:
    """The figures of both brokers in a round, and of `fdatasync`. The brokers take turns in being first."""
    figures = {
        broker: measure_once(broker, name, measure, seconds)
        for broker in ((first, second) if number % 2 == 0 else (second, first))
    }
    return figures[first], figures[second], fdatasync_ms()


def measure_once(broker: ComparedBroker, name: str, measure: Measure, seconds: float) -> Figures:
    """The figures of a row. If the broker fails, report that and measure again."""
    for attempt in range(MAX_ATTEMPTS):
        try:
            return asyncio.run(measure(broker, seconds))
        except FAILURES as error:
            print(f"{name}: {broker.url} fails: {reason_of(error)}", file=sys.stderr)
            if attempt == MAX_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def reason_of(error: Exception) -> str:
    reason = error.response.text if isinstance(error, httpx.HTTPStatusError) else str(error)
    return (reason or type(error).__name__)[:MAX_REASON_LENGTH]


def fdatasync_ms() -> float:
    """The median of several writes of 4 KiB to a file, each with an `fdatasync`."""
    took = []
    with tempfile.TemporaryFile() as file:
        for number in range(SYNCS):
            began = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), 4096 * number)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return 1000 * statistics.median(took)


def warm_up(brokers: Sequence[ComparedBroker], seconds: float) -> None:
    for broker in brokers:
        for load in (Load(), Load(events=1)):
            asyncio.run(measure_publishing(load, broker, seconds / 2))


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def summary(rows: Sequence[Row]) -> str:
    """A summary of the rows about publishing."""
    rates = sorted((row for row in rows if row.name.endswith(": events/s")), key=lambda row: row.ratio)
    if not rates:
        return ""
    median = statistics.median(row.ratio for row in rates)
    return f"\nOf {len(rates)} rates: median {median:.2f}, least {rates[0].ratio:.2f} ({rates[0].name})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs=2, metavar="URL")
    parser.add_argument("--pids", nargs=2, default=["", ""], metavar="PID,PID", help="the processes of each broker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds of publishing to each broker first")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--rows", default="", help="only rows with this in their name")
    parser.add_argument("--json", type=Path, help="a file that is written row by row, and continued if it exists")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further load after this time")
    parser.add_argument("--anywhere", action="store_true", help="also brokers that are not on this machine")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if not options.anywhere and not all(map(is_loopback, options.urls)):
        parser.error("this is a load test: name brokers on loopback, or say --anywhere")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    first, second = (
        ComparedBroker(url.rstrip("/"), tuple(int(each) for each in pids.split(",") if each))
        for url, pids in zip(options.urls, options.pids, strict=True)
    )
    end = time.monotonic() + 60 * options.minutes
    table = Table.open(options.json)
    measures = {
        name: measure
        for part in parts
        for name, measure in PARTS[part].items()
        if options.rows in name and name not in table.measured_loads
    }
    warm_up([first, second], options.warm_up)
    print(
        f"| | {first.url} | {second.url} | ratio (of {options.rounds} rounds) | fdatasync, ms |\n|---|---|---|---|---|"
    )
    for each in table.rows:
        print(each)
    for found in compare(first, second, measures, options.rounds, options.seconds, end):
        print(found, flush=True)
        table.add(found)
    print(summary(table.rows))
    if left := measures.keys() - table.measured_loads:
        print(f"Not measured: {', '.join(name for name in measures if name in left)}")


if __name__ == "__main__":
    main()
