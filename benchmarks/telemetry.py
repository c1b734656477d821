"""What do traces, metrics and logs over OTLP cost? Compares brokers that send some or all of them with one that sends
none.

    python -m benchmarks.telemetry [--seconds S] [--rounds N]

All serve SQLite on loopback, each from its own process, and are measured in alternating rounds: the CPU time of the
process per request, with all threads. Each round compares every broker with the one that sends nothing, in another
order than the round before; the table has the median and the quartiles of these ratios. One trace in a hundred is
recorded, as by default. Metrics are sent every ten seconds, six times as often as by default.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.paired import Figures, measure
from benchmarks.publish import Load, RunningServer, a_request
from tests.support.otlp import OtlpReceiver

HERE = Path(__file__).parents[1]
TRACES = {"NAKADI_TRACES": "otlp"}
METRICS_AND_LOG = {"NAKADI_METRICS": "otlp", "NAKADI_LOGS": "otlp", "OTEL_METRIC_EXPORT_INTERVAL": "10000"}
SENT = ({}, TRACES, METRICS_AND_LOG, {**TRACES, **METRICS_AND_LOG})

SERVE = """
import os, socket, sys
from benchmarks.publish import PARTITIONS, register, serve
from nakadi.app.broker import open_broker, open_tracer_if_set
from nakadi.app.routes import make_application
from nakadi.app.settings import read_settings
settings = read_settings(os.environ)
broker = open_broker(settings, tracer=open_tracer_if_set(settings))
broker.prepare_for_requests()
for strategy in PARTITIONS:
    register(broker, strategy)
listening = socket.create_server(("127.0.0.1", 0), backlog=512)
print(listening.getsockname()[1], flush=True)
serve(listening, make_application(broker))
"""


@contextmanager
def run_server(variables: dict[str, str]) -> Iterator[RunningServer]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/nakadi.db"
        path = f"{HERE}/layers/nakadi/python:{HERE}"
        stores = {"NAKADI_REGISTRY": url, "NAKADI_EVENT_LOG": url, "PYTHONPATH": path}
        with subprocess.Popen(
            [sys.executable, "-c", SERVE], stdout=subprocess.PIPE, env={**os.environ, **stores, **variables}, cwd=folder
        ) as process:
            assert process.stdout is not None
            try:
                yield RunningServer(int(process.stdout.readline()), process.pid)
            finally:
                process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    print("| clients, a batch | µs of CPU a request: nothing sent | traces | metrics and log | all |")
    print("|---|---|---|---|---|")
    with ExitStack() as stack:
        receiver = stack.enter_context(OtlpReceiver())
        servers = [stack.enter_context(run_server({**each, **receiver.environment})) for each in SENT]
        for each in servers:
            measure(each, Load(1, [a_request("random", 1, 0)], 0.5))  # fill its caches
        for clients, batch in ((8, 1), (8, 100)):
            requests = [a_request("random", batch, number * batch) for number in range(50)]
            seen: list[list[Figures]] = [[] for _ in servers]
            for number in range(options.rounds):
                turns = list(zip(servers, seen, strict=True))
                for server, figures in turns if number % 2 else reversed(turns):
                    figures.append(measure(server, Load(clients, requests, options.seconds)))
            plain, *others = ([round_[0] for round_ in each] for each in seen)
            ratios = " | ".join(_compare(each, plain) for each in others)
            print(f"| {clients}, {batch} | {statistics.median(plain):,.0f} | {ratios} |", flush=True)
        print(f"\nSent: {len(receiver.spans)} spans, {len(receiver.metrics)} metrics")


def _compare(microseconds: Sequence[float], plain: Sequence[float]) -> str:
    """The median, and how it compares with a broker that sends nothing, round by round."""
    ratios = [one / other for one, other in zip(microseconds, plain, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{statistics.median(microseconds):,.0f} ({middle:.3f}, {low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
