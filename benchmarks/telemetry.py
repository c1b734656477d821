"""What do traces, metrics and logs over OTLP cost? Compares brokers that send some or all of them with one that sends
none.

    python -m benchmarks.telemetry [--seconds S] [--rounds N]

Each broker serves SQLite on loopback from its own process. In alternating rounds, the script measures the CPU time of
each process per request, with all threads. One trace in a hundred is recorded, as by default. Metrics are sent every
ten seconds, six times as often as by default.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.paired import Figures, measure, median_columns
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
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=7)
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
            for _ in range(options.rounds):
                for server, figures in zip(servers, seen, strict=True):
                    figures.append(measure(server, Load(clients, requests, options.seconds)))
            plain, *others = (median_columns(each)[0] for each in seen)
            ratios = " | ".join(f"{each:,.0f} ({each / plain:.3f})" for each in others)
            print(f"| {clients}, {batch} | {plain:,.0f} | {ratios} |", flush=True)
        print(f"\nSent: {len(receiver.spans)} spans, {len(receiver.metrics)} metrics")


if __name__ == "__main__":
    main()
