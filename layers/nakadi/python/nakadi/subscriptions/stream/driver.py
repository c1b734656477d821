"""The driver of a subscription's stream: carries facts to its session, lines to the client, and calls to the executor.

Threads carry out calls, in order, while lines continue to be sent. While the driver waits for a client that does not
read, or for a log, facts and the passing of time still reach the session, because other streams may be waiting for its
partitions.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import orjson
from msgspec.structs import replace

from nakadi.model.cloud_events import BATCH_MEDIA_TYPE
from nakadi.model.event_type import EventType
from nakadi.model.objective import ConsumedBatch
from nakadi.model.outcomes import Outcome, Unavailable, UnreadableEvents, UnusableCursor
from nakadi.model.subscription import EventTypePartition
from nakadi.ports.clock import Clock
from nakadi.streaming.chunks import escape_line_separators, joined_json, runs_in_steps
from nakadi.streaming.cloud_events import EMPTY_LINE, CloudEventPlace, cloud_events_json, cloud_events_line
from nakadi.streaming.driver import ApplyFact, EventSource, StreamDriver, StreamFigures, StreamOutlet
from nakadi.streaming.formats import RETRY_MILLISECONDS
from nakadi.subscriptions.stream.actions import (
    ClosePartition,
    CountConsumed,
    OpenPartition,
    SendBatch,
    SendKeepAlive,
    SessionAction,
    SessionCall,
    SessionLine,
    SharedState,
)
from nakadi.subscriptions.stream.admission import KnownEventTypes, PartitionStart
from nakadi.subscriptions.stream.calls import SessionCallExecutor
from nakadi.subscriptions.stream.session import SubscriptionSession

log = logging.getLogger(__name__)

NewCursorToken = Callable[[], object]
"""Makes the token of a cursor; the text of the token is sent."""


def random_cursor_token() -> str:
    """The text of a random UUID.

    No check depends on it, so it may be easy to guess. `uuid4` would call the operating system for each UUID and
    release the interpreter's lock for that, and in a busy process each batch would wait to get the lock back.
    """
    digits = f"{random.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


LineInSteps = Generator[None, None, bytes]
"""Makes a line in steps of a few milliseconds, and returns it at the end. Other streams have their turn between
steps.
"""

MAX_STEP_BYTES = 32 * 1024
"""The largest size of the events that a step encodes, unless it encodes a single event."""


class SubscriptionFormat(Protocol):
    content_type: str

    def stream_opening(self, stream_id: str) -> bytes:
        """The text that precedes all lines of a stream."""

    def encode_line(self, line: SessionLine) -> bytes | LineInSteps:
        """Encode a line. A format that processes each event does so in steps."""


class JsonSubscriptionFormat:
    """Sends each line as one JSON object."""

    content_type = "application/x-json-stream"

    def __init__(self, new_token: NewCursorToken = random_cursor_token) -> None:
        self._new_token = new_token

    def stream_opening(self, stream_id: str) -> bytes:  # noqa: ARG002  # clients find it in the headers
        return b""

    def encode_line(self, line: SessionLine) -> bytes:
        info = b',"info":%s' % orjson.dumps(_info_of(line)) if line.info else b""
        partition = line.partition
        # Names of event types consist of letters, digits, dots, dashes and underscores, so nothing needs escaping.
        cursor = (
            f'{{"cursor":{{"partition":"{partition.partition}","offset":"{line.position}",'
            f'"event_type":"{partition.event_type}","cursor_token":"{self._new_token()}"}}'
        ).encode()
        if isinstance(line, SendBatch):
            return joined_json(cursor + b',"events":[', line.runs, b"]%b}\n" % info)
        return escape_line_separators(b"%b%b}\n" % (cursor, info))


def _info_of(line: SessionLine) -> Mapping[str, Any]:
    is_unreadable = isinstance(line, SendKeepAlive) and line.is_unreadable
    return {"debug": line.info, "unreadable": True} if is_unreadable else {"debug": line.info}


class EventSubscriptionFormat:
    """Server-sent events, as browsers read them: one for each batch.

    An event source does not expose headers, so the first event has the id that commits need. After an interruption,
    clients need no id of the last event, because the subscription knows its position. A keep-alive without information
    is a comment.
    """

    content_type = "text/event-stream"

    def __init__(self) -> None:
        self._json = JsonSubscriptionFormat()

    def stream_opening(self, stream_id: str) -> bytes:
        return b"retry: %d\nevent: stream\ndata: %s\n\n" % (RETRY_MILLISECONDS, orjson.dumps({"stream_id": stream_id}))

    def encode_line(self, line: SessionLine) -> bytes:
        if isinstance(line, SendBatch) or line.info:
            return b"data: %s\n" % self._json.encode_line(line)
        return b": still here\n\n"


class CloudEventSubscriptionFormat:
    """One batch of CloudEvents per line; each CloudEvent has the cursor that commits everything up to it.

    A line without events has no CloudEvent that could carry a cursor or debug information.
    """

    content_type = BATCH_MEDIA_TYPE

    def __init__(self, new_token: NewCursorToken = random_cursor_token) -> None:
        self._new_token = new_token

    def stream_opening(self, stream_id: str) -> bytes:  # noqa: ARG002  # clients find it in the headers
        return b""

    def encode_line(self, line: SessionLine) -> bytes | LineInSteps:
        return self._encode_batch(line) if isinstance(line, SendBatch) else EMPTY_LINE

    def _encode_batch(self, batch: SendBatch) -> LineInSteps:
        place = CloudEventPlace(batch.partition.event_type, batch.partition.partition, str(self._new_token()))
        parts: list[bytes] = []
        for run in runs_in_steps(batch.runs, MAX_STEP_BYTES):
            if parts:
                yield
            parts.append(cloud_events_json(place, [run])[1:-1])
        return cloud_events_line(parts)


# The pauses between attempts at a call while a store does not answer.
MIN_CALL_RETRY_PAUSE_SECONDS = 0.1
MAX_CALL_RETRY_PAUSE_SECONDS = 2.0

# As in other brokers, a client that commits beyond the end of the log continues if the missing events arrive soon. So
# an opening without a valid start is retried for this time.
OPEN_BEYOND_END_RETRY_SECONDS = 0.5

# Events that cannot be read are tried again after this pause: their part of the archive may have been repaired.
UNREADABLE_RETRY_SECONDS = 5.0

# How long a client that does not read may take, after the end of its session, to read what was sent to it.
MAX_READ_AFTER_END_SECONDS = 1.0

_EVENT_COUNT_OF = attrgetter("count")

CountConsumedBatches = Callable[[Sequence[ConsumedBatch]], None]
OpenSource = Callable[[EventTypePartition, PartitionStart], EventSource]


class SessionCallThreads(NamedTuple):
    """The threads that carry out calls. Openings have separate threads, because they also read the registry, which may
    not answer.
    """

    for_opening: Executor
    for_others: Executor


class SubscriptionDriver(StreamDriver):
    """When a topic no longer exists, `known` requests that its event type is read again; `update_event_type` or
    `add_fact` then reports what has changed.

    Threads carry out calls, in order, and the event loop passes each result to the session as a fact. So only the event
    loop uses the session, the sources and the queue of calls.
    """

    def __init__(  # noqa: PLR0913  # every part by its name
        self,
        session: SubscriptionSession,
        executor: SessionCallExecutor,
        lines: SubscriptionFormat,
        outlet: StreamOutlet,
        *,
        clock: Clock,
        figures: StreamFigures,
        threads: SessionCallThreads,
        open_source: OpenSource,
        known: KnownEventTypes,
        count_consumed: CountConsumedBatches = lambda _: None,
    ) -> None:
        super().__init__(outlet, clock, figures)
        self._session = session
        self._executor = executor
        self._lines = lines
        self._threads = threads
        self._open_source = open_source
        self._known = known
        self._count_consumed = count_consumed
        self._open: dict[EventTypePartition, EventSource] = {}
        # Partitions whose next events could not be read a moment ago.
        self._resting: set[EventTypePartition] = set()
        self._calls: list[SessionCall] = []
        self._calling: asyncio.Task[None] | None = None
        self._connected = True
        self._cannot_encode = False
        # The first line that is not encoded yet, its encoder, and the lines after it.
        self._unfinished: tuple[SessionLine, LineInSteps] | None = None
        self._lines_behind: deque[SessionLine] = deque()
        self._bytes_since_pause = 0
        # Interrupts the driver while it waits for the client or a source.
        self._waiting: asyncio.Timeout | None = None
        self._facts_due_while_waiting = False

    @property
    def session(self) -> SubscriptionSession:
        return self._session

    def add_state(self, shared: SharedState) -> None:
        """Pass the new state of the subscription to the session."""
        self.add_fact(lambda now: self._session.handle_state(shared, now))

    def update_event_type(self, event_type: EventType) -> None:
        self._known.keep_newest(event_type)
        super().update_event_type(event_type)

    def run(self) -> Coroutine[Any, Any, None]:
        """Serve until the session ends."""
        opening = self._lines.stream_opening(self._session.id)
        return self._run_until_end(opening, self._handle_disconnect, lambda _: self._session.handle_shutdown())

    def _handle_disconnect(self, now: float) -> Sequence[SessionAction]:
        self._connected = False
        return self._session.handle_disconnect(now)

    async def _process_pending(self) -> bool:
        if self._facts:
            self._pass_facts_to_session()
        moved = False
        try:
            updates, self._updates = self._updates, []
            for event_type in updates:
                # No copy is needed: this loop awaits nothing, so no source is opened or closed meanwhile.
                for each, source in self._open.items():
                    if each.event_type == event_type.name:
                        source.update_event_type(event_type)
            # A copy is needed: while one source moves, facts arrive that open and close other sources.
            for each, source in tuple(self._open.items()):
                # The client may first have to read the lines that the previous fact has produced.
                if self._buffer.is_full or self._is_encoding:
                    await self._flush_before_deadline()
                moved = await self._pass_on_next_run(each, source) or moved
        except Outcome as outcome:
            log.info("The stream %s cannot continue: %s", self._session.id, outcome)
            self._carry_out_actions(self._session.handle_refusal(outcome))
        return moved

    def _pass_facts_to_session(self) -> None:
        facts, self._facts = self._facts, []
        for fact in facts:
            self._carry_out_actions(fact(self._clock.monotonic()))

    async def _pass_on_next_run(self, partition: EventTypePartition, source: EventSource) -> bool:
        if not self._session.wants_events(partition) or self._open.get(partition) is not source:
            return False
        if source.needs_move:
            self._timer.set(self._session.next_tick_at())
            await self._wait_unless_session_ends(source.move_to_next_event(self.wake))
            if self._open.get(partition) is not source or self._session.end:
                source.release()  # the source was closed while it moved
                return False
        if partition in self._resting:
            return False
        try:
            run = source.take_run()
        except UnreadableEvents as error:
            self._resting.add(partition)
            asyncio.get_running_loop().call_later(UNREADABLE_RETRY_SECONDS, self._end_rest, partition)
            self._carry_out_actions(self._session.handle_unreadable_events(partition, error.public))
            return False
        if run is None:
            if source.is_topic_missing:
                self._known.look_again()
            return False
        self._carry_out_actions(self._session.handle_events(partition, run, self._clock.monotonic()))
        return source.has_more

    def _end_rest(self, partition: EventTypePartition) -> None:
        self._resting.discard(partition)
        self.wake()

    def _carry_out_actions(self, actions: Iterable[SessionAction]) -> None:
        for action in actions:
            match action:
                case SendBatch() | SendKeepAlive():
                    self._put_line(action)
                case ClosePartition(partition):
                    self._close_partition(partition)
                case CountConsumed(batches):
                    self._count_consumed(batches)
                case _:
                    if isinstance(action, OpenPartition):
                        self._close_partition(action.partition)
                    self._calls.append(action)
                    if self._calling is None:
                        self._calling = asyncio.create_task(self._perform_calls())

    def _put_line(self, line: SessionLine) -> None:
        """Encode a line, or leave that to `_flush` if it takes more than a step, or follows such a line."""
        if self._is_encoding:
            self._lines_behind.append(line)
            return
        encoded = self._lines.encode_line(line)
        if isinstance(encoded, bytes):
            self._put_encoded(line, encoded)
            return
        self._unfinished = (line, encoded)
        # Many short lines may come at once, and together they must not take longer than a step.
        if self._bytes_since_pause < MAX_STEP_BYTES:
            self._encode_step(line, encoded)

    def _encode_step(self, line: SessionLine, steps: LineInSteps) -> None:
        try:
            next(steps)
        except StopIteration as finished:
            encoded = finished.value
        except Outcome as outcome:
            log.info("The stream %s cannot continue: %s", self._session.id, outcome)
            self._cannot_encode = True
            self.add_fact(lambda _, outcome=outcome: self._session.handle_refusal(outcome))  # type: ignore[misc]
            encoded = b""
        else:
            return
        self._bytes_since_pause += len(encoded)
        self._unfinished = None
        self._put_encoded(line, encoded)

    def _put_encoded(self, line: SessionLine, encoded: bytes) -> None:
        # If a batch cannot be encoded, nothing after it is sent, because the client would miss the batch. The session
        # gets the failure in the next round.
        if self._cannot_encode:
            return
        self._buffer.put(encoded)
        if isinstance(line, SendBatch):
            events, newest = sum(map(_EVENT_COUNT_OF, line.runs)), line.runs[-1].stored_at(-1)
            self._figures.record_sent_batch(line.partition.event_type, events, len(encoded), newest, line.runs)

    async def _finish_lines(self) -> None:
        """Encode the remaining lines, while facts still reach the session, and other streams have their turns."""
        while (unfinished := self._unfinished) is not None and self._connected:
            await asyncio.sleep(0)
            self._bytes_since_pause = 0
            self._pass_facts_to_session()
            self._encode_step(*unfinished)
            while self._lines_behind and not self._is_encoding:
                self._put_line(self._lines_behind.popleft())

    @property
    def _is_encoding(self) -> bool:
        return self._unfinished is not None

    async def _carry_out_and_flush(self, actions: Sequence[SessionAction]) -> None:
        self._carry_out_actions(actions)

    def _close_partition(self, partition: EventTypePartition) -> None:
        self._resting.discard(partition)
        if partition in self._open:
            self._open.pop(partition).release()

    def _release_all(self) -> None:
        for source in self._open.values():
            source.release()
        if self._calling:
            self._calling.cancel()

    # Calls

    async def _perform_calls(self) -> None:
        # Calls are carried out in the order of the actions, so a partition is handed over after its last commit.
        while self._calls:
            call = self._calls.pop(0)
            try:
                self.add_fact(await self._perform_with_retries(call))
            except Exception as error:  # any error: the stream must not continue as if the call had succeeded
                log.warning("The stream %s ends, because its call %s failed", self._session.id, call, exc_info=error)
                # Later calls rely on this one.
                self._calls.clear()
                self.add_fact(lambda _, error=error: self._session.handle_refusal(error))  # type: ignore[misc]  # bound early
        # There is no `await` between the last look at the queue and this line, so a call that is added from now on
        # begins a new task.
        self._calling = None

    async def _perform_with_retries(self, call: SessionCall) -> ApplyFact:
        pause, wanted_by = MIN_CALL_RETRY_PAUSE_SECONDS, self._clock.monotonic() + OPEN_BEYOND_END_RETRY_SECONDS
        while True:
            try:
                threads = self._threads.for_opening if isinstance(call, OpenPartition) else self._threads.for_others
                return await asyncio.get_running_loop().run_in_executor(threads, self._attempt_call, call)
            except Unavailable as error:
                log.warning("A call of the stream %s failed, trying again in %s s: %s", self._session.id, pause, error)
            except UnusableCursor:
                if self._clock.monotonic() >= wanted_by:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_CALL_RETRY_PAUSE_SECONDS)

    def _attempt_call(self, call: SessionCall) -> ApplyFact:
        if not isinstance(call, OpenPartition):
            return self._executor.perform(call)
        # This runs in a thread; only the loop passes the result to the session.
        start = self._executor.find_start(call)
        return lambda now: self._open_found_start(call, start, now)

    def _open_found_start(self, opening: OpenPartition, start: PartitionStart, now: float) -> Sequence[SessionAction]:
        if not self._session.expects_opening(opening):
            # The partition was closed or opened again during the search for the start.
            return []
        # The event type may have changed since the start was found: there was no open source to which
        # `update_event_type` could have passed the change.
        newest = self._known.keep_newest(start.event_type)
        self._open[opening.partition] = self._open_source(opening.partition, replace(start, event_type=newest))
        return self._session.handle_opening(opening, start.position, start.lost_events, now, start.parked_keys)

    # Writing

    async def _flush_before_deadline(self) -> None:
        self._timer.set(self._session.next_tick_at())
        await self._flush()

    async def _flush(self) -> None:
        await self._finish_lines()
        if not self._connected:
            return
        self._bytes_since_pause = 0
        try:
            if not await self._wait_unless_session_ends(self._buffer.flush()):
                log.info("The stream %s ended while its client was not reading", self._session.id)
                self._connected = False
        except ConnectionError:
            self.add_fact(self._handle_disconnect)

    # Waiting

    async def _wait_unless_session_ends(self, work: Awaitable[None]) -> bool:
        """Wait for this work while the session continues; return False if the session ended first.

        Nothing is written meanwhile, so no line overtakes another. The timer is set to the session's deadline.
        """
        try:
            async with asyncio.timeout(None) as waiting:
                self._waiting, self._on_wake = waiting, self._wake_while_waiting
                await work
        except TimeoutError:
            if not waiting.expired():
                raise
            return False
        finally:
            self._waiting = self._on_wake = None
        return True

    def _wake_while_waiting(self) -> None:
        if not self._facts_due_while_waiting:
            self._facts_due_while_waiting = True
            asyncio.get_running_loop().call_soon(self._pass_facts_while_waiting)

    def _pass_facts_while_waiting(self) -> None:
        self._facts_due_while_waiting = False
        if self._waiting is None:
            return
        self._pass_facts_to_session()
        self._carry_out_actions(self._session.tick(self._clock.monotonic()))
        if self._session.end:
            self._waiting.reschedule(asyncio.get_running_loop().time() + MAX_READ_AFTER_END_SECONDS)
            self._waiting = self._on_wake = None
        else:
            self._timer.set(self._session.next_tick_at())
