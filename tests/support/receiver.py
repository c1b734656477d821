"""A sink for tests: an HTTP server that records requests, and answers as the test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

from nakadi.delivery import dispatcher, lanes
from nakadi.subscriptions.stream import session
from tests.support.patience import until

ON_LOOPBACK = {"sink_schemes": ("https", "http"), "sink_networks": ("127.0.0.0/8",)}
"""Settings that let a broker deliver to a receiver on loopback."""

ON_LOOPBACK_VARIABLES = {"NAKADI_SINK_SCHEMES": "https,http", "NAKADI_SINK_NETWORKS": "127.0.0.0/8"}


@contextmanager
def delivering_quickly() -> Iterator[None]:
    """Shorten the intervals of brokers in this process: for changes to sinks, reports about deliveries, the next
    attempt after a failure, and commits of events that need no delivery.
    """
    with (
        patch.object(dispatcher, "LOOK_INTERVAL_SECONDS", 0.05),
        patch.object(dispatcher, "REPORT_INTERVAL_SECONDS", 0.1),
        patch.object(lanes, "MIN_PAUSE_SECONDS", 0.05),
        patch.object(session, "AUTO_COMMIT_INTERVAL_SECONDS", 0.5),
    ):
        yield


@dataclass(frozen=True)
class ReceivedDelivery:
    headers: Mapping[str, str]
    body: bytes
    status: int

    @property
    def events(self) -> list[Any]:
        parsed = json.loads(self.body)
        return list(parsed["events"] if isinstance(parsed, dict) else parsed)


class Receiver:
    """Receives deliveries. `decide` gets the events of a delivery, and returns the status of the answer."""

    def __init__(self, decide: Callable[[list[Any]], int] = lambda _: 204) -> None:
        self.decide = decide
        self.received: list[ReceivedDelivery] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                parsed = json.loads(body)
                status = receiver.decide(parsed["events"] if isinstance(parsed, dict) else parsed)
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.append(ReceivedDelivery(headers, body, status))
                answer = b"" if status < 300 else b"cannot read it"
                self.send_response(status)
                if status != 204:
                    self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        # `shutdown` waits until the server looks again, so the server looks often.
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def accepted(self) -> list[Any]:
        """The events of all deliveries that the receiver answered with 2xx."""
        return [each for received in tuple(self.received) if received.status < 300 for each in received.events]

    def wait_for(self, count: int) -> list[Any]:
        """Wait until this number of events was accepted, and return all accepted events."""
        until(lambda: len(self.accepted) >= count)
        return self.accepted

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def a_sink(receiver: Receiver, **fields: Any) -> dict[str, Any]:
    return {"type": "http", "url": receiver.url, **fields}
