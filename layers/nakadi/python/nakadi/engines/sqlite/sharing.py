"""Several processes append to one file, and one of them commits for all, so that they share the group commit.

A process that only sends has a `RemoteWriter`, which creates chunks of records, sends them through a socket, and
receives their outcomes. The process that commits has an `AppendService`, which passes arriving appends to its own event
log, and reports to the others which partitions grew. Both ends are the same version of one program, so a message is
simply its length and its content in MessagePack.

A connection that breaks leaves appends without an outcome. They end with `Unavailable`, which means, as everywhere,
that it is unknown whether they are stored: the commit may have happened.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sqlite3
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar, cast

import msgspec
from msgspec import Struct

from nakadi.common.waiting import begin_task
from nakadi.engines.common.duplicates import PlacesByPartition
from nakadi.engines.sqlite.file import SqliteFile
from nakadi.engines.sqlite.reading import Chunk, ChunkedRecords
from nakadi.engines.sqlite.writing import MAX_WAITING_APPENDS, MAX_WAITING_BYTES, OnAppendDone, chunks_of
from nakadi.model.events import AppendRefused, AppendStoredExcept, DuplicateEvent, EventPlace, Record, TopicPartition
from nakadi.model.outcomes import Unavailable
from nakadi.ports.deduplication import DeduplicatingLog, EventIds
from nakadi.ports.event_log import AppendResultByPartition, EventLog, SealedTopic, UnknownTopic

log = logging.getLogger(__name__)

T = TypeVar("T")

MESSAGE_LENGTH_FORMAT = struct.Struct("<I")
BYTES_RECEIVED_AT_ONCE = 1 << 18

FAILURE_TYPES: tuple[type[Exception], ...] = (Unavailable, UnknownTopic, SealedTopic)
"""The failures of an append that are passed on. For every other failure, the process that sent the append gets
`Unavailable`."""


class _AppendRequest(Struct, frozen=True, array_like=True, tag=1):
    request_number: int
    topic: str
    batches: dict[int, list[Chunk]]
    ids: EventIds | None = None


class _WatchRequest(Struct, frozen=True, array_like=True, tag=2):
    """A request to report the partitions that grow from now on."""


class _AppendOutcomes(Struct, frozen=True, array_like=True, tag=3):
    """Partitions that grew, and the outcomes of appends that have ended, since the last message. A failure is a number,
    the index of its kind in `FAILURE_TYPES`, and its text. For stored appends with duplicates, which were left out, the
    message has the places of these.
    """

    grown_partitions: list[TopicPartition]
    stored_requests: list[int]
    failures: list[tuple[int, int, str]]
    duplicates: dict[int, dict[int, dict[int, EventPlace]]]


class _WatchConfirmation(Struct, frozen=True, array_like=True, tag=4):
    """The answer to `_WatchRequest`: all partitions that grow from now on are reported."""


_REQUEST_DECODER = msgspec.msgpack.Decoder(_AppendRequest | _WatchRequest)
_ANSWER_DECODER = msgspec.msgpack.Decoder(_AppendOutcomes | _WatchConfirmation)


def encode_length_prefixed(message: Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return MESSAGE_LENGTH_FORMAT.pack(len(body)) + body


def take_whole_messages(received: bytearray) -> Iterator[bytes]:
    """Take every whole message out of the received bytes."""
    start = 0
    while len(received) - start >= MESSAGE_LENGTH_FORMAT.size:
        (length,) = MESSAGE_LENGTH_FORMAT.unpack_from(received, start)
        end = start + MESSAGE_LENGTH_FORMAT.size + length
        if end > len(received):
            break
        yield bytes(received[start + MESSAGE_LENGTH_FORMAT.size : end])
        start = end
    del received[:start]


class RemoteWriter:
    """Lets another process commit appends; all other writing happens here, in separate transactions."""

    def __init__(self, connection: socket.socket, file: SqliteFile, announce: Callable[[str, int], None]) -> None:
        self._file = file
        self._announce = announce
        self._outbox = _SocketOutbox(connection)
        self._connection = connection
        self._changed = threading.Condition()
        self._next = 0
        # For each number, the function to call with the outcome, and the size.
        self._waiting: dict[int, tuple[OnAppendDone, int]] = {}
        self._waiting_bytes = 0
        self._ended = ""
        self._watching = threading.Event()
        self._is_asked_to_watch = False
        self._thread = threading.Thread(target=self._receive_messages, name="event-log-outcomes", daemon=True)
        self._thread.start()

    def append(
        self, topic: str, batches: Mapping[int, Sequence[Record]], done: OnAppendDone, ids: EventIds | None = None
    ) -> None:
        chunks = {
            partition: [_without_redundant_records(chunk) for chunk in chunks_of(each)]
            for partition, each in batches.items()
        }
        size = sum(chunk.size for each in chunks.values() for chunk in each)
        with self._changed:
            self._refuse_if_ended()
            if len(self._waiting) >= MAX_WAITING_APPENDS or self._waiting_bytes > MAX_WAITING_BYTES:
                raise Unavailable("Too many events wait to be written.")
            number = self._next
            self._next += 1
            # The append is noted before it is sent, because the outcome may arrive before `send` returns.
            self._waiting[number] = done, size
            self._waiting_bytes += size
        self._outbox.send(encode_length_prefixed(_AppendRequest(number, topic, chunks, ids)))

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._changed:
            self._refuse_if_ended()
        # SQLite lets one connection write at a time, across all processes. The committing process sees from the version
        # of the file that another process has written, and reads the ends of its partitions again.
        with self._file.write_transaction() as connection:
            return work(connection)

    def add_watcher(self) -> None:
        """Request reports of growing partitions, until the connection ends."""
        with self._changed:
            self._refuse_if_ended()
            first, self._is_asked_to_watch = not self._is_asked_to_watch, True
        if first:
            self._outbox.send(encode_length_prefixed(_WatchRequest()))
        # All commits after the return of this call must be reported, so wait until the other side has confirmed the
        # request. If the connection ends, this wait also ends, and the check after it raises the reason.
        self._watching.wait()
        with self._changed:
            self._refuse_if_ended()

    def remove_watcher(self) -> None:
        """Do nothing: a report adds a few bytes to the outcomes, and starting again takes a round trip."""

    def close(self) -> None:
        with self._changed:
            # No append is accepted from now on, so the number of waiting appends can only fall.
            self._ended = self._ended or "The event log is closed."
            # The other side answers everything, or its end of the connection closes.
            self._changed.wait_for(lambda: not self._waiting)
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("The connection to the process that commits was broken already")
        self._thread.join()
        self._outbox.close()
        self._connection.close()

    def _refuse_if_ended(self) -> None:
        if self._ended:
            raise Unavailable(self._ended)

    def _receive_messages(self) -> None:
        received = bytearray()
        try:
            while data := self._connection.recv(BYTES_RECEIVED_AT_ONCE):
                received += data
                for message in take_whole_messages(received):
                    self._handle_message(_ANSWER_DECODER.decode(message))
        except OSError as error:
            log.warning("The connection to the process that commits events is broken: %s", error)
        except Exception:
            log.exception("An outcome from the process that commits events cannot be parsed")
        self._fail_waiting_appends()

    def _handle_message(self, answer: _AppendOutcomes | _WatchConfirmation) -> None:
        if isinstance(answer, _WatchConfirmation):
            self._watching.set()
            return
        for topic, partition in answer.grown_partitions:
            self._announce(topic, partition)
        self._finish_appends([(number, answer.duplicates.get(number, {})) for number in answer.stored_requests])
        self._finish_appends([(number, FAILURE_TYPES[kind](text)) for number, kind, text in answer.failures])

    def _finish_appends(self, outcomes: Sequence[tuple[int, Exception | PlacesByPartition]]) -> None:
        finished: list[tuple[OnAppendDone, Exception | PlacesByPartition]] = []
        # Only the receiving thread calls this, also at the end of the connection, so each append ends once.
        with self._changed:
            for number, outcome in outcomes:
                done, size = self._waiting.pop(number)
                self._waiting_bytes -= size
                finished.append((done, outcome))
            if not self._waiting:
                self._changed.notify_all()
        # The functions are called without the lock, because `done` may append again.
        for done, outcome in finished:
            try:
                done(outcome)
            except Exception:
                # The error must not end the thread for which all other appends wait.
                log.exception("Passing on the outcome of an append failed")

    def _fail_waiting_appends(self) -> None:
        with self._changed:
            self._ended = self._ended or "The process that commits events has ended."
            # The reason is set under the lock under which appends check it: otherwise, an append that is added
            # afterwards would wait forever.
            left = list(self._waiting)
        # An append that ends here before it was sent will not be sent, because the connection is broken.
        broken = Unavailable("The process that commits events ended before it answered: not known to be stored.")
        self._finish_appends([(number, broken) for number in left])
        self._watching.set()


def _without_redundant_records(chunk: Chunk) -> Chunk:
    """The chunk, without its records if it has a frame; otherwise unchanged."""
    return Chunk(() if chunk.frame else tuple(chunk.records), chunk.count, chunk.size, chunk.frame)


class _SocketOutbox:
    """Sends without waiting. A thread sends the bytes that the socket does not accept at once, in order."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._changed = threading.Condition()
        self._unsent: deque[bytes] = deque()
        self._is_sending = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def send(self, data: bytes) -> None:
        with self._changed:
            sent = 0
            # While the thread is sending, no other may send, because two senders would mix their messages.
            if not self._is_sending:
                try:
                    sent = self._connection.send(data, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    pass
                except OSError:
                    return  # the receiving thread ends the waiting appends
                if sent == len(data):
                    return
            self._unsent.append(data[sent:])
            self._is_sending = True
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_until_closed, name="event-log-outbox", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait for the sending thread. Call this when the connection is shut down."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _send_until_closed(self) -> None:
        while True:
            with self._changed:
                # A thread that finds nothing unsent lets others send again themselves, so both happen under one lock.
                self._is_sending = bool(self._unsent)
                while not self._unsent:
                    if self._closed:
                        return
                    self._changed.wait()
                data = self._unsent.popleft()
            # Sending may wait long for the other process, so the lock, for which `send` must not wait long, is not held
            # meanwhile.
            try:
                self._connection.sendall(data)
            except OSError:
                with self._changed:
                    self._unsent.clear()


WatchLog = Callable[[Callable[["asyncio.Task[Callable[[], None]]"], None]], None]


class AppendService:
    """Makes the appends that other processes send. It belongs to the event loop in which it is created."""

    def __init__(self, event_log: EventLog) -> None:
        self._log = event_log
        self._loop = asyncio.get_running_loop()
        self._connections: list[_WorkerConnection] = []
        self._watching: asyncio.Task[Callable[[], None]] | None = None
        self._is_awake = False

    async def serve(self, connection: socket.socket) -> None:
        """Make the appends that arrive from a process, until that process closes its end of the connection."""
        sender = _WorkerConnection(self._log, self._schedule_sending, self._watch_log)
        self._connections.append(sender)
        try:
            transport, _ = await self._loop.create_unix_connection(lambda: sender, sock=connection)
            await sender.gone.wait()
            transport.close()
        finally:
            self._connections.remove(sender)

    def close(self) -> None:
        if self._watching is None:
            return
        if self._watching.done() and not self._watching.exception():
            self._watching.result()()
        else:
            # The thread that adds the listener may still be running. The log, which is closed next, drops all
            # listeners.
            self._watching.cancel()

    def _watch_log(self, done: Callable[[asyncio.Task[Callable[[], None]]], None]) -> None:
        if self._watching is None:
            # Adding a listener reads the file, for which the event loop must not wait.
            begin = asyncio.to_thread(self._log.add_change_listener, self._queue_grown_partition)
            self._watching = self._loop.create_task(begin)
        self._watching.add_done_callback(done)

    def _queue_grown_partition(self, topic: str, partition: int) -> None:
        # This is called in threads of the log, while the loop may change the collection.
        for sender in tuple(self._connections):
            if sender.is_watching:
                sender.news.append((topic, partition))
        self._schedule_sending()

    def _schedule_sending(self) -> None:
        """Schedule sending of new messages. May be called in any thread."""
        # The flag is cleared before the queues are emptied: a message that a thread adds while the flag is set is still
        # sent.
        if not self._is_awake:
            self._is_awake = True
            try:
                self._loop.call_soon_threadsafe(self._flush_connections)
            except RuntimeError:
                log.debug("An append has ended after the event loop")

    def _flush_connections(self) -> None:
        # Cleared before the queues are read. A thread that finds the flag unset from now on wakes the loop once more,
        # perhaps needlessly.
        self._is_awake = False
        for sender in self._connections:
            sender.flush()


class _WorkerConnection(asyncio.Protocol):
    def __init__(self, event_log: EventLog, wake: Callable[[], None], watch: WatchLog) -> None:
        self.gone = asyncio.Event()
        self.is_watching = False
        # Filled by the threads of the log: partitions that grew, and outcomes.
        self.news: deque[TopicPartition] = deque()
        self._outcomes: deque[tuple[int, AppendResultByPartition | Exception]] = deque()
        self._log = event_log
        self._schedule_sending = wake
        self._watch = watch
        self._received = bytearray()
        self._grown: dict[TopicPartition, None] = {}
        self._is_paused = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if exc is not None:
            # The process that started the other process reports its end.
            log.debug("The connection to a process that appends events is broken: %s", exc)
        self.gone.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        for message in take_whole_messages(self._received):
            request = _REQUEST_DECODER.decode(message)
            if isinstance(request, _AppendRequest):
                batches = {partition: ChunkedRecords(chunks) for partition, chunks in request.batches.items()}
                done = partial(self._queue_outcome, request.request_number)
                if request.ids is None:
                    begin_task(self._log.append(request.topic, batches), done)
                elif isinstance(self._log, DeduplicatingLog):
                    begin_task(self._log.append_once(request.topic, batches, request.ids), done)
            else:
                # The reports begin first, then the watch, and then the confirmation, which promises both.
                self.is_watching = True
                self._watch(self._confirm_watch)

    def _confirm_watch(self, begun: asyncio.Task[Callable[[], None]]) -> None:
        if not begun.cancelled() and begun.exception() is None:
            self._write(_WatchConfirmation())
        elif self._transport is not None:
            # The other process ends when this connection ends, and is started again.
            self._transport.abort()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.flush()

    def flush(self) -> None:
        """Send new messages. While the other process does not read, each partition that grew is kept only once."""
        # Threads of the log add messages at the other end of the queue meanwhile. Those added after this check wake the
        # loop again.
        while self.news:
            self._grown[self.news.popleft()] = None
        if self._is_paused or not (self._outcomes or self._grown):
            return
        stored: list[int] = []
        duplicates: dict[int, dict[int, dict[int, EventPlace]]] = {}
        failed: list[tuple[int, int, str]] = []
        while self._outcomes:
            number, outcome = self._outcomes.popleft()
            if (failure := _failure_message(outcome)) is None:
                stored.append(number)
                if found := _duplicates_among_fates(outcome):
                    duplicates[number] = found
            else:
                failed.append((number, *failure))
        grown, self._grown = list(self._grown), {}
        self._write(_AppendOutcomes(grown, stored, failed, duplicates))

    def _queue_outcome(self, request_number: int, outcome: AppendResultByPartition | Exception) -> None:
        # Called in threads of the log. The message is queued before the request to send it.
        self._outcomes.append((request_number, outcome))
        self._schedule_sending()

    def _write(self, message: Struct) -> None:
        # Runs only on the loop. A process that has ended needs no outcome; whether its appends are stored does not
        # depend on that.
        if self._transport is not None:
            self._transport.write(encode_length_prefixed(message))


def _failure_message(outcome: AppendResultByPartition | Exception) -> tuple[int, str] | None:
    """The kind of a failure, as an index in `FAILURE_TYPES`, and its text; None for a stored append."""
    if isinstance(outcome, Exception):
        kind = next((index for index, each in enumerate(FAILURE_TYPES) if isinstance(outcome, each)), 0)
        return kind, str(outcome)
    refused = [str(fate) for fate in outcome.values() if isinstance(fate, AppendRefused)]
    return (0, refused[0]) if refused else None


def _duplicates_among_fates(outcome: AppendResultByPartition | Exception) -> dict[int, dict[int, EventPlace]]:
    """The places of the first events with the ids of duplicates."""
    places: dict[int, dict[int, EventPlace]] = {}
    if not isinstance(outcome, Exception):
        for partition, fate in outcome.items():
            for index, each in fate.exceptions.items() if isinstance(fate, AppendStoredExcept) else ():
                if isinstance(each, DuplicateEvent) and each.first is not None:
                    places.setdefault(partition, {})[index] = each.first
    return places
