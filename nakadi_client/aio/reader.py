"""Reading an event type without a subscription, for asyncio: the same core as for threads."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Generic, TypeVar, overload

from nakadi_client.answers import Answer
from nakadi_client.batches import Batch
from nakadi_client.connections import AsyncApi, Connection, connection_of, no_answer
from nakadi_client.consumer_core import End, Patience, Trouble, Wait
from nakadi_client.errors import NakadiError
from nakadi_client.lines import LineSplitter
from nakadi_client.reader_core import OpenStream, ReaderCore, ReadOptions, Start
from nakadi_client.reading import OnMisfit, request_of, treat_misfits
from nakadi_client.tokens import Token

Event = TypeVar("Event")


class Reader(Generic[Event]):
    """Reads the events of an event type without a subscription: an iterator over batches of one partition each.

        async for batch in Reader(url, "order.placed", start="begin", follow=False):
            handle(batch.events)

    `ReadOptions` explains the keywords. Nothing is committed: when a connection breaks, the next one
    continues after the last event, and a new reader begins at its own `start`. The end of the loop closes the
    connection.
    """

    def __init__(
        self,
        broker: str | Connection,
        event_type: str,
        *,
        model: Any = None,
        token: Token = None,
        start: Start = "end",
        partitions: Sequence[str] | None = None,
        follow: bool = True,
        batch_limit: int = 500,
        patience: Patience = Patience(),  # noqa: B008  # it is frozen
        cloud_events: bool = False,
        on_poison: OnMisfit = "stop",
        on_trouble: Callable[[Trouble], None] | None = None,
    ) -> None:
        options = ReadOptions(start, partitions, follow, batch_limit, patience, cloud_events)
        self._core = ReaderCore(event_type, options, random.random, model)
        self._connection = connection_of(broker, token)
        self._on_poison: OnMisfit = on_poison
        self._on_trouble = on_trouble

    async def __aiter__(self) -> AsyncGenerator[Batch[Event], None]:
        api = AsyncApi(self._connection)
        try:
            while not isinstance(step := self._core.step(time.monotonic()), End):
                if isinstance(step, Wait):
                    await asyncio.sleep(max(0.0, (step.until or 0.0) - time.monotonic()))
                elif isinstance(step, Trouble):
                    if self._on_trouble:
                        self._on_trouble(step)
                elif isinstance(step, OpenStream):
                    async with aclosing(self._read_stream(api, step)) as batches:
                        async for batch in batches:
                            treat_misfits(batch, self._on_poison)
                            if batch.events:
                                yield batch
                else:
                    answer = await api.send(request_of(self._core.event_type, step))
                    self._core.handle_answer(step, answer, time.monotonic())
            if step.error:
                raise step.error
        finally:
            await api.close()

    async def _read_stream(self, api: AsyncApi, step: OpenStream) -> AsyncGenerator[Batch[Any], None]:
        """Read one stream to its end, and tell the core why it ended."""
        error: NakadiError | None = None
        try:
            async with api.stream(request_of(self._core.event_type, step)) as response:
                if isinstance(response, Answer):
                    self._core.handle_answer(step, response, time.monotonic())
                    return
                self._core.handle_opened_stream(response.headers)
                splitter = LineSplitter()
                async for chunk in response.aiter_bytes():
                    for batch in self._core.batches(splitter.feed(chunk)):
                        yield batch
                    if self._core.is_stream_done:
                        return
                for batch in self._core.batches(splitter.end()):
                    yield batch
        except NakadiError as found:
            error = found
        except Exception as found:  # noqa: BLE001  # an application's source of tokens may raise anything
            error = no_answer(self._connection, found)
        self._core.handle_closed_stream(time.monotonic(), error)


@overload
def read(
    broker: str | Connection, event_type: str, *, model: type[Event], **options: Any
) -> AsyncGenerator[Batch[Event], None]: ...


@overload
def read(
    broker: str | Connection, event_type: str, *, model: None = None, **options: Any
) -> AsyncGenerator[Batch[dict[str, Any]], None]: ...


async def read(
    broker: str | Connection, event_type: str, *, model: Any = None, **options: Any
) -> AsyncGenerator[Batch[Any], None]:
    """Read an event type directly, not through a subscription: an iterator over its batches. It takes the keywords of
    `Reader`.
    """
    async with aclosing(Reader[Any](broker, event_type, model=model, **options).__aiter__()) as batches:
        async for batch in batches:
            yield batch
