"""A proxy in front of a Kafka server that spoils some of its answers: it answers with errors that a real server seldom
gives, drops answers, and delays them. The proxy knows the frames of Kafka's protocol and, for produce, fetch and
metadata requests, the values that an answer has to repeat. It makes client and server agree on versions of these
requests whose format it knows.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

PRODUCE, FETCH, LIST_OFFSETS, METADATA, VERSIONS = 0, 1, 2, 3, 18

NEWEST = {PRODUCE: 7, FETCH: 11, METADATA: 8}
"""For each kind of request, the newest version of its format without compact fields."""


@dataclass(eq=False)
class ProxyFault:
    """A fault of requests of one kind: of the first `times`, or of all while the fault lasts. The proxy answers them
    with the error `code`. Without a code, it cuts the connection instead of answering or, if `held_back`, holds the
    answer back for as long as the fault lasts. `reaches_server` says whether the server carries out the requests.
    """

    kind: int
    code: int | None = None
    reaches_server: bool = False
    held_back: bool = False
    times: int | None = None
    seen: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def takes(self, kind: int) -> bool:
        if kind != self.kind or self.seen == self.times or self.ended.is_set():
            return False
        self.seen += 1
        return True


class KafkaProxy:
    """A proxy before a Kafka server. It listens at once; the server may start later."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._server = 0
        self._faults: Sequence[ProxyFault] = ()
        self._lock = threading.Lock()
        self._connections: list[_Connection] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def stand_in_front_of(self, port: int) -> None:
        self._server = port
        self._accepting.start()

    def close(self) -> None:
        # Closing a listening socket does not wake the thread that waits for a connection; shutting it down does.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        if self._accepting.ident is not None:
            self._accepting.join()
        self._listening.close()
        for each in self._connections:
            each.end()

    @contextmanager
    def spoiling(self, *faults: ProxyFault) -> Iterator[ProxyFault]:
        """Let these faults happen inside the block, and yield the first."""
        with self._lock:
            self._faults = faults
        try:
            yield faults[0]
        finally:
            with self._lock:
                self._faults = ()
            for each in faults:
                each.ended.set()

    def fault_of(self, kind: int) -> ProxyFault | None:
        with self._lock:
            return next((each for each in self._faults if each.takes(kind)), None)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server))
            except OSError:
                client.close()
                continue
            self._connections.append(_Connection(self, client, server))


class _Connection:
    def __init__(self, proxy: KafkaProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answering = threading.Lock()
        self._about_versions: set[int] = set()
        self._spoiled: dict[int, tuple[ProxyFault, bytes]] = {}

        self._threads = [
            threading.Thread(target=self._run_until_cut, args=(work,), daemon=True)
            for work in (self._pass_requests, self._pass_answers)
        ]
        for each in self._threads:
            each.start()

    def end(self) -> None:
        self._cut()
        for each in self._threads:
            each.join()
        for each in (self._client, self._server):
            each.close()

    def _run_until_cut(self, work: Callable[[], None]) -> None:
        with suppress(OSError):
            work()
        self._cut()

    def _cut(self) -> None:
        for each in (self._client, self._server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _pass_requests(self) -> None:
        for frame in _frames(self._client):
            kind, _, number = struct.unpack_from(">hhi", frame)
            if kind == VERSIONS:
                self._about_versions.add(number)
            fault = self._proxy.fault_of(kind)
            if fault is not None and not fault.reaches_server:
                self._spoil(fault, frame, b"")
                continue
            if fault is not None:
                self._spoiled[number] = fault, frame
            _send(self._server, frame)

    def _pass_answers(self) -> None:
        for frame in _frames(self._server):
            (number,) = struct.unpack_from(">i", frame)
            fault, request = self._spoiled.pop(number, (None, b""))
            if number in self._about_versions:
                self._about_versions.remove(number)
                self._answer(_limit_versions(frame))
            elif fault is None:
                self._answer(frame)
            else:
                self._spoil(fault, request, frame)

    def _spoil(self, fault: ProxyFault, request: bytes, answer: bytes) -> None:
        if fault.code is not None:
            self._answer(_refusal(request, fault.code))
        elif fault.held_back:
            # Later answers on the connection wait, too, as they would after a slow one.
            fault.ended.wait()
            self._answer(answer)
        else:
            self._cut()

    def _answer(self, frame: bytes) -> None:
        with self._answering:
            _send(self._client, frame)


def _frames(connection: socket.socket) -> Iterator[bytes]:
    with connection.makefile("rb") as incoming:
        while len(size := incoming.read(4)) == 4:
            yield incoming.read(struct.unpack(">i", size)[0])


def _send(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(struct.pack(">i", len(frame)) + frame)


def _limit_versions(frame: bytes) -> bytes:
    """Remove from the answer about versions those that this proxy does not know."""
    changed = bytearray(frame)
    at, (code,) = 6, struct.unpack_from(">h", frame, 4)
    if code:
        return frame
    count, shift = 0, 0
    while True:
        count |= (frame[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not frame[at - 1] & 0x80:
            break
    for _ in range(count - 1):
        kind, oldest, newest = struct.unpack_from(">hhh", frame, at)
        struct.pack_into(">hhh", changed, at, kind, oldest, min(newest, NEWEST.get(kind, newest)))
        at += 7
    return bytes(changed)


class _Request:
    """Reads the fields of a request in order."""

    def __init__(self, frame: bytes) -> None:
        self._frame, self._at = frame, 0
        self.kind, self.version, self.number = self.take(">hhi")
        self.text()

    def take(self, format_: str) -> tuple[int, ...]:
        found = struct.unpack_from(format_, self._frame, self._at)
        self._at += struct.calcsize(format_)
        return found

    def text(self) -> bytes:
        return self._bytes(self.take(">h")[0])

    def skip_data(self) -> None:
        self._bytes(self.take(">i")[0])

    def _bytes(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + max(size, 0)
        return self._frame[begin : self._at]


def _refusal(frame: bytes, code: int) -> bytes:
    """An answer that has this error for each partition of a request."""
    request = _Request(frame)
    assert request.version == NEWEST[request.kind], (request.kind, request.version)
    return REFUSALS[request.kind](request, code)


def _refused_produce(request: _Request, code: int) -> bytes:
    request.text()
    _, _, topics = request.take(">hii")
    answer = [struct.pack(">ii", request.number, topics)]
    for _ in range(topics):
        name = request.text()
        (partitions,) = request.take(">i")
        answer.append(struct.pack(">h", len(name)) + name + struct.pack(">i", partitions))
        for _ in range(partitions):
            (partition,) = request.take(">i")
            request.skip_data()
            answer.append(struct.pack(">ihqqq", partition, code, -1, -1, -1))
    return b"".join(answer) + struct.pack(">i", 0)


def _refused_fetch(request: _Request, code: int) -> bytes:
    *_, topics = request.take(">iiiibiii")
    # The answer opens no fetch session, so each request names all partitions.
    answer = [struct.pack(">iihii", request.number, 0, 0, 0, topics)]
    for _ in range(topics):
        name = request.text()
        (partitions,) = request.take(">i")
        answer.append(struct.pack(">h", len(name)) + name + struct.pack(">i", partitions))
        for _ in range(partitions):
            partition, *_ = request.take(">iiqqi")
            answer.append(struct.pack(">ihqqqiii", partition, code, -1, -1, -1, -1, -1, 0))
    return b"".join(answer)


def _refused_metadata(request: _Request, code: int) -> bytes:
    """The answer of a server that has just started and does not know the other servers yet."""
    (topics,) = request.take(">i")
    answer = [struct.pack(">iiihii", request.number, 0, 0, -1, -1, max(topics, 0))]
    for _ in range(topics):
        name = request.text()
        answer.append(struct.pack(">hh", code, len(name)) + name + struct.pack(">?ii", False, 0, 0))
    return b"".join(answer) + struct.pack(">i", 0)


REFUSALS: Mapping[int, Callable[[_Request, int], bytes]] = {
    PRODUCE: _refused_produce,
    FETCH: _refused_fetch,
    METADATA: _refused_metadata,
}
