"""What does the registry cost?

* Creating an event type over HTTP, against the same server answering an empty 201.
* Listing 10,000 event types, and how that grows from 1,000.
* Resolving one event type for publishing, from the cache and from the registry.

`make bench` runs this script, which takes about a minute and only connects to loopback.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from msgspec.structs import replace

from nakadi.app.broker import BrokerServices, open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.http.application import Application
from nakadi.http.message import empty_response
from nakadi.http.router import Route
from nakadi.local.serving import ServerThread
from tests.support.builders import an_event_type

CREATIONS = 400
SCHEMA = {
    "type": "object",
    "properties": {f"field_{number}": {"type": "string"} for number in range(10)},
    "required": ["field_0"],
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for engine, url in (("memory", "memory:"), ("sqlite", f"sqlite:///{Path(folder) / 'nakadi.db'}")):
            broker = open_broker(Settings(registry=url, event_log=url))
            measure_creation(engine, broker)
            measure_resolution(engine, broker)
            measure_listing(engine, broker)
            broker.close()


def measure_creation(engine: str, broker: BrokerServices) -> None:
    """Time alternating pairs of requests, so that other work on the machine affects both."""
    floor = Application([Route(method="POST", template="/", handler=_answer_created, operation="floor")])
    with _client(make_application(broker)) as ours, _client(floor) as theirs:
        took, floor_took = [], []
        for number in range(CREATIONS):
            body = _definition(f"bench.{engine}.{number}")
            took.append(_seconds_for(lambda body=body: _require_status(ours.post("/event-types", content=body), 201)))
            floor_took.append(_seconds_for(lambda body=body: _require_status(theirs.post("/", content=body), 201)))
    _print_times(f"{engine}: create an event type", took)
    _print_times(f"{engine}: an empty 201", floor_took)
    print(f"{engine}: ratio of the medians {statistics.median(took) / statistics.median(floor_took):.2f}")


def measure_resolution(engine: str, broker: BrokerServices) -> None:
    name = f"bench.{engine}.0"
    _print_times(
        f"{engine}: resolve, read anew", [_seconds_for(lambda: broker.event_types.get(name)) for _ in range(2000)]
    )
    _print_times(
        f"{engine}: resolve, remembered", [_seconds_for(lambda: broker.event_types.cached(name)) for _ in range(2000)]
    )


def measure_listing(engine: str, broker: BrokerServices) -> None:
    medians = {}
    template = replace(an_event_type(), schema=replace(an_event_type().schema, text=json.dumps(SCHEMA)))
    with _client(make_application(broker)) as client:
        for size in (1_000, 10_000):
            existing = sum(1 for _ in broker.event_types.all())
            for number in range(existing, size):
                broker.event_types.add(replace(template, name=f"list.{engine}.{number}", id=f"{engine}-{number}"))
            took = [_seconds_for(lambda: _require_status(client.get("/event-types"), 200)) for _ in range(5)]
            medians[size] = statistics.median(took)
            _print_times(f"{engine}: list {size:,} event types", took)
    print(f"{engine}: ten times as many take {medians[10_000] / medians[1_000]:.1f} times as long")


def _client(application: Application) -> httpx.Client:
    serving = ServerThread(application, host="127.0.0.1", port=0)
    client = _ClosingBoth(base_url=serving.url, headers={"content-type": "application/json"}, timeout=60)
    client.serving = serving
    return client


class _ClosingBoth(httpx.Client):
    serving: ServerThread

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.serving.close()


def _answer_created(_: object) -> object:
    return empty_response(201)


def _definition(name: str) -> bytes:
    schema = {"type": "json_schema", "schema": json.dumps(SCHEMA)}
    definition = {"name": name, "owning_application": "bench", "category": "undefined", "schema": schema}
    return json.dumps(definition).encode()


def _require_status(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text


def _seconds_for(step: Callable[[], object]) -> float:
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def _print_times(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    median, p99 = statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))]
    print(f"{what:40} median {median * 1000:10.3f} ms   p99 {p99 * 1000:10.3f} ms")


if __name__ == "__main__":
    main()
