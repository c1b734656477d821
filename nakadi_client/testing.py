"""A real broker within a test, with faults on demand. This module needs the broker: `pip install nakadi-serverless`.

    from nakadi_client.testing import LocalNakadi

    def test_orders_are_published():
        with LocalNakadi() as nakadi:
            nakadi.create_event_type("order.placed")
            nakadi.faults.refuse(event_type="order.placed", times=1)    # the next write fails
            with Producer(nakadi.url, "order.placed") as producer:
                producer.send({"order_number": "A-1"})
            assert [event["order_number"] for event in nakadi.events("order.placed")] == ["A-1"]

`Network` stands between a client and a broker, and cuts connections, in the middle of a line too.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from nakadi_client.reader import read

if TYPE_CHECKING:
    from nakadi.local import Faults

_PATIENCE = 60.0
_CHUNK = 65_536


class LocalNakadi:
    """A broker in this process, in memory, on a free port. `faults` is the same as in `nakadi.local.Broker`.

    Its keywords are settings of the broker: `LocalNakadi(default_partitions=4)`.
    """

    def __init__(self, **settings: Any) -> None:
        from nakadi.local import Broker  # noqa: PLC0415  # who only publishes and consumes does not need the broker

        with ExitStack() as opened:
            broker = opened.enter_context(Broker(**settings))
            self.faults: Faults = broker.faults
            self.url: str = broker.url
            # This fails if the environment names a proxy or certificates that cannot be used.
            self._client = opened.enter_context(httpx.Client(base_url=self.url, timeout=_PATIENCE))
            self._opened = opened.pop_all()

    def create_event_type(self, name: str, *, partitions: int = 1, **more: Any) -> None:
        """Create an event type of the category `business` that takes any object. `more` are its other fields."""
        document: dict[str, Any] = {
            "name": name,
            "owning_application": "tests",
            "category": "business",
            "enrichment_strategies": ["metadata_enrichment"],
            "schema": {"type": "json_schema", "schema": "{}"},
            "compatibility_mode": "none",
            "default_statistic": {
                "messages_per_minute": 1,
                "message_size": 1,
                "read_parallelism": partitions,
                "write_parallelism": partitions,
            },
            **more,
        }
        if document["category"] == "undefined":
            document.pop("enrichment_strategies")
        self._client.post("/event-types", json=document).raise_for_status()

    def subscribe(self, *event_types: str, **more: Any) -> str:
        """Create a subscription that begins at the first event, and return its id."""
        document = {"owning_application": "tests", "event_types": event_types, "read_from": "begin", **more}
        answer = self._client.post("/subscriptions", json=document).raise_for_status()
        return str(answer.json()["id"])

    def events(self, event_type: str) -> list[Any]:
        """Read every event that is stored now, one partition after the other."""
        found: dict[str, list[Any]] = {}
        for batch in read(self.url, event_type, start="begin", follow=False):
            found.setdefault(batch.cursor.partition, []).extend(batch.events)
        return [event for partition in sorted(found, key=int) for event in found[partition]]

    def committed(self, subscription: str) -> Mapping[tuple[str, str], str]:
        """Return the committed offset of each partition, by event type and partition."""
        answer = self._client.get(f"/subscriptions/{subscription}/cursors").raise_for_status()
        return {(each["event_type"], each["partition"]): each["offset"] for each in answer.json()["items"]}

    def unconsumed(self, subscription: str) -> int:
        """Return how many events of a subscription are not committed."""
        items = self._client.get(f"/subscriptions/{subscription}/stats").raise_for_status().json()["items"]
        return sum(each.get("unconsumed_events") or 0 for item in items for each in item["partitions"])

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> LocalNakadi:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Network:
    """The network between a client and a broker on this machine: a proxy for TCP that can be cut.

    with Network(nakadi.url) as network:
        producer = Producer(network.url, "order.placed")
        network.cut_after(5)      # each connection breaks when 5 more bytes have come from the broker
        network.heal()
    """

    def __init__(self, url: str) -> None:
        self.lead_to(url)
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url: str = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._bytes_left: int | None = None
        self._down = threading.Event()
        self.connections: int = 0
        threading.Thread(target=self._accept, name="nakadi-network", daemon=True).start()

    def lead_to(self, url: str) -> None:
        """Direct new connections to another broker."""
        parsed = httpx.URL(url)
        self._target = (parsed.host, parsed.port or 80)

    def cut(self) -> None:
        """Break every connection now, but let new ones through."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._break(pair)

    def cut_after(self, count: int) -> None:
        """Let this number of further bytes come from the broker, and break the connection that brings the next one."""
        with self._lock:
            self._bytes_left = count

    def go_down(self) -> None:
        """Break every connection, and each new one, until `heal`."""
        self._down.set()
        self.cut()

    def heal(self) -> None:
        """Let everything through again."""
        with self._lock:
            self._bytes_left = None
        self._down.clear()

    def close(self) -> None:
        self._down.set()
        # A thread waits in `accept`, which `close` alone would not end.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            if self._down.is_set():
                client.close()
                continue
            try:
                broker = socket.create_connection(self._target, timeout=_PATIENCE)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            pair = (client, broker)
            with self._lock:
                self._pairs.add(pair)
            if self._down.is_set():
                # The network went down while this connection was being made, and `cut` did not see it.
                self._break(pair)
                continue
            for source, sink, counts in ((client, broker, False), (broker, client, True)):
                threading.Thread(target=self._pass_on, args=(pair, source, sink, counts), daemon=True).start()

    def _pass_on(
        self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket, counts: bool
    ) -> None:
        with suppress(OSError):
            while chunk := source.recv(_CHUNK):
                passed = self._pass_until_cut(chunk) if counts else chunk
                sink.sendall(passed)
                if len(passed) < len(chunk):
                    break
        self._break(pair)

    def _pass_until_cut(self, chunk: bytes) -> bytes:
        """Return the part of a chunk that passes. Cuts only once; later connections pass completely."""
        with self._lock:
            if self._bytes_left is None:
                return chunk
            passed = chunk[: self._bytes_left]
            self._bytes_left = None if len(passed) < len(chunk) else self._bytes_left - len(chunk)
            return passed

    def _break(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            if pair not in self._pairs:
                return
            self._pairs.remove(pair)
        for each in pair:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
