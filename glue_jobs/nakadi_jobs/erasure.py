"""Finds the events that have a value at a path, blanks them, and rewrites archive objects without them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nakadi.engines.archive import member_format, object_keys
from nakadi.engines.archive.gzip_format import BadArchive
from nakadi.engines.archive.member_format import ArchivedLine
from nakadi.engines.archive.merging import PartitionBusy, wait_for_partition
from nakadi.engines.archive.stores import open_archive
from nakadi.model.events import Record, StoredEvent
from nakadi.model.log_index import ArchiveLocation, IndexSegment
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone, ArchiveStore
from nakadi.ports.log_index import LogIndex
from nakadi_jobs.archive_ranges import ArchiveRange

ENVELOPE = ("metadata", "data_type", "data_op")
"""The members that a blanked event keeps."""


class ErasureMode(StrEnum):
    REMOVE = "remove"
    BLANK = "blank"


class ErasedValue(Struct, frozen=True):
    """A value, as text, at a path from the top of the event. The path also descends into arrays.

    With `failed_in`, the value only counts in dead letters about this event type.
    """

    path: tuple[str, ...]
    value: str
    failed_in: str | None = None

    @property
    def has_other_spellings(self) -> bool:
        """Whether the value is a number or a moment, which can be written in several ways."""
        return _parse_number(self.value) is not None or _parse_moment(self.value) is not None

    def occurs_in(self, event: Any) -> bool:
        if self.failed_in is not None and not _is_letter_about(event, self.failed_in):
            return False
        return any(self._matches(value) for value in _find_values(event, self.path))

    def occurs_in_text(self, text: bytes) -> bool:
        """Whether the text of an event has the value; if the text cannot be parsed, whether it contains its bytes."""
        try:
            event = orjson.loads(text)
        except orjson.JSONDecodeError:
            return self.value.encode() in text
        return self.occurs_in(event)

    def occurs_in_record(self, record: Record) -> bool:
        """Whether a record has the value. A tombstone has only its key."""
        return record.key == self.value if record.value is None else self.occurs_in_text(record.value)

    def occurs_in_member(self, content: bytes, is_meant: Callable[[ArchivedLine], bool] | None = None) -> bool:
        """Whether the value occurs in these members of an archive object. With `is_meant`, searches only the lines that
        it selects. Parses only lines that could have the value.
        """
        return any(
            self.occurs_in_record(event.record)
            for event in member_format.parse_member(content, is_meant)
            if event.record.value is None or self._may_occur_in(event.record.value)
        )

    def _may_occur_in(self, text: bytes) -> bool:
        return self.has_other_spellings or self.value.encode() in text or b"\\" in text

    def _matches(self, value: Any) -> bool:
        if isinstance(value, str):
            # Tables write moments in their own format.
            moment = _parse_moment(value)
            return value == self.value or (moment is not None and moment == _parse_moment(self.value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _parse_number(repr(value)) == _parse_number(self.value)
        return not isinstance(value, dict | list) and orjson.dumps(value).decode() == self.value


def erase_events(
    events: Sequence[StoredEvent], wanted: ErasedValue, how: ErasureMode
) -> tuple[list[StoredEvent], list[int]]:
    """Return the events without those to erase, or with blank ones instead, and the offsets of those that had the
    value.
    """
    kept: list[StoredEvent] = []
    meant: list[int] = []
    for event in events:
        if not wanted.occurs_in_record(event.record):
            kept.append(event)
            continue
        meant.append(event.offset)
        # A tombstone cannot be blanked, because it has only its key.
        if how is ErasureMode.BLANK and event.record.value is not None:
            kept.append(event._replace(record=without_content(event.record)))
    return kept, meant


def without_content(record: Record) -> Record:
    """Return the event without its payload and without its key."""
    assert record.value is not None
    event = orjson.loads(record.value)
    left = {name: event[name] for name in ENVELOPE if name in event}
    if "metadata" in left and isinstance(left["metadata"], dict):
        left["metadata"] = {name: text for name, text in left["metadata"].items() if name != "partition_compaction_key"}
    if "data_type" in left:
        left["data"] = {}
    return record._replace(value=orjson.dumps(left), key=None)


def search_archive(url: str, wanted: ErasedValue, parts: Iterable[ArchiveRange]) -> Iterator[tuple[str, str]]:
    """Search parts of an archive. Yields the name of each part that has the value, or the error if one is
    unreadable.
    """
    with closing(open_archive(url)) as store:
        for part in parts:
            try:
                found = wanted.occurs_in_member(store.read_range(part.location))
            except (BadArchive, ArchiveObjectGone) as error:
                yield part.name, f"{part.location.key} cannot be read: {error}"
                continue
            if found:
                yield part.name, ""


def _is_letter_about(event: Any, event_type: str) -> bool:
    return isinstance(event, dict) and event.get("event_type") == event_type


def _find_values(found: Any, path: Sequence[str]) -> Iterator[Any]:
    if isinstance(found, list):
        for each in found:
            yield from _find_values(each, path)
    elif not path:
        yield found
    elif isinstance(found, dict):
        if path[0] in found:
            yield from _find_values(found[path[0]], path[1:])
    elif isinstance(found, str) and found[:1] in ("{", "["):
        # Tables keep parts of unknown content as text.
        yield from _find_values(_parse(found), path)


def _parse(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _parse_number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _parse_moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


CLAIM_TIMEOUT_SECONDS = 60.0
"""Seconds to wait for a compaction of the same partition."""


class RewrittenPart(Struct, frozen=True):
    """A part whose object was replaced, and the offsets of the erased events."""

    part: ArchiveRange
    offsets: Sequence[int]
    old: str
    new: str


class Unreadable(Exception):
    """Raised for an unreadable range of the archive."""


class Rewriter(Struct, frozen=True):
    index: LogIndex
    store: ArchiveStore
    wanted: ErasedValue
    how: ErasureMode
    compacted: Callable[[str, int, int], None]
    """Called with the topic, partition and end of a replaced part, so that readers read it from the archive."""

    def rewrite(self, part: ArchiveRange) -> RewrittenPart | None:
        """Replace the object of a part by one without the events to erase. Returns None if there are none to erase."""
        with self._claim(part) as make_sure:
            segment = self.index.segment_at_or_before(part.topic, part.partition, part.first)
            if segment is None or segment.location is None:
                return None
            kept, meant = erase_events(self._read_events(segment.location), self.wanted, self.how)
            if not meant:
                return None
            written = self._store_erased(part, segment, kept)
            make_sure()
            self.index.replace_segments(part.topic, part.partition, [written], segment.end_offset)
            self.compacted(part.topic, part.partition, segment.end_offset)
            assert written.location is not None
            return RewrittenPart(part, meant, segment.location.key, written.location.key)

    def _store_erased(self, part: ArchiveRange, segment: IndexSegment, kept: Sequence[StoredEvent]) -> IndexSegment:
        assert segment.location is not None
        content = member_format.pack_member(part.topic, part.partition, kept)
        key = object_keys.new_rewritten_key(segment.location.key, part.topic, part.partition, segment.first_offset)
        self.store.put(key, content)
        return replace(segment, location=ArchiveLocation(key, 0, len(content)), event_count=len(kept))

    def _read_events(self, location: ArchiveLocation) -> Sequence[StoredEvent]:
        try:
            return member_format.parse_member(self.store.read_range(location))
        except (BadArchive, ArchiveObjectGone) as error:
            raise Unreadable(f"{location.key} cannot be read: {error}") from error

    @contextmanager
    def _claim(self, part: ArchiveRange) -> Iterator[Callable[[], None]]:
        """Hold the claim to a partition, which the broker's own compaction needs too. Yields the function that renews
        the claim. Raises `Unavailable` if another process keeps it.
        """
        try:
            with wait_for_partition(self.index, part.topic, part.partition, CLAIM_TIMEOUT_SECONDS) as make_sure:
                yield make_sure
        except PartitionBusy as busy:
            raise self._claim_error(part) from busy

    def _claim_error(self, part: ArchiveRange) -> Unavailable:
        return Unavailable(f"Partition {part.partition} of {part.topic} is being compacted by another process")


def group_by_partition(rewritten: Sequence[RewrittenPart]) -> Mapping[tuple[int, int], Sequence[int]]:
    """The offsets of the erased events, by timeline and partition."""
    found: dict[tuple[int, int], list[int]] = {}
    for each in rewritten:
        found.setdefault((each.part.timeline, each.part.partition), []).extend(each.offsets)
    return found
