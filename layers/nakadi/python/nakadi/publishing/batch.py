"""From the body of a request to its events, as strictly as the contract asks and nearly as fast as a lenient parser.

The way through for what nearly every producer sends: parse, write down again, compare. A text that comes out as it went
in has no repeated key, no odd number and no needless blank. Only where it comes out differently is it looked at closer,
and only a text that is wrong is read by the strict parser, which can tell what is wrong and where.

Parsed JSON takes five to fifty times the memory of its text. So a long body is never parsed as a whole: it is cut into
the texts of its events, which are read a piece at a time, and once more whenever somebody goes through them.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, overload

import msgspec
import orjson

from nakadi.model.outcomes import Malformed, TooLarge, TryLater
from nakadi.schemas import strict_json
from nakadi.schemas.strict_json import OBJECT, Text, exceeds, parsed_memory
from nakadi.schemas.values import Exhausted, Steps
from nakadi.turns import GIVEN_UP, Turns

Event = dict[str, Any]
LongWork = Callable[[], AbstractContextManager[None]]

# Values can be written down up to 254 levels deep. Lists around the batch take up those beyond the strict limit.
_WRITABLE_DEPTH = 254
_SPARE_DEPTH = _WRITABLE_DEPTH - strict_json.MAX_DEPTH - 1

_BLANK = b" \t\r\n"
_BRACE = ord("{")
_FILLING = re.compile(rb"[ \t\r\n,]*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)

# The next brace outside of strings; objects that hold no other are stepped over. A backslash hides what follows it,
# wherever it stands.
_OTHERS = rb'[^{}"\\]++|\\.|"(?:[^"\\]|\\.)*+"'
_TO_BRACE = re.compile(rb"(?:%b|\{(?:%b)*+\})*+[{}]" % (_OTHERS, _OTHERS), re.DOTALL)
# Bytes that do not go on with a character of UTF-8, and bytes that do not begin one of four bytes.
_BEGINNINGS = bytes({*range(256)} - {*range(0x80, 0xC0)})
_NOT_THE_LONGEST = bytes(range(0xF0))
_ESCAPED_COLON = re.compile(rb"(?<!\\)(?:\\\\)*+\\u003[aA]")

# An integer of 19 digits may or may not fit 64 bits. In a text without blanks, these symbols stand around a number.
_NINETEEN_DIGITS = b"0" * 19
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_INTEGER = re.compile(rb"[:\[,](-?)([0-9]{19,})(?=[,\]}])")
_LARGEST = {b"": b"9223372036854775807", b"-": b"9223372036854775808"}

# An event this large would hardly be stored, and the strict parser takes a second for it: long enough for a message.
_MOST_EXPLAINED = 1_000_000

# A body up to this long is parsed at once whatever it holds: at worst that takes 6 MB.
SHORT_BODY = 128 * 1024
# A longer one is parsed in pieces of this many bytes, and of this much memory by the estimate below.
PIECE_BYTES = 1024 * 1024
PIECE_MEMORY = 8 * 1024 * 1024
# An event that would take more than this, once parsed, is refused: it has 60 000 objects, say, or 280 000 numbers.
EVENT_MEMORY = 16 * 1024 * 1024
# An event that is too large to be stored has an answer of its own up to this size; beyond it, it is not even looked at.
MOST_READ = 4 * 1024 * 1024
_MOST_BRACES = 2 * EVENT_MEMORY // OBJECT
# Finding the events in a body takes about a second for so many objects, if it cannot be done in the fast way.
MOST_OBJECTS = 1_000_000
# What there is of each event beside its text and its parsed form: a view of the text at first, then a record.
_EVENT_MEMORY = 500
# Where objects are smaller than this on average, events are looked for one by one. Each that is cut out has 72 bytes.
LEAST_OBJECT = 24

_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


# About two seconds and a half at worst. Ordinary events take between 0.1 and 3 steps a byte.
MOST_STEPS = 50_000_000


class Unfit(Exception):
    """Raised when a body is JSON, and no strict JSON or no array of objects."""


NOT_READ = (Unfit, orjson.JSONDecodeError, orjson.JSONEncodeError, msgspec.MsgspecError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How many events a batch may have, how large one of them may be, and how many steps all of them may take."""

    events: int = 10_000
    event_bytes: int = 999_000
    steps: int = MOST_STEPS


DEFAULT_LIMITS = BatchLimits()


class Batch(Protocol):
    """The events of a request in their order."""

    @property
    def events(self) -> Sequence[Event]:
        """All of them."""

    def pieces(self) -> Iterator[Piece]:
        """All of them, some at a time."""

    def sizes_above(self, limit: int) -> Mapping[int, int]:
        """The sizes, as received, of the events that are larger than this."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Events that follow each other: a short batch, or a part of a long one.

    `spelled` has the text, without blanks, of those events that we would have written differently, by their index.
    """

    events: Sequence[Event]
    spelled: Mapping[int, bytes]
    received: bytes

    def pieces(self) -> Iterator[Piece]:
        yield self

    def sizes_above(self, limit: int) -> Mapping[int, int]:
        return _sizes_above(limit, _ARRAY.decode(self.received)) if len(self.received) > limit else {}

    def text(self, index: int) -> bytes:
        """An event as it came, less the blanks."""
        return self.spelled.get(index) or _dumped(self.events[index])

    def text_with(self, index: int, member: str, value: Mapping[str, Any]) -> bytes:
        """The same with another object in the place of one that it has as a member."""
        spelled = self.spelled.get(index)
        if spelled is None:
            return _dumped({**self.events[index], member: value})
        old = orjson.dumps(self.events[index][member])
        return _with_member(spelled, member.encode(), old, orjson.dumps(value))


class LongBatch:
    """The texts of events, parsed a piece at a time, and anew whenever somebody goes through them."""

    def __init__(self, texts: Sequence[Text], limits: BatchLimits) -> None:
        self.texts = texts
        self._bounds = list(_bounds(texts, limits))

    @property
    def is_one_piece(self) -> bool:
        return len(self._bounds) <= 1

    @property
    def events(self) -> Sequence[Event]:
        # Made anew each time: two that hold each other would keep the body in memory until garbage is collected.
        return _Events(self)

    def pieces(self) -> Iterator[Piece]:
        return map(_read, self.arrays())

    def arrays(self) -> Iterator[bytes]:
        """The text of each piece."""
        return (_array_of(self.texts[first:last]) for first, last in self._bounds)

    def sizes_above(self, limit: int) -> Mapping[int, int]:
        return _sizes_above(limit, self.texts)


class _Events(Sequence[Event]):
    def __init__(self, batch: LongBatch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch.texts)

    def __iter__(self) -> Iterator[Event]:
        for array in self._batch.arrays():
            # Not kept in a variable: it has to be gone before the next piece is parsed.
            yield from orjson.loads(array)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [orjson.loads(text) for text in self._batch.texts[index]]
        event: Event = orjson.loads(self._batch.texts[index])
        return event


def read(body: bytes, limits: BatchLimits = DEFAULT_LIMITS, long_work: LongWork = nullcontext) -> Batch:
    """The events that a body holds; raises `Malformed` or `TooLarge`. Work that may take a second is `long_work`."""
    try:
        return _taken_as_sent(body, limits)
    except NOT_READ:
        with nullcontext() if len(body) <= SHORT_BODY else long_work():
            texts = list(_strictly_cut(body, limits))
    try:
        return _batch_of(texts, limits)
    except NOT_READ as error:
        raise _unreadable(str(error)) from error


def memory_needed(body: bytes, limits: BatchLimits = DEFAULT_LIMITS) -> int:
    """About how much memory is needed to read a body and to store its events, beside the body itself, at most."""
    if len(body) <= SHORT_BODY:
        return 10 * len(body)  # what is usual; counting would take longer than the little that it may be short of
    events = min(body.count(b"{"), limits.events)
    parsed = min(4 * len(body) + parsed_memory(body), 4 * MOST_READ + EVENT_MEMORY)
    return 3 * len(body) + _EVENT_MEMORY * events + parsed


def _taken_as_sent(body: bytes, limits: BatchLimits) -> Batch:
    if _fits_a_piece(body):
        piece = _read(body)
        _check_number(len(piece.events), limits)
        return piece
    if body.count(b"{") > max(limits.events, len(body) // LEAST_OBJECT):
        # If they were all events, cutting them out at once would take several times the memory of the body.
        raise Unfit
    raws = _ARRAY.decode(body)
    _check_number(len(raws), limits)
    texts = [memoryview(raw) for raw in raws]
    if not all(text[0] == _BRACE for text in texts):
        raise Unfit
    return _batch_of(texts, limits)


def _fits_a_piece(body: bytes) -> bool:
    """Whether so many bytes may be parsed at once."""
    if len(body) <= SHORT_BODY:
        return True
    return len(body) <= PIECE_BYTES and parsed_memory(body) <= PIECE_MEMORY


def _batch_of(texts: Sequence[Text], limits: BatchLimits) -> Batch:
    """A batch of these events; raises one of `NOT_READ` if they are not all strict JSON."""
    batch = LongBatch(texts, limits)
    if batch.is_one_piece:
        return _read(_array_of(texts))
    for array in batch.arrays():
        _read(array)
    return batch


def _bounds(texts: Sequence[Text], limits: BatchLimits) -> Iterator[tuple[int, int]]:
    """Where the pieces begin and end."""
    first = size = memory = 0
    for index, text in enumerate(texts):
        length = len(text)
        needed = _event_memory(index, text, limits)
        if index > first and (size + length > PIECE_BYTES or memory + needed > PIECE_MEMORY):
            yield first, index
            first, size, memory = index, 0, 0
        size += length
        memory += needed
    if texts:
        yield first, len(texts)


def _event_memory(index: int, text: Text, limits: BatchLimits) -> int:
    if len(text) > max(MOST_READ, limits.event_bytes):
        raise TooLarge(f"Event too large: {len(text)} bytes, max size is {limits.event_bytes} bytes")
    needed = parsed_memory(text)
    if needed > EVENT_MEMORY and exceeds(text, EVENT_MEMORY):
        raise _too_many_values(index)
    return needed


def _too_many_values(number: int) -> TooLarge:
    return TooLarge(f"The event at index {number} has too many values within it")


def _check_number(events: int, limits: BatchLimits) -> None:
    if events > limits.events:
        raise TooLarge(f"The batch has more than {limits.events} events")


def _array_of(texts: Sequence[Text]) -> bytes:
    return b"[%b]" % b",".join(texts)


def _parsed(array: bytes) -> list[Event]:
    events = orjson.loads(array)
    if not isinstance(events, list) or not all(type(event) is dict for event in events):
        raise Unfit
    return events


def _read(body: bytes) -> Piece:
    events = _parsed(body)
    written, small = _written(events)
    if written == body and small:
        return Piece(events, {}, body)
    packed = msgspec.json.format(body, indent=-1)
    if packed == written and small:
        return Piece(events, {}, body)
    return Piece(events, dict(_spelled_otherwise(events, packed)), body)


def _written(events: list[Event]) -> tuple[bytes, bool]:
    """The events as we would write them, and whether all their integers are small enough to be no matter of doubt."""
    nested: list[Any] = events
    for _ in range(_SPARE_DEPTH):
        nested = [nested]
    try:
        text, small = orjson.dumps(nested, option=orjson.OPT_STRICT_INTEGER), True
    except orjson.JSONEncodeError:
        text, small = orjson.dumps(nested), False
    return text[_SPARE_DEPTH:-_SPARE_DEPTH], small


def _spelled_otherwise(events: list[Event], packed: bytes) -> Iterator[tuple[int, bytes]]:
    for index, (event, raw) in enumerate(zip(events, _ARRAY.decode(packed), strict=True)):
        written = orjson.dumps(event)
        text = bytes(raw)
        if _colons(text) != written.count(b":") or _holds_too_long_integer(text):
            raise Unfit
        if text != written:
            yield index, text


def _colons(text: bytes) -> int:
    """How many colons an object has, in its strings too. With each repeated key, a parser loses one at least."""
    escaped = len(_ESCAPED_COLON.findall(text)) if b"\\u003" in text else 0
    return text.count(b":") + escaped


def _holds_too_long_integer(text: bytes) -> bool:
    if _NINETEEN_DIGITS not in text.translate(_DIGITS):
        return False
    found = _LONG_INTEGER.findall(_STRING.sub(b'""', text))
    return any(len(digits) > 19 or digits > _LARGEST[sign] for sign, digits in found)


def _dumped(event: Event) -> bytes:
    """The event's text, and no more: the buffer that it was written into is longer, and stays in memory with it."""
    return memoryview(orjson.dumps(event)).tobytes()


def _sizes_above(limit: int, texts: Iterable[Text | msgspec.Raw]) -> Mapping[int, int]:
    sizes = (memoryview(text).nbytes for text in texts)
    return {index: size for index, size in enumerate(sizes) if size > limit}


def _with_member(text: bytes, name: bytes, old: bytes, new: bytes) -> bytes:
    """The text of an object, without blanks, in which one member, an object too, is another one."""
    first = b'{"%b":%b' % (name, old)
    if text.startswith(first):
        return b'{"%b":%b%b' % (name, new, text[len(first) :])
    start, end = _value_in(text, name.decode())
    return text[:start] + new + text[end:]


def _value_in(text: bytes, name: str) -> tuple[int, int]:
    """Where in the text of an object the value of a member stands."""
    end = 0
    for key, value in _OBJECT.decode(text).items():
        string = _STRING.match(text, end + 1)
        assert string is not None
        start = string.end() + 1
        end = start + len(bytes(value))
        if key == name:
            return start, end
    raise KeyError(name)


def _strictly_cut(body: bytes, limits: BatchLimits) -> Iterator[Text]:
    """The texts of the events, with any commas between them; raises when one of them is not in order."""
    _check_encoding(body)
    first, last = _array_in(body)
    view = memoryview(body)
    at = _past_filling(body, first + 1)
    number = objects = 0
    while at < last:
        _check_number(number + 1, limits)
        end = _end_of_event(body, at, last, number, limits)
        yield view[at:end]
        number, objects = number + 1, objects + body.count(b"{", at, end)
        if objects > MOST_OBJECTS:
            raise TooLarge(f"The events of the batch have more than {MOST_OBJECTS} objects within them")
        at = _past_filling(body, end)


def _check_encoding(body: bytes) -> None:
    """A bit at a time: decoded, a body may take four times the memory."""
    if body.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(body), PIECE_BYTES):
        waiting = len(decoder.getstate()[0])
        try:
            decoder.decode(body[at : at + PIECE_BYTES], final=at + PIECE_BYTES >= len(body))
        except UnicodeDecodeError as error:
            raise _unreadable(f"Not in UTF-8 at position {at - waiting + error.start}") from error


def _array_in(body: bytes) -> tuple[int, int]:
    """Where the brackets around the events are."""
    first = len(body) - len(body.lstrip(_BLANK))
    last = len(body.rstrip(_BLANK)) - 1
    if first > last or body[first : first + 1] != b"[":
        raise _unreadable(f"Array of events should start with [ at position {_units(body, first)}")
    if first == last or body[last : last + 1] != b"]":
        raise _unreadable(f"Array of events should end with ] at position {_units(body, last)}")
    return first, last


def _units(body: bytes, at: int) -> int:
    """How many UTF-16 units stand before this byte, which begins a character: two for each of the longest ones."""
    before = body[:at]
    return at - len(before.translate(None, _BEGINNINGS)) + len(before.translate(None, _NOT_THE_LONGEST))


def _past_filling(body: bytes, at: int) -> int:
    """Blanks, and any number of commas: producers have left out some, and sent some too many."""
    filling = _FILLING.match(body, at)
    assert filling is not None
    return filling.end()


def _end_of_event(body: bytes, at: int, last: int, number: int, limits: BatchLimits) -> int:
    """The place behind the event that begins here, in a list that is closed at `last`."""
    if body[at] != _BRACE:
        raise _unreadable(f"Illegal character at position {_units(body, at)}")
    end = _closing_brace(body, at, last, number)
    if end is None:
        # The event is not closed: the bracket of the list is what does not belong into it.
        return at + _explained(body[at : last + 1][:_MOST_EXPLAINED])
    event = body[at:end]
    _event_memory(number, event, limits)
    return end if _is_event(event) else at + _explained(event[:_MOST_EXPLAINED])


def _closing_brace(body: bytes, at: int, last: int, number: int) -> int | None:
    """The place behind the brace that closes the one here, if one does before `last` and not too deep within it."""
    depth, at = 1, at + 1
    for _ in range(_MOST_BRACES):
        brace = _TO_BRACE.match(body, at, last)
        if brace is None or depth > strict_json.MAX_DEPTH:
            return None
        at = brace.end()
        depth += 1 if body[at - 1 : at] == b"{" else -1
        if not depth:
            return at
    raise _too_many_values(number)


def _is_event(text: bytes) -> bool:
    try:
        _read(b"[%b]" % text)
    except NOT_READ:
        return False
    return True


def _explained(event: bytes) -> int:
    """What is wrong with an event; or where it ends, if nothing is."""
    text = event.decode(errors="ignore")  # it may have been cut in the middle of a character
    try:
        end = strict_json.read(text)[1]
    except strict_json.StrictJsonError as error:
        raise _unreadable(str(error)) from error
    return len(text[:end].encode())


def _unreadable(reason: str) -> Malformed:
    return Malformed(f"Error occurred when parsing event(s). {reason}")


# The work that a batch may cause --------------------------------------------------------------------------------------


# A hundredth of a second at worst, which is enough for thousands of ordinary events: so much is done without a turn.
FREE_STEPS = 200_000
# Once for each of these portions it is asked whether the work is still wanted.
PORTION = 1_000_000


class Effort:
    """What a batch may still take. `steps` are those for the moment; who runs out of them asks to `extend` them.

    Long work waits for its turn, which it keeps until the block is left, and looks now and then whether the client is
    still there. `is_long` says so from the beginning.
    """

    def __init__(self, most: int, turns: Turns, gone: Callable[[], bool], *, is_long: bool = False) -> None:
        self.most = most
        self.steps: Steps = [min(most, FREE_STEPS)]
        self._left = most - self.steps[0]
        self._portion = PORTION
        self._turns = turns
        self._gone = gone
        self._held = ExitStack()
        self._is_long = is_long
        self._has_turn = False

    def take_turn(self) -> None:
        """Wait for the turn, unless it is there already; raise `TryLater` if that takes too long."""
        if not self._has_turn:
            self._held.enter_context(self._turns.turn(self._gone))
            self._has_turn = True

    def extend(self, *, larger: bool = False) -> None:
        """More steps; `larger` makes it twice as many from now on, for what did not end with so many.

        Raises `Exhausted` when there are none left, and `TryLater` when this is no time for long work.
        """
        if self._left <= 0:
            raise Exhausted
        self.take_turn()
        if self._gone():
            raise TryLater(GIVEN_UP)
        self._portion *= 2 if larger else 1
        self.steps[0] = min(self._portion, self._left)
        self._left -= self.steps[0]

    def spend(self, number: int) -> None:
        """Account for work that goes on where it was when there are more steps."""
        self.steps[0] -= number
        while self.steps[0] < 0:
            missing = self.steps[0]
            self.extend()
            self.steps[0] += missing

    def __enter__(self) -> Self:
        if self._is_long:
            self.take_turn()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()
