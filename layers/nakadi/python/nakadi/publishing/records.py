"""From the events of a batch to records: the broker's additions are inserted into the received text.

One replacement in the joined text of a partition's events inserts the metadata that they share. The metadata of events
is parsed only if it may have members of which the broker must take account.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat

import msgspec
import orjson
from msgspec import UNSET, Struct
from msgspec.structs import replace

from nakadi.model.authorization import Attribute
from nakadi.model.cloud_events import TRACE_MEMBER
from nakadi.model.event_type import Category, EventType
from nakadi.model.events import Record, RecordLines
from nakadi.publishing.batch import ARRAY_DECODER, Batch, BatchPiece, BatchRejected, PublishingStep, Row
from nakadi.publishing.enrichment import BatchOrigin, MetadataStamp, metadata_stamp
from nakadi.schemas.strict_json import JSON_STRING_PATTERN

_METADATA_MEMBER_PREFIX = b'"metadata":{'
# The beginnings of escapes of letters, which could spell the name `metadata`.
_ESCAPED_LETTER_PREFIXES = (b"\\u006", b"\\u007")
_SAID_PATHS = (("metadata", "event_type"), ("metadata", "flow_id"), ("metadata", "partition"))
_TRACE_PATH = ("metadata", TRACE_MEMBER)

_ENCODER = msgspec.json.Encoder()
_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RECORD_FROM_TUPLE: Callable[[tuple[bytes, str | None, Attribute | None, str | None]], Record] = partial(
    tuple.__new__, Record
)

_Lines = tuple[Sequence[int], bytes]
"""The indexes of events in their piece, and their texts, one a line without a last break."""


class RecordMaker(Struct, frozen=True, kw_only=True):
    """Makes the records of a batch: `keys` and `owners` are the keys and owners of its events, if they have any."""

    partitions: Sequence[int]
    stamps: Stamps | None = None
    keys: Sequence[str] | None = None
    owners: Sequence[Attribute | None] | None = None
    directed_to: str | None = None

    def make_records(self, batch: Batch) -> Mapping[int, Sequence[Record]]:
        """The records of each partition. Raises `BatchRejected` for an event that cannot be enriched."""
        made: list[Mapping[int, Sequence[Record]]] = []
        first = 0
        for piece in batch.in_pieces():
            made.append(self._records_of_piece(piece, first))
            first += len(piece)
        return join_records(made)

    def _records_of_piece(self, piece: BatchPiece, first: int) -> Mapping[int, Sequence[Record]]:
        lines = _split_piece(piece, self.partitions[first : first + len(piece)])
        if self.stamps is not None:
            lines = self.stamps.put_into(lines, piece, first, self.partitions)
        return {partition: self._records_of_lines(each, first) for partition, each in lines.items()}

    def _records_of_lines(self, lines: _Lines, first: int) -> Sequence[Record]:
        indexes, text = lines
        keys = None if self.keys is None else [self.keys[first + index] for index in indexes]
        if self.owners is None and self.directed_to is None:
            return RecordLines(text, len(indexes), keys)
        owners = repeat(None) if self.owners is None else [self.owners[first + index] for index in indexes]
        columns = zip(text.split(b"\n"), keys or repeat(None), owners, repeat(self.directed_to), strict=False)
        return list(map(_RECORD_FROM_TUPLE, columns))


def join_records(pieces: list[Mapping[int, Sequence[Record]]]) -> Mapping[int, Sequence[Record]]:
    """The records of all pieces, which are taken out of the list."""
    if len(pieces) == 1:
        return pieces.pop()
    found: dict[int, list[Record]] = {}
    # Records are not joined to one text, because the memory of so long a text would not be returned when it is freed.
    for partition, records in chain.from_iterable(pieces.pop(0).items() for _ in range(len(pieces))):
        found.setdefault(partition, []).extend(records)
    return found


def _split_piece(piece: BatchPiece, partitions: Sequence[int]) -> Mapping[int, _Lines]:
    """The events of each partition."""
    if not partitions:
        return {}
    if len(partitions) == 1:
        return {partitions[0]: ((0,), piece.text[1:-1])}
    events: list[msgspec.Raw] = ARRAY_DECODER.decode(piece.text)
    if partitions.count(partitions[0]) == len(partitions):
        return {partitions[0]: (range(len(events)), _ENCODER.encode_lines(events)[:-1])}
    indexes: dict[int, list[int]] = {}
    for index, partition in enumerate(partitions):
        indexes.setdefault(partition, []).append(index)
    return {
        partition: (found, _ENCODER.encode_lines([events[index] for index in found])[:-1])
        for partition, found in indexes.items()
    }


class _OwnValues(Struct, frozen=True):
    """An event's own values for members that the broker adds. `is_overruled` means that the event may have members that
    a client may not set.
    """

    event_type: bool
    flow_id: bool
    partition: str | None
    is_overruled: bool
    trace_context: bool = False


class Stamps:
    """Additions to the metadata of events, by their partition and their own values.

    The additions come first in the metadata. Members that the client may set stay in place.
    """

    def __init__(self, event_type: EventType, origin: BatchOrigin) -> None:
        self._stamp = metadata_stamp(event_type, origin)
        self._has_free_metadata = event_type.category is Category.UNDEFINED

    def put_into(
        self, lines: Mapping[int, _Lines], piece: BatchPiece, first: int, partitions: Sequence[int]
    ) -> Mapping[int, _Lines]:
        """The lines of each partition with these additions. `first` is the index of the piece's first event."""
        if self._has_free_metadata:
            _require_metadata(piece, first, partitions)
        said = self._parse_own_metadata(piece)
        return {
            partition: (indexes, self._put_into_partition(text, indexes, partition, said))
            for partition, (indexes, text) in lines.items()
        }

    def _put_into_partition(
        self, text: bytes, indexes: Sequence[int], partition: int, said: Sequence[_OwnValues]
    ) -> bytes:
        alike = set(said) if len(said) == 1 else {said[index] for index in indexes}
        if len(alike) == 1:
            return self._put_into_lines(text, len(indexes), partition, alike.pop())
        each = zip(text.split(b"\n"), indexes, strict=True)
        return b"\n".join([self._put_into_lines(event, 1, partition, said[index]) for event, index in each])

    def _parse_own_metadata(self, piece: BatchPiece) -> Sequence[_OwnValues]:
        """The values that each event has itself; only one entry if all events have the same."""
        rows = list(piece.rows_at(_SAID_PATHS))
        if TRACE_MEMBER in self._stamp:
            have_trace = [value is not UNSET for (value,) in piece.rows_at((_TRACE_PATH,))]
            return [replace(self._read_row(row), trace_context=has) for row, has in zip(rows, have_trace, strict=True)]
        if self._has_free_metadata:
            return [self._read_row(row) for row in rows]
        found = {row: self._read_row(row) for row in set(rows)}
        return list(found.values()) if len(found) == 1 else [found[row] for row in rows]

    def _read_row(self, row: Row) -> _OwnValues:
        event_type, flow_id, partition = row
        if self._has_free_metadata:
            return _OwnValues(event_type=False, flow_id=bool(flow_id), partition=None, is_overruled=True)
        return _OwnValues(
            event_type=event_type is not UNSET,
            flow_id=bool(flow_id),
            partition=None if partition is UNSET else partition,
            is_overruled=flow_id == "",
        )

    def _put_into_lines(self, lines: bytes, number: int, partition: int, said: _OwnValues) -> bytes:
        added = {**self._stamp, "partition": str(partition)}
        if said.event_type:
            del added["event_type"]
        if said.flow_id:
            del added["flow_id"]
        if said.trace_context:
            del added[TRACE_MEMBER]
        if said.partition == added["partition"]:
            del added["partition"]
        if said.is_overruled or said.partition not in (None, str(partition)):
            return b"\n".join([_overwrite_metadata(event, added) for event in lines.split(b"\n")])
        beginning = orjson.dumps(added)[1:-1] + b","
        # In a string a quote has a backslash before it. So if the name of the metadata occurs as often as there are
        # events, and has no other spelling in the text, each occurrence is the metadata of one event.
        if not (b"\\" in lines and any(each in lines for each in _ESCAPED_LETTER_PREFIXES)):
            stamped = lines.replace(_METADATA_MEMBER_PREFIX, _METADATA_MEMBER_PREFIX + beginning)
            if len(stamped) == len(lines) + number * len(beginning):
                return stamped
        return b"\n".join([_put_at_beginning(event, beginning) for event in lines.split(b"\n")])


def _require_metadata(piece: BatchPiece, first: int, partitions: Sequence[int]) -> None:
    for index, (metadata,) in enumerate(piece.rows_at((("metadata",),)), first):
        if type(metadata) is not dict:
            detail = "enrichment error"
            raise BatchRejected(
                PublishingStep.ENRICHING, index, detail, prior_step=PublishingStep.PARTITIONING, partitions=partitions
            )


def _put_at_beginning(event: bytes, beginning: bytes) -> bytes:
    start, _ = member_bounds(event, "metadata")
    return event[: start + 1] + beginning + event[start + 1 :]


def _overwrite_metadata(event: bytes, added: MetadataStamp) -> bytes:
    """The event with rewritten metadata."""
    start, end = member_bounds(event, "metadata")
    sent = orjson.loads(event[start:end])
    kept = {name: value for name, value in sent.items() if name not in added}
    return event[:start] + orjson.dumps({**added, **kept}) + event[end:]


def member_bounds(text: bytes, name: str) -> tuple[int, int]:
    """The bounds of a member's value in the text of an object without whitespace."""
    end = 0
    for key, value in _OBJECT_DECODER.decode(text).items():
        string = JSON_STRING_PATTERN.match(text, end + 1)
        assert string is not None
        start = string.end() + 1
        end = start + len(bytes(value))
        if key == name:
            return start, end
    raise KeyError(name)
