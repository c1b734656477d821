"""Cursors as clients write them. The module `positions` handles the positions for which cursors stand."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Literal

from msgspec import Struct

from nakadi.model.event_type import Cursor, Position

BEGIN: Literal["BEGIN"] = "BEGIN"

CURSOR_VERSION = "001"
PLAIN_OFFSET_PATTERN = re.compile(r"-?[0-9]+", re.ASCII)
VERSIONED_OFFSET_PATTERN = re.compile(rf"{CURSOR_VERSION}-([0-9a-fA-F]{{4}})-(-?[0-9]+)", re.ASCII)
DATE_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)
MAX_SAFE_OFFSET_DIGITS = 18

MIN_OFFSET = -(2**63)
MAX_OFFSET = 2**63 - 1


class CursorErrorKind(Enum):
    PARTITION_NOT_FOUND = auto()
    UNAVAILABLE = auto()
    NULL_OFFSET = auto()
    NULL_PARTITION = auto()
    INVALID_FORMAT = auto()
    INVALID_OFFSET = auto()


class CursorError(Exception):
    """Raised for a cursor that stands for no position. The text is for the client; the status depends on the
    endpoint.
    """

    def __init__(
        self,
        kind: CursorErrorKind,
        partition: str | None = None,
        offset: str | None = None,
        event_type: str | None = None,
    ) -> None:
        self.kind = kind
        self.partition = partition
        self.offset = offset
        self.event_type = event_type
        super().__init__(
            _cursor_error_text(
                kind, "null" if partition is None else partition, "null" if offset is None else offset, event_type
            )
        )


def _cursor_error_text(kind: CursorErrorKind, partition: str, offset: str, event_type: str | None) -> str:
    match kind:
        case CursorErrorKind.PARTITION_NOT_FOUND:
            return f"non existing partition {partition}"
        case CursorErrorKind.UNAVAILABLE:
            return (
                f"offset {offset} for partition {partition} event type {event_type} is unavailable as retention time "
                "of data elapsed. PATCH partition offset with valid and available offset"
            )
        case CursorErrorKind.NULL_OFFSET:
            return "offset must not be null"
        case CursorErrorKind.NULL_PARTITION:
            return "partition must not be null"
        case CursorErrorKind.INVALID_FORMAT:
            return f"invalid cursor format, partition: {partition} offset: {offset}"
        case CursorErrorKind.INVALID_OFFSET:
            return f"invalid offset {offset} for partition {partition}"


class NumberedOffset(Struct, frozen=True):
    """An offset with a number. Without `timeline_order`, it is in the oldest timeline. `digits` are as the client wrote
    them.
    """

    timeline_order: int | None
    digits: str

    @property
    def offset(self) -> int:
        """The number; if it does not fit into 64 bits, the nearest number that does."""
        if len(self.digits) <= MAX_SAFE_OFFSET_DIGITS:
            return int(self.digits)
        magnitude = self.digits.lstrip("-").lstrip("0")[: len(str(MAX_OFFSET)) + 1]
        number = int(magnitude or "0")
        return max(MIN_OFFSET - 1, -number) if self.digits.startswith("-") else min(MAX_OFFSET + 1, number)


# The forms of an offset. `BEGIN` is the position just before the oldest event that is still stored; a time is the
# position just before the first event that was stored then or later.
ParsedOffset = Literal["BEGIN"] | datetime | NumberedOffset


def parse_offset(cursor: Cursor) -> ParsedOffset:
    """Parse the offset of a cursor: `001-0001-000000000000000012`, `12`, `BEGIN` or a time. Raises `CursorError`."""
    versioned = VERSIONED_OFFSET_PATTERN.fullmatch(cursor.offset)
    if versioned:
        return NumberedOffset(int(versioned[1], 16), versioned[2])
    if cursor.offset.startswith(CURSOR_VERSION):
        # The error does not name the partition and the offset, as clients expect.
        raise CursorError(CursorErrorKind.INVALID_OFFSET)
    if cursor.offset.upper() == BEGIN:
        return BEGIN
    if PLAIN_OFFSET_PATTERN.fullmatch(cursor.offset):
        return NumberedOffset(None, _padded_digits(cursor.offset))
    time = _time_from_text(cursor.offset)
    if time is None:
        raise CursorError(CursorErrorKind.INVALID_OFFSET, cursor.partition, cursor.offset)
    return time


def offset_digits(position: Position, sent_offset: str = "") -> str:
    """The number of a position: in the spelling of `sent_offset` if that has the same number, otherwise as the broker
    publishes it.
    """
    try:
        parsed = parse_offset(Cursor("", sent_offset))
    except CursorError:
        parsed = None
    if isinstance(parsed, NumberedOffset) and parsed.offset == position.offset:
        return parsed.digits
    return str(position).split("-", 2)[2]


def offset_as_sent(position: Position, sent_offset: str) -> str:
    """The offset of a position, with the number in the client's spelling: `001-0001-5` is returned unchanged."""
    version, order, _ = str(position).split("-", 2)
    return f"{version}-{order}-{offset_digits(position, sent_offset)}"


def fits_64_bits(position: Position) -> bool:
    """Whether an event could have the number of this position."""
    return MIN_OFFSET <= position.offset <= MAX_OFFSET


def _padded_digits(digits: str) -> str:
    return digits if digits.startswith("-") else digits.zfill(MAX_SAFE_OFFSET_DIGITS)


def _time_from_text(text: str) -> datetime | None:
    if not DATE_TIME_PATTERN.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
