"""What does a change to publishing cost or save? Compares this checkout with another one, in alternating rounds.

    python benchmarks/paired.py OTHER_CHECKOUT [--seconds S] [--rounds N] [--strategy random|hash]

Each checkout serves SQLite on loopback from its own process. The script compares the CPU time of these processes per
request, with system time and all threads: on a busy machine, rates only show how much of the machine was free. It
prints the medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.publish import Load, RunningServer, a_request, publish_load

HERE = Path(__file__).parents[1]

Figures = tuple[float, float, float, float]

SERVE = """
import socket, sys
from benchmarks.publish import serve_broker
listening = socket.create_server(("127.0.0.1", 0), backlog=512)
print(listening.getsockname()[1], flush=True)
serve_broker(listening, sys.argv[1])
"""


@contextmanager
def run_checkout(checkout: Path) -> Iterator[RunningServer]:
    environment = {**os.environ, "PYTHONPATH": f"{checkout}/layers/nakadi/python:{checkout}"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SERVE, folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=folder) as process:
            assert process.stdout is not None
            try:
                yield RunningServer(int(process.stdout.readline()), process.pid)
            finally:
                process.terminate()


def measure(server: RunningServer, load: Load) -> Figures:
    """µs of CPU per request, requests per second, and the median and 99th percentile in milliseconds."""
    before = server.cpu_seconds()
    asyncio.run(publish_load(server.port, load))
    cpu = (server.cpu_seconds() - before) / load.sent * 1e6
    took = sorted(load.took)
    return cpu, len(took) / load.seconds, took[len(took) // 2] * 1e3, took[len(took) * 99 // 100] * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("other", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strategy", choices=("random", "hash"), default="random")
    options = parser.parse_args()
    print(
        f"| clients, a batch | µs of CPU a request: {options.other.name} | here | ratio | requests/s, p50, p99 here |"
    )
    print("|---|---|---|---|---|")
    with ExitStack() as stack:
        other, here = (stack.enter_context(run_checkout(each)) for each in (options.other.resolve(), HERE))
        for each in (other, here):
            measure(each, Load(1, [a_request(options.strategy, 1, 0)], 0.5))  # fill its caches
        for batch in (1, 100):
            requests = [a_request(options.strategy, batch, number * batch) for number in range(50)]
            for clients in (1, 8, 64):
                seen: tuple[list[Figures], list[Figures]] = ([], [])
                for _ in range(options.rounds):
                    for server, figures in zip((other, here), seen, strict=True):
                        figures.append(measure(server, Load(clients, requests, options.seconds)))
                before, after = map(median_columns, seen)
                rates = f"{after[1]:,.0f}, {after[2]:.1f} ms, {after[3]:.1f} ms"
                cpu = f"{before[0]:,.0f} | {after[0]:,.0f} | {after[0] / before[0]:.2f}"
                print(f"| {clients}, {batch} | {cpu} | {rates} |", flush=True)


def median_columns(rounds: Sequence[Figures]) -> list[float]:
    return [statistics.median(each) for each in zip(*rounds, strict=True)]


if __name__ == "__main__":
    main()
