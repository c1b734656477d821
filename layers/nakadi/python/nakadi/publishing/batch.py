"""From the body of a request to its events, as strictly as the contract asks and nearly as fast as a lenient parser.

The way through for what nearly every producer sends: parse, write down again, compare. A text that comes out as it went
in has no repeated key, no odd number and no needless blank. Only where it comes out differently is it looked at closer,
and only a text that is wrong is read by the strict parser, which can tell what is wrong and where.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from nakadi.model.outcomes import Malformed
from nakadi.schemas import strict_json
from nakadi.schemas.strict_json import units

Event = dict[str, Any]

# Values can be written down up to 254 levels deep. Lists around the batch take up those beyond the strict limit.
_WRITABLE_DEPTH = 254
_SPARE_DEPTH = _WRITABLE_DEPTH - strict_json.MAX_DEPTH - 1

_BLANK = " \t\r\n"
_FILLING = re.compile(r"[ \t\r\n,]*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')

# A backslash hides what follows it, wherever it stands.
_TO_BRACE = re.compile(r'(?:[^{}"\\]++|\\.|"(?:[^"\\]|\\.)*+")*+[{}]', re.DOTALL)
_ESCAPED_COLON = re.compile(rb"(?<!\\)(?:\\\\)*+\\u003[aA]")

# An integer of 19 digits may or may not fit 64 bits. In a text without blanks, these symbols stand around a number.
_NINETEEN_DIGITS = b"0" * 19
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_INTEGER = re.compile(rb"[:\[,](-?)([0-9]{19,})(?=[,\]}])")
_LARGEST = {b"": b"9223372036854775807", b"-": b"9223372036854775808"}

# An event this large would hardly be stored, and the strict parser takes a second for it: long enough for a message.
_MOST_EXPLAINED = 1_000_000

_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Unfit(Exception):
    """Raised when a body is JSON, and no strict JSON or no array of objects."""


NOT_READ = (Unfit, orjson.JSONDecodeError, orjson.JSONEncodeError, msgspec.MsgspecError)


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of a request in their order.

    `spelled` has the text, without blanks, of those events that we would have written differently, by their index.
    """

    events: Sequence[Event]
    spelled: Mapping[int, bytes]
    received: bytes

    def sizes_above(self, limit: int) -> Mapping[int, int]:
        """The sizes, as received, of the events that are larger than this."""
        if len(self.received) <= limit:
            return {}
        sizes = (len(text) for text in _texts(self.received))
        return {index: size for index, size in enumerate(sizes) if size > limit}

    def text(self, index: int) -> bytes:
        """An event as it came, less the blanks."""
        return self.spelled.get(index) or orjson.dumps(self.events[index])

    def text_with(self, index: int, member: str, value: Mapping[str, Any]) -> bytes:
        """The same with another object in the place of one that it has as a member."""
        spelled = self.spelled.get(index)
        if spelled is None:
            return orjson.dumps({**self.events[index], member: value})
        old = orjson.dumps(self.events[index][member])
        return _with_member(spelled, member.encode(), old, orjson.dumps(value))


def read(body: bytes) -> Batch:
    """The events that a body holds; raises `Malformed`."""
    try:
        return _read(body)
    except NOT_READ:
        strict = _strictly(body)
    try:
        return _read(strict)
    except NOT_READ as error:
        raise _unreadable(str(error)) from error


def _read(body: bytes) -> Batch:
    events = orjson.loads(body)
    if not isinstance(events, list) or not all(type(event) is dict for event in events):
        raise Unfit
    written, small = _written(events)
    if written == body and small:
        return Batch(events, {}, body)
    packed = msgspec.json.format(body, indent=-1)
    if packed == written and small:
        return Batch(events, {}, body)
    return Batch(events, dict(_spelled_otherwise(events, packed)), body)


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
    for index, (event, text) in enumerate(zip(events, _texts(packed), strict=True)):
        written = orjson.dumps(event)
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


def _texts(array: bytes) -> list[bytes]:
    return [bytes(text) for text in _ARRAY.decode(array)]


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


def _strictly(body: bytes) -> bytes:
    """The body with one comma between events, which is more than the contract asks; raises when it is not in order."""
    text = _decoded(body)
    first, last = _array_in(text)
    events: list[str] = []
    at = _past_filling(text, first + 1)
    while at < last:
        end = _end_of_event(text, at, last)
        events.append(text[at:end])
        at = _past_filling(text, end)
    return f"[{','.join(events)}]".encode()


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise _unreadable(f"Not in UTF-8 at position {error.start}") from error


def _array_in(text: str) -> tuple[int, int]:
    """Where the brackets around the events are."""
    first = len(text) - len(text.lstrip(_BLANK))
    last = len(text.rstrip(_BLANK)) - 1
    if first > last or text[first] != "[":
        raise _unreadable(f"Array of events should start with [ at position {units(text[:first])}")
    if first == last or text[last] != "]":
        raise _unreadable(f"Array of events should end with ] at position {units(text[:last])}")
    return first, last


def _past_filling(text: str, at: int) -> int:
    """Blanks, and any number of commas: producers have left out some, and sent some too many."""
    filling = _FILLING.match(text, at)
    assert filling is not None
    return filling.end()


def _end_of_event(text: str, at: int, last: int) -> int:
    """The place behind the event that begins here, in a list that is closed at `last`."""
    if text[at] != "{":
        raise _unreadable(f"Illegal character at position {units(text[:at])}")
    end = _closing_brace(text, at, last)
    if end is None:
        # The event is not closed: the bracket of the list is what does not belong into it.
        return at + _explained(text[at : last + 1])
    return end if _is_event(text[at:end]) else at + _explained(text[at:end])


def _closing_brace(text: str, at: int, last: int) -> int | None:
    """The place behind the brace that closes the one here, if one does before `last`."""
    depth = 0
    while brace := _TO_BRACE.match(text, at, last):
        at = brace.end()
        depth += 1 if text[at - 1] == "{" else -1
        if not depth:
            return at
    return None


def _is_event(text: str) -> bool:
    try:
        _read(f"[{text}]".encode())
    except NOT_READ:
        return False
    return True


def _explained(event: str) -> int:
    """What is wrong with an event; or where it ends, if nothing is."""
    try:
        return strict_json.read(event[:_MOST_EXPLAINED])[1]
    except strict_json.StrictJsonError as error:
        raise _unreadable(str(error)) from error


def _unreadable(reason: str) -> Malformed:
    return Malformed(f"Error occurred when parsing event(s). {reason}")
