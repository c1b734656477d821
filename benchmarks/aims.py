"""Compares the figures of the other benchmarks with their aims, in one table.

    python benchmarks/aims.py FOLDER [FOLDER …]

The script reads publish.json, workers.json, stream.json, subscriptions.json, archive.json and event_shapes.json, and
compare.json, with the original Nakadi as the other broker. Each folder contains the results of one round. The table
shows the median of the rounds, and the lowest and highest values in brackets. Rates depend on the machine; a floor, a
reference or another figure beside them was measured in the same run.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FILES = ("publish", "workers", "stream", "subscriptions", "archive", "event_shapes")
COMPARISON = "compare"

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Aim:
    """A named figure, or one computed from several, and its aim: a lower or an upper limit."""

    about: str
    value: str | Callable[[Figures], float]
    least: float | None = None
    most: float | None = None

    def row(self, rounds: Sequence[Figures]) -> str:
        seen = [each for figures in rounds if (each := self.figure(figures)) is not None]
        if not seen:
            return f"| {self.about} | not measured | {self.limit} | |"
        spread = f" ({format_value(min(seen))} to {format_value(max(seen))})" if len(seen) > 1 else ""
        median = statistics.median(seen)
        is_met = (self.least is None or median >= self.least) and (self.most is None or median <= self.most)
        return f"| {self.about} | {format_value(median)}{spread} | {self.limit} | {'yes' if is_met else '**no**'} |"

    def figure(self, figures: Figures) -> float | None:
        """The figure in one round, or None if its benchmark was not run."""
        try:
            return figures[self.value] if isinstance(self.value, str) else self.value(figures)
        except KeyError:
            return None

    @property
    def limit(self) -> str:
        return f"≥ {format_value(self.least)}" if self.least is not None else f"≤ {format_value(self.most or 0)}"


def format_value(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def ratio_of(of: str, by: str, factor: float = 1.0) -> Callable[[Figures], float]:
    return lambda figures: figures[of] / figures[by] * factor


# This broker alone


def publishing_row(batch: int, clients: int, name: str) -> str:
    return f"publish.http_random_broker_{clients}_clients_{batch}_per_batch_{name}"


def publishing_aims(batch: int, clients: int, events_per_second: float) -> list[Aim]:
    rate = publishing_row(batch, clients, "requests_per_s")
    about = f"publish, {batch} a batch, {clients} client{'s'[: clients - 1]}"
    of_floor = f"publish.http_random_{clients}_clients_{batch}_per_batch_of_floor"
    return [
        Aim(f"{about}: events/s", lambda figures: figures[rate] * batch, least=events_per_second),
        Aim(f"{about}: of the floor", of_floor, least=0.6),
    ]


SHAPES_ABOVE_4_KILOBYTES = ("10 KB", "200 numbers")

PUBLISHING = [
    Aim("shapes of events, CPU a kilobyte, of the plain order: median", "event_shapes.median_of_plain", most=1.15),
    Aim("the same: most", "event_shapes.most_of_plain", most=1.5),
    Aim("the same, without events of 100 bytes: most", "event_shapes.most_of_plain_but_small", most=1.5),
    *[
        Aim(f"{shape}: µs of CPU a kilobyte", f"event_shapes.{shape}_us_per_kb", most=12.0)
        for shape in SHAPES_ABOVE_4_KILOBYTES
    ],
    *[aim for clients in (1, 8, 64) for aim in publishing_aims(100, clients, 130_000)],
    Aim(
        "publish, 100 a batch: 64 clients against 8",
        ratio_of(publishing_row(100, 64, "requests_per_s"), publishing_row(100, 8, "requests_per_s")),
        least=1.0,
    ),
    Aim(
        "publish, 100 a batch, 64 clients: p99 in p50",
        ratio_of(publishing_row(100, 64, "p99_ms"), publishing_row(100, 64, "p50_ms")),
        most=3.0,
    ),
    *[aim for clients in (8, 64) for aim in publishing_aims(1, clients, 9_000)],
    *[
        Aim(
            f"publish, {batch} a batch, at half load: p99, ms",
            f"publish.http_random_at_half_64_clients_{batch}_per_batch_p99_ms",
            most=4.0,
        )
        for batch in (1, 100)
    ],
    Aim(
        "CPU of the server, 100 a batch, 8 clients: µs an event",
        lambda figures: figures[publishing_row(100, 8, "cpu_us")] / 100,
        most=10.0,
    ),
    *[
        Aim(
            f"CPU of the server, 1 a batch, {clients} clients: µs a request",
            publishing_row(1, clients, "cpu_us"),
            most=130.0,
        )
        for clients in (8, 64)
    ],
    Aim(
        "hash over eight partitions, 100 a batch, 8 clients: of one partition",
        "publish.http_hash_8_clients_100_per_batch_of_random",
        least=0.7,
    ),
    *[
        Aim(
            f"publish, 100 a batch, {workers} workers, {clients} clients: events/s",
            f"workers.100_per_batch_{clients}_clients_{workers}_workers_events_s",
            least=130_000,
        )
        for workers in (2, 4)
        for clients in (8, 64)
    ],
    *[
        Aim(
            f"publish, {batch} a batch, {workers} workers: what each further core brings, by CPU time",
            f"workers.{batch}_per_batch_64_clients_{workers}_workers_growth",
            least=0.7,
        )
        for batch in (1, 100)
        for workers in (2, 4)
    ],
    Aim("publish with the archive on: of without", "archive.publish_of_without_archive", least=0.9),
    Aim("publish while 1,000 streams follow: of without", "publish.followed_of_alone", least=0.92),
]

STREAMING = [
    Aim("one stream: of the floor", "stream.throughput_1_of_floor", least=0.5),
    Aim("100 streams: of the floor", "stream.throughput_100_of_floor", least=0.8),
    *[
        Aim(
            f"subscription, {sessions} streams, a commit for each batch of 100: events/s",
            f"subscriptions.consume_{sessions}_each_batch_committed_events_s",
            least=80_000,
        )
        for sessions in (1, 4, 8)
    ],
    *[
        Aim(f"commits by {clients} clients: p99, ms", f"subscriptions.commits_{clients}_p99_ms", most=4.0)
        for clients in (1, 8)
    ],
    Aim("replay from the archive: of the hot log", "archive.replay_archive_of_hot", least=0.85),
    Aim("idle stream: KiB", "stream.idle_kb_per_stream", most=12.0),
    Aim("idle stream of a subscription: KiB", "subscriptions.idle_kb_per_stream", most=25.0),
]


# Beside the original


def ratios(figures: Figures, rows: str) -> Sequence[float]:
    """The ratios in those rows of the comparison whose names match the pattern."""
    found = [value for name, value in figures.items() if re.fullmatch(rf"{COMPARISON}\.(?:{rows}) ratio", name)]
    if not found:
        raise KeyError(rows)
    return found


def median_ratio(rows: str) -> Callable[[Figures], float]:
    return lambda figures: statistics.median(ratios(figures, rows))


def least_ratio(rows: str) -> Callable[[Figures], float]:
    return lambda figures: min(ratios(figures, rows))


def above_fdatasync(row: str) -> Callable[[Figures], float]:
    return lambda figures: figures[f"{COMPARISON}.{row} first"] - figures[f"{COMPARISON}.{row} fdatasync"]


BATCHES_OF_100 = r"publish .+, 100 a batch, \d+ clients: events/s"
OTHER_SIZES = {
    "batches of 2": "publish plain, 2 a batch, 8 clients: events/s",
    "batches of 10": "publish plain, 10 a batch, 8 clients: events/s",
    "batches of 1,000": "publish plain, 1000 a batch, 8 clients: events/s",
    "events of 100 bytes": "publish 100 bytes, 1(00)? a batch, 8 clients: events/s",
    "events of 10 KB": "publish 10 KB, 10?0? a batch, 8 clients: events/s",
    "events of 200 KB": "publish 200 KB, [15] a batch, 8 clients: events/s",
    "lists of numbers": "publish 200 numbers, 100 a batch, 8 clients: events/s",
    "gzip": "publish .+, gzip, 8 clients: events/s",
}

BESIDE_THE_ORIGINAL = [
    Aim("100 a batch, each shape, against the original: median", median_ratio(BATCHES_OF_100), least=2.2),
    Aim("the same: least", least_ratio(BATCHES_OF_100), least=1.5),
    *[
        Aim(
            f"1 a batch, {clients} clients, against the original",
            least_ratio(f"publish plain, 1 a batch, {clients} clients: events/s"),
            least=2.0,
        )
        for clients in (8, 64)
    ],
    *[
        Aim(f"{about}, against the original: least", least_ratio(rows), least=1.5)
        for about, rows in OTHER_SIZES.items()
    ],
    Aim(
        "delivery of an event, 100 a second: p50 above an fdatasync, ms",
        above_fdatasync("delivery at 100/s: p50, ms"),
        most=1.0,
    ),
    *[
        Aim(
            f"delivery of an event, {rate} a second: p50 against the original",
            least_ratio(f"delivery at {rate}/s: p50, ms"),
            least=1.0,
        )
        for rate in (10, 50, 100, 1000)
    ],
    Aim(
        "subscription, a commit for each batch of 100, against the original",
        least_ratio("subscription, a commit a batch: events/s"),
        least=8.0,
    ),
]

AIMS = [*PUBLISHING, *STREAMING, *BESIDE_THE_ORIGINAL]


def round_in(folder: Path) -> Figures:
    """The figures of a folder, each under the name of its benchmark."""
    files = {name: folder / f"{name}.json" for name in FILES}
    figures = {
        f"{name}.{key}": value
        for name, path in files.items()
        if path.exists()
        for key, value in json.loads(path.read_text()).items()
    }
    compared = folder / f"{COMPARISON}.json"
    for row in json.loads(compared.read_text())["rows"] if compared.exists() else ():
        about = f"{COMPARISON}.{row['name']}"
        figures |= {
            f"{about} ratio": row["ratio"],
            f"{about} first": row["first"],
            f"{about} fdatasync": row["fdatasync_ms"],
        }
    return figures


def main() -> None:
    rounds = [round_in(Path(folder)) for folder in sys.argv[1:]]
    print("| | seen | aim | met |\n|---|---|---|---|")
    for aim in AIMS:
        print(aim.row(rounds))


if __name__ == "__main__":
    main()
