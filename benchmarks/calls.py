"""How many functions of the package does one request call?

    python benchmarks/calls.py [--list WALK]

A walk is one kind of request, and what follows from it. `--list commit` prints each call of that walk in order, with
its thread and file.

The calls are counted on the memory engine with a warm broker, and only functions of the package count. Most walks give
requests to the application in one thread, and count only that thread. Streams, and requests over HTTP, go through a
server's socket, so these walks count all threads. Each figure is the least of several repetitions.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import httpx

PACKAGE = Path(__file__).parents[1] / "layers/nakadi/python/nakadi"

REPEATS = 9


class CallCounts(NamedTuple):
    calls: int
    functions: int
    files: int
    calls_in_order: Sequence[tuple[str, CodeType]]
    """The name of the calling thread, and the code of the called function."""

    def describe_calls(self) -> Iterator[str]:
        for thread, code in self.calls_in_order:
            file = Path(code.co_filename).relative_to(PACKAGE)
            yield f"{thread:16.16} {file!s:40} {code.co_qualname}"


class CallCounter:
    """Counts calls in this thread, and in all threads that start after the counter was created."""

    def __init__(self) -> None:
        self._threads: frozenset[int] | None = frozenset()
        self._calls: list[tuple[str, CodeType]] = []
        self._prefix = str(PACKAGE)
        threading.setprofile(self._record)
        sys.setprofile(self._record)

    def _record(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(self._prefix):
            return
        if self._threads is None or threading.get_ident() in self._threads:
            self._calls.append((threading.current_thread().name, frame.f_code))

    def count(self, walk: Callable[[], object], *, everywhere: bool = False) -> CallCounts:
        """Count the calls of a walk, in this thread or in all threads."""
        self._calls = []
        self._threads = None if everywhere else frozenset({threading.get_ident()})
        try:
            walk()
        finally:
            self._threads = frozenset()
        functions = {code for _, code in self._calls}
        return CallCounts(len(self._calls), len(functions), len({each.co_filename for each in functions}), self._calls)

    def close(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)


EVENT_TYPE = {
    "name": "walk",
    "owning_application": "bench",
    "category": "undefined",
    "schema": {"type": "json_schema", "schema": '{"type": "object", "required": ["n"]}'},
}


def count_walks() -> dict[str, CallCounts]:
    """Publish an event, publish one and wait until a subscription's stream has it, and commit its cursor.

    Publications and commits are also counted over HTTP.
    """
    counter = CallCounter()
    broker = CountedBroker()
    try:
        consumed = _consuming_walks(counter, broker)
        published = count_least(broker.wait_until_no_kpis, lambda: counter.count(broker.publish))
        return {"publish": published, "publish over HTTP": _publishing_over_http(counter, broker), **consumed}
    finally:
        broker.close()
        counter.close()


class CountedBroker:
    """A broker in memory with an event type. Create it after the `CallCounter`, which then sees all of its threads."""

    def __init__(self) -> None:
        from nakadi.app.broker import open_broker  # noqa: PLC0415  # all of its threads start after the counter
        from nakadi.app.routes import make_application  # noqa: PLC0415
        from nakadi.app.settings import Settings  # noqa: PLC0415

        self._broker = open_broker(Settings())
        self.application = make_application(self._broker)
        self.post("/event-types", EVENT_TYPE)
        self.wait_until_no_kpis()

    def close(self) -> None:
        self._broker.close()

    def post(self, path: str, body: object, **headers: str) -> Any:
        """Post a body in this thread, and return the body of the answer."""
        from nakadi.http.message import Request, Response  # noqa: PLC0415

        sent = {"content-type": "application/json", **headers}
        request = Request(method="POST", path="", target=path, headers=sent, body=json.dumps(body).encode())
        answer = self.application.answer(request)
        assert isinstance(answer, Response), answer
        assert answer.status < 300, answer
        return json.loads(answer.body or b"null")

    def publish(self) -> None:
        self.post("/event-types/walk/events", [{"n": 1}])

    def wait_until_no_kpis(self) -> None:
        """Publish until the broker has noticed that nobody wants KPI events. After that, it makes none for a second."""
        from nakadi.event_types.system_event_type_definitions import ACCESS_LOG, BATCH_PUBLISHED  # noqa: PLC0415

        while any(map(self._broker.kpi_collector.is_collecting, (BATCH_PUBLISHED, ACCESS_LOG))):
            self.publish()


class CountedStream:
    """A subscription's stream over a socket, and commits of its cursors."""

    def __init__(self, broker: CountedBroker, url: str) -> None:
        self._broker = broker
        wanted = {"owning_application": "bench", "event_types": ["walk"], "read_from": "end"}
        self._path = f"/subscriptions/{broker.post('/subscriptions', wanted)['id']}"
        self._cursors: list[object] = []
        parameters = {"batch_flush_timeout": 30, "max_uncommitted_events": 1000}
        self._open = ExitStack()
        stream = self._open.enter_context(
            httpx.stream("GET", f"{url}{self._path}/events", params=parameters, timeout=60)
        )
        self._id = stream.headers["X-Nakadi-StreamId"]
        self._lines = stream.iter_lines()

    def close(self) -> None:
        self._open.close()

    @property
    def uncommitted(self) -> int:
        return len(self._cursors)

    def deliver(self) -> None:
        self._broker.publish()
        line: dict[str, Any] = {}
        while "events" not in line:
            line = json.loads(next(self._lines))
        self._cursors.append(line["cursor"])

    def commit(self) -> None:
        self._broker.post(f"{self._path}/cursors", {"items": [self._cursors.pop(0)]}, **{"x-nakadi-streamid": self._id})

    def commit_over(self, connection: socket.socket) -> None:
        content = json.dumps({"items": [self._cursors.pop(0)]}).encode()
        head = f"POST {self._path}/cursors HTTP/1.1\r\nHost: localhost\r\nX-Nakadi-StreamId: {self._id}\r\n"
        send_over(connection, head, content)


def _consuming_walks(counter: CallCounter, broker: CountedBroker) -> dict[str, CallCounts]:
    from nakadi.local.serving import ServerThread  # noqa: PLC0415

    with ServerThread(broker.application) as serving, closing(CountedStream(broker, serving.url)) as stream:
        stream.deliver()
        stream.commit()
        # All deliveries come first: other threads still react to a commit while the next delivery would be counted.
        delivered = [counter.count(stream.deliver, everywhere=True) for _ in range(2 * REPEATS)]
        committed = count_least(broker.wait_until_no_kpis, lambda: counter.count(stream.commit), REPEATS)
        with socket.create_connection(("127.0.0.1", serving.port)) as connection:
            stream.commit_over(connection)
            # The stream's reaction to a commit counts too.
            served = count_least(
                broker.wait_until_no_kpis,
                lambda: counter.count(lambda: stream.commit_over(connection), everywhere=True),
                stream.uncommitted,
            )
    return {
        "publish to delivered": min(delivered, key=_figures_of),
        "commit": committed,
        "commit over HTTP": served,
    }


def _publishing_over_http(counter: CallCounter, broker: CountedBroker) -> CallCounts:
    from nakadi.local.serving import ServerThread  # noqa: PLC0415

    with (
        ServerThread(broker.application) as serving,
        socket.create_connection(("127.0.0.1", serving.port)) as connection,
    ):
        # Threads handle the first requests and fill the caches; from then on, the event loop handles them itself.
        for _ in range(20):
            publish_over(connection)
        return count_least(
            broker.wait_until_no_kpis, lambda: counter.count(lambda: publish_over(connection), everywhere=True)
        )


def _figures_of(counted: CallCounts) -> tuple[int, int, int]:
    return counted[:3]


def count_least(prepare: Callable[[], None], count: Callable[[], CallCounts], number: int = 3 * REPEATS) -> CallCounts:
    """Return the least of many counts."""
    counts: list[CallCounts] = []
    for _ in range(number):
        prepare()
        counts.append(count())
    return min(counts, key=_figures_of)


def publish_over(connection: socket.socket) -> None:
    send_over(connection, "POST /event-types/walk/events HTTP/1.1\r\nHost: localhost\r\n", b'[{"n":1}]')


def send_over(connection: socket.socket, head: str, body: bytes) -> None:
    """Send a request in one piece over this connection, and wait for the answer."""
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 20"), answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", metavar="WALK", help="print each call of a walk, such as commit")
    options = parser.parse_args()
    counted_walks = count_walks()
    if options.list:
        print(*counted_walks[options.list].describe_calls(), sep="\n")
    print("walk: calls, functions, files")
    for name, counted in counted_walks.items():
        print(f"{name}: {counted.calls}, {counted.functions}, {counted.files}")


if __name__ == "__main__":
    main()
