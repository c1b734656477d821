"""What do requests and idle streams cost on AWS? The script prints each figure with its floor or its aim.

    python benchmarks/aws.py [imports] [publish] [streams] [layers] [--quick] [--runs 5] [--json FILE]
        [--python PYTHON] [--layers FOLDER...]

* `imports`: loading, opening and first call of each function, against boto3 with one client. The median of some runs.
  Each run has its own process, and the functions and the floor alternate. `--python` and `--layers` choose another
  interpreter and what lies in `/opt/python` of a deployment: what `scripts/build-layers --package` has written, and the
  dependencies for that interpreter and this machine.
* `publish`: processor time of the whole handler per event, from API Gateway's event to the call to Kinesis, against
  parsing and serializing the same body; the DynamoDB calls of a publication, and its log lines.
* `streams`: the calls of 1 and 500 idle streams to Kinesis and DynamoDB.
* `layers`: the megabytes of the layers; run `scripts/build-layers` first.

DynamoDB, Kinesis and S3 are moto on a local socket, in a process that is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.aws_service import AwsMeter, serve_metered_aws
from tests.support.tokens import Issuer

ROOT = Path(__file__).resolve().parent.parent

EVENTS = {
    "publish": "apigateway/publish_batch",
    "event_types": "apigateway/create_event_type",
    "cursors": "apigateway/shift_cursors",
    "subscriptions": "apigateway/list_subscriptions_by_event_types",
    "admin": "apigateway/switch_feature",
    "authorizer": "authorizer/token",
    "housekeeping": "schedule/housekeeping",
    "log_indexer": "kinesis/batch",
}
FLOOR = "boto3 and a client"
BATCHES = (1, 10, 100, 1000)
EVENT_BYTES = 700
STREAMS = (1, 500)
LAYER_MEGABYTES = 60

CHILD = """
import json, sys, time
def now(): return [time.process_time() * 1000, time.perf_counter() * 1000]
marks = [now()]
{load}
marks.append(now())
{prepare}
for _ in range(3):
    began = now()
    {call}
    marks.append([after - before + since for after, before, since in zip(now(), began, marks[-1])])
print(json.dumps(marks), file=sys.stderr)
"""
LOAD_FLOOR = "import boto3\nclient = boto3.client('dynamodb', endpoint_url={endpoint!r})"
CALL_FLOOR = "client.get_item(TableName='live-documents', Key={'kind': {'S': 'a'}, 'key': {'S': 'a'}})"
LOAD_FUNCTION = "sys.path.insert(0, {folder!r})\nimport handler"
PREPARE = "from tests.support.functions import Context, load_recorded_event\nevent = load_recorded_event({event!r})"
TOKEN = "\nevent['authorizationToken'] = {bearer!r}"
CALL_FUNCTION = "handler.handler(event, Context())"

# Runs in one process: prints, for batches of growing size, the milliseconds that the handler and the floor take.
PUBLISHING = """
import gc, json, sys, time
import orjson
sys.path.insert(0, {folder!r})
import handler
from tests.support.functions import Context, load_recorded_event
event = load_recorded_event('apigateway/publish_batch')
def best(call, times):
    found = []
    for _ in range(times):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return sorted(found)[len(found) // 4] * 1000
def publish():
    answer = handler.handler(event, Context())
    assert answer['statusCode'] == 200, answer
def floor():
    return [orjson.dumps(each) for each in orjson.loads(event['body'])]
figures = {{}}
publish()
gc.freeze()
for batch in {batches!r}:
    event['body'] = orjson.dumps(json.load(open({bodies!r}))[:batch]).decode()
    times = max(20, min({times}, {times} * 10 // batch))
    publish()
    figures[batch] = [best(publish, times), best(floor, times), len(event['body']) / batch, times]
print(json.dumps(figures), file=sys.stderr)
"""


def run_measured(program: str, environment: Mapping[str, str], python: str = sys.executable) -> list[list[float]]:
    """The milliseconds of CPU and of wall time for loading, and for each of three calls."""
    marks = measure_program(program, environment, python)[0]
    return [[after - before for before, after in zip(*pair, strict=True)] for pair in pairwise(marks)]


def measure_program(program: str, environment: Mapping[str, str], python: str = sys.executable) -> tuple[Any, str]:
    """The measurements that a program writes to standard error, and its output."""
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False, env=dict(environment))
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stderr.splitlines()[-1]), done.stdout


def medians(rows: list[list[list[float]]]) -> dict[str, float]:
    load, first, _, warm = ([median(row[step][kind] for row in rows) for kind in (0, 1)] for step in range(4))
    return {
        "load_cpu_ms": load[0],
        "load_ms": load[1],
        "first_call_cpu_ms": first[0],
        "first_call_ms": first[1],
        "warm_call_cpu_ms": warm[0],
        "warm_call_ms": warm[1],
    }


# Imports


def measure_imports(
    service: AwsMeter, environment: Mapping[str, str], issuer: Issuer, runs: int, python: str
) -> dict[str, Any]:
    programs = {name: program_of(name, service.url, issuer) for name in (FLOOR, *EVENTS)}
    calls: dict[str, dict[str, int]] = {}
    for name, program in programs.items():
        service.forget()
        run_measured(program, environment, python)
        calls[name] = dict(service.calls)
    # Runs alternate, so that other work on the machine affects all functions and the floor.
    rows = [
        {name: run_measured(program, environment, python) for name, program in programs.items()} for _ in range(runs)
    ]
    figures: dict[str, Any] = {}
    for name in programs:
        figures[name] = {**medians([row[name] for row in rows]), "calls_of_three": calls[name]}
        print(import_line(name, figures[name], figures[FLOOR]), flush=True)
    return figures


def program_of(name: str, endpoint: str, issuer: Issuer) -> str:
    if name == FLOOR:
        return CHILD.format(load=LOAD_FLOOR.format(endpoint=endpoint), prepare="", call=CALL_FLOOR)
    prepare = PREPARE.format(event=EVENTS[name])
    if name == "authorizer":
        prepare += TOKEN.format(bearer=f"Bearer {issuer.token()}")
    load = LOAD_FUNCTION.format(folder=str(ROOT / "functions" / name))
    return CHILD.format(load=load, prepare=prepare, call=CALL_FUNCTION)


def import_line(name: str, figures: Mapping[str, Any], floor: Mapping[str, Any]) -> str:
    columns = [
        f"{figures[f'{what}_cpu_ms']:6.0f} CPU {figures[f'{what}_ms']:6.0f} ms" for what in ("load", "first_call")
    ]
    warm = f"{figures['warm_call_cpu_ms']:6.2f} CPU {figures['warm_call_ms']:6.2f} ms"
    cold, least = (each["load_cpu_ms"] + each["first_call_cpu_ms"] for each in (figures, floor))
    beside = f"{cold / least:4.1f} times the floor"
    return f"{name:20} load {columns[0]} | first {columns[1]} | {beside} | warm {warm} | {figures['calls_of_three']}"


# Publishing


def measure_publishing(service: AwsMeter, environment: Mapping[str, str], folder: Path, times: int) -> dict[str, Any]:
    bodies = folder / "bodies.json"
    bodies.write_text(json.dumps([an_event() for _ in range(max(BATCHES))]))
    program = PUBLISHING.format(
        folder=str(ROOT / "functions" / "publish"), batches=BATCHES, bodies=str(bodies), times=times
    )
    service.forget()
    told, printed = measure_program(program, environment)
    requests = 1 + sum(1 + times for *_, times in told.values())
    figures: dict[str, Any] = {"batches": {}}
    for batch, (whole, floor, size, _) in told.items():
        each = {"ms": whole, "us_per_event": 1000 * whole / int(batch), "floor_us_per_event": 1000 * floor / int(batch)}
        figures["batches"][batch] = each
        print(
            f"publish, {batch:>4} events of {size:.0f} bytes: {whole:7.2f} ms CPU, {each['us_per_event']:7.1f} µs per "
            f"event; parsing and writing alone {each['floor_us_per_event']:6.1f} µs "
            f"({whole / floor:.1f} times)",
            flush=True,
        )
    figures |= per_request(service, requests, printed)
    print(
        f"publish, asked of DynamoDB in {requests} requests: {figures['dynamodb_calls']} calls, "
        f"{figures['read_units']:g} read and {figures['write_units']:g} write units; {figures['kinesis_calls']:.2f} "
        f"calls to Kinesis and {figures['log_bytes']:.0f} bytes of log lines a request (aim: no call to DynamoDB when "
        f"warm but one every {environment.get('NAKADI_CACHE_SECONDS', '1')} s that tells what changed)"
    )
    return figures


def per_request(service: AwsMeter, requests: int, printed: str) -> dict[str, float]:
    table_calls = {name: count for name, count in service.calls.items() if name not in {"PutRecords", "ListShards"}}
    return {
        "requests": requests,
        "dynamodb_calls": sum(table_calls.values()),
        "read_units": service.reads,
        "write_units": service.writes,
        "kinesis_calls": service.calls["PutRecords"] / requests,
        "log_bytes": len(printed.encode()) / requests,
    }


def an_event() -> dict[str, Any]:
    """An order of 0.7 KB, for the event type in the recorded requests."""
    order = {
        "metadata": {"eid": str(random_uuid()), "occurred_at": "2026-11-21T11:59:59.123Z"},
        "order": f"{random.randrange(10**9)}",
        "total": f"{random.randrange(100, 100_000) / 100:.2f}",
        "currency": "EUR",
    }
    items: list[dict[str, Any]] = []
    while len(json.dumps({**order, "items": items})) < EVENT_BYTES:
        items.append({"sku": f"{random.getrandbits(40):010X}", "quantity": random.randrange(1, 9), "warehouse": "BER"})
    return {**order, "items": items}


def random_uuid() -> str:
    text = f"{random.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


# Streams


def measure_streams(service: AwsMeter, environment: Mapping[str, str], seconds: float) -> dict[str, Any]:
    subscriptions = prepare_subscriptions(environment, max(STREAMS))
    figures: dict[str, Any] = {}
    for kind, path in (("low-level", low_level), ("subscription", subscription_targets(subscriptions))):
        for count in STREAMS:
            with run_streaming_service(environment) as port, ExitStack() as opened:
                for number in range(count):
                    opened.enter_context(a_stream(port, path(number)))
                figures[f"{kind} {count}"] = watch_idle_streams(service, kind, count, seconds)
    return figures


def watch_idle_streams(service: AwsMeter, kind: str, count: int, seconds: float) -> dict[str, float]:
    """Count the calls of idle streams, after a pause in which all of them have started."""
    time.sleep(5)
    service.forget()
    began = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    hourly = 3600 / passed
    figures = {
        "reads_per_shard_second": service.calls["GetRecords"] / passed,
        "dynamodb_calls_per_hour": sum(service.calls.values()) * hourly - service.calls["GetRecords"] * hourly,
        "read_units_per_hour": service.reads * hourly,
        "write_units_per_hour": service.writes * hourly,
    }
    print(
        f"{count:3} idle {kind} streams: {figures['reads_per_shard_second']:.2f} reads of the shard a second; "
        f"DynamoDB in an hour: {figures['dynamodb_calls_per_hour']:,.0f} calls, "
        f"{figures['read_units_per_hour']:,.0f} read and {figures['write_units_per_hour']:,.0f} write units "
        f"({(figures['read_units_per_hour'] + figures['write_units_per_hour']) / count:,.1f} units a stream)",
        flush=True,
    )
    return figures


def low_level(number: int) -> str:
    return f"/event-types/bench.{number % 10}/events?batch_flush_timeout=3600&stream_timeout=3600"


def subscription_targets(ids: list[str]) -> Callable[[int], str]:
    return lambda number: f"/subscriptions/{ids[number]}/events?batch_flush_timeout=3600&stream_timeout=3600"


def prepare_subscriptions(environment: Mapping[str, str], count: int) -> list[str]:
    """Create ten event types, and this many subscriptions to them."""
    with (
        run_server([sys.executable, "-m", "nakadi.local", "--engine", "memory"], environment) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        for number in range(10):
            schema = {"type": "json_schema", "schema": "{}"}
            name = f"bench.{number}"
            made = {"name": name, "owning_application": "bench", "category": "undefined", "schema": schema}
            client.post("/event-types", json=made).raise_for_status()
        return [create_subscription(client, number) for number in range(count)]


def create_subscription(client: httpx.Client, number: int) -> str:
    wanted = {
        "owning_application": "bench",
        "event_types": [f"bench.{number % 10}"],
        "consumer_group": f"group-{number}",
    }
    return str(client.post("/subscriptions", json=wanted).raise_for_status().json()["id"])


@contextmanager
def run_streaming_service(environment: Mapping[str, str]) -> Iterator[int]:
    with run_server([sys.executable, "-m", "services.streaming", "--grace-seconds", "1"], environment) as port:
        yield port


@contextmanager
def run_server(command: list[str], environment: Mapping[str, str]) -> Iterator[int]:
    """Run a server in its own process, on a free port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = int(taken.getsockname()[1])
    process = subprocess.Popen(
        [*command, "--port", str(port)], env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/health").raise_for_status()
                break
            except httpx.TransportError:
                if time.monotonic() > end or process.poll() is not None:
                    raise
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def a_stream(port: int, path: str) -> Iterator[None]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = connection.recv(1000)
        if b" 200 " not in head:
            raise RuntimeError(head.decode())
        yield


# Layers


def layer_sizes() -> dict[str, float]:
    figures = {
        "dependencies_mb": size_in_megabytes(ROOT / "layers" / "dependencies" / "python"),
        "nakadi_mb": size_in_megabytes(ROOT / "layers" / "nakadi"),
    }
    print(
        f"layers: {figures['dependencies_mb']:.1f} MB of dependencies and {figures['nakadi_mb']:.1f} MB of nakadi, "
        f"unzipped (aim: below {LAYER_MEGABYTES} MB)"
    )
    return figures


def size_in_megabytes(path: Path) -> float:
    # Files that another Python has compiled here are not deployed.
    foreign = re.compile(r"\.cpython-(?!313)\d+\.pyc$")
    files = [each for each in path.rglob("*") if each.is_file() and not foreign.search(each.name)]
    return sum(each.stat().st_size for each in files) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = ("imports", "publish", "streams", "layers")
    parser.add_argument("sections", nargs="*", metavar="section", default=[])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--layers", type=Path, nargs="+", default=[ROOT / "layers/nakadi/python"], metavar="FOLDER")
    options = parser.parse_args()
    asked = options.sections or sections
    random.seed(17)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, serve_metered_aws() as service:
        issuer = Issuer(Path(folder))
        environment = environment_of(Path(folder), service, issuer)
        run_measured(program_of("event_types", service.url, issuer), environment)
        if "imports" in asked:
            layered = {**environment, "PYTHONPATH": ":".join(map(str, (*options.layers, ROOT)))}
            runs = 1 if options.quick else options.runs
            figures["imports"] = measure_imports(service, layered, issuer, runs, options.python)
        if "publish" in asked:
            figures["publish"] = measure_publishing(service, environment, Path(folder), 50 if options.quick else 500)
        if "streams" in asked:
            local = {**environment, "NAKADI_AUTH": "off", "NAKADI_COORDINATION": "", "NAKADI_DEFAULT_ADMIN": ""}
            figures["streams"] = measure_streams(service, local, 5 if options.quick else 30)
        if "layers" in asked:
            figures["layers"] = layer_sizes()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def environment_of(folder: Path, service: AwsMeter, issuer: Issuer) -> dict[str, str]:
    tokens = {f"NAKADI_{name.upper()}": value for name, value in issuer.settings.items() if name.startswith("auth_")}
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT / 'layers/nakadi/python'}:{ROOT}",
        # This variable has the same value as in Lambda.
        "LAMBDA_TASK_ROOT": str(folder),
        "_X_AMZN_TRACE_ID": "Root=1-6740f2b1-5c1d9e0a7b3f4c2d8e6a9b01;Parent=53995c3f42cd8ad8;Sampled=0",
        "NAKADI_AUTH": "gateway",
        "NAKADI_DEFAULT_ADMIN": "user=the-admin",
        **service.environment,
        **tokens,
    }


if __name__ == "__main__":
    main()
