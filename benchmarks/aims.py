"""Compares the figures of the other benchmarks with their aims, in one table.

    python benchmarks/aims.py FOLDER

reads FOLDER/publish.json, workers.json, stream.json, subscriptions.json and archive.json. Rates depend on
the machine; a floor, a reference or another figure beside them was measured in the same run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

FILES = ("publish", "workers", "stream", "subscriptions", "archive")

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Aim:
    """A named figure, or one computed from several, and its aim: a lower or an upper limit."""

    about: str
    value: str | Callable[[Figures], float]
    least: float | None = None
    most: float | None = None

    def row(self, figures: Figures) -> str:
        try:
            seen = figures[self.value] if isinstance(self.value, str) else self.value(figures)
        except KeyError:
            return f"| {self.about} | not measured | {self.limit} | |"
        is_met = (self.least is None or seen >= self.least) and (self.most is None or seen <= self.most)
        return f"| {self.about} | {format_value(seen)} | {self.limit} | {'yes' if is_met else 'no'} |"

    @property
    def limit(self) -> str:
        return f"≥ {format_value(self.least)}" if self.least is not None else f"≤ {format_value(self.most or 0)}"


def format_value(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def publishing_row(batch: int, clients: int, name: str) -> str:
    return f"publish.http_random_broker_{clients}_clients_{batch}_per_batch_{name}"


def publishing_aims(batch: int, clients: int, events_per_second: float) -> list[Aim]:
    rate = publishing_row(batch, clients, "requests_per_s")
    about = f"publish, {batch} a batch, {clients} clients"
    of_floor = f"publish.http_random_{clients}_clients_{batch}_per_batch_of_floor"
    return [
        Aim(f"{about}: events/s", lambda figures: figures[rate] * batch, least=events_per_second),
        Aim(f"{about}: of the floor", of_floor, least=0.6),
    ]


def ratio_of(of: str, by: str, factor: float = 1.0) -> Callable[[Figures], float]:
    return lambda figures: figures[of] / figures[by] * factor


AIMS = [
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
        for workers in (2, 4, 8)
    ],
    Aim("publish with the archive on: of without", "archive.publish_of_without_archive", least=0.9),
    Aim("publish while 1,000 streams follow: of without", "publish.followed_of_alone", least=0.92),
    Aim("idle stream: KiB", "stream.idle_kb_per_stream", most=12.0),
    Aim("idle stream of a subscription: KiB", "subscriptions.idle_kb_per_stream", most=25.0),
]


def main() -> None:
    folder = Path(sys.argv[1])
    written = [(name, folder / f"{name}.json") for name in FILES if (folder / f"{name}.json").exists()]
    figures = {f"{name}.{key}": value for name, path in written for key, value in json.loads(path.read_text()).items()}
    print("| | seen | aim | met |\n|---|---|---|---|")
    for aim in AIMS:
        print(aim.row(figures))


if __name__ == "__main__":
    main()
