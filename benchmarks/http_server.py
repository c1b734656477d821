"""What does the HTTP server cost? Requests per second, CPU per request, memory per idle stream.

    python benchmarks/http_server.py [--streams 2000]

The application answers at once, so that the server and the edge are what is measured. Server and client are two
processes on this machine, with a core each if there are two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

from nakadi.http.application import Application
from nakadi.http.message import Outlet, Request, Response, StreamingResponse, empty_response, json_response
from nakadi.http.router import Route
from nakadi.http.server import Server, new_event_loop, open_listening_socket
from nakadi.model.authorization import UNAUTHENTICATED

EVENT = b'{"metadata":{"eid":"4b2c0d2c-1111-4222-8333-444444444444","occurred_at":"2026-01-01T00:00:00Z"},"v":"%b"}'
BODY = b"[" + EVENT % (b"x" * 900) + b"]"
PUBLISH = (
    b"POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    % len(BODY)
    + BODY
)


class Streams:
    def __init__(self) -> None:
        self.open = 0

    async def idle(self, outlet: Outlet) -> None:
        self.open += 1
        await outlet.when_client_gone()
        self.open -= 1


def an_application(streams: Streams) -> Application:
    def used(_request: Request) -> Response:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return json_response(
            {"cpu": time.process_time(), "memory": pages * resource.getpagesize(), "streams": streams.open}
        )

    return Application(
        [
            Route(method="POST", template="/events", handler=lambda _: empty_response(), operation="publish"),
            Route(method="GET", template="/idle", handler=lambda _: StreamingResponse(streams.idle), operation="s"),
            Route(method="GET", template="/used", handler=used, operation="used"),
        ],
        lambda _: UNAUTHENTICATED,
    )


def serve(listening: socket.socket) -> None:
    async def forever() -> None:
        await Server(an_application(Streams())).serve(listening, asyncio.Event())

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(forever())


class Publisher(asyncio.Protocol):
    """Publishes, waits for the answer, and again, until the time is over."""

    def __init__(self, end: float, took: list[float], done: asyncio.Semaphore) -> None:
        self._end, self._took, self._done = end, took, done

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP is a stream
        self._transport = transport
        self._publish()

    def data_received(self, data: bytes) -> None:
        assert data.startswith(b"HTTP/1.1 200")
        self._took.append(time.perf_counter() - self._began)
        if time.perf_counter() < self._end:
            self._publish()
        else:
            self._transport.close()
            self._done.release()

    def _publish(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(PUBLISH)


async def publish(port: int, clients: int, seconds: float) -> list[float]:
    took: list[float] = []
    done = asyncio.Semaphore(0)
    end = time.perf_counter() + seconds
    for _ in range(clients):
        await asyncio.get_running_loop().create_connection(lambda: Publisher(end, took, done), "127.0.0.1", port)
    for _ in range(clients):
        await done.acquire()
    return sorted(took)


def used(port: int) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/used") as answer:
        return json.load(answer)


def measure_requests(port: int, clients: int, seconds: float = 2.0) -> None:
    before = used(port)
    took = asyncio.run(publish(port, clients, seconds))
    cpu = (used(port)["cpu"] - before["cpu"]) / len(took)
    middle, worst = took[len(took) // 2] * 1000, took[len(took) * 99 // 100] * 1000
    print(
        f"{clients:3} clients: {len(took) / seconds:6.0f} requests/s, p50 {middle:.2f} ms, p99 {worst:.2f} ms,"
        f" {cpu * 1e6:.0f} µs of CPU each"
    )


def measure_streams(port: int, count: int) -> None:
    before = used(port)
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for each in sockets:
        each.sendall(b"GET /idle HTTP/1.1\r\nHost: localhost\r\n\r\n")
    until(port, count)
    memory = (used(port)["memory"] - before["memory"]) / count / 1024
    began = time.perf_counter()
    for each in sockets:
        each.close()
    until(port, 0)
    print(f"{count} idle streams: {memory:.1f} KB each, all gone noticed after {time.perf_counter() - began:.2f} s")


def until(port: int, streams: int) -> None:
    while used(port)["streams"] != streams:
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000, help="how many idle streams; mind the limit of open files")
    options = parser.parse_args()
    with open_listening_socket("127.0.0.1", 0) as listening:
        server = multiprocessing.get_context("fork").Process(target=serve, args=(listening,), daemon=True)
        server.start()
        port = listening.getsockname()[1]
    for clients in (1, 8, 64):
        measure_requests(port, clients)
    measure_streams(port, options.streams)
    server.terminate()


if __name__ == "__main__":
    main()
