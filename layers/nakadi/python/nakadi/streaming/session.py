"""Low-level streams: the client's request, and the session that decides which events to send and when the stream ends.

The session never waits and uses no clock: facts come in as method calls, with the time where it matters, and each call
returns the resulting actions. The driver passes in more events only when all actions are carried out, so a session
holds only events that are not due yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from typing import Any, NoReturn

from msgspec import Struct

from nakadi.event_types.cursors import CursorError, CursorErrorKind
from nakadi.model.event_type import Cursor, Position
from nakadi.model.outcomes import Invalid, Malformed, UnreadableEvents
from nakadi.streaming.chunks import EventRun, MayRead, is_public

DEFAULT_FLUSH_TIMEOUT_SECONDS = 30
MAX_STREAM_SECONDS = 4200

# The range from which the duration of a stream is drawn if its client names none, so that streams that were opened
# together do not all reconnect together.
DEFAULT_STREAM_SECONDS_RANGE = (3000, 4199)

PickSeconds = Callable[[int, int], int]
"""Picks a whole number between two numbers, both included: `random.randint` outside of tests."""


class StreamParameters(Struct, frozen=True, kw_only=True):
    """The parameters of a request; None for those that it leaves out."""

    batch_limit: int | None = None
    stream_limit: int | None = None
    batch_flush_timeout: int | None = None
    stream_timeout: int | None = None
    stream_keep_alive_limit: int | None = None


class StreamLimits(Struct, frozen=True, kw_only=True):
    """The limits of a stream. Times are in seconds; 0 means no limit."""

    batch_limit: int = 1
    stream_limit: int = 0
    flush_seconds: float = DEFAULT_FLUSH_TIMEOUT_SECONDS
    stream_seconds: float = MAX_STREAM_SECONDS
    keep_alive_limit: int = 0


def stream_limits(
    asked: StreamParameters,
    pick_seconds: PickSeconds,
    max_stream_seconds: int | None = None,
    longest_silence_seconds: int | None = None,
) -> StreamLimits:
    """The limits of a stream for these parameters. Raises `Invalid` for the first rule that they break.

    `max_stream_seconds` is the longest response that the platform allows, and `longest_silence_seconds` the longest
    pause in it: a stream ends or sends something before that, and a client that requests more time is not refused.
    """
    batch_limit = 1 if asked.batch_limit is None else asked.batch_limit
    stream_limit = asked.stream_limit or 0
    flush = asked.batch_flush_timeout or DEFAULT_FLUSH_TIMEOUT_SECONDS
    seconds = _stream_seconds(asked.stream_timeout, flush, pick_seconds)
    _refuse_unless(stream_limit == 0 or stream_limit >= batch_limit, "stream_limit can't be lower than batch_limit")
    _refuse_unless(seconds >= flush, "stream_timeout can't be lower than batch_flush_timeout")
    _refuse_unless(batch_limit >= 1, "batch_limit can't be lower than 1")
    _refuse_unless(flush >= 0, "batch_flush_timeout can't be lower than 0")
    _refuse_unless((asked.stream_keep_alive_limit or 0) >= 0, "stream_keep_alive_limit can't be lower than 0")
    return StreamLimits(
        batch_limit=batch_limit,
        stream_limit=stream_limit,
        flush_seconds=flush if longest_silence_seconds is None else min(flush, longest_silence_seconds),
        stream_seconds=shortened_seconds(seconds, max_stream_seconds, pick_seconds),
        keep_alive_limit=asked.stream_keep_alive_limit or 0,
    )


def shortened_seconds(seconds: int, longest: int | None, pick_seconds: PickSeconds) -> int:
    """How long a stream lasts if a response may take at most this long.

    Streams that would all last that long end at different times in the last quarter: if they were opened together after
    a deployment, they would otherwise keep reconnecting together.
    """
    if longest is None or seconds <= longest * 3 // 4:
        return seconds
    return min(seconds, pick_seconds(longest * 3 // 4, longest))


def _stream_seconds(asked: int | None, flush: int, pick_seconds: PickSeconds) -> int:
    if asked is not None and 0 < asked <= MAX_STREAM_SECONDS:
        return asked
    shortest, longest = DEFAULT_STREAM_SECONDS_RANGE
    # The drawn duration must not be so short that the requested flush timeout is refused, if a longer one is possible.
    return pick_seconds(min(max(shortest, flush), longest), longest)


def _refuse_unless(condition: bool, message: str) -> None:
    if not condition:
        raise Invalid(message)


BAD_CURSORS_HEADER_MESSAGE = "incorrect syntax of X-nakadi-cursors header"


def parse_cursors_header(header: str) -> tuple[Cursor, ...]:
    """The cursors of a header: raises `Malformed` if it is not a list of objects, and `CursorError` if a member is
    missing.

    Members without a meaning here are ignored, because clients send back whole cursors of other streams. Numbers keep
    their spelling. Anything after the list is ignored.
    """
    return tuple(_cursor_from_members(each) for each in _objects_in_header(header))


def parse_header_ends(header: str) -> tuple[Cursor, ...]:
    """The positions up to which partitions are read, from those cursors of a header that have an `until`."""
    return tuple(
        Cursor(_scalar_text(each["partition"]), _scalar_text(each["until"]))
        for each in _objects_in_header(header)
        if each.get("until") is not None
    )


def _objects_in_header(header: str) -> list[dict[str, Any]]:
    try:
        found, _ = NUMBERS_AS_TEXT_DECODER.raw_decode(header.lstrip())
        # Half of a surrogate pair is not a character: it could neither be looked up nor appear in a message.
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Malformed(BAD_CURSORS_HEADER_MESSAGE) from error
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise Malformed(BAD_CURSORS_HEADER_MESSAGE)
    for member in ("partition", "offset", "until"):
        if any(isinstance(each.get(member), dict | list) for each in found):
            raise Malformed(BAD_CURSORS_HEADER_MESSAGE)
    return found


def _cursor_from_members(members: dict[str, Any]) -> Cursor:
    if members.get("partition") is None:
        raise CursorError(CursorErrorKind.NULL_PARTITION)
    if members.get("offset") is None:
        raise CursorError(CursorErrorKind.NULL_OFFSET)
    return Cursor(_scalar_text(members["partition"]), _scalar_text(members["offset"]))


def _scalar_text(scalar: str | bool) -> str:
    return scalar if isinstance(scalar, str) else str(scalar).lower()


def _refuse_json_constant(word: str) -> NoReturn:
    raise ValueError(word)


NUMBERS_AS_TEXT_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse_json_constant)


class SendEvents(Struct, frozen=True):
    """Send events of a partition; `position` is that of the last event."""

    partition: str
    position: Position
    runs: tuple[EventRun, ...]


class SendStreamKeepAlive(Struct, frozen=True):
    """Send a line without events: a partition has had no new events since `position`, or was read up to there."""

    partition: str
    position: Position


class SendProblem(Struct, frozen=True):
    """Tell the client in words why the stream ends."""

    error: Exception


StreamAction = SendEvents | SendStreamKeepAlive | SendProblem


MAX_BUFFERED_BYTES = 50_000_000

# Clients give up a connection that is silent for half a minute, whatever flush timeout they requested.
MAX_SECONDS_BETWEEN_LINES = 25.0


class StreamEnd(Enum):
    """Why a stream ended."""

    LIMIT = auto()
    TIMEOUT = auto()
    KEEP_ALIVES = auto()
    COMPLETE = auto()
    DRAINED = auto()
    BLOCKED = auto()
    REFUSED = auto()
    GONE = auto()


class PartitionBuffer:
    """The events of a partition that wait to be sent, and the time since which they wait."""

    __slots__ = ("count", "flushed_at", "keep_alives", "position", "runs", "size", "told_meanwhile")

    def __init__(self, position: Position, now: float) -> None:
        self.position = position
        self.flushed_at = now
        self.keep_alives = 0
        # Whether the next keep-alive was already sent early.
        self.told_meanwhile = False
        self._clear()

    def add(self, run: EventRun) -> None:
        self.runs.append(run)
        self.count += run.count
        self.size += run.size

    def take_runs(self, *last: EventRun) -> tuple[EventRun, ...]:
        """Take the waiting runs, followed by the runs `last`, and leave the buffer empty."""
        taken = (*self.runs, *last)
        self.position = taken[-1].end
        if self.runs:
            self._clear()
        return taken

    def _clear(self) -> None:
        self.runs: list[EventRun] = []
        self.count = 0
        self.size = 0


class LowLevelSession:
    """`starts` has the position after which each partition begins. `end` is set once there is nothing more to do."""

    __slots__ = ("_buffers", "_ends_at", "_last_line_at", "_limits", "_may_read", "_room", "end")

    def __init__(
        self, limits: StreamLimits, starts: Mapping[str, Position], now: float, may_read: MayRead | None = None
    ) -> None:
        self._limits = limits
        self._buffers = {partition: PartitionBuffer(position, now) for partition, position in starts.items()}
        self._may_read = may_read or is_public
        self._room = limits.stream_limit
        self._ends_at = now + limits.stream_seconds
        self._last_line_at = now
        self.end: StreamEnd | None = None

    # Facts

    def handle_events(self, partition: str, run: EventRun, now: float) -> list[StreamAction]:
        """Take events of a partition, which were read in order and without gaps."""
        if self.end:
            return []
        actions: list[StreamAction] = []
        for readable in run.readable_parts(self._may_read):
            actions += self._take_in_events(partition, readable, now)
        return self._update_last_line_at([*actions, *self._batches_to_free_memory(now)], now)

    def handle_partition_end(self, partition: str, position: Position, now: float) -> list[StreamAction]:
        """Record that a partition was read up to the position at which the client wants it to end."""
        if self.end:
            return []
        rest = [self._batch(partition, now)] if self._buffers[partition].count else []
        del self._buffers[partition]
        if not self._buffers:
            self.end = StreamEnd.COMPLETE
        return self._update_last_line_at([*rest, SendStreamKeepAlive(partition, position)], now)

    def tick(self, now: float) -> list[StreamAction]:
        """Time has passed."""
        if self.end:
            return []
        due = [partition for partition, buffer in self._buffers.items() if now >= self._flush_deadline(buffer)]
        actions = [action for partition in due for action in self._batch_or_keep_alive(partition, now)]
        if now >= self._ends_at:
            actions += self._send_rest_and_end(StreamEnd.TIMEOUT, now)
        elif due and self._is_keep_alive_limit_reached():
            self.end = StreamEnd.KEEP_ALIVES
        elif not actions and now >= self._last_line_at + MAX_SECONDS_BETWEEN_LINES:
            actions.append(self._early_keep_alive())
        return self._update_last_line_at(actions, now)

    def handle_shutdown(self, now: float) -> list[StreamAction]:
        """End the stream, because the process is about to end."""
        return [] if self.end else self._send_rest_and_end(StreamEnd.DRAINED, now)

    def handle_block(self) -> list[StreamAction]:
        """End the stream, because an administrator has blocked the client or the event type that it reads.

        Events that were read are no longer sent.
        """
        self._stop_without_sending(StreamEnd.BLOCKED)
        return []

    def handle_refusal(self, error: Exception) -> list[StreamAction]:
        """End the stream, because the client may no longer read, or the stream cannot continue."""
        if self.end:
            return []
        self._stop_without_sending(StreamEnd.REFUSED)
        return [SendProblem(error)]

    def handle_unreadable_events(self, error: UnreadableEvents, now: float) -> list[StreamAction]:
        """The next events of a partition cannot be read. All events before them are sent."""
        return [] if self.end else [*self._send_rest_and_end(StreamEnd.REFUSED, now), SendProblem(error)]

    def handle_disconnect(self) -> list[StreamAction]:
        """End the stream, because the client has disconnected."""
        self._stop_without_sending(StreamEnd.GONE)
        return []

    # Queries by the driver

    def next_tick_at(self) -> float:
        """The time at which `tick` next has something to do."""
        flushes = min(map(self._flush_deadline, self._buffers.values()), default=self._ends_at)
        return min(flushes, self._ends_at, self._last_line_at + MAX_SECONDS_BETWEEN_LINES)

    # Decisions

    def _take_in_events(self, partition: str, run: EventRun, now: float) -> Iterator[StreamAction]:
        """Buffer events with the same result as one by one, so that no batch and no stream becomes longer than its
        limit.
        """
        buffer = self._buffers[partition]
        rest: EventRun | None = run
        while rest is not None and rest.count and not self.end:
            wanted = min(self._limits.batch_limit - buffer.count, self._room or rest.count, rest.count)
            taken, rest = (rest, None) if wanted == rest.count else rest.split(wanted)
            buffer.keep_alives = 0
            if buffer.count + wanted == self._limits.batch_limit:
                yield self._batch(partition, now, taken)
            else:
                buffer.add(taken)
            if self._limits.stream_limit:
                self._room -= wanted
                if not self._room:
                    yield from self._send_rest_and_end(StreamEnd.LIMIT, now)

    def _batches_to_free_memory(self, now: float) -> Iterator[StreamAction]:
        """The batches of the largest partitions, sent early while too much is held."""
        while sum(buffer.size for buffer in self._buffers.values()) > MAX_BUFFERED_BYTES:
            heaviest = max(self._buffers, key=lambda partition: self._buffers[partition].size)
            yield self._batch(heaviest, now)

    def _batch_or_keep_alive(self, partition: str, now: float) -> Iterator[StreamAction]:
        """The actions of a partition that is due. The next due time is counted from this due time, however late the
        call is.
        """
        buffer = self._buffers[partition]
        due = self._flush_deadline(buffer)
        flushed_at = due if now < due + self._limits.flush_seconds else now
        if buffer.count:
            yield self._batch(partition, flushed_at)
            return
        buffer.flushed_at = flushed_at
        buffer.keep_alives += 1
        if not buffer.told_meanwhile:
            yield SendStreamKeepAlive(partition, buffer.position)
        buffer.told_meanwhile = False

    def _batch(self, partition: str, now: float, *last: EventRun) -> StreamAction:
        buffer = self._buffers[partition]
        runs = buffer.take_runs(*last)
        buffer.flushed_at = now
        buffer.told_meanwhile = False
        return SendEvents(partition, buffer.position, runs)

    def _early_keep_alive(self) -> StreamAction:
        """Send the next keep-alive before its time. When it would have been due, it counts as sent, so no timer
        changes.
        """
        partition, buffer = next(iter(self._buffers.items()))
        buffer.told_meanwhile = True
        return SendStreamKeepAlive(partition, buffer.position)

    def _send_rest_and_end(self, end: StreamEnd, now: float) -> list[StreamAction]:
        """Send everything that waits, and then end the stream."""
        self.end = end
        return [self._batch(partition, now) for partition, buffer in self._buffers.items() if buffer.count]

    def _stop_without_sending(self, end: StreamEnd) -> None:
        self.end = self.end or end
        self._buffers.clear()

    def _update_last_line_at(self, actions: list[StreamAction], now: float) -> list[StreamAction]:
        if actions:
            self._last_line_at = now
        return actions

    def _flush_deadline(self, buffer: PartitionBuffer) -> float:
        return buffer.flushed_at + self._limits.flush_seconds

    def _is_keep_alive_limit_reached(self) -> bool:
        limit = self._limits.keep_alive_limit
        return limit > 0 and all(buffer.keep_alives >= limit for buffer in self._buffers.values())
