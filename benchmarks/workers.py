"""What do several processes gain? Compares a broker of one process with brokers of several, in alternating rounds.

    python benchmarks/workers.py [--workers 2,4] [--seconds S] [--rounds N] [--json FILE]

Each broker is the program itself, with a data file, on loopback. Besides requests per second, the script prints the CPU
time of each process per request. On a machine with enough cores, the busiest process limits the rate: `bound` is the
rate if each process had its own core, and `growth` the share of one process's rate that each further process adds. The
figures are medians of the rounds. On a machine with few cores, only CPU times count; the load average stands beside
them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
from msgspec import Struct

from benchmarks.publish import PARTITIONS, Load, RunningServer, a_request, event_type_definition, publish_load


class Broker(Struct):
    """A running broker. Its first process is its supervisor."""

    workers: int
    port: int
    processes: list[RunningServer]

    def cpu_seconds(self) -> list[float]:
        return [each.cpu_seconds() for each in self.processes]


class Figures(Struct, frozen=True):
    rate: float
    p50: float
    p99: float
    supervisor: float
    """µs of CPU for a request: of the process that commits, of all workers together, and of the busiest process."""
    others: float
    busiest: float


@contextmanager
def run_broker(workers: int, event_log: str = "") -> Iterator[Broker]:
    """Run a broker with this many processes. Its events are in its data file, or at the URL if there is one."""
    environment = {**os.environ, **({"NAKADI_EVENT_LOG": event_log} if event_log else {})}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "nakadi.local", "--port=0", f"--data={folder}", f"--workers={workers}"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
                assert found is not None
                port = int(found[1])
                create_event_types(port)
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                numbers = [process.pid, *map(int, children)]
                yield Broker(workers, port, [RunningServer(port, number) for number in numbers])
            finally:
                process.terminate()


def create_event_types(port: int) -> None:
    for strategy in PARTITIONS:
        httpx.post(
            f"http://127.0.0.1:{port}/event-types", json=event_type_definition(strategy), timeout=60.0
        ).raise_for_status()


def measure(broker: Broker, load: Load) -> Figures:
    before = broker.cpu_seconds()
    asyncio.run(publish_load(broker.port, load))
    used = [(now - then) / load.sent * 1e6 for now, then in zip(broker.cpu_seconds(), before, strict=True)]
    took = sorted(load.took)
    p50, p99 = took[len(took) // 2] * 1e3, took[len(took) * 99 // 100] * 1e3
    return Figures(len(took) / load.seconds, p50, p99, used[0], sum(used[1:]), max(used))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", default="2", help="numbers of workers to compare with one process")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    print(
        "| a batch, clients, workers | requests/s | of one | p50, p99 ms | µs: first process, workers | bound, growth |"
    )
    print("|---|---|---|---|---|---|")
    with ExitStack() as stack:
        brokers = [stack.enter_context(run_broker(each)) for each in (1, *map(int, options.workers.split(",")))]
        for broker in brokers:
            measure(broker, Load(8, [a_request("random", 1, 0)], 0.5))  # fill its caches
        for batch in (1, 100):
            requests = [a_request("random", batch, number * batch) for number in range(50)]
            for clients in (8, 64):
                rounds: list[list[Figures]] = [[] for _ in brokers]
                for _ in range(options.rounds):
                    for broker, seen in zip(brokers, rounds, strict=True):
                        seen.append(measure(broker, Load(clients, requests, options.seconds)))
                for broker, seen in zip(brokers, rounds, strict=True):
                    ratio = statistics.median(a.rate / b.rate for a, b in zip(seen, rounds[0], strict=True))
                    rate, p50, p99, first, others, busiest = (
                        statistics.median(getattr(each, name) for each in seen) for name in Figures.__struct_fields__
                    )
                    of_one = statistics.median(b.busiest / a.busiest for a, b in zip(seen, rounds[0], strict=True))
                    growth = (of_one - 1) / max(len(broker.processes) - 1, 1)
                    print(
                        f"| {batch}, {clients}, {broker.workers} | {rate:,.0f} | {ratio:.2f} | {p50:.1f}, {p99:.1f}"
                        f" | {first:,.0f}, {others:,.0f} | {1e6 / busiest:,.0f}, {growth:.2f} |",
                        flush=True,
                    )
                    name = f"{batch}_per_batch_{clients}_clients_{broker.workers}_workers"
                    figures |= {f"{name}_events_s": batch * rate, f"{name}_of_one": ratio, f"{name}_growth": growth}
    print(f"Load average: {', '.join(f'{each:.1f}' for each in os.getloadavg())}, {os.cpu_count()} cores")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
