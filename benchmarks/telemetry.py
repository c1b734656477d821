"""What do traces, metrics and logs over OTLP cost? Compares brokers that send some or all of them with one that sends
none.

    python -m benchmarks.telemetry [--seconds S] [--rounds N] [--within]

Each broker serves SQLite on loopback from its own process. In alternating rounds, the script measures the CPU time of
each process per request, with all threads. Each round compares every broker with the one that sends nothing, in another
order than the round before; the table has the median and the quartiles of these ratios. One trace in a hundred is
recorded, as by default. Metrics are sent every ten seconds, six times as often as by default.

Other users of the machine change the CPU time of such a request by a quarter. `--within` measures traces more exactly:
brokers with the memory engine in one process take turns every few milliseconds, without sockets, and the difference is
what traces add to a request. The sending of spans is included.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.calls import EVENT_TYPE
from benchmarks.paired import Figures, measure
from benchmarks.publish import Load, RunningServer, a_request
from nakadi.app.broker import open_broker, open_tracer_if_set
from nakadi.app.routes import make_application
from nakadi.app.settings import read_settings
from nakadi.http.message import Request, Response
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


class DirectBroker:
    """A broker in memory in this process, to which requests go without a socket."""

    def __init__(self, variables: dict[str, str]) -> None:
        settings = read_settings(variables)
        self._broker = open_broker(settings, tracer=open_tracer_if_set(settings))
        self._application = make_application(self._broker)
        self._answer("/event-types", EVENT_TYPE)

    def measure(self, count: int) -> float:
        """Publish a number of events, one in each request. Returns the µs of CPU per request."""
        began = time.process_time()
        for _ in range(count):
            self._answer("/event-types/walk/events", [{"n": 1}])
        return (time.process_time() - began) / count * 1e6

    def close(self) -> None:
        self._broker.close()

    def _answer(self, path: str, body: object) -> None:
        headers = {"content-type": "application/json"}
        request = Request(method="POST", path="", target=path, headers=headers, body=json.dumps(body).encode())
        answer = self._application.answer(request)
        assert isinstance(answer, Response), answer
        assert answer.status < 300, answer


def measure_within_process(turns: int = 200, requests: int = 300) -> None:
    plain, *traced = (DirectBroker(each) for each in ({}, {**TRACES, "NAKADI_TRACES_PERCENT": "0"}, TRACES))
    for each in (plain, *traced):
        each.measure(5 * requests)  # fill its caches
    gc.disable()  # otherwise, a turn pays for the garbage of others
    added: list[list[float]] = [[] for _ in traced]
    for number in range(turns):
        order = (plain, *traced) if number % 2 else (*reversed(traced), plain)
        cpu = {each: each.measure(requests) for each in order}
        for broker, figures in zip(traced, added, strict=True):
            figures.append(cpu[broker] - cpu[plain])
        gc.collect()
    for sampled, figures in zip(("no trace", "one trace in a hundred"), added, strict=True):
        low, middle, high = statistics.quantiles(figures, n=4)
        print(f"{sampled} recorded: {middle:.1f} µs more CPU a request ({low:.1f} to {high:.1f})")
    for each in (plain, *traced):
        each.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--within", action="store_true")
    options = parser.parse_args()
    if options.within:
        with OtlpReceiver() as receiver:
            os.environ.update(receiver.environment)
            measure_within_process()
        return
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
