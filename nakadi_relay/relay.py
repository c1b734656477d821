"""The relay: takes rows from the outbox, publishes them, and records their results in the outbox.

A round locks some slots, publishes their oldest rows, and deletes acknowledged ones, in one transaction of the
database. If the relay dies between the broker's answer and the end of the transaction, the rows are published again
with the same `eid`. So each event is stored at least once, and exactly once if its event type deduplicates.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

import msgspec
import psycopg

from nakadi_client.answers import Answer
from nakadi_client.connections import Api, Connection, Request, connection_of, path
from nakadi_client.errors import NoAnswer
from nakadi_client.pauses import Pauses
from nakadi_client.tokens import Token
from nakadi_relay.outbox import Outbox, check_dsn
from nakadi_relay.rows import Row, RowKey, batch_body, event_text
from nakadi_relay.schema import OutboxNames
from nakadi_relay.verdicts import Verdict, judge

log = logging.getLogger("nakadi_relay")

# Each round costs two requests and a transaction. Smaller rounds end sooner, so less is sent again after a crash.
MAX_ROWS = 2_000
MAX_BATCH_BYTES = 2 * 1024 * 1024
SLOTS_A_ROUND = 16
# A round with rows of several event types publishes up to this number of types at the same time.
MAX_REQUESTS_A_WORKER = 4
# An insert wakes the relay. Polling at this interval finds rows whose notification was lost with a connection.
POLL_SECONDS = 5.0
# The relay remembers a category for this many seconds: an event type of the category `undefined` may get another one.
CATEGORY_SECONDS = 60.0
_STOP_CHECK_SECONDS = 0.5


class Status(msgspec.Struct, frozen=True):
    """Figures since the relay began. `failures` counts how often the database failed, and how often the rows of an
    event type could not be published in a round.
    """

    published: int = 0
    refused: int = 0
    failures: int = 0


class _EventType(msgspec.Struct):
    """The properties of an event type that the relay needs."""

    category: str


_CATEGORY = msgspec.json.Decoder(_EventType)


class RoundOutcome(msgspec.Struct, frozen=True):
    """The result of a round. `failures` says for each event type why its rows wait, and for how long at least."""

    published: int = 0
    refused: int = 0
    failures: Mapping[str, tuple[str, float | None]] = {}

    @property
    def has_moved(self) -> bool:
        return bool(self.published or self.refused)


class Relay:
    """Publishes the rows of an outbox.

    dsn      How to reach the database, as psycopg reads it.
    broker   The broker's URL, or a `nakadi_client.connections.Connection`.
    token    The broker's token: a string, a function, or a source of `nakadi_client.tokens`.
    table    The outbox, perhaps with a schema in front. Default: nakadi_outbox.
    workers  How many threads publish, each with a connection of its own. Default: 2.
    keep     Mark published rows (`published_at`) instead of deleting them. Default: false.

    Several relays may share an outbox, in one process or in many.
    """

    def __init__(
        self,
        dsn: str,
        broker: str | Connection,
        *,
        token: Token = None,
        table: str = "nakadi_outbox",
        workers: int = 2,
        keep: bool = False,
    ) -> None:
        if workers < 1:
            raise ValueError("A relay has at least one worker.")
        check_dsn(dsn)
        self._dsn = dsn
        self._names = OutboxNames(table)
        self._keep = keep
        self._worker_count = workers
        self._api = Api(connection_of(broker, token))
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._lock = threading.Lock()
        self._status = Status()
        self._has_metadata: dict[str, tuple[float, bool]] = {}
        self._threads = ThreadPoolExecutor(MAX_REQUESTS_A_WORKER * workers, "nakadi-relay-request")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        # The DSN may have a password in it.
        return f"Relay(table={self._names.table!r})"

    @property
    def status(self) -> Status:
        return self._status

    def run(self) -> None:
        """Publish rows as they arrive, until `stop` is called. Faults of the database and the broker are waited out.
        Any other failure of a worker ends all of them, and is raised.
        """
        threads = [
            threading.Thread(target=self._work_or_fail, name=f"nakadi-relay-{number}", daemon=True)
            for number in range(self._worker_count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            # Joining without a limit would delay the handling of signals.
            while thread.is_alive():
                thread.join(_STOP_CHECK_SECONDS)
        if self._failure is not None:
            raise self._failure

    def run_once(self) -> Status:
        """Publish the rows that wait, and return the figures. Raises `psycopg.Error` if the database fails.

        Rows remain that wait after a refused row with their key, or that the broker could not store now.
        """
        outbox = self._open_outbox()
        try:
            paused: set[str] = set()
            while True:
                outcome = self._run_round(outbox, paused)
                paused |= outcome.failures.keys()
                if not outcome.has_moved and not outcome.failures:
                    return self._status
        finally:
            outbox.close()

    def stop(self) -> None:
        """Let `run` end after the rounds in progress. Any thread and a signal handler may call it."""
        self._stopping.set()

    def close(self) -> None:
        self.stop()
        self._api.close()
        self._threads.shutdown(wait=False)

    def _open_outbox(self) -> Outbox:
        return Outbox(self._dsn, self._names, keep=self._keep)

    def _work_or_fail(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  # `run` raises it
            # After `close`, a round in progress cannot begin another request: it is not stored, and is repeated.
            if not self._stopping.is_set():
                self._failure = error
                self.stop()

    def _work(self) -> None:
        """Run one worker until `stop`. When its connection to the database fails, connect again after a pause."""
        pauses, failures = Pauses(), 0
        while not self._stopping.is_set():
            outbox: Outbox | None = None
            try:
                outbox = self._open_outbox()
                outbox.listen()
                for _ in self._work_on(outbox):
                    failures = 0
            except psycopg.Error as error:
                failures += 1
                self._count(failures=1)
                log.warning("The database failed, trying again: %s", error)
                self._stopping.wait(pauses.after(failures, random.random))
            finally:
                if outbox is not None:
                    outbox.close()

    def _work_on(self, outbox: Outbox) -> Iterator[None]:
        """Run rounds until `stop`; yields after each round that the database has committed."""
        pauses, failures = Pauses(), dict[str, int]()
        paused_until: dict[str, float] = {}
        while not self._stopping.is_set():
            now = time.monotonic()
            paused = {name for name, until in paused_until.items() if until > now}
            outcome = self._run_round(outbox, paused)
            yield
            for name, (reason, pause) in outcome.failures.items():
                failures[name] = failures.get(name, 0) + 1
                seconds = pauses.after(failures[name], random.random, pause)
                paused_until[name] = time.monotonic() + seconds
                log.warning("Events of %s wait %.1f s: %s", name, seconds, reason)
            if outcome.has_moved:
                failures = {name: number for name, number in failures.items() if name in outcome.failures}
            elif not outcome.failures:
                self._wait_for_rows(outbox, paused_until)

    def _wait_for_rows(self, outbox: Outbox, paused_until: Mapping[str, float]) -> None:
        """Wait until a row is inserted or a pause ends, but at most `POLL_SECONDS`: a notification may be lost."""
        now = time.monotonic()
        ends = [until for until in paused_until.values() if until > now]
        deadline = min([now + POLL_SECONDS, *ends])
        while not self._stopping.is_set() and (left := deadline - time.monotonic()) > 0:
            if outbox.wait_for_insert(min(left, _STOP_CHECK_SECONDS)):
                return

    def _run_round(self, outbox: Outbox, paused: set[str]) -> RoundOutcome:
        with outbox.locked_rows(SLOTS_A_ROUND, MAX_ROWS, paused) as rows:
            published, refused, failures = 0, 0, {}
            groups = _grouped_by_event_type(rows)
            for event_type, verdict in self._publish_groups(groups) if groups else ():
                if verdict.stored:
                    outbox.mark_published(verdict.stored)
                for row, reason in verdict.refused:
                    outbox.mark_refused(row, reason)
                    log.warning("The broker refused row %d (%s): %s", row.id, event_type, reason)
                published += len(verdict.stored)
                refused += len(verdict.refused)
                if verdict.failure is not None:
                    failures[event_type] = (verdict.failure, verdict.pause)
        # Count only after the commit: if a commit fails, the rows are published and counted again.
        self._count(published=published, refused=refused, failures=len(failures))
        return RoundOutcome(published, refused, failures)

    def _publish_groups(self, groups: Mapping[str, Sequence[Row]]) -> Iterator[tuple[str, Verdict]]:
        """Publish the rows of all event types at the same time: their order does not matter."""
        first, *others = groups
        begun = [(each, self._threads.submit(self._publish_group, each, groups[each])) for each in others]
        try:
            yield first, self._publish_group(first, groups[first])
            for event_type, publishing in begun:
                yield event_type, publishing.result()
        finally:
            # If the database fails meanwhile, other relays may lock the slots, so no request may continue after its
            # round.
            wait([publishing for _, publishing in begun])

    def _publish_group(self, event_type: str, rows: Sequence[Row]) -> Verdict:
        """Publish rows of one event type: those of each key in their order, and none of them after a refused one."""
        has_metadata = self._event_type_has_metadata(event_type)
        if isinstance(has_metadata, Verdict):
            return has_metadata
        stored: list[Row] = []
        refused: list[tuple[Row, str]] = []
        first_refused: dict[RowKey, int] = {}
        texts = {row.id: event_text(row, has_metadata=has_metadata) for row in rows}
        batches = deque(_batches(rows, texts))
        while batches:
            batch = [row for row in batches.popleft() if row.id < first_refused.get(row.order_key, row.id + 1)]
            if not batch:
                continue
            body = batch_body([texts[row.id] for row in batch])
            verdict = judge(batch, self._send(path("event-types", event_type, "events"), body))
            stored += verdict.stored
            refused += verdict.refused
            for row, _ in verdict.refused:
                first_refused[row.order_key] = min(row.id, first_refused.get(row.order_key, row.id))
            batches.extendleft(reversed(verdict.again))
            if verdict.failure is not None:
                return Verdict(stored=stored, refused=refused, failure=verdict.failure, pause=verdict.pause)
        return Verdict(stored=stored, refused=refused)

    def _event_type_has_metadata(self, event_type: str) -> bool | Verdict:
        """Whether events of this type have metadata, or why that is unknown."""
        # Several workers may ask for the same event type at once, which is harmless: they get the same answer.
        known_until, has_metadata = self._has_metadata.get(event_type, (0.0, False))
        if time.monotonic() < known_until:
            return has_metadata
        answer = self._api.send(Request("GET", path("event-types", event_type)))
        if isinstance(answer, NoAnswer):
            return Verdict(failure=str(answer))
        if answer.status != 200:
            return Verdict(failure=str(answer.refusal()), pause=answer.retry_after)
        try:
            has_metadata = _CATEGORY.decode(answer.body).category != "undefined"
        except msgspec.DecodeError:
            return Verdict(failure="the answer does not come from a Nakadi broker")
        self._has_metadata[event_type] = (time.monotonic() + CATEGORY_SECONDS, has_metadata)
        return has_metadata

    def _send(self, where: str, body: bytes) -> Answer | NoAnswer:
        return self._api.send(Request("POST", where, body, {"Content-Type": "application/json"}))

    def _count(self, *, published: int = 0, refused: int = 0, failures: int = 0) -> None:
        with self._lock:
            old = self._status
            self._status = Status(old.published + published, old.refused + refused, old.failures + failures)


def _grouped_by_event_type(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.event_type, []).append(row)
    return groups


def _batches(rows: Sequence[Row], texts: Mapping[int, bytes]) -> list[list[Row]]:
    """Divide rows, in their order, into batches whose texts fit into one request each."""
    batches: list[list[Row]] = []
    size = 0
    for row in rows:
        if not batches or size + len(texts[row.id]) > MAX_BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(row)
        size += len(texts[row.id])
    return batches
