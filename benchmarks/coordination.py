"""What do subscriptions cost on DynamoDB? Units of commits, of changes, and of idle streams.

    python benchmarks/coordination.py [--streams 200] [--seconds 120] [--json FILE]

DynamoDB is moto in this process, which does not count units. This script counts them by the sizes of the items that are
read and written, as AWS documents it. Prices come from `infra.cost`.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from botocore.awsrequest import AWSPreparedRequest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.dynamodb.models import dynamodb_backends
from msgspec.structs import replace

from benchmarks.stream import raise_file_limit
from infra.cost.prices import HOURS, PRICES
from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.common.waiting import run_blocking
from nakadi.engines.dynamodb.coordination import DynamoDbCoordination
from nakadi.engines.dynamodb.table_address import TableAddress
from nakadi.local.serving import ServerThread
from nakadi.model.event_type import Position
from nakadi.model.subscription import EMPTY_ASSIGNMENT, Assignment, EventTypePartition, PartitionAssignment, Session
from tests.support.aws import REGION, EmulatedAws, aws

WRITE_UNIT, READ_UNIT = 1024, 4096
BEGUN = datetime(2026, 11, 21, 12, tzinfo=UTC)
STREAM = "6e1cbd2c-8f4e-4a43-9cb0-1c1f0f4a8f11"
EVENT_TYPE = "shop.order-placed"


@dataclass
class UnitMeter:
    """Counts read and write units by table, and calls by operation."""

    reads: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        for each in (self.reads, self.writes, self.calls):
            each.clear()

    def count_units(self, request: AWSPreparedRequest, answer: Any) -> Any:
        target = request.headers.get("X-Amz-Target", "")
        operation = (target.decode() if isinstance(target, bytes) else target).rpartition(".")[2]
        body = json.loads(request.body or "{}")
        self.calls[operation] += 1
        match operation:
            case "GetItem" | "Query":
                found = json.loads(answer.content)
                items = found.get("Items", [found["Item"]] if "Item" in found else [])
                units = max(1, ceil(sum(map(size_of, items)) / READ_UNIT))
                self.reads[body["TableName"]] += units if body.get("ConsistentRead") else units / 2
            case "PutItem" | "UpdateItem":
                self.writes[body["TableName"]] += units_of(body)
            case "TransactWriteItems":
                for item in body["TransactItems"]:
                    for change in item.values():
                        self.writes[change["TableName"]] += 2 * units_of(change)
            case "BatchWriteItem":
                for table, requests in body["RequestItems"].items():
                    self.writes[table] += len(requests)
        return answer


def units_of(change: Mapping[str, Any]) -> int:
    """The units of a change, by the item's size after the write."""
    table = dynamodb_backends[DEFAULT_ACCOUNT_ID][REGION].get_table(change["TableName"])
    keys = change.get("Item") or change["Key"]
    names = [name for name in (table.hash_key_attr, table.range_key_attr) if name]
    found = dynamodb_backends[DEFAULT_ACCOUNT_ID][REGION].get_item(
        change["TableName"], {name: keys[name] for name in names}
    )
    return max(1, ceil(size_of(found.to_json()["Attributes"]) / WRITE_UNIT)) if found else 1


def size_of(item: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(len(name.encode()) + _size(*value.items()) for name, value in item.items())


def _size(value: tuple[str, Any]) -> int:
    kind, content = value
    match kind:
        case "S":
            return len(content.encode())
        case "N":
            return (len(content.strip("-").strip("0")) + 1) // 2 + 1
        case "B":
            return len(content) * 3 // 4
    return 1


@contextmanager
def metered_aws() -> Iterator[tuple[EmulatedAws, UnitMeter]]:
    meter = UnitMeter()
    with aws() as emulated:
        answer = emulated.answer
        emulated.answer = lambda request, effect: meter.count_units(request, answer(request, effect))  # type: ignore[method-assign]
        emulated.create_tables("bench")
        yield emulated, meter


def measure_commits(meter: UnitMeter) -> Iterator[tuple[str, float, float]]:
    coordination = DynamoDbCoordination(TableAddress("bench", REGION))
    for partitions in (1, 8):
        places = begin_session(coordination, f"slow {partitions}", partitions)
        meter.clear()
        for number in range(20):
            moment = BEGUN + timedelta(seconds=number)
            run_blocking(coordination.commit(f"slow {partitions}", STREAM, dict.fromkeys(places, at(number)), moment))
        yield f"commit of {partitions} partition{'s' * (partitions > 1)}, one a second", *average_units(meter, 20)
    places = begin_session(coordination, "fast", 1)
    meter.clear()
    for number in range(200):
        run_blocking(
            coordination.commit("fast", STREAM, {places[0]: at(number)}, BEGUN + timedelta(seconds=number / 20))
        )
    yield "commit of 1 partition, twenty a second", *average_units(meter, 200)
    meter.clear()
    for number in range(20):
        run_blocking(
            coordination.commit("fast", STREAM, {places[0]: at(0)}, BEGUN + timedelta(minutes=1, seconds=number))
        )
    yield "commit of what is committed already", *average_units(meter, 20)
    for partitions in (8, 99):
        meter.clear()
        begin_session(coordination, f"taken {partitions}", partitions)
        yield f"a stream takes {partitions} partitions", *average_units(meter, 1)
    coordination.close()


def begin_session(coordination: DynamoDbCoordination, subscription: str, partitions: int) -> list[EventTypePartition]:
    places = [EventTypePartition(EVENT_TYPE, str(each)) for each in range(partitions)]
    session = Session(id=STREAM, process_id=STREAM, started_at=BEGUN, commit_timeout=60)
    new = Assignment(
        initialised=True, entries=tuple(PartitionAssignment(each, STREAM) for each in places), sessions=(session,)
    )
    coordination.replace_assignment(subscription, EMPTY_ASSIGNMENT, new, BEGUN, dict.fromkeys(places, at(-1)))
    assert coordination.assignment(subscription) == replace(new, revision=1)
    return places


def at(offset: int) -> Position:
    return Position(1, offset)


def average_units(meter: UnitMeter, count: int) -> tuple[float, float]:
    return sum(meter.writes.values()) / count, sum(meter.reads.values()) / count


def measure_idle_units(streams: int, seconds: float) -> Mapping[str, Mapping[str, float]]:
    """The hourly units of a stream, from the difference between many streams and few, and those of the process without
    streams.
    """
    few = max(1, streams // 10)
    found = {}
    for count in (few, streams):
        with metered_aws() as (_, meter):
            found[count] = {
                kind: units * 3600 / seconds for kind, units in measure_idle_streams(meter, count, seconds).items()
            }
    stream = {kind: (found[streams][kind] - found[few][kind]) / (streams - few) for kind in ("reads", "writes")}
    process = {kind: found[few][kind] - few * each for kind, each in stream.items()}
    return {"process": process, "stream": stream}


def measure_idle_streams(meter: UnitMeter, streams: int, seconds: float, partitions: int = 4) -> Mapping[str, float]:
    broker = open_broker(Settings(registry=f"dynamodb://bench?region={REGION}"))
    with ExitStack() as stack:
        stack.callback(broker.close)
        serves = stack.enter_context(ServerThread(make_application(broker), grace_seconds=0))
        api = stack.enter_context(httpx.Client(base_url=serves.url, timeout=60))
        _create_event_type(api, partitions)
        for number in range(streams):
            body = {"owning_application": f"app-{number}", "event_types": [EVENT_TYPE]}
            subscription = api.post("/subscriptions", json=body).json()["id"]
            stack.callback(_open_stream(serves.url, subscription).close)
        time.sleep(10)
        meter.clear()
        time.sleep(seconds)
        return {"reads": sum(meter.reads.values()), "writes": sum(meter.writes.values())}


def _create_event_type(api: httpx.Client, partitions: int) -> None:
    statistic = {"messages_per_minute": 1, "message_size": 1} | dict.fromkeys(
        ("read_parallelism", "write_parallelism"), partitions
    )
    body = {
        "name": EVENT_TYPE,
        "owning_application": "shop",
        "category": "undefined",
        "schema": {"type": "json_schema", "schema": "{}"},
        "default_statistic": statistic,
    }
    api.post("/event-types", json=body).raise_for_status()


def _open_stream(url: str, subscription: str) -> socket.socket:
    parts = urlsplit(url)
    opened = socket.create_connection((parts.hostname, parts.port), 60)
    opened.sendall(f"GET /subscriptions/{subscription}/events HTTP/1.1\r\nHost: {parts.hostname}\r\n\r\n".encode())
    assert opened.recv(12) == b"HTTP/1.1 200"
    return opened


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=120, help="what is looked at once a minute should fit evenly")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    raise_file_limit()
    figures: dict[str, Any] = {}
    with metered_aws() as (_, meter):
        for what, writes, reads in measure_commits(meter):
            cost = 1e6 * dollars_for_units(writes, reads)
            figures[what] = {"writes": writes, "reads": reads, "dollars of a million": cost}
            print(f"{what:42} {writes:7.2f} write units {reads:7.2f} read units ${cost:8.2f} a million", flush=True)
    for whose, found in measure_idle_units(options.streams, options.seconds).items():
        writes, reads = found["writes"], found["reads"]
        cost = HOURS * dollars_for_units(writes, reads)
        figures[f"idle {whose}"] = {"writes": writes, "reads": reads, "dollars of a month": cost}
        print(f"an hour of an idle {whose:23} {writes:7.0f} write units {reads:7.0f} read units ${cost:8.4f} a month")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def dollars_for_units(writes: float, reads: float) -> float:
    return writes * PRICES["dynamodb-write"].dollars + reads * PRICES["dynamodb-read"].dollars


if __name__ == "__main__":
    main()
