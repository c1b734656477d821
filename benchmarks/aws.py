"""What does a cold start cost? Import, opening and first call of each function, against boto3 with one client.

    python benchmarks/aws.py [--runs 5] [--json FILE]

Every figure is the best of some runs, each in a process of its own. DynamoDB is moto behind a socket of this machine,
in another process; events go to a SQLite file. Calls are those that DynamoDB saw.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, HeadersDict
from moto.core.models import botocore_stubber

from tests.support.aws import REGION, aws
from tests.support.tokens import Issuer

ROOT = Path(__file__).resolve().parent.parent
DYNAMODB = f"https://dynamodb.{REGION}.amazonaws.com/"

EVENTS = {
    "publish": "apigateway/publish_batch",
    "event_types": "apigateway/create_event_type",
    "cursors": "apigateway/shift_cursors",
    "subscriptions": "apigateway/list_subscriptions_by_event_types",
    "admin": "apigateway/switch_feature",
    "authorizer": "authorizer/token",
    "housekeeping": "schedule/housekeeping",
}
FLOOR = "boto3 and a client"

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
PREPARE = "from tests.support.functions import Context, recorded\nevent = recorded({event!r})"
TOKEN = "\nevent['authorizationToken'] = {bearer!r}"
CALL_FUNCTION = "handler.handler(event, Context())"


class Service:
    """DynamoDB behind a socket, and what it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls: Counter[str] = Counter()


@contextmanager
def dynamodb() -> Iterator[Service]:
    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers: Any = HeadersDict(dict(self.headers.items()))
            answer = botocore_stubber.process_request(AWSPreparedRequest("POST", DYNAMODB, headers, body, False))
            assert answer
            status, _, content = answer
            raw = content if isinstance(content, bytes) else content.encode()
            service.calls[self.headers["X-Amz-Target"].partition(".")[2]] += 1
            head = (
                f"HTTP/1.1 {status} -\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {len(raw)}\r\n\r\n"
            )
            self.wfile.write(head.encode() + raw)  # in one piece, or the client waits for the second

        def log_message(self, *_: Any) -> None:
            pass

    with aws() as world, ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        world.made_tables("live")
        service = Service(f"http://127.0.0.1:{server.server_address[1]}")
        Thread(target=server.serve_forever, daemon=True).start()
        yield service
        server.shutdown()


def measured(program: str, environment: Mapping[str, str]) -> list[list[float]]:
    """Milliseconds of CPU and of the clock: for loading, and for each of three calls."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=dict(environment)
    )
    if done.returncode:
        sys.exit(done.stderr)
    marks = json.loads(done.stderr.splitlines()[-1])
    return [[after - before for before, after in zip(*pair, strict=True)] for pair in pairwise(marks)]


def best(program: str, environment: Mapping[str, str], runs: int) -> dict[str, float]:
    rows = [measured(program, environment) for _ in range(runs)]
    load, first, _, warm = ([min(row[step][kind] for row in rows) for kind in (0, 1)] for step in range(4))
    return {
        "load_cpu_ms": load[0],
        "load_ms": load[1],
        "first_call_cpu_ms": first[0],
        "first_call_ms": first[1],
        "warm_call_cpu_ms": warm[0],
        "warm_call_ms": warm[1],
    }


def program_of(name: str, endpoint: str, issuer: Issuer) -> str:
    if name == FLOOR:
        return CHILD.format(load=LOAD_FLOOR.format(endpoint=endpoint), prepare="", call=CALL_FLOOR)
    prepare = PREPARE.format(event=EVENTS[name])
    if name == "authorizer":
        prepare += TOKEN.format(bearer=f"Bearer {issuer.token()}")
    load = LOAD_FUNCTION.format(folder=str(ROOT / "functions" / name))
    return CHILD.format(load=load, prepare=prepare, call=CALL_FUNCTION)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, dynamodb() as service:
        issuer = Issuer(Path(folder))
        environment = environment_of(Path(folder), service, issuer)
        measured(program_of("event_types", service.url, issuer), environment)
        for name in (FLOOR, *EVENTS):
            program = program_of(name, service.url, issuer)
            service.calls.clear()
            measured(program, environment)
            calls = dict(service.calls)
            figures[name] = {**best(program, environment, options.runs), "calls_of_three": calls}
            print(line(name, figures[name]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def environment_of(folder: Path, service: Service, issuer: Issuer) -> dict[str, str]:
    tokens = {f"NAKADI_{name.upper()}": value for name, value in issuer.settings.items() if name.startswith("auth_")}
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT / 'layers/nakadi/python'}:{ROOT}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": REGION,
        # As in Lambda, with traces that nobody takes.
        "LAMBDA_TASK_ROOT": str(folder),
        "AWS_XRAY_DAEMON_ADDRESS": "127.0.0.1:9",
        "_X_AMZN_TRACE_ID": "Root=1-6740f2b1-5c1d9e0a7b3f4c2d8e6a9b01;Parent=53995c3f42cd8ad8;Sampled=0",
        "NAKADI_REGISTRY": f"dynamodb://live?endpoint={service.url}",
        "NAKADI_EVENT_LOG": f"sqlite:///{folder / 'events.db'}",
        "NAKADI_COORDINATION": f"sqlite:///{folder / 'coordination.db'}",
        "NAKADI_AUTH": "gateway",
        "NAKADI_DEFAULT_ADMIN": "user=the-admin",
        **tokens,
    }


def line(name: str, figures: Mapping[str, Any]) -> str:
    columns = [
        f"{figures[f'{what}_cpu_ms']:6.0f} CPU {figures[f'{what}_ms']:6.0f} ms" for what in ("load", "first_call")
    ]
    warm = f"{figures['warm_call_cpu_ms']:6.2f} CPU {figures['warm_call_ms']:6.2f} ms"
    return f"{name:20} load {columns[0]} | first {columns[1]} | warm {warm} | {figures['calls_of_three']}"


if __name__ == "__main__":
    main()
