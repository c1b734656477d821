"""From a cursor as a client wrote it to what it says; no event type is looked at here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto

from nakadi.model.cursor import Cursor, Position

BEGIN = "BEGIN"

VERSION = "001"
NUMBER = re.compile(r"-?[0-9]+", re.ASCII)
ORDER = re.compile(r"[0-9a-fA-F]{4}")
DATE_TIME = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
    re.ASCII | re.IGNORECASE,
)
DIGITS = 18

SMALLEST = -(2**63)
GREATEST = 2**63 - 1


class CursorErrorKind(Enum):
    PARTITION_NOT_FOUND = auto()
    UNAVAILABLE = auto()
    NULL_OFFSET = auto()
    NULL_PARTITION = auto()
    INVALID_FORMAT = auto()
    INVALID_OFFSET = auto()


class CursorError(Exception):
    """Raised when a cursor does not lead to a place; its text is what clients are told, whatever the status."""

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
            _text(kind, "null" if partition is None else partition, "null" if offset is None else offset, event_type)
        )


def _text(kind: CursorErrorKind, partition: str, offset: str, event_type: str | None) -> str:
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


@dataclass(frozen=True, slots=True)
class Begin:
    """Just before the oldest event that is still there."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Just before the first event stored at this time or later."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Numbered:
    """A number in a timeline; `order` is None for the first timeline there ever was. `digits` are as they came."""

    order: int | None
    digits: str

    @property
    def offset(self) -> int:
        """The number. One that does not fit 64 bits becomes the nearest that does not."""
        magnitude = self.digits.lstrip("-").lstrip("0")[: len(str(GREATEST)) + 1]
        number = int(magnitude or "0")
        return max(SMALLEST - 1, -number) if self.digits.startswith("-") else min(GREATEST + 1, number)


Place = Begin | Moment | Numbered


def parsed(cursor: Cursor) -> Place:
    """What an offset says: `001-0001-000000000000000012`, `12`, `BEGIN` or a point in time."""
    if cursor.offset.startswith(VERSION):
        return _versioned(cursor.offset)
    if cursor.offset.upper() == BEGIN:
        return Begin()
    if NUMBER.fullmatch(cursor.offset):
        return Numbered(None, _padded(cursor.offset))
    moment = _moment(cursor.offset)
    if moment is None:
        raise CursorError(CursorErrorKind.INVALID_OFFSET, cursor.partition, cursor.offset)
    return Moment(moment)


def digits(position: Position, sent: str = "") -> str:
    """The number of a position as a client knows it: as it was sent if it was, else as it is published."""
    try:
        place = parsed(Cursor("", sent))
    except CursorError:
        place = None
    if isinstance(place, Numbered) and place.offset == position.offset:
        return place.digits
    return str(position).split("-", 2)[2]


def unmoved(position: Position, sent: str) -> str:
    """A position as an offset whose number is spelt as it was sent: `001-0001-5` stays what it is."""
    version, order, _ = str(position).split("-", 2)
    return f"{version}-{order}-{digits(position, sent)}"


def fits(position: Position) -> bool:
    """Whether a position's number is one that an event could have."""
    return SMALLEST <= position.offset <= GREATEST


def _versioned(offset: str) -> Numbered:
    version, order, digits = [*offset.split("-", 2), "", ""][:3]
    if version == VERSION and ORDER.fullmatch(order) and NUMBER.fullmatch(digits):
        return Numbered(int(order, 16), digits)
    # Clients know this error without names in it.
    raise CursorError(CursorErrorKind.INVALID_OFFSET)


def _padded(digits: str) -> str:
    return digits if digits.startswith("-") else digits.zfill(DIGITS)


def _moment(text: str) -> datetime | None:
    if not DATE_TIME.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
