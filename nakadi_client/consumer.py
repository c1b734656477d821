"""The consumer for programs with threads.

for batch in consume("https://events.example.org", subscription=ID, model=OrderPlaced):
    handle(batch.events)
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

import httpx

from nakadi_client import stopping
from nakadi_client.answers import Answer
from nakadi_client.batches import Batch
from nakadi_client.connections import Api, Connection, connection_of, no_answer
from nakadi_client.consumer_core import (
    EACH_BATCH,
    CommitPolicy,
    ConsumerCore,
    Count,
    End,
    Find,
    Health,
    Patience,
    Place,
    Rebalance,
    State,
    StreamOptions,
    Trouble,
    Wait,
)
from nakadi_client.consuming import (
    LOGGER,
    OnPoison,
    Park,
    Requests,
    is_parked,
    lag_of,
    poison_of,
    skip,
    stop_at,
    tell,
    tell_count,
    tell_found,
)
from nakadi_client.decoding import PoisonEvent
from nakadi_client.errors import Closed, NakadiError, NoAnswer
from nakadi_client.lines import LineSplitter
from nakadi_client.pauses import Pauses
from nakadi_client.tokens import Token

Event = TypeVar("Event")

# The final commits and the release of the stream have to be quick: a terminating process has only some seconds.
_SECONDS_TO_END = 10.0
_ATTEMPTS = Pauses()


class Consumer(Generic[Event]):
    """Reads one subscription, over successive streams, and commits the events that the loop has finished.

        with Consumer(url, subscription=ID, model=OrderPlaced) as consumer:
            for batch in consumer:
                handle(batch.events)

    A batch is done when the loop asks for the next. A loop that ends with `break` or an exception does not commit the
    current batch, unless it called `batch.done()`. Uncommitted events are delivered again, so delivery is at least
    once.

    With `limit`, the loop ends after this many events; with `follow=False`, after the events that existed at the
    beginning, or when no more events wait. `patience` says when to give up on a broker that does not answer; by
    default, never.

    One thread reads the stream, and another one commits. The functions `on_…` run in the thread of the loop.
    With `stop_on_signals`, SIGTERM ends the loop when the current batch is done, and commits it.
    """

    def __init__(
        self,
        broker: str | Connection,
        subscription: str,
        *,
        model: Any = None,
        token: Token = None,
        commit: CommitPolicy = EACH_BATCH,
        options: StreamOptions = StreamOptions(),  # noqa: B008  # it is frozen
        on_poison: OnPoison = "stop",
        on_rebalance: Callable[[Rebalance], None] | None = None,
        on_trouble: Callable[[Trouble], None] | None = None,
        limit: int | None = None,
        follow: bool = True,
        patience: Patience = Patience(),  # noqa: B008  # it is frozen
        compressed: bool = False,
        stop_on_signals: bool = True,
    ) -> None:
        self._requests = Requests(subscription, options, compressed)
        self._connection = connection_of(broker, token)
        # Steps that may reject the arguments come before those that open resources.
        self._core = ConsumerCore(options, commit, random.random, model, limit=limit, follow=follow, patience=patience)
        self._api = Api(self._connection)
        self._commits_by_hand = commit.by_hand
        self._on_poison = on_poison
        self._on_rebalance = on_rebalance
        self._on_trouble = on_trouble
        self._stops_on_signals = stop_on_signals
        # One lock for the core. The loop waits for events; the reading and committing threads wait for their next
        # action.
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._todo = threading.Condition(self._lock)
        self._socket: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._aborted = False
        self._closed = False
        self._finished = False
        self._withdraw: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[Batch[Event]]:
        self._start()
        try:
            while (batch := self._next()) is not None:
                yield batch
                if not self._commits_by_hand:
                    self._finish_batch(batch)
        finally:
            self._finish()

    def run(self, handle: Callable[[Event], object], *, attempts: int = 3) -> None:
        """Handle one event after the other, until `stop` or SIGTERM.

        If `handle` fails at an event, it is called again after a pause. After `attempts` failures, the event is poison:
        with `on_poison="stop"` the error of `handle` ends the consumer. Otherwise the event is skipped, parked or
        passed to the function `on_poison`, and the next event follows.
        """
        for batch in self:
            for event in batch:
                self._handle(handle, event, batch, attempts)
            batch.done()

    def stop(self) -> None:
        """End the loop when the current batch is done. Any thread may call this."""
        with self._lock:
            self._core.stop()
            self._work.notify_all()
            self._todo.notify_all()

    def abort(self) -> None:
        """End the loop when the current batch is done, and commit nothing more: uncommitted events are delivered again.
        Any thread may call this, for example after a second signal. Nothing waits for the broker then.
        """
        with self._lock:
            self._aborted = True
            self._core.abort()
            self._work.notify_all()
            self._todo.notify_all()
        self._break_stream()

    def close(self) -> None:
        """Stop, commit finished batches, and release the partitions and connections."""
        self._closed = True
        self._finish()
        self._api.close()

    def _finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        with self._lock:
            self._core.let_go()
        self.stop()
        for running in range(len(self._threads) - 1, -1, -1):
            # The committer ends first, then the reader. A reader that is still connecting holds nothing to release.
            self._wait_until_running(running, _SECONDS_TO_END if self._core.state is State.OPEN else 1.0)
            self._break_stream()
        self._withdraw()

    def _wait_until_running(self, most: int, timeout: float) -> None:
        """Wait until at most this number of threads is running, or `abort` is called."""
        with self._lock:
            self._todo.wait_for(lambda: self._aborted or self._running <= most, timeout)

    def health(self) -> Health:
        """Return the figures for a health check: the state of the stream, and when the last line came."""
        with self._lock:
            return self._core.health(time.monotonic())

    def lag(self) -> Mapping[Place, int]:
        """Ask the broker how many events are not committed, by event type and partition."""
        answer = self._api.send(self._requests.stats())
        if isinstance(answer, NoAnswer):
            raise answer
        if answer.status != 200:
            raise answer.refusal()
        return lag_of(answer)

    def __enter__(self) -> Consumer[Event]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Consumer of {self._requests.subscription}, {self._core.state.name.lower()}>"

    # The loop's thread ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._threads or self._closed:
            raise Closed("A consumer is read once.")
        for work in (self._read, self._commit):
            thread = threading.Thread(
                target=self._run_thread, args=(work,), name=f"nakadi-consumer{work.__name__}", daemon=True
            )
            self._threads.append(thread)
            self._running += 1
            thread.start()
        if self._stops_on_signals:
            self._withdraw = stopping.register(self.stop, is_consumer=True)

    def _run_thread(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._lock:
                self._running -= 1
                self._todo.notify_all()

    def _next(self) -> Batch[Event] | None:
        """Wait for the next batch. Returns None when the consumer ends without an error."""
        while True:
            with self._lock:
                step = self._core.work_step(time.monotonic())
                if isinstance(step, Wait):
                    self._work.wait()
                    continue
            if isinstance(step, (Rebalance, Trouble)):
                self._announce(step)
                continue
            if isinstance(step, End):
                if step.error:
                    raise step.error
                return None
            step.when_done(self._finish_batch)
            for poison in step.poison:
                self._treat(poison, step)
            if step.events:
                return step
            self._finish_batch(step)

    def _announce(self, step: Rebalance | Trouble) -> None:
        if isinstance(step, Trouble):
            if self._on_trouble:
                self._on_trouble(step)
        elif self._on_rebalance:
            self._on_rebalance(step)

    def _finish_batch(self, batch: Batch[Any]) -> None:
        with self._lock:
            self._core.finish_batch(batch, time.monotonic())
            self._todo.notify_all()

    def _handle(self, handle: Callable[[Event], object], event: Event, batch: Batch[Event], attempts: int) -> None:
        for attempt in range(1, attempts + 1):
            try:
                handle(event)
            except Exception as error:
                if attempt == attempts:
                    if self._on_poison == "stop":
                        raise
                    self._treat(poison_of(event, error), batch)
                    return
            else:
                return
            time.sleep(_ATTEMPTS.after(attempt, random.random))

    def _treat(self, poison: PoisonEvent, batch: Batch[Any]) -> None:
        if self._on_poison == "stop":
            raise stop_at(poison, batch)
        if self._on_poison == "skip":
            skip(poison, batch)
        elif isinstance(self._on_poison, Park):
            self._park(self._on_poison, poison, batch)
        elif callable(self._on_poison):
            self._on_poison(poison, batch)

    def _park(self, park: Park, poison: PoisonEvent, batch: Batch[Any]) -> None:
        request, pauses, failures = self._requests.park(park, poison, batch), Pauses(), 0
        while not is_parked(self._api.send(request)):
            failures += 1
            time.sleep(pauses.after(failures, random.random))

    # The reader's thread ----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        while True:
            with self._lock:
                step = self._core.connection_step(time.monotonic())
                if isinstance(step, Wait):
                    self._todo.wait(None if step.until is None else max(0.0, step.until - time.monotonic()))
                    continue
                if isinstance(step, End):
                    self._work.notify_all()
                    self._todo.notify_all()
                    return
            if isinstance(step, (Find, Count)):
                self._ask(step)
                continue
            error = self._read_stream(step.options)
            with self._lock:
                self._core.handle_closed_stream(time.monotonic(), error)
                self._socket = None
                self._work.notify_all()
                self._todo.notify_all()

    def _ask(self, step: Find | Count) -> None:
        answer = self._api.send(self._requests.find(step) if isinstance(step, Find) else self._requests.stats())
        with self._lock:
            if isinstance(step, Find):
                tell_found(self._core, step, answer, time.monotonic())
            else:
                tell_count(self._core, answer, time.monotonic())
            self._work.notify_all()
            self._todo.notify_all()

    def _read_stream(self, options: StreamOptions) -> NakadiError | None:
        """Read one stream to its end. Returns the error that ended it, unless the broker ended it."""
        is_open = False
        try:
            with self._api.stream(self._requests.open(options), self._requests.silence) as response:
                if isinstance(response, Answer):
                    self._handle_refusal(response)
                    return None
                self._begin_stream(response)
                is_open = True
                splitter = LineSplitter()
                for chunk in response.iter_bytes():
                    if lines := splitter.feed(chunk):
                        self._hand_lines_to_core(lines)
                self._hand_lines_to_core(splitter.end())
        except NakadiError as error:
            return error
        except Exception as error:  # noqa: BLE001  # an application's source of tokens may raise anything
            found = no_answer(self._connection, error)
            if not is_open:
                self._handle_refusal(found)
            return found
        return None

    def _begin_stream(self, response: httpx.Response) -> None:
        stream = response.extensions.get("network_stream")
        with self._lock:
            if self._core.is_stopping:
                raise Closed("The consumer was stopped.")
            self._socket = stream.get_extra_info("socket") if stream else None
            self._core.handle_opened_stream(response.headers["X-Nakadi-StreamId"], time.monotonic())
            self._todo.notify_all()

    def _handle_refusal(self, answer: Answer | NoAnswer) -> None:
        LOGGER.info("No stream of subscription %s: %s", self._requests.subscription, _reason_in(answer))
        with self._lock:
            self._core.handle_refusal(answer, time.monotonic())
            self._work.notify_all()

    def _hand_lines_to_core(self, lines: list[bytes]) -> None:
        with self._lock:
            now = time.monotonic()
            for line in lines:
                self._core.handle_line(line, now)
            self._work.notify()

    # The committer's thread -------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        broken = None
        while True:
            with self._lock:
                step = self._core.commit_step(time.monotonic())
                lost = self._core.lost_stream()
                if isinstance(step, Wait) and lost == broken:
                    self._todo.wait(None if step.until is None else max(0.0, step.until - time.monotonic()))
                    continue
            if lost != broken:
                broken = lost
                self._break_stream()
            if isinstance(step, End):
                return
            if isinstance(step, Wait):
                continue
            answer = self._api.send(self._requests.of(step))
            with self._lock:
                tell(self._core, step, answer, time.monotonic())
                self._work.notify_all()
                self._todo.notify_all()

    def _break_stream(self) -> None:
        """End the reader's wait for more lines."""
        with self._lock:
            stream = self._socket
        if stream is not None:
            # The stream may have just ended.
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)


def _reason_in(answer: Answer | NoAnswer) -> str:
    return str(answer if isinstance(answer, NoAnswer) else answer.refusal())


@overload
def consume(
    broker: str | Connection, subscription: str, *, model: type[Event], **options: Any
) -> Iterator[Batch[Event]]: ...


@overload
def consume(
    broker: str | Connection, subscription: str, *, model: None = None, **options: Any
) -> Iterator[Batch[dict[str, Any]]]: ...


def consume(broker: str | Connection, subscription: str, *, model: Any = None, **options: Any) -> Iterator[Batch[Any]]:
    """Read a subscription: an iterator over its batches, which commits each batch when the caller takes the next one.

    It takes the keywords of `Consumer`, which also has `stop()`, `health()` and `lag()`.
    """
    with Consumer[Any](broker, subscription, model=model, **options) as consumer:
        yield from consumer
