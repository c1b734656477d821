"""The consumer for asyncio: the same core as for threads, driven by tasks of one loop."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

from nakadi_client.aio.changes import Changes
from nakadi_client.answers import Answer
from nakadi_client.batches import Batch
from nakadi_client.connections import AsyncApi, Connection, connection_of, no_answer
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

_SECONDS_TO_END = 10.0
_ATTEMPTS = Pauses()


class Consumer(Generic[Event]):
    """Reads one subscription, over successive streams, and commits the events that the loop has finished.

        async with Consumer(url, subscription=ID, model=OrderPlaced) as consumer:
            async for batch in consumer:
                await handle(batch.events)

    The description of `nakadi_client.Consumer` applies here too. With `stop_on_signals`, the loop handles SIGTERM
    while it runs, unless other code handles it.
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
        on_rebalance: Callable[[Rebalance], Awaitable[None] | None] | None = None,
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
        self._api = AsyncApi(self._connection)
        self._commits_by_hand = commit.by_hand
        self._on_poison = on_poison
        self._on_rebalance = on_rebalance
        self._on_trouble = on_trouble
        self._stops_on_signals = stop_on_signals
        # The loop waits for events; the reading and committing tasks wait for their next action.
        self._work = Changes()
        self._todo = Changes()
        self._socket: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._finished = False
        self._finishing = asyncio.Lock()

    async def __aiter__(self) -> AsyncIterator[Batch[Event]]:
        self._start()
        try:
            while (batch := await self._next()) is not None:
                yield batch
                if not self._commits_by_hand:
                    self._finish_batch(batch)
        finally:
            await self._finish()

    async def run(self, handle: Callable[[Event], Awaitable[object]], *, attempts: int = 3) -> None:
        """Handle events in order, until `stop` or SIGTERM. `nakadi_client.Consumer.run` says what happens if `handle`
        fails.
        """
        async for batch in self:
            for event in batch:
                await self._handle(handle, event, batch, attempts)
            batch.done()

    def stop(self) -> None:
        """End the loop when the current batch is done. Call it on the loop's thread."""
        self._core.stop()
        self._tell()

    def abort(self) -> None:
        """End the loop when the current batch is done, and commit nothing more: uncommitted events come again."""
        self._core.abort()
        for task in self._tasks:
            task.cancel()
        self._tell()

    async def close(self) -> None:
        """Stop, commit finished batches, and release the partitions and connections."""
        await self._finish()
        await self._api.close()

    def health(self) -> Health:
        """Return figures for a health check: the state of the stream, and when the last line came."""
        return self._core.health(time.monotonic())

    async def lag(self) -> Mapping[Place, int]:
        """Ask the broker how many events are not committed, by event type and partition."""
        answer = await self._api.send(self._requests.stats())
        if isinstance(answer, NoAnswer):
            raise answer
        if answer.status != 200:
            raise answer.refusal()
        return lag_of(answer)

    async def __aenter__(self) -> Consumer[Event]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Consumer of {self._requests.subscription}, {self._core.state.name.lower()}>"

    # The loop ---------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._tasks or self._finished:
            raise Closed("A consumer is read once.")
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._commit())]
        if self._stops_on_signals and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # Signals cannot be handled outside the main thread, or on this system.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop)
                return
        self._stops_on_signals = False

    async def _next(self) -> Batch[Event] | None:
        """Wait for the next batch. Returns None when the consumer ends without an error."""
        while True:
            now = time.monotonic()
            step = self._core.work_step(now)
            if isinstance(step, Wait):
                await self._work.wait(step.until, now)
            elif isinstance(step, (Rebalance, Trouble)):
                await self._announce(step)
            elif isinstance(step, End):
                if step.error:
                    raise step.error
                return None
            else:
                step.when_done(self._finish_batch)
                for poison in step.poison:
                    await self._treat(poison, step)
                if step.events:
                    return step
                self._finish_batch(step)

    async def _announce(self, step: Rebalance | Trouble) -> None:
        if isinstance(step, Trouble):
            if self._on_trouble:
                self._on_trouble(step)
        elif self._on_rebalance and (told := self._on_rebalance(step)) is not None:
            await told

    def _finish_batch(self, batch: Batch[Any]) -> None:
        self._core.finish_batch(batch, time.monotonic())
        self._todo.tell()

    async def _handle(
        self, handle: Callable[[Event], Awaitable[object]], event: Event, batch: Batch[Event], attempts: int
    ) -> None:
        for attempt in range(1, attempts + 1):
            try:
                await handle(event)
            except Exception as error:
                if attempt == attempts:
                    if self._on_poison == "stop":
                        raise
                    await self._treat(poison_of(event, error), batch)
                    return
            else:
                return
            await asyncio.sleep(_ATTEMPTS.after(attempt, random.random))

    async def _treat(self, poison: PoisonEvent, batch: Batch[Any]) -> None:
        if self._on_poison == "stop":
            raise stop_at(poison, batch)
        if self._on_poison == "skip":
            skip(poison, batch)
        elif isinstance(self._on_poison, Park):
            await self._park(self._on_poison, poison, batch)
        elif callable(self._on_poison):
            self._on_poison(poison, batch)

    async def _park(self, park: Park, poison: PoisonEvent, batch: Batch[Any]) -> None:
        request, pauses, failures = self._requests.park(park, poison, batch), Pauses(), 0
        while not is_parked(await self._api.send(request)):
            failures += 1
            await asyncio.sleep(pauses.after(failures, random.random))

    async def _finish(self) -> None:
        # Several calls may get here at once: an asyncio loop that ends closes all its generators at the same time.
        async with self._finishing:
            if self._finished:
                return
            self._finished = True
            self._core.let_go()
            self.stop()
            if self._tasks:
                await self._end_tasks()
            if self._stops_on_signals and self._tasks:
                asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)

    async def _end_tasks(self) -> None:
        """Commit finished batches, and leave the stream."""
        reading, committing = self._tasks
        if committing.done():
            # `asyncio.run` cancels every task before it closes generators, so this task needs a successor.
            committing = asyncio.create_task(self._commit())
        await asyncio.wait({committing}, timeout=_SECONDS_TO_END)
        self._break_stream()
        # A reader that is still connecting holds nothing to release.
        await asyncio.wait({reading}, timeout=_SECONDS_TO_END if self._socket else 0)
        for task in (reading, committing):
            task.cancel()
        await asyncio.gather(reading, committing, return_exceptions=True)

    def _tell(self) -> None:
        self._work.tell()
        self._todo.tell()

    # The reader's task ------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            now = time.monotonic()
            step = self._core.connection_step(now)
            if isinstance(step, Wait):
                await self._todo.wait(step.until, now)
                continue
            if isinstance(step, End):
                self._tell()
                return
            if isinstance(step, Find):
                tell_found(self._core, step, await self._api.send(self._requests.find(step)), time.monotonic())
                self._tell()
                continue
            if isinstance(step, Count):
                tell_count(self._core, await self._api.send(self._requests.stats()), time.monotonic())
                self._tell()
                continue
            error: NakadiError | None = NoAnswer("The task was cancelled.")
            try:
                error = await self._read_stream(step.options)
            finally:
                self._socket = None
                self._core.handle_closed_stream(time.monotonic(), error)
                self._tell()

    async def _read_stream(self, options: StreamOptions) -> NakadiError | None:
        """Read one stream to its end. Returns the error that ended it, unless the broker ended it."""
        is_open = False
        try:
            async with self._api.stream(self._requests.open(options), self._requests.silence) as response:
                if isinstance(response, Answer):
                    self._handle_refusal(response)
                    return None
                if self._core.is_stopping:
                    return Closed("The consumer was stopped.")
                stream = response.extensions.get("network_stream")
                self._socket = stream.get_extra_info("socket") if stream else None
                self._core.handle_opened_stream(response.headers["X-Nakadi-StreamId"], time.monotonic())
                is_open = True
                self._todo.tell()
                splitter = LineSplitter()
                async for chunk in response.aiter_bytes():
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

    def _hand_lines_to_core(self, lines: list[bytes]) -> None:
        now = time.monotonic()
        for line in lines:
            self._core.handle_line(line, now)
        self._work.tell()

    def _handle_refusal(self, answer: Answer | NoAnswer) -> None:
        told = answer if isinstance(answer, NoAnswer) else answer.refusal()
        LOGGER.info("No stream of subscription %s: %s", self._requests.subscription, told)
        self._core.handle_refusal(answer, time.monotonic())
        self._tell()

    # The committer's task ---------------------------------------------------------------------------------------------

    async def _commit(self) -> None:
        while True:
            now = time.monotonic()
            step = self._core.commit_step(now)
            if self._core.lost_stream():
                self._break_stream()
            if isinstance(step, End):
                return
            if isinstance(step, Wait):
                await self._todo.wait(step.until, now)
                continue
            answer: Answer | NoAnswer = NoAnswer("The task was cancelled.")
            try:
                answer = await self._api.send(self._requests.of(step))
            finally:
                tell(self._core, step, answer, time.monotonic())
                self._tell()

    def _break_stream(self) -> None:
        """End the reader's wait for more lines."""
        if self._socket is not None:
            # The stream may have just ended.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


@overload
def consume(
    broker: str | Connection, subscription: str, *, model: type[Event], **options: Any
) -> AsyncIterator[Batch[Event]]: ...


@overload
def consume(
    broker: str | Connection, subscription: str, *, model: None = None, **options: Any
) -> AsyncIterator[Batch[dict[str, Any]]]: ...


async def consume(
    broker: str | Connection, subscription: str, *, model: Any = None, **options: Any
) -> AsyncIterator[Batch[Any]]:
    """Read a subscription: an iterator over its batches, which commits each batch when the caller takes the next one.

    It takes the keywords of `Consumer`, which also has `stop()`, `health()` and `lag()`.
    """
    async with Consumer[Any](broker, subscription, model=model, **options) as consumer:
        async for batch in consumer:
            yield batch
