"""What does a broker with very many resources cost, and what are its limits?

    python benchmarks/many.py [event-types] [subscriptions] [streams] [events] [--sizes N,N…] [--folder FOLDER]

Each part fills a data file to a size, starts a broker on it in its own process, and asks what users and operators ask:
how long the start takes, how much memory it uses, how long a list's page, a publication and a subscription's statistics
take with all these resources, and how much CPU the idle broker uses in a minute.

Registered objects and events are copied inside the data file from one that the API created, since a broker takes
milliseconds to create one durably. The times of calls are medians over HTTP, and CPU covers the broker's process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.stream import connect, raise_file_limit
from nakadi.engines.common import frames
from nakadi.engines.sqlite.reading import ROW_HEAD_FORMAT
from nakadi.model.events import Record
from tests.soak.soak import Server

SIZES: Mapping[str, Sequence[int]] = {
    "event-types": (100, 10_000, 50_000),
    "subscriptions": (100, 5_000, 20_000),
    "streams": (100, 2_000, 10_000),
    "events": (1_000_000, 100_000_000),
}
TYPE, OTHER_TYPE = "many.0", "many.other"
EVENT = {"field_0": "an event"}
IDLE_SECONDS = 65.0
"""How long the idle broker is measured: longer than the pause between two rounds of housekeeping."""
FRAME_EVENTS = 1_000
STREAMS_AT_ONCE = 200
"""How many streams are opened at once: the broker refuses requests while about a thousand of them wait."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*SIZES, []], default=[])
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    raise_file_limit()
    figures: dict[str, dict[int, dict[str, float]]] = {}
    for part in options.parts or SIZES:
        figures[part] = {}
        for size in options.sizes or SIZES[part]:
            with tempfile.TemporaryDirectory(dir=options.folder, prefix="many-") as folder:
                figures[part][size] = MEASUREMENTS[part](Path(folder), size)
            print_figures(part, size, figures[part][size])
    if options.json:
        options.json.write_text(json.dumps(figures))


def measure_event_types(folder: Path, size: int) -> dict[str, float]:
    create_originals(folder)
    with changing_data_file(folder) as file:
        clone_event_types(file, size)
    with running_broker(folder) as broker:
        unused = [f"many.{number}" for number in random.sample(range(1, size), 50)]
        new = [event_type_definition(f"new.{number}") for number in range(50)]
        return (
            broker.measure_start()
            | broker.measure_calls("publish an event", "POST", [f"/event-types/{TYPE}/events"] * 50, [[EVENT]] * 50)
            | broker.measure_calls(
                "publish the first event", "POST", [f"/event-types/{name}/events" for name in unused], [[EVENT]] * 50
            )
            | broker.measure_calls("create an event type", "POST", ["/event-types"] * 50, new)
            | broker.measure_calls("list a page of 100", "GET", [f"/event-types?limit=100&after={unused[0]}"] * 50)
            | broker.measure_calls("list all", "GET", ["/event-types"] * 3)
            | broker.measure_idle()
        )


def measure_subscriptions(folder: Path, size: int) -> dict[str, float]:
    """Measure subscriptions that each read one of a hundred event types, and have cursors."""
    create_originals(folder)
    with changing_data_file(folder) as file:
        clone_event_types(file, 100)
        clone_subscriptions(file, size, 100)
    with running_broker(folder) as broker:
        start = broker.measure_start()
        [first] = broker.get("/subscriptions?limit=1")["items"]
        wanted = {"owning_application": "many", "event_types": ["many.1"]}
        new = [wanted | {"consumer_group": str(number)} for number in range(50)]
        page = "/subscriptions?limit=100"
        return (
            start
            | broker.measure_calls("publish an event", "POST", [f"/event-types/{TYPE}/events"] * 50, [[EVENT]] * 50)
            | broker.measure_calls("create a subscription", "POST", ["/subscriptions"] * 50, new)
            | broker.measure_calls("list a page of 100", "GET", [page] * 50)
            | broker.measure_calls("list the last page by its offset", "GET", [f"{page}&offset={size - 100}"] * 5)
            | broker.measure_calls("list those of an event type", "GET", [f"{page}&event_type=many.50"] * 50)
            | broker.measure_calls("list a page with status", "GET", [f"{page}&show_status=true"] * 5)
            | broker.measure_calls("statistics", "GET", [f"/subscriptions/{first['id']}/stats"] * 50)
            | broker.measure_idle()
        )


def measure_streams(folder: Path, size: int) -> dict[str, float]:
    """Measure idle streams. Half of them read an event type; each of the others reads its own subscription. They send
    only keep-alives.
    """
    create_originals(folder)
    with changing_data_file(folder) as file:
        clone_event_types(file, 100)
        clone_subscriptions(file, size // 2, 100)
    with running_broker(folder) as broker:
        figures = broker.measure_start()
        memory, began, cpu = broker.memory(), time.monotonic(), broker.cpu_seconds()
        streams: list[socket.socket] = []
        targets = stream_targets(broker, size)
        for first in range(0, size, STREAMS_AT_ONCE):
            streams += open_streams(broker, targets[first : first + STREAMS_AT_ONCE])
        figures["open all: s"] = time.monotonic() - began
        figures["open one: ms of CPU"] = (broker.cpu_seconds() - cpu) / size * 1e3
        figures["memory of a stream: KiB"] = (broker.memory() - memory) / size / 1024
        figures["descriptors"] = broker.descriptors()
        figures |= broker.measure_calls(
            "publish an event", "POST", [f"/event-types/{OTHER_TYPE}/events"] * 50, [[EVENT]] * 50
        )
        figures |= broker.measure_idle()
        began = time.monotonic()
        broker.send("POST", f"/event-types/{TYPE}/events", [EVENT])
        for stream in streams[: size // 2]:
            read_until(stream, b'"events"')
        figures["one event to half of them: s"] = time.monotonic() - began
        for stream in streams:
            stream.close()
        return figures


def measure_events(folder: Path, size: int) -> dict[str, float]:
    """Measure one partition that is only in the data file, without an archive, to which most events would move."""
    create_originals(folder)
    began = time.monotonic()
    with changing_data_file(folder) as file:
        clone_events(file, size)
    figures = {"data file: GB": (folder / "nakadi.db").stat().st_size / 1e9, "filling: s": time.monotonic() - began}
    with running_broker(folder, NAKADI_ARCHIVE="") as broker:
        path = f"/event-types/{TYPE}"
        figures |= broker.measure_start()
        figures |= broker.measure_calls("publish an event", "POST", [f"{path}/events"] * 50, [[EVENT]] * 50)
        prefix = broker.get(f"{path}/partitions/0")["newest_available_offset"].rpartition("-")[0]
        cursors = [{"partition": "0", "offset": f"{prefix}-{random.randrange(size):018}"} for _ in range(50)]
        distances = [[{"initial_cursor": each, "final_cursor": cursors[0]}] for each in cursors]
        reading = f"{path}/events?batch_limit=100&stream_limit=100&batch_flush_timeout=1&stream_timeout=5"
        headers = [{"X-Nakadi-Cursors": json.dumps([each])} for each in cursors]
        return (
            figures
            | broker.measure_calls("read 100 events somewhere", "GET", [reading] * 50, headers=headers)
            | broker.measure_calls("oldest and newest offset", "GET", [f"{path}/partitions"] * 50)
            | broker.measure_calls("distance between cursors", "POST", [f"{path}/cursor-distances"] * 50, distances)
            | broker.measure_idle()
        )


MEASUREMENTS: Mapping[str, Callable[[Path, int], dict[str, float]]] = {
    "event-types": measure_event_types,
    "subscriptions": measure_subscriptions,
    "streams": measure_streams,
    "events": measure_events,
}


class RunningBroker:
    def __init__(self, server: Server, process_id: int, start_seconds: float) -> None:
        self.url = f"http://{server.host}"
        self._client = httpx.Client(base_url=self.url, timeout=300)
        self._process = psutil.Process(process_id)
        self._start_seconds = start_seconds

    def close(self) -> None:
        self._client.close()

    def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> bytes:
        answer = self._client.request(method, path, json=body, headers=headers)
        assert answer.is_success, answer.text
        return answer.content

    def get(self, path: str) -> Any:
        return json.loads(self.send("GET", path))

    def measure_calls(
        self,
        name: str,
        method: str,
        paths: Sequence[str],
        bodies: Sequence[Any] = (),
        headers: Sequence[Mapping[str, str]] = (),
    ) -> dict[str, float]:
        """The median time of these calls, and their average CPU time."""
        took, cpu = [], self.cpu_seconds()
        for path, body, header in zip_longest(paths, bodies, headers):
            began = time.perf_counter()
            self.send(method, path, body, header)
            took.append(time.perf_counter() - began)
        return {
            f"{name}: ms": statistics.median(took) * 1e3,
            f"{name}: ms of CPU": (self.cpu_seconds() - cpu) / len(took) * 1e3,
        }

    def cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def memory(self) -> int:
        return int(self._process.memory_info().rss)

    def descriptors(self) -> int:
        return int(self._process.num_fds())

    def measure_start(self) -> dict[str, float]:
        """Measure the start and the first round of housekeeping. That round looks at every partition, so its CPU time
        would distort the CPU time of calls.
        """
        figures = {
            "start: s": self._start_seconds,
            "start: s of CPU": self.cpu_seconds(),
            "memory after the start: MB": self.memory() / 1e6,
        }
        while not (first := self._read_rounds())["count"]:
            time.sleep(1)
        return figures | {
            "the first round of housekeeping: s": first["max"],
            "the first round of housekeeping: s of CPU": self.cpu_seconds() - figures["start: s of CPU"],
        }

    def measure_idle(self) -> dict[str, float]:
        """Measure the CPU time of the idle broker."""
        before, began = self.cpu_seconds(), time.monotonic()
        time.sleep(IDLE_SECONDS)
        return {
            "idle: s of CPU a minute": (self.cpu_seconds() - before) / (time.monotonic() - began) * 60,
            "memory at the end: MB": self.memory() / 1e6,
        }

    def _read_rounds(self) -> Any:
        return self.get("/metrics")["timers"].get("nakadi.housekeeping_duration", {"count": 0})


class MeasuredServer(Server):
    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self._settings = settings
        super().__init__(folder)

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), **self._settings}

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid


@contextmanager
def running_broker(folder: Path, **settings: str) -> Iterator[RunningBroker]:
    began = time.monotonic()
    server = MeasuredServer(folder, settings)
    try:
        with closing(RunningBroker(server, server.process_id, time.monotonic() - began)) as broker:
            yield broker
    finally:
        server.stop(signal.SIGKILL)


def create_originals(folder: Path) -> None:
    """Create the resources that are then copied."""
    with running_broker(folder) as broker:
        for name in (TYPE, OTHER_TYPE):
            broker.send("POST", "/event-types", event_type_definition(name))
        wanted = {"owning_application": "many", "event_types": [TYPE], "read_from": "begin"}
        broker.send("POST", "/subscriptions", wanted)


def event_type_definition(name: str) -> dict[str, Any]:
    properties = {f"field_{number}": {"type": "string"} for number in range(10)}
    return {
        "name": name,
        "owning_application": "many",
        "category": "undefined",
        "schema": {"type": "json_schema", "schema": json.dumps({"properties": properties})},
    }


@contextmanager
def changing_data_file(folder: Path) -> Iterator[sqlite3.Connection]:
    """The data file while only this script uses it. The script does not sync, so a power failure would corrupt the
    file.
    """
    with closing(sqlite3.connect(folder / "nakadi.db")) as file:
        file.execute("PRAGMA synchronous = OFF").close()
        with file:
            yield file


def clone_event_types(file: sqlite3.Connection, size: int) -> None:
    """Copy `TYPE` under further numbers, each with its own topic."""
    body = read_event_type(file)
    text = json.dumps([TYPE, 1, body])
    [schema_key, schema] = file.execute(
        "SELECT key, entry FROM documents WHERE kind = 'schemas' AND key LIKE ?", [f"{body['id']}/%"]
    ).fetchone()
    [topic] = {each["topic"] for each in body["timelines"]}
    for number in range(1, size):
        new_id, new_topic = str(uuid.uuid4()), uuid.uuid4().hex
        new = text.replace(TYPE, f"many.{number}").replace(body["id"], new_id).replace(topic, new_topic)
        insert_document(file, "event-types", f"many.{number}", new)
        insert_document(file, "schemas", schema_key.replace(body["id"], new_id), schema.replace(body["id"], new_id))
        row = file.execute("INSERT INTO topics (name, sealed) VALUES (?, 0)", [new_topic]).lastrowid
        file.execute("INSERT INTO logs (topic, partition) VALUES (?, 0)", [row]).close()


def read_event_type(file: sqlite3.Connection) -> Any:
    """The body of the document of `TYPE`."""
    query = "SELECT entry FROM documents WHERE kind = 'event-types' AND key = ?"
    _, _, body = json.loads(file.execute(query, [TYPE]).fetchone()[0])
    return body


def clone_subscriptions(file: sqlite3.Connection, size: int, event_types: int) -> None:
    """Copies of the only subscription, each to one of the event types."""
    rows = dict(file.execute("SELECT kind, entry FROM documents WHERE kind LIKE 'subscription%'").fetchall())
    old_id, _, _ = json.loads(rows["subscriptions"])
    for number in range(1, size):
        new_id = str(uuid.UUID(int=uuid.UUID(old_id).int + number))
        event_type = f"many.{number % event_types}"
        insert_document(
            file, "subscriptions", new_id, rows["subscriptions"].replace(old_id, new_id).replace(TYPE, event_type)
        )
        line = rows["subscription-lines"].replace(old_id, new_id).replace(TYPE, event_type)
        insert_document(file, "subscription-lines", f"{event_type}/{new_id}", line)
        file.execute(
            "INSERT INTO offsets (subscription, event_type, partition, timeline, position, since)"
            " VALUES (?, ?, '0', 1, -1, 0)",
            [new_id, event_type],
        ).close()


def clone_events(file: sqlite3.Connection, size: int) -> None:
    """Store events of 90 bytes, spread over the last hours."""
    [topic] = {each["topic"] for each in read_event_type(file)["timelines"]}
    [log] = file.execute(
        "SELECT logs.id FROM logs JOIN topics ON topics.id = logs.topic WHERE topics.name = ?", [topic]
    ).fetchone()
    texts = [b'{"n":%d,"id":"%032x","note":"%032x"}' % (n, random.getrandbits(128), n) for n in range(FRAME_EVENTS)]
    frame = frames.encode([Record(text) for text in texts])
    now = int(time.time() * 1e6)

    def rows() -> Iterator[tuple[int, int, int, int, int, bytes]]:
        for first in range(0, size, FRAME_EVENTS):
            stored_at = now - (size - first) * 100
            body = ROW_HEAD_FORMAT.pack(first, FRAME_EVENTS, stored_at, len(frame)) + frame
            yield log, first, FRAME_EVENTS, stored_at, sum(map(len, texts)), body

    file.executemany(
        "INSERT INTO frames (log, first, count, stored_at, size, body) VALUES (?, ?, ?, ?, ?, ?)", rows()
    ).close()


def insert_document(file: sqlite3.Connection, kind: str, key: str, entry: str) -> None:
    file.execute("INSERT INTO documents VALUES (?, ?, 1, ?)", [kind, key, entry]).close()


def stream_targets(broker: RunningBroker, size: int) -> list[str]:
    keep_alive = "batch_flush_timeout=30&batch_limit=1"
    own, page = [], "/subscriptions?limit=1000"
    while page and len(own) < size // 2:
        answer = broker.get(page)
        own += [f"/subscriptions/{each['id']}/events?{keep_alive}" for each in answer["items"]]
        page = answer["_links"].get("next", {}).get("href", "")
    low_level = [f"/event-types/{TYPE}/events?{keep_alive}"] * (size - size // 2)
    return low_level + own[: size // 2]


def open_streams(broker: RunningBroker, targets: Sequence[str]) -> list[socket.socket]:
    streams = [connect(broker.url, target) for target in targets]
    for stream in streams:
        stream.settimeout(300)
        assert stream.recv(100).startswith(b"HTTP/1.1 200"), "a stream was refused"
    return streams


def read_until(stream: socket.socket, mark: bytes) -> None:
    tail = b""
    while mark not in tail:
        received = stream.recv(1 << 16)
        assert received, "a stream ended"
        tail = tail[-len(mark) :] + received


def print_figures(part: str, size: int, figures: Mapping[str, float]) -> None:
    print(f"\n{part}: {size:,} (load of the machine: {os.getloadavg()[0]:.0f})")
    for name, figure in figures.items():
        print(f"  {name:48} {figure:12,.2f}", flush=True)


if __name__ == "__main__":
    main()
