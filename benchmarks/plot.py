"""Draws the figures of publish.py and stream.py: throughput against the floor of the same run, and latencies.

    python benchmarks/plot.py FOLDER

reads FOLDER/publish.json and FOLDER/stream.json, and writes FOLDER/throughput.png and FOLDER/latency.png.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

Figures = Mapping[str, float]

OURS, FLOOR, LATE = "#1f6f8b", "#c9d6df", "#e07a5f"
CLIENTS = (1, 8, 64)
BATCHES = (1, 100)


def main() -> None:
    folder = Path(sys.argv[1])
    publish = json.loads((folder / "publish.json").read_text())
    stream = json.loads((folder / "stream.json").read_text())
    throughput(publish, stream, folder / "throughput.png")
    latency(publish, stream, folder / "latency.png")
    print(f"Look at {folder / 'throughput.png'} and {folder / 'latency.png'}.")


def throughput(publish: Figures, stream: Figures, path: Path) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.5))
    for axis, batch in zip(axes, BATCHES, strict=False):
        names = [f"http_random_{{}}_{clients}_clients_{batch}_per_batch_requests_per_s" for clients in CLIENTS]
        _pairs(
            axis,
            [f"{clients} client{'s' if clients > 1 else ''}" for clients in CLIENTS],
            [publish[name.format("broker")] * batch for name in names],
            [publish[name.format("floor")] * batch for name in names],
            [publish[f"http_random_{clients}_clients_{batch}_per_batch_of_floor"] for clients in CLIENTS],
        )
        axis.set_title(f"publish over HTTP, {batch} per batch")
        axis.set_ylabel("events per second")
    _pairs(
        axes[2],
        ["1 stream", "100 streams"],
        [stream["throughput_1_mb_s"], stream["throughput_100_mb_s"]],
        [stream["throughput_1_floor_mb_s"], stream["throughput_100_floor_mb_s"]],
        [stream["throughput_1_of_floor"], stream["throughput_100_of_floor"]],
    )
    axes[2].set_title("stream from one partition")
    axes[2].set_ylabel("MB per second")
    axes[0].legend(loc="upper left", frameon=False)
    _save(figure, path)


def latency(publish: Figures, stream: Figures, path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5))
    names = [f"http_random_broker_{clients}_clients_1_per_batch" for clients in CLIENTS]
    _percentiles(axes[0], [str(clients) for clients in CLIENTS], publish, names)
    axes[0].set_title("publish one event, at full speed")
    axes[0].set_xlabel("clients")
    rates = (1, 10, 100)
    _percentiles(axes[1], [str(rate) for rate in rates], stream, [f"latency_{rate}_a_request" for rate in rates])
    axes[1].set_title("from publishing to delivery, 1,000 events/s")
    axes[1].set_xlabel("events per publish")
    axes[0].legend(loc="upper left", frameon=False)
    _save(figure, path)


def _pairs(
    axis: plt.Axes, labels: Sequence[str], ours: Sequence[float], floor: Sequence[float], shares: Sequence[float]
) -> None:
    places = range(len(labels))
    axis.bar([place - 0.2 for place in places], floor, 0.4, color=FLOOR, label="floor of the same run")
    bars = axis.bar([place + 0.2 for place in places], ours, 0.4, color=OURS, label="broker")
    axis.bar_label(bars, [f"{share:.0%}" for share in shares], padding=2)
    axis.set_xticks(list(places), labels)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _percentiles(axis: plt.Axes, labels: Sequence[str], figures: Figures, names: Sequence[str]) -> None:
    places = range(len(labels))
    for beside, kind, color in ((-0.2, "p50", OURS), (0.2, "p99", LATE)):
        took = [figures[f"{name}_{kind}_ms"] for name in names]
        bars = axis.bar([place + beside for place in places], took, 0.4, color=color, label=kind)
        axis.bar_label(bars, fmt="%.1f", padding=2)
    axis.set_xticks(list(places), labels)
    axis.set_ylabel("milliseconds")


def _save(figure: plt.Figure, path: Path) -> None:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
