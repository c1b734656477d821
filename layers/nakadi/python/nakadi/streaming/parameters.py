"""What a client asks of a stream, and what it gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from msgspec import Struct

from nakadi.event_types.cursors import CursorError, CursorErrorKind
from nakadi.model.event_type import Cursor
from nakadi.model.outcomes import Invalid, Malformed

DEFAULT_FLUSH_SECONDS = 30
LONGEST_SECONDS = 4200

# Streams that were opened together should not all come back together.
DEFAULT_SECONDS = (3000, 4199)

PickSeconds = Callable[[int, int], int]
"""A whole number between two, both included: `random.randint` outside of tests."""


class StreamParameters(Struct, frozen=True, kw_only=True):
    """The parameters of a request; None for those that it leaves out."""

    batch_limit: int | None = None
    stream_limit: int | None = None
    batch_flush_timeout: int | None = None
    stream_timeout: int | None = None
    stream_keep_alive_limit: int | None = None


class StreamLimits(Struct, frozen=True, kw_only=True):
    """How a stream goes. Times are in seconds; a limit of 0 is none."""

    batch_limit: int = 1
    stream_limit: int = 0
    flush_seconds: float = DEFAULT_FLUSH_SECONDS
    stream_seconds: float = LONGEST_SECONDS
    keep_alive_limit: int = 0


def limits_of(
    asked: StreamParameters,
    pick_seconds: PickSeconds,
    longest_seconds: int | None = None,
    longest_silence_seconds: int | None = None,
) -> StreamLimits:
    """The limits of a stream, or `Invalid` for the first rule that they break.

    `longest_seconds` is what the place where we run allows a response, and `longest_silence_seconds` a pause in it: a
    stream ends or speaks by itself before, and a client that asked for more time is not refused for that.
    """
    batch_limit = 1 if asked.batch_limit is None else asked.batch_limit
    stream_limit = asked.stream_limit or 0
    flush = asked.batch_flush_timeout or DEFAULT_FLUSH_SECONDS
    seconds = _stream_seconds(asked.stream_timeout, flush, pick_seconds)
    _require(stream_limit == 0 or stream_limit >= batch_limit, "stream_limit can't be lower than batch_limit")
    _require(seconds >= flush, "stream_timeout can't be lower than batch_flush_timeout")
    _require(batch_limit >= 1, "batch_limit can't be lower than 1")
    _require(flush >= 0, "batch_flush_timeout can't be lower than 0")
    _require((asked.stream_keep_alive_limit or 0) >= 0, "stream_keep_alive_limit can't be lower than 0")
    return StreamLimits(
        batch_limit=batch_limit,
        stream_limit=stream_limit,
        flush_seconds=flush if longest_silence_seconds is None else min(flush, longest_silence_seconds),
        stream_seconds=shortened_seconds(seconds, longest_seconds, pick_seconds),
        keep_alive_limit=asked.stream_keep_alive_limit or 0,
    )


def shortened_seconds(seconds: int, longest: int | None, pick_seconds: PickSeconds) -> int:
    """How long a stream lasts where a response may take so long at most.

    Streams that would all last that long are given different ends, in the last quarter of it: opened together after a
    deployment, they would else come back together again and again.
    """
    if longest is None or seconds <= longest * 3 // 4:
        return seconds
    return min(seconds, pick_seconds(longest * 3 // 4, longest))


def _stream_seconds(asked: int | None, flush: int, pick_seconds: PickSeconds) -> int:
    if asked is not None and 0 < asked <= LONGEST_SECONDS:
        return asked
    shortest, longest = DEFAULT_SECONDS
    # A time of our choosing must not be what a flush timeout is refused for, as long as one can be chosen that is not.
    return pick_seconds(min(max(shortest, flush), longest), longest)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Invalid(otherwise)


# Cursors --------------------------------------------------------------------------------------------------------------


BAD_SYNTAX = "incorrect syntax of X-nakadi-cursors header"


def parse_cursors_header(header: str) -> tuple[Cursor, ...]:
    """The cursors of a header: `Malformed` if it is no list of objects, `CursorError` if a member is missing.

    Members that mean nothing here are stepped over, since clients send back whole cursors of other streams. Numbers are
    taken as they are spelled. What follows the list is not looked at.
    """
    return tuple(_cursor(each) for each in _objects_in_header(header))


def _objects_in_header(header: str) -> list[dict[str, Any]]:
    try:
        found, _ = DECODER.raw_decode(header.lstrip())
        # Half of a surrogate pair is no character: it could be neither looked up nor put into a message.
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Malformed(BAD_SYNTAX) from error
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise Malformed(BAD_SYNTAX)
    for member in ("partition", "offset"):
        if any(isinstance(each.get(member), dict | list) for each in found):
            raise Malformed(BAD_SYNTAX)
    return found


def _cursor(members: dict[str, Any]) -> Cursor:
    if members.get("partition") is None:
        raise CursorError(CursorErrorKind.NULL_PARTITION)
    if members.get("offset") is None:
        raise CursorError(CursorErrorKind.NULL_OFFSET)
    return Cursor(_scalar_text(members["partition"]), _scalar_text(members["offset"]))


def _scalar_text(scalar: str | bool) -> str:
    return scalar if isinstance(scalar, str) else str(scalar).lower()


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(word)


DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse_constant)
