"""The decisions of a reader of an event type, without any input or output: where to begin, what comes next, when to
end.

    core = ReaderCore("order.placed", ReadOptions(start="begin"), random.random)
    step = core.step(now)                  # Find, Measure or OpenStream: a request; or Wait, Trouble, End
    core.handle_answer(step, answer, now)  # of Find and Measure, and of a stream that was not opened
    core.handle_opened_stream(headers)     # of a stream that was opened
    core.batches(lines)                    # for lines of the stream
    core.handle_closed_stream(now, error)  # when the stream has ended

There is no subscription, so nothing is committed: the core remembers its position itself, and continues there after a
broken connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from math import inf
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from nakadi_client.answers import Answer
from nakadi_client.batches import Batch
from nakadi_client.consumer_core import End, Patience, Trouble, Wait
from nakadi_client.decoding import CloudEventDecoder, LineDecoder
from nakadi_client.errors import EventsUnreadable, NakadiError, NoAnswer
from nakadi_client.pauses import Pauses

Start = Literal["begin", "end"] | datetime | Mapping[str, str]

_TRY_AGAIN = (408, 429)


class ReadOptions(msgspec.Struct, frozen=True):
    """Where a reader begins, and how it reads. Its fields are keywords of `read`.

    start        "begin", "end", a time, or offsets by partition, after which reading begins.
    partitions   The only partitions to read. Default: all.
    follow       False ends at the events that existed at the beginning.
    batch_limit  Events in a batch.
    patience     When to give up on a broker that does not answer.
    cloud_events Events are CloudEvents 1.0, as the JSON of their structured mode.
    """

    start: Start = "end"
    partitions: Sequence[str] | None = None
    follow: bool = True
    batch_limit: int = 500
    patience: Patience = Patience()
    cloud_events: bool = False


EMPTY_LINES_AT_END = 5
"""A partition counts as finished after this number of empty lines: one a second while the broker finds no events. This
is only for brokers that do not know `until`: others send such lines also while they cannot read the events."""

UNTIL_HEADER = "X-Nakadi-Until"
"""The header of streams whose broker says when a partition is read up to `until`."""


class Place(msgspec.Struct, frozen=True):
    """A cursor of an event type: an offset after which to continue, and perhaps the last offset to read.

    At `until`, Nakadi Serverless sends a line without events, and announces this in a header. Other brokers ignore this
    member.
    """

    partition: str
    offset: str
    until: str | msgspec.UnsetType = msgspec.UNSET


class Find(msgspec.Struct, frozen=True):
    """Ask for the partitions of the event type."""


class Measure(msgspec.Struct, frozen=True):
    """Ask how many events come after these cursors."""

    cursors: Sequence[Place]


class OpenStream(msgspec.Struct, frozen=True):
    """Open a stream after these cursors. `stream_limit` is 0 if the stream has no end."""

    cursors: Sequence[Place]
    batch_limit: int
    stream_limit: int
    cloud_events: bool = False

    def parameters(self) -> dict[str, int]:
        """Return the parameters of the request."""
        limit = {"stream_limit": self.stream_limit} if self.stream_limit else {}
        return {"batch_limit": self.batch_limit, "batch_flush_timeout": 1, **limit}


class ReaderCore:
    """Reads one event type over successive streams. Only one loop may use it."""

    def __init__(
        self,
        event_type: str,
        options: ReadOptions,
        draw: Callable[[], float],
        model: Any = None,
        pauses: Pauses | None = None,
    ) -> None:
        self.event_type: str = event_type
        self._options = options
        self._draw = draw
        self._decoder = CloudEventDecoder(model) if options.cloud_events else LineDecoder(model)
        self._pauses = pauses or Pauses()
        # The offset after which each partition continues; None until the partitions are known.
        self._at: dict[str, str] | None = _offsets(options.start) if isinstance(options.start, Mapping) else None
        # The last offset that each partition had at the beginning, for partitions that are not read up to it yet.
        self._ends: dict[str, str] | None = None
        # The number of consecutive lines without events, by partition.
        self._empty_lines: dict[str, int] = {}
        self._silent_lines = 0
        # Whether the broker says when it has read a partition up to `until`.
        self._knows_until = False
        # Whether the next stream, or this one, finds out where partitions of CloudEvents end.
        self._has_to_confirm = self._is_confirming = False
        self._left = 0
        self._failures = 0
        self._failing_since = inf
        # The time since which the broker cannot read the next events of partitions.
        self._unreadable_since: dict[str, float] = {}
        self._open_at = -inf
        self._trouble: Trouble | None = None
        self._error: NakadiError | None = None
        self._got_lines = False

    @property
    def is_done(self) -> bool:
        """Whether all events that existed at the beginning are read."""
        return not self._options.follow and self._ends is not None and not self._ends

    @property
    def is_stream_done(self) -> bool:
        """Whether the present stream is of no more use, so that the caller closes it."""
        return self.is_done or self._has_to_confirm

    def step(self, now: float) -> Find | Measure | OpenStream | Trouble | Wait | End:
        """The next action, when no stream is open."""
        if self._error or self.is_done:
            return End(self._error)
        if self._trouble:
            trouble, self._trouble = self._trouble, None
            return trouble
        if now < self._open_at:
            return Wait(self._open_at)
        if self._at is None:
            return Find()
        if not self._options.follow and self._ends is None:
            return Measure([Place(partition, offset) for partition, offset in self._at.items()])
        return self._next_stream(self._at)

    def handle_answer(self, step: Find | Measure | OpenStream, answer: Answer | NoAnswer, now: float) -> None:
        """Take the result of a request. The answer to `OpenStream` is the refusal to open the stream."""
        if isinstance(answer, NoAnswer):
            self._pause(answer, now)
        elif answer.status >= 500 or answer.status in _TRY_AGAIN:
            self._pause(answer.refusal(), now, answer.retry_after)
        elif answer.status != 200 or isinstance(step, OpenStream):
            self._error = answer.refusal()
        elif isinstance(step, Find):
            self._handle_partitions(_PARTITIONS.decode(answer.body))
        else:
            self._handle_lags(_LAGS.decode(answer.body))

    def handle_opened_stream(self, headers: Mapping[str, str]) -> None:
        """Take the headers of an opened stream."""
        self._knows_until = UNTIL_HEADER in headers

    def batches(self, lines: Iterable[bytes]) -> Iterator[Batch[Any]]:
        """Take lines; return their batches with events, up to the end.

        Raises `NakadiError` at a line that does not belong to a stream; the caller then closes the stream.
        """
        for line in lines:
            if (batch := self._take_line(line)) is not None:
                yield batch
            if self.is_stream_done:
                return

    def handle_closed_stream(self, now: float, error: NakadiError | None = None) -> None:
        """Note that the stream has ended, or that its connection broke. The next stream begins after the received
        events.
        """
        if isinstance(error, EventsUnreadable):
            # Other partitions may have had lines meanwhile, which ended the series of failures.
            self._failing_since = self._unreadable_since.setdefault(error.partition, now)
        if error is not None:
            self._pause(error, now)
        elif not self._got_lines:
            self._pause(NakadiError("The broker ended a stream without a line."), now)
        elif self._options.cloud_events and self._knows_until and not self._is_confirming:
            # Perhaps the last events are ones that are never delivered.
            self._has_to_confirm = True

    # ------------------------------------------------------------------------------------------------------------------

    def _next_stream(self, at: Mapping[str, str]) -> OpenStream:
        self._got_lines = False
        self._empty_lines.clear()
        self._silent_lines = 0
        self._is_confirming, self._has_to_confirm = self._has_to_confirm, False
        cursors = [Place(partition, offset, self._until(partition)) for partition, offset in at.items()]
        if self._is_confirming:
            return OpenStream([each for each in cursors if each.until is not msgspec.UNSET], 1, 1)
        # The limit is the number of existing events, so that the stream ends at once; fewer events come if compaction
        # has removed some.
        size = min(self._options.batch_limit, self._left or self._options.batch_limit)
        return OpenStream(cursors, size, self._left, self._options.cloud_events)

    def _take_line(self, line: bytes) -> Batch[Any] | None:
        try:
            decoded = (_PLAIN_LINES if self._is_confirming else self._decoder).decode(line)
        except msgspec.MsgspecError as error:
            raise NakadiError(f"This is no line of a stream: {error}") from error
        cursor, events = decoded.line.cursor, decoded.line.events or []
        if cursor is None and decoded.line.events is not None:
            self._take_silence()
            return None
        if cursor is None:
            raise decoded.line.end_of_stream()
        assert self._at is not None, "a line came without a stream"
        self._got_lines = True
        self._failures, self._failing_since = 0, inf
        is_empty = not events and not decoded.poison
        if self._is_confirming and not is_empty:
            return None  # There are more events, which the next stream delivers as CloudEvents.
        self._at[cursor.partition] = cursor.offset
        self._silent_lines = 0
        self._empty_lines[cursor.partition] = self._empty_lines.get(cursor.partition, 0) + 1 if is_empty else 0
        if self._ends and self._is_at_end(cursor.partition, cursor.offset):
            self._ends.pop(cursor.partition, None)
        if is_empty:
            return None
        self._unreadable_since.pop(cursor.partition, None)
        self._left = max(0, self._left - len(events) - len(decoded.poison))
        return Batch(events, replace(cursor, event_type=self.event_type), "", poison=decoded.poison)

    def _take_silence(self) -> None:
        """Count a line without CloudEvents, which does not name its partition."""
        self._got_lines = True
        self._failures, self._failing_since = 0, inf
        self._silent_lines += 1
        if self._ends and self._silent_lines >= EMPTY_LINES_AT_END * len(self._at or ()):
            if self._knows_until:
                # A line without CloudEvents does not say which partition has ended, but another stream does.
                self._has_to_confirm = True
            else:
                self._ends.clear()

    def _until(self, partition: str) -> str | msgspec.UnsetType:
        return msgspec.UNSET if self._ends is None else self._ends.get(partition, msgspec.UNSET)

    def _is_at_end(self, partition: str, offset: str) -> bool:
        """Whether a partition has no more of the events that existed at the beginning.

        The last offset may belong to an event that no stream delivers, such as a tombstone, and a broker may not know
        `until`. So lines without events also mark the end. One or two do not, because a busy broker sends them while
        it still reads.
        """
        assert self._ends is not None
        is_silent = not self._knows_until and self._empty_lines[partition] >= EMPTY_LINES_AT_END
        return is_silent or offset >= self._ends.get(partition, offset)

    def _handle_partitions(self, partitions: Sequence[_Partition]) -> None:
        start, chosen = self._options.start, self._options.partitions
        known = {each.partition: each for each in partitions}
        if missing := [name for name in chosen or () if name not in known]:
            self._error = NakadiError(f"{self.event_type} has no partition {missing[0]}.")
            return
        names = list(known) if chosen is None else chosen
        if start == "end":
            self._at = {name: known[name].newest_available_offset for name in names}
        else:
            offset = "BEGIN" if start == "begin" else _write_time(start)
            self._at = dict.fromkeys(names, offset)

    def _handle_lags(self, lags: Sequence[_Lag]) -> None:
        waiting = [each for each in lags if each.unconsumed_events > 0]
        self._ends = {each.partition: each.newest_available_offset for each in waiting}
        self._left = sum(each.unconsumed_events for each in waiting)

    def _pause(self, error: NakadiError, now: float, asked: float | None = None) -> None:
        self._failures += 1
        self._failing_since = min(self._failing_since, now)
        pause = self._pauses.after(self._failures, self._draw, asked)
        self._open_at = now + pause
        self._trouble = Trouble(error, self._failures, pause)
        if now - self._failing_since >= self._options.patience.without_answer:
            self._error = error


def _offsets(start: Mapping[str, str]) -> dict[str, str]:
    return dict(start)


def _write_time(moment: Any) -> str:
    """Write a time as an offset. Nakadi Serverless begins at the first event after that time."""
    return str(moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))


class _Partition(msgspec.Struct):
    partition: str
    newest_available_offset: str


class _Lag(msgspec.Struct):
    partition: str
    newest_available_offset: str
    unconsumed_events: int


_PLAIN_LINES = LineDecoder()
_PARTITIONS = msgspec.json.Decoder(list[_Partition])
_LAGS = msgspec.json.Decoder(list[_Lag])
