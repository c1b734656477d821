"""The events of a request, the work that they may cause, and their results.

Events are parsed, serialized again, and compared with the received text. A text that stays the same has no repeated
key, no unusual number and no needless blank. Then the received text is stored, and only the metadata is changed.

Parsed JSON takes five to fifty times the memory of its text. So a long body is never parsed as a whole: it is divided
into the texts of its events, which each step parses again, a piece at a time.

Either the whole batch is stored, or there is one result for each event. A step that finds a fault in an event raises
`BatchRejected`, which rejects the whole batch. Only the last step, storing, can have different results for different
events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum, StrEnum, auto
from itertools import chain, islice, repeat
from typing import Any, Protocol, overload

import msgspec
import orjson
from msgspec import UNSET, Struct

from nakadi.common.work import WORK_ABANDONED_MESSAGE, LongWorkQueue
from nakadi.model.events import AppendRefused, AppendResult, DuplicateEvent, fates_of_events
from nakadi.model.outcomes import TooLarge, TryLater
from nakadi.schemas import strict_json
from nakadi.schemas.strict_json import (
    JsonText,
    count_colons,
    estimate_parsed_memory,
    holds_too_long_integer,
    parsed_memory_exceeds,
)
from nakadi.schemas.values import RemainingSteps, StepsExhausted, java_text

Event = dict[str, Any]

# Values can be serialized up to 254 levels deep. The events are put into so many nested lists that they have only the
# levels of the strict limit left.
_MAX_WRITE_DEPTH = 254
_DEPTH_PADDING = _MAX_WRITE_DEPTH - strict_json.MAX_JSON_DEPTH - 1
_BRACKET_COUNTING_BYTES = 8192

# A long body is parsed in pieces of this many bytes, and of this much memory as `estimate_parsed_memory` estimates it.
MAX_BATCH_PIECE_BYTES = 1024 * 1024
MAX_BATCH_PIECE_MEMORY_BYTES = 8 * 1024 * 1024
# An event that would take more than this when parsed is rejected: for example, one with 60,000 objects or 280,000
# numbers.
MAX_EVENT_MEMORY_BYTES = 16 * 1024 * 1024
# Up to this size, an event that is too large to be stored gets a result in the answer; a larger event is not even
# parsed.
MAX_PARSED_EVENT_BYTES = 4 * 1024 * 1024

ARRAY_DECODER = msgspec.json.Decoder(list[msgspec.Raw])

# The most steps for a batch, which take about two and a half seconds at worst. Ordinary events take between 0.1 and 3
# steps per byte.
MAX_BATCH_STEPS = 50_000_000
# How many steps need no turn at long work: they take a hundredth of a second at worst, and are enough for thousands of
# ordinary events.
STEPS_WITHOUT_TURN = 200_000
# After each portion of this size, the broker checks whether the client is still connected.
STEPS_PER_EXTENSION = 1_000_000


class NotStrictJson(Exception):
    """Raised when a body is JSON, but not strict JSON, or not an array of objects."""


PARSE_ERRORS = (NotStrictJson, orjson.JSONDecodeError, orjson.JSONEncodeError, msgspec.MsgspecError, RecursionError)


class BatchLimits(Struct, frozen=True, kw_only=True):
    """How many events a batch may have, how large one of them may be, and how many steps all of them may take."""

    max_events: int = 10_000
    max_event_bytes: int = 999_000
    max_steps: int = MAX_BATCH_STEPS

    def check_event_count(self, events: int) -> None:
        if events > self.max_events:
            raise TooLarge(f"The batch has more than {self.max_events} events")


DEFAULT_LIMITS = BatchLimits()


Path = Sequence[str]
"""The names of members that lead to a value."""

EID_PATH: Path = ("metadata", "eid")

Row = tuple[Any, ...]
"""The values of an event at some paths; `UNSET` for a missing value."""


class Batch(Protocol):
    """The events of a request in their order."""

    def __len__(self) -> int: ...

    @property
    def events(self) -> Sequence[Event]:
        """All events of the batch."""

    def rows_at(self, paths: Sequence[Path]) -> Iterable[Row]:
        """The values of each event at these paths."""

    def in_pieces(self) -> Iterable[BatchPiece]:
        """All events, in pieces."""


def row_of_event(batch: Batch, index: int, paths: Sequence[Path]) -> Row:
    """The values of one event at these paths."""
    return next(islice(iter(batch.rows_at(paths)), index, None))


def _rows_of_events(events: Sequence[Event], paths: Sequence[Path]) -> Iterable[Row]:
    columns: dict[Path, Sequence[Any]] = {(): events}
    return zip(*[_column_at(tuple(path), columns) for path in paths], strict=True)


def _column_at(path: Path, columns: dict[Path, Sequence[Any]]) -> Sequence[Any]:
    """The values at a path; `columns` caches the values at some paths, and those at the parents of this one are
    added.
    """
    if path not in columns:
        columns[path] = _members_named(path[-1], _column_at(path[:-1], columns))
    return columns[path]


def _members_named(name: str, values: Sequence[Any]) -> Sequence[Any]:
    try:
        return list(map(dict.get, values, repeat(name), repeat(UNSET)))
    except TypeError:  # one of the values is not an object
        return [value.get(name, UNSET) if type(value) is dict else UNSET for value in values]


class BatchPiece(Struct, frozen=True):
    """Adjacent events: a short batch, or a part of a long one.

    `text` is the client's array of them, without whitespace.
    """

    events: Sequence[Event]
    text: bytes
    received: bytes

    def __len__(self) -> int:
        return len(self.events)

    def rows_at(self, paths: Sequence[Path]) -> Iterable[Row]:
        return _rows_of_events(self.events, paths)

    def in_pieces(self) -> Iterable[BatchPiece]:
        return (self,)

    def oversized_event_sizes(self, limit: int) -> Mapping[int, int]:
        """The sizes, as received, of the events that are larger than this."""
        if len(self.received) <= limit:
            return {}
        sizes = (memoryview(raw).nbytes for raw in ARRAY_DECODER.decode(self.received))
        return {index: size for index, size in enumerate(sizes) if size > limit}


class LongBatch:
    """The texts of events, which every pass parses again, a piece at a time."""

    def __init__(self, texts: Sequence[JsonText], limits: BatchLimits) -> None:
        self.received = texts
        self._piece_bounds = list(_piece_bounds(texts, limits))

    @property
    def is_one_piece(self) -> bool:
        return len(self._piece_bounds) <= 1

    @property
    def events(self) -> Sequence[Event]:
        # The object is created each time, because two objects that refer to each other would keep the body in memory
        # until the next garbage collection.
        return _EventsOfLongBatch(self)

    def __len__(self) -> int:
        return len(self.received)

    def rows_at(self, paths: Sequence[Path]) -> Iterable[Row]:
        return chain.from_iterable(_rows_of_events(orjson.loads(array), paths) for array in self.piece_texts())

    def in_pieces(self) -> Iterable[BatchPiece]:
        return map(parse_piece, self.piece_texts())

    def piece_texts(self) -> Iterator[bytes]:
        return (json_array_of(self.received[first:last]) for first, last in self._piece_bounds)


class _EventsOfLongBatch(Sequence[Event]):
    def __init__(self, batch: LongBatch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch.received)

    def __iter__(self) -> Iterator[Event]:
        for array in self._batch.piece_texts():
            # The result is not kept in a variable, so that it is freed before the next piece is parsed.
            yield from orjson.loads(array)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [orjson.loads(text) for text in self._batch.received[index]]
        event: Event = orjson.loads(self._batch.received[index])
        return event


def _piece_bounds(texts: Sequence[JsonText], limits: BatchLimits) -> Iterator[tuple[int, int]]:
    first = size = memory = 0
    for index, text in enumerate(texts):
        length = len(text)
        needed = estimate_event_memory(index, text, limits)
        if index > first and (size + length > MAX_BATCH_PIECE_BYTES or memory + needed > MAX_BATCH_PIECE_MEMORY_BYTES):
            yield first, index
            first, size, memory = index, 0, 0
        size += length
        memory += needed
    if texts:
        yield first, len(texts)


def estimate_event_memory(index: int, text: JsonText, limits: BatchLimits) -> int:
    """The approximate memory of an event when parsed; raises `TooLarge` if the event must not be parsed at all."""
    if len(text) > max(MAX_PARSED_EVENT_BYTES, limits.max_event_bytes):
        raise TooLarge(event_too_large_message(len(text), limits.max_event_bytes))
    needed = estimate_parsed_memory(text)
    if needed > MAX_EVENT_MEMORY_BYTES and parsed_memory_exceeds(text, MAX_EVENT_MEMORY_BYTES):
        raise too_many_values_error(index)
    return needed


def event_too_large_message(size: int, limit: int) -> str:
    return f"Event too large: {size} bytes, max size is {limit} bytes"


def too_many_values_error(index: int) -> TooLarge:
    return TooLarge(f"The event at index {index} has too many values within it")


def json_array_of(texts: Sequence[JsonText]) -> bytes:
    return b"[%b]" % b",".join(texts)


def parse_piece(body: bytes) -> BatchPiece:
    """The events of an array; raises one of `PARSE_ERRORS` if it is not strict JSON, or contains anything but
    objects.
    """
    events = orjson.loads(body)
    if type(events) is not list:
        raise NotStrictJson
    for event in events:
        if type(event) is not dict:
            raise NotStrictJson
    written, small = _serialize_events(events, body)
    packed = body if written == body else msgspec.json.format(body, indent=-1)
    # If a key is repeated, the serialized result has fewer colons than the body.
    if (packed != written or not small) and (
        count_colons(packed) != written.count(b":") or holds_too_long_integer(packed)
    ):
        raise NotStrictJson
    return BatchPiece(events, packed, body)


def _serialize_events(events: list[Event], body: bytes) -> tuple[bytes, bool]:
    """The events in the broker's spelling, and whether all integers are small enough for every parser to read them
    exactly.
    """
    nested: list[Any] = events
    # An event with few brackets cannot be nested too deeply, so it needs no lists around it. In a long body, counting
    # brackets would take longer than these lists.
    is_flat = len(body) < _BRACKET_COUNTING_BYTES and body.count(b"{") + body.count(b"[") <= strict_json.MAX_JSON_DEPTH
    spare = 0 if is_flat else _DEPTH_PADDING
    for _ in range(spare):
        nested = [nested]
    try:
        text, small = orjson.dumps(nested, option=orjson.OPT_STRICT_INTEGER), True
    except orjson.JSONEncodeError:
        text, small = orjson.dumps(nested), False
    return text[spare : len(text) - spare], small


class WorkBudget:
    """The steps that the work on one batch may take. `steps` is what remains of the granted steps.

    One thread computes at a time. So work beyond the free steps waits for a turn at long work, which the batch keeps
    until `close`. After each portion of steps, it is checked whether the client is still connected.
    """

    def __init__(self, max_steps: int, long_work: LongWorkQueue, is_client_gone: Callable[[], bool]) -> None:
        self.max_steps = max_steps
        free = min(max_steps, STEPS_WITHOUT_TURN)
        self.steps: RemainingSteps = [free]
        self._left = max_steps - free
        self._portion = STEPS_PER_EXTENSION
        self._turns = long_work
        self._is_client_gone = is_client_gone
        self._held: ExitStack | None = None

    def wait_for_turn(self) -> None:
        """Wait for the turn, unless this batch has it already; raise `TryLater` if that takes too long."""
        if self._held is None:
            held = ExitStack()
            held.enter_context(self._turns.wait_for_turn(self._is_client_gone))
            # This is set only here: if waiting fails, there is no turn to give back.
            self._held = held

    def grant_more_steps(self, *, doubled: bool = False) -> None:
        """Grant the next portion of steps. With `doubled`, portions have twice as many steps from now on, for events
        that need more at once.

        Raises `StepsExhausted` if there are none left, and `TryLater` if long work has to wait.
        """
        if self._left <= 0:
            raise StepsExhausted
        self.wait_for_turn()
        if self._is_client_gone():
            raise TryLater(WORK_ABANDONED_MESSAGE)
        self._portion *= 2 if doubled else 1
        self.steps[0] = min(self._portion, self._left)
        self._left -= self.steps[0]

    def spend_steps(self, number: int) -> None:
        """Spend steps of work that can continue where it stopped, so further portions are granted as needed."""
        self.steps[0] -= number
        while self.steps[0] < 0:
            missing = self.steps[0]
            self.grant_more_steps()
            self.steps[0] += missing

    def close(self) -> None:
        """Give the turn back, if there was one."""
        if self._held is not None:
            self._held.close()
            self._held = None


class PublishingStep(StrEnum):
    NONE = "none"
    VALIDATING = "validating"
    PARTITIONING = "partitioning"
    ENRICHING = "enriching"
    PUBLISHING = "publishing"


class PublishingStatus(StrEnum):
    SUBMITTED = "submitted"
    FAILED = "failed"
    ABORTED = "aborted"


class ItemResult(Struct, frozen=True, kw_only=True):
    """The result for one event. The members have the names and the order that clients expect; `duplicate_of` is the
    place of the stored event.
    """

    publishing_status: PublishingStatus
    detail: str = ""
    step: PublishingStep
    eid: str
    partition: str | None = None
    duplicate_of: DuplicateEvent | None = None


class BatchStatus(Enum):
    STORED = auto()
    REJECTED = auto()
    NOT_ALL_STORED = auto()


class BatchOutcome(Struct, frozen=True):
    """`items` are empty if everything is stored: then only the number of events matters. In a stored batch with
    duplicates, they say which of its events were already stored. `step` is the step that rejected the batch.
    """

    status: BatchStatus
    items: tuple[ItemResult, ...] = ()
    stored_count: int = 0
    step: PublishingStep = PublishingStep.PUBLISHING


class BatchRejected(Exception):
    """Raised by a step that rejects the batch, because of the event `index` or, without an index, as a whole.

    `prior_step` is the last step that the other events have passed; `partitions` are those chosen so far.
    """

    def __init__(
        self,
        step: PublishingStep,
        index: int | None = None,
        detail: str = "",
        *,
        prior_step: PublishingStep = PublishingStep.NONE,
        partitions: Sequence[int] = (),
    ) -> None:
        super().__init__(detail)
        self.step = step
        self.index = index
        self.detail = detail
        self.prior_step = prior_step
        self.partitions = partitions


def outcome_of_rejection(events: Sequence[Mapping[str, Any]], rejection: BatchRejected) -> BatchOutcome:
    """The outcome of a batch that is rejected, because of one of its events or as a whole."""
    items: list[ItemResult] = []
    for index, event in enumerate(events):
        at_fault = index == rejection.index
        came_to = rejection.index is not None and index <= rejection.index
        items.append(
            ItemResult(
                eid=eid_of(event),
                partition=str(rejection.partitions[index]) if index < len(rejection.partitions) else None,
                publishing_status=PublishingStatus.FAILED if at_fault else PublishingStatus.ABORTED,
                step=rejection.step if came_to else rejection.prior_step,
                detail=rejection.detail if at_fault else "",
            )
        )
    return BatchOutcome(BatchStatus.REJECTED, tuple(items), step=rejection.step)


def outcome_of_partial_append(
    events: Sequence[Mapping[str, Any]], partitions: Sequence[int], append_results: Mapping[int, AppendResult]
) -> BatchOutcome:
    """The outcome of a batch from which this append did not store all events: some failed or are duplicates."""
    items = tuple(
        _item_of_append(eid_of(event), partition, fate)
        for event, partition, fate in zip(events, partitions, fates_of_events(partitions, append_results), strict=True)
    )
    failed = any(each.publishing_status is PublishingStatus.FAILED for each in items)
    stored = sum(each.publishing_status is PublishingStatus.SUBMITTED and each.duplicate_of is None for each in items)
    return BatchOutcome(BatchStatus.NOT_ALL_STORED if failed else BatchStatus.STORED, items, stored)


def _item_of_append(eid: str, partition: int, fate: DuplicateEvent | AppendRefused | None) -> ItemResult:
    duplicate = fate if isinstance(fate, DuplicateEvent) else None
    first = None if duplicate is None else duplicate.first
    return ItemResult(
        eid=eid,
        partition=str(partition if first is None else first.partition),
        publishing_status=PublishingStatus.FAILED if isinstance(fate, AppendRefused) else PublishingStatus.SUBMITTED,
        step=PublishingStep.PUBLISHING,
        detail=fate.reason if isinstance(fate, AppendRefused) else "",
        duplicate_of=duplicate,
    )


def eid_of(event: Mapping[str, Any]) -> str:
    metadata = event.get("metadata")
    eid = metadata.get("eid") if isinstance(metadata, dict) else None
    return "" if eid is None else java_text(eid)
