"""The cursors that a client starts a stream from, as they stand in a header."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from nakadi.cursors.conversion import CursorError, CursorErrorKind
from nakadi.model.cursor import Cursor
from nakadi.model.outcomes import Malformed

BAD_SYNTAX = "incorrect syntax of X-nakadi-cursors header"


def cursors_in(header: str) -> tuple[Cursor, ...]:
    """The cursors of a header: `Malformed` if it is no list of objects, `CursorError` if a member is missing.

    Members that mean nothing here are stepped over, since clients send back whole cursors of other streams. Numbers are
    taken as they are spelled. What follows the list is not looked at.
    """
    return tuple(_cursor(each) for each in _objects(header))


def _objects(header: str) -> list[dict[str, Any]]:
    try:
        found, _ = DECODER.raw_decode(header.lstrip())
        # Half of a surrogate pair is no character: it could be neither looked up nor told.
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
    return Cursor(_text(members["partition"]), _text(members["offset"]))


def _text(scalar: str | bool) -> str:
    return scalar if isinstance(scalar, str) else str(scalar).lower()


def _no_number(word: str) -> NoReturn:
    raise ValueError(word)


DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_no_number)
