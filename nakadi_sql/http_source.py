"""Events of a broker, over its HTTP API, with the rights of a token."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import getitem
from types import TracebackType
from typing import Any, Self

import msgspec
from httpx import HTTPError
from msgspec.structs import replace

from nakadi.model.cloud_events import BATCH_MEDIA_TYPE
from nakadi.model.event_type import Category, CleanupPolicy, PartitionStrategy, SchemaType
from nakadi.publishing.enrichment import key_paths
from nakadi.schemas.document import COMPACTION_KEY
from nakadi.schemas.values import java_text
from nakadi_client import Connection, NoAnswer, Refused
from nakadi_client.answers import Answer
from nakadi_client.connections import Api, Request, json_request, path
from nakadi_client.decoding import Line
from nakadi_client.lines import LineSplitter
from nakadi_client.reader_core import UNTIL_HEADER
from nakadi_jobs.columns import KnownSchema, parse_schema
from nakadi_sql.rows import LoggedEvent
from nakadi_sql.sources import EventTypeInfo, Seam, is_in_table

OFFSET = re.compile(r"001-([0-9a-f]{4})-(-?\d+)")
BEGIN = "BEGIN"

EVENTS_IN_PIECE = 2000

MAX_SILENCES = 3
"""After this many seconds without an event, a partition counts as finished, if the broker does not report its end."""

MAX_DELAY = timedelta(minutes=5)
"""The longest time from the moment when the broker receives an event until it stores the event."""

MAX_FAILURES = 5
PAUSE_SECONDS = 1.0

SILENT_SECONDS = 15.0
"""A stream's connection counts as broken after this time without a line: the broker sends one each second, even without
events."""

JSON_STREAM = "application/x-json-stream"
TOO_MANY = 429

_Cursor = Mapping[str, str]

_Place = tuple[int, int]
"""A timeline and an offset in it."""

FIRST_PLACE: _Place = (1, 0)


class _TryAgain(Exception):
    """Raised if the broker cannot open a stream now, or ends one because it cannot read the events."""


class _Metadata(msgspec.Struct):
    received_at: datetime | None = None
    occurred_at: Any = None


class _Event(msgspec.Struct):
    metadata: _Metadata | None = None


class _CloudEvent(msgspec.Struct):
    offset: str
    time: datetime


_EVENT = msgspec.json.Decoder(_Event)
_LINE = msgspec.json.Decoder(Line[msgspec.Raw])
_CLOUD_EVENTS = msgspec.json.Decoder(list[_CloudEvent])


class LogRange(msgspec.Struct, frozen=True):
    """The events of a partition after the offset `after`, up to and including the place `last`."""

    partition: str
    after: str
    last: _Place

    def has_any(self) -> bool:
        """Whether the range may contain an event."""
        return self.after == BEGIN or _read_offset(self.after) < self.last


def _read_line(line: bytes) -> tuple[str, Sequence[msgspec.Raw]]:
    """The offset of a line and its events. Raises `_TryAgain` for a Problem."""
    found = _LINE.decode(line)
    if found.cursor is None:
        raise _TryAgain(str(found.end_of_stream()))
    return found.cursor.offset, found.events or ()


def ranges_between(start: Mapping[str, str], end: Mapping[str, str]) -> Sequence[LogRange]:
    """The ranges between two sets of offsets, by partition, without empty ones. A partition that `start` lacks is read
    from its beginning.
    """
    ranges = [LogRange(name, start.get(name, BEGIN), _read_offset(offset)) for name, offset in end.items()]
    return [each for each in ranges if each.has_any()]


class HttpSource:
    """Reads event types from a broker. `note` gets sentences about what a result may lack.

    If a broker does not support the member `until` of cursors, reading a partition also ends after `silences` seconds
    without an event, because the last events of the partition may be ones that streams do not deliver.
    """

    def __init__(self, connection: Connection, note: Callable[[str], None], *, silences: int = MAX_SILENCES) -> None:
        self._connection = connection
        self._api = Api(connection)
        self._note = note
        self._silences = silences
        # Whether the broker says when a partition is read up to `until`.
        self._knows_until = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._api.close()

    def names(self) -> Iterator[str]:
        return (each["name"] for each in self._get("/event-types"))

    def find(self, name: str) -> EventTypeInfo | None:
        where = path("event-types", name)
        try:
            found = self._get(where)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise
        table = found.get("table") or {}
        # A broker that sends no cursors does not say up to which offsets its tables have the events.
        seam = _read_seam(table.get("cursors") or ())
        return EventTypeInfo(
            name=found["name"],
            category=Category(found["category"]),
            schemas=[*reversed([*self._schemas(where)])],
            key_paths=_key_paths(found),
            table=table["name"] if seam else "",
            seam=seam,
            has_owners=found.get("event_owner_selector") is not None,
            has_current_state=_has_current_state(found),
            is_compacted=CleanupPolicy(found["cleanup_policy"]).compacts,
        )

    def events(self, event_type: EventTypeInfo) -> Iterator[Sequence[LoggedEvent]]:
        """The events that the log has now and the table lacks, one partition after the other, in pieces."""
        for each in self.plan(event_type):
            yield from self.read(event_type, each)

    def plan(
        self, event_type: EventTypeInfo, since: datetime | None = None, until: datetime | None = None
    ) -> Sequence[LogRange]:
        """The ranges of the events that the log has now and the table lacks.

        With `since` and `until`, ranges leave out events that were certainly not stored between these times. The
        requests also check that the token may read the event type, even if the table lacks no events.
        """
        where = path("event-types", event_type.name)
        starts: Mapping[str, str] = {each["partition"]: each["offset"] for each in self._starts(event_type)}
        if since is not None:
            since_places = self._resolve(where, dict.fromkeys(starts, _time_text(since)))
            starts = {name: _later(starts[name], offset) for name, offset in since_places.items()}
        if until is not None:
            # The ends below are compared with offsets, but BEGIN cannot be compared.
            starts = self._resolve(where, starts)
        cursors = [{"partition": name, "offset": offset} for name, offset in starts.items()]
        lasts = {
            each["partition"]: _read_offset(each["newest_available_offset"])
            for each in self._post(f"{where}/cursors-lag", cursors)
            if each["unconsumed_events"] > 0
        }
        if until is not None and lasts:
            ends = self._resolve(where, dict.fromkeys(lasts, _time_text(until + MAX_DELAY)))
            lasts = {name: min(last, _read_offset(ends[name])) for name, last in lasts.items()}
        ranges = [LogRange(name, starts[name], last) for name, last in lasts.items()]
        return [each for each in ranges if each.has_any()]

    def pin(self, event_type: EventTypeInfo, ranges: Sequence[LogRange]) -> Sequence[LogRange]:
        """The ranges with offsets instead of BEGIN. So reading them later fails if the log has removed events of them
        by then.
        """
        if all(each.after != BEGIN for each in ranges):
            return ranges
        first = self.first_offsets(event_type)
        return [replace(each, after=first[each.partition]) if each.after == BEGIN else each for each in ranges]

    def first_offsets(self, event_type: EventTypeInfo, since: datetime | None = None) -> Mapping[str, str]:
        """For each partition, the offset before its first event; with `since`, its first one stored then or later."""
        start = BEGIN if since is None else _time_text(since)
        where = path("event-types", event_type.name)
        return self._resolve(where, dict.fromkeys(self.last_offsets(event_type), start))

    def last_offsets(self, event_type: EventTypeInfo) -> Mapping[str, str]:
        """For each partition, the offset of its last event."""
        found = self._get(f"{path('event-types', event_type.name)}/partitions")
        return {each["partition"]: each["newest_available_offset"] for each in found}

    def count_events(
        self, event_type: EventTypeInfo, starts: Mapping[str, str], ends: Mapping[str, str]
    ) -> Mapping[str, int]:
        """For each partition of `ends`, the number of offsets after its start, up to and including its end. Some of
        them may not have an event.
        """
        pairs = [
            {
                "initial_cursor": {"partition": name, "offset": starts[name]},
                "final_cursor": {"partition": name, "offset": end},
            }
            for name, end in ends.items()
        ]
        found = self._post(f"{path('event-types', event_type.name)}/cursor-distances", pairs)
        return {each["final_cursor"]["partition"]: each["distance"] for each in found}

    def shift(
        self, event_type: EventTypeInfo, starts: Mapping[str, str], counts: Mapping[str, int]
    ) -> Mapping[str, str]:
        """For each partition of `starts`, the offset that comes as many events later as `counts` says."""
        return self._shift(path("event-types", event_type.name), starts, counts)

    def _resolve(self, where: str, offsets: Mapping[str, str]) -> Mapping[str, str]:
        """Ask the broker which offsets BEGIN, or times, mean in these partitions: each is the offset before the first
        event, or before the first event that was stored at the time or later.
        """
        return self._shift(where, offsets, dict.fromkeys(offsets, 0))

    def _shift(self, where: str, offsets: Mapping[str, str], counts: Mapping[str, int]) -> Mapping[str, str]:
        cursors = [{"partition": name, "offset": offset, "shift": counts[name]} for name, offset in offsets.items()]
        return {each["partition"]: each["offset"] for each in self._post(f"{where}/shifted-cursors", cursors)}

    def read(self, event_type: EventTypeInfo, wanted: LogRange) -> Iterator[Sequence[LoggedEvent]]:
        """The events of a range that the table lacks, in pieces."""
        where = path("event-types", event_type.name)
        partition = int(wanted.partition)
        piece: list[LoggedEvent] = []
        start = {"partition": wanted.partition, "offset": wanted.after}
        for place, text in self._read_partition(where, start, wanted.last):
            timeline, offset = place
            if not is_in_table(event_type.seam, timeline, partition, offset):
                piece.append(_locate(text, event_type, timeline, partition, offset))
            if len(piece) == EVENTS_IN_PIECE:
                yield self._add_times(event_type, piece)
                piece = []
        if piece:
            yield self._add_times(event_type, piece)

    def _read_partition(self, where: str, start: _Cursor, last: _Place) -> Iterator[tuple[_Place, bytes]]:
        """The events of a partition after the cursor `start`, up to and including `last`, each with its place. Batches
        have one event each, because a batch has only one offset.

        The last events may be ones that streams do not deliver, such as tombstones. A broker that supports `until`
        reports when it has read up to that place; its empty batches before that mean nothing. Other brokers only send
        empty batches. One empty batch is not enough to end, because they also send one while their log is slow.
        """
        bounds = {**start, "until": _offset_text(*last)}
        cursor, silences, failures = bounds, 0, 0
        while True:
            try:
                for line in self._stream_lines(where, cursor, {"batch_limit": 1}, JSON_STREAM):
                    reached, events = _read_line(line)
                    if not events:
                        silences += 1
                        is_silent = not self._knows_until and silences == self._silences
                        if is_silent or _is_at(reached, last):
                            return
                        continue
                    place = _read_offset(reached)
                    if place > last:
                        return
                    cursor, silences, failures = {**bounds, "offset": reached}, 0, 0
                    yield place, bytes(events[0])
                    if place == last:
                        return
            except (HTTPError, msgspec.MsgspecError, _TryAgain) as error:
                failures += 1
                if failures == MAX_FAILURES:
                    raise NoAnswer(f"{self._connection.shown_url} ends its streams: {error}") from error
                time.sleep(failures * PAUSE_SECONDS)

    def _stream_lines(self, where: str, cursor: _Cursor, limits: Mapping[str, int], media_type: str) -> Iterator[bytes]:
        """The lines of a stream of one partition. Raises `Refused`, or `_TryAgain` and `HTTPError` for failures that
        may be temporary.
        """
        headers = {"Accept": media_type, "X-Nakadi-Cursors": msgspec.json.encode([cursor]).decode()}
        request = Request("GET", f"{where}/events", None, headers, {"batch_flush_timeout": 1, **limits})
        with self._api.stream(request, timeout=SILENT_SECONDS) as response:
            if isinstance(response, Answer):
                if response.status >= 500 or response.status == TOO_MANY:
                    raise _TryAgain(str(response.refusal()))
                raise response.refusal()
            self._knows_until = self._knows_until or UNTIL_HEADER in response.headers
            splitter, is_empty = LineSplitter(), True
            for chunk in response.iter_bytes():
                for line in splitter.feed(chunk):
                    is_empty = False
                    yield line
            if is_empty:
                raise _TryAgain("a stream without a line")

    def _add_times(self, event_type: EventTypeInfo, piece: Sequence[LoggedEvent]) -> Sequence[LoggedEvent]:
        """Add the times at which events were stored, if the events themselves do not contain them.

        As a CloudEvent, an event with `metadata.occurred_at` has that time instead. So it gets the time of the event
        before it in its partition, which was not stored later.
        """
        if event_type.category is not Category.UNDEFINED:
            return piece
        times: dict[tuple[int, int, int], datetime] = {}
        for partition in {event.partition for event in piece}:
            events = [event for event in piece if event.partition == partition]
            times |= self._read_times(event_type.name, events[0], events[-1])
        found, latest = [], dict[int, datetime]()
        for event in piece:
            metadata = _read_metadata(event.text)
            stored_at = None if metadata and metadata.occurred_at else times.get(event[:3])
            if stored_at:
                latest[event.partition] = stored_at
            found.append(event._replace(stored_at=stored_at or latest.get(event.partition)))
        return found

    def _read_times(self, name: str, first: LoggedEvent, last: LoggedEvent) -> Mapping[tuple[int, int, int], datetime]:
        """The times of the events of a partition from `first` to `last`, by place. They are read as CloudEvents, which
        have a time.
        """
        number = last.offset - first.offset + 1 if first.timeline == last.timeline else EVENTS_IN_PIECE
        cursor = {"partition": str(first.partition), "offset": _offset_text(first.timeline, first.offset - 1)}
        limits = {"batch_limit": min(number, 500), "stream_limit": number, "stream_timeout": 30}
        times: dict[tuple[int, int, int], datetime] = {}
        try:
            for line in self._stream_lines(path("event-types", name), cursor, limits, BATCH_MEDIA_TYPE):
                for event in _CLOUD_EVENTS.decode(line):
                    timeline, offset = _read_offset(event.offset)
                    times[timeline, first.partition, offset] = event.time
                if (last.timeline, last.partition, last.offset) in times:
                    return times
        except (msgspec.MsgspecError, HTTPError, _TryAgain):
            # The broker does not support CloudEvents, or the connection broke. Events without times are better than
            # none.
            self._note(f"{name}: nakadi_time is missing where the broker did not say when it stored the events.")
        return times

    def _starts(self, event_type: EventTypeInfo) -> Sequence[_Cursor]:
        """The cursors after which to read the partitions: the end of the table, or else the beginning of the log."""
        starts: list[_Cursor] = []
        lost, only_in_table = 0, False
        for each in self._get(f"{path('event-types', event_type.name)}/partitions"):
            name = each["partition"]
            timeline, oldest = _read_offset(each["oldest_available_offset"])
            known = event_type.seam.get(int(name))
            start = BEGIN
            if known:
                order = min(known)
                if (order, known[order]) >= (timeline, oldest):
                    start = _offset_text(order, known[order] - 1)
                elif order == timeline:
                    lost += oldest - known[order]
            elif event_type.table and (timeline, oldest) > FIRST_PLACE:
                only_in_table = True
            starts.append({"partition": name, "offset": start})
        if lost:
            self._note(
                f"{lost} offsets of {event_type.name} left the log before a job put their events into the table."
            )
        if event_type.table and not event_type.seam and event_type.is_compacted:
            self._note(
                f"{event_type.name} is compacted: the log may lack older events of its keys, and the query does not "
                "read its table."
            )
        elif only_in_table:
            self._note(f"Events of {event_type.name} have left the log, and the query does not read its table.")
        return starts

    def _schemas(self, where: str) -> Iterator[KnownSchema]:
        """The versions of the schema of an event type, the newest first."""
        page = self._get(f"{where}/schemas", limit=1000)
        yield from (parse_schema(SchemaType(each["type"]), each["schema"]) for each in page["items"])
        while following := page.get("_links", {}).get("next"):
            page = self._get(following["href"])
            yield from (parse_schema(SchemaType(each["type"]), each["schema"]) for each in page["items"])

    def _get(self, where: str, **parameters: Any) -> Any:
        return self._send(Request("GET", where, params=parameters))

    def _post(self, where: str, body: object) -> Any:
        return self._send(json_request("POST", where, body))

    def _send(self, request: Request) -> Any:
        answer = self._api.send(request)
        if isinstance(answer, NoAnswer):
            raise answer
        if answer.status != 200:
            raise answer.refusal()
        return msgspec.json.decode(answer.body)


def _has_current_state(event_type: Mapping[str, Any]) -> bool:
    """Whether the jobs maintain a table of the newest event of each key, by the rule that the jobs use."""
    has_keys = event_type["partition_strategy"] == PartitionStrategy.HASH
    is_compacted = CleanupPolicy(event_type["cleanup_policy"]).compacts
    return is_compacted or (event_type["category"] == Category.DATA and has_keys)


def _key_paths(event_type: Mapping[str, Any]) -> Sequence[tuple[str, ...]]:
    """The members from which the broker takes the key of an event: the compaction key of a compacted event type, or
    else the partition key fields. Other events have no key.
    """
    if CleanupPolicy(event_type["cleanup_policy"]).compacts:
        return (("metadata", COMPACTION_KEY),)
    if event_type["partition_strategy"] != PartitionStrategy.HASH:
        return ()
    return key_paths(Category(event_type["category"]), *event_type["partition_key_fields"])


def _locate(text: bytes, event_type: EventTypeInfo, timeline: int, partition: int, offset: int) -> LoggedEvent:
    """An event with its place. Its time is the one at which the broker received it, shortly before storing it; None if
    the event does not contain that time.
    """
    metadata = None if event_type.category is Category.UNDEFINED else _read_metadata(text)
    return LoggedEvent(
        timeline=timeline,
        partition=partition,
        offset=offset,
        stored_at=metadata.received_at if metadata else None,
        key=_key(text, event_type.key_paths) if event_type.key_paths else None,
        owner=None,
        text=text,
    )


def _read_metadata(text: bytes) -> _Metadata | None:
    try:
        return _EVENT.decode(text).metadata
    except msgspec.MsgspecError:
        return None  # the broker does not enrich this event type, so `metadata` may have any form


def _key(text: bytes, paths: Sequence[tuple[str, ...]]) -> str | None:
    """The key of an event, as the broker derived it when the event was published; None if the event lacks a part of
    the key.
    """
    event = msgspec.json.decode(text)
    try:
        values = [reduce(getitem, where, event) for where in paths]
    except (LookupError, TypeError):
        return None
    return ",".join(value if isinstance(value, str) else java_text(value) for value in values)


def _read_seam(cursors: Sequence[Mapping[str, str]]) -> Seam:
    seam: dict[int, dict[int, int]] = {}
    for cursor in cursors:
        timeline, offset = _read_offset(cursor["offset"])
        seam.setdefault(int(cursor["partition"]), {})[timeline] = offset + 1
    return seam


def _read_offset(text: str) -> tuple[int, int]:
    found = OFFSET.fullmatch(text)
    if found is None:
        raise ValueError(f"{text} is not an offset of this broker")
    return int(found[1], 16), int(found[2])


def _is_at(offset: str, last: _Place) -> bool:
    """Whether an offset is that of the place `last`, or a later one."""
    return offset != BEGIN and _read_offset(offset) >= last


def _time_text(moment: datetime) -> str:
    """A time in the form in which the broker accepts it as an offset."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _later(offset: str, other: str) -> str:
    """The later of two offsets."""
    return max(offset, other, key=lambda each: (-1, 0) if each == BEGIN else _read_offset(each))


def _offset_text(timeline: int, offset: int) -> str:
    return f"001-{timeline:04x}-{offset:018d}" if offset >= 0 else f"001-{timeline:04x}-{offset}"
