"""Partitions, and calculations with cursors: distances, lags, shifts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from nakadi.auth.permissions import Permissions
from nakadi.event_types.cursors import CursorError, CursorErrorKind, offset_as_sent
from nakadi.event_types.positions import PARTITION_NOT_FOUND_MESSAGE, count_events_between, shifted_position
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import DUPLICATE_PARTITIONS_MESSAGE, CursorResolver, PartitionSnapshot
from nakadi.http.bodies import ObjectReader, json_document, list_body
from nakadi.http.message import Request, Response, json_response
from nakadi.http.parameters import TextParameter
from nakadi.http.router import Route
from nakadi.model.authorization import Operation
from nakadi.model.event_type import Cursor, EventType, Position
from nakadi.model.outcomes import Invalid, Malformed, MalformedFields, NotFound, Violation

MALFORMED_CURSORS_MESSAGE = "malformed cursors"
CURSOR_NOT_CONVERTIBLE_MESSAGE = "problem converting cursors"
NO_SUCH_PARTITION_MESSAGE = "partition not found"
INVALID_CONSUMED_OFFSET_MESSAGE = "invalid consumed_offset or partition"
PARTITIONS_DIFFER_MESSAGE = "Cursors with different partition. Pairs of cursors should have matching partitions."

CURSORS, CONSUMED_OFFSET = TextParameter("cursors"), TextParameter("consumed_offset")

PartitionEnds = Mapping[str, tuple[Position, Position]]


def routes(event_types: EventTypes, permissions: Permissions, cursor_resolver: CursorResolver) -> list[Route]:
    handlers = _CursorHandlers(event_types, permissions, cursor_resolver)
    under = "/event-types/{name}"
    return [
        Route(
            method="GET",
            template=f"{under}/partitions",
            handler=handlers.list_partitions,
            operation="list_partitions",
            parameters=(CURSORS,),
        ),
        Route(
            method="GET",
            template=f"{under}/partitions/{{partition}}",
            handler=handlers.get_partition,
            operation="get_partition",
            parameters=(CONSUMED_OFFSET,),
        ),
        Route(
            method="POST",
            template=f"{under}/cursor-distances",
            handler=handlers.get_distances,
            operation="cursor_distances",
        ),
        Route(method="POST", template=f"{under}/cursors-lag", handler=handlers.get_lags, operation="cursors_lag"),
        Route(
            method="POST",
            template=f"{under}/shifted-cursors",
            handler=handlers.shift,
            operation="shift_cursors",
        ),
    ]


class _CursorHandlers(Struct, frozen=True):
    event_types: EventTypes
    permissions: Permissions
    cursor_resolver: CursorResolver

    def list_partitions(self, request: Request) -> Response:
        event_type = self._permitted_event_type(request, Operation.VIEW)
        view = self.cursor_resolver.take_snapshot(event_type)
        ends = view.oldest_and_newest_events()
        lags = self._lag_by_partition(event_type, view, ends, _parse_cursors(CURSORS.read(request)))
        return json_response([_partition_view(partition, ends, lags.get(partition)) for partition in ends])

    def get_partition(self, request: Request) -> Response:
        event_type = self._permitted_event_type(request, Operation.VIEW, Operation.READ)
        partition = request.path_parameters["partition"]
        view = self.cursor_resolver.take_snapshot(event_type)
        ends = view.oldest_and_newest_events()
        consumed = CONSUMED_OFFSET.read(request)
        asked = () if consumed is None else (Cursor(partition, consumed),)
        lags = self._lag_by_partition(event_type, view, ends, asked)
        if partition not in ends:
            raise NotFound(NO_SUCH_PARTITION_MESSAGE)
        return json_response(_partition_view(partition, ends, lags.get(partition)))

    def get_distances(self, request: Request) -> Response:
        pairs = _read_cursor_pairs(list_body(request))
        event_type = self._permitted_event_type(request, Operation.VIEW)
        view = self.cursor_resolver.take_snapshot(event_type)
        return json_response([self._distance_view(event_type, view, *pair) for pair in pairs])

    def get_lags(self, request: Request) -> Response:
        asked = _require_complete_cursors(
            [_read_cursor(each, f"list[{at}]") for at, each in enumerate(_object_readers(list_body(request)))]
        )
        event_type = self._permitted_event_type(request, Operation.VIEW, Operation.READ)
        view = self.cursor_resolver.take_snapshot(event_type)
        positions = [_convert_cursor(view, cursor) for cursor in asked]
        ends = view.oldest_and_newest_events() if asked else {}
        return json_response(
            [
                _lag_view(cursor.partition, ends, self._lag_of(event_type, cursor.partition, position, ends))
                for cursor, position in zip(asked, positions, strict=True)
            ]
        )

    def shift(self, request: Request) -> Response:
        items = _object_readers(list_body(request))
        numbers = [each.integer("shift") or 0 for each in items]
        asked = _require_complete_cursors([_read_cursor(each, f"list[{at}]") for at, each in enumerate(items)])
        event_type = self._permitted_event_type(request, Operation.VIEW, Operation.READ)
        view = self.cursor_resolver.take_snapshot(event_type)
        positions = [_convert_cursor(view, cursor) for cursor in asked]
        moved = [
            shifted_position(event_type, cursor.partition, position, number)
            for cursor, position, number in zip(asked, positions, numbers, strict=True)
        ]
        return json_response(
            [
                {
                    "partition": cursor.partition,
                    "offset": str(position) if number else offset_as_sent(position, cursor.offset),
                }
                for cursor, position, number in zip(asked, moved, numbers, strict=True)
            ]
        )

    def _permitted_event_type(self, request: Request, *operations: Operation) -> EventType:
        event_type = self.event_types.get(request.path_parameters["name"])
        for operation in operations:
            self.permissions.require(operation, event_type.resource, request.subject)
        return event_type

    def _lag_by_partition(
        self, event_type: EventType, view: PartitionSnapshot, ends: PartitionEnds, cursors: Sequence[Cursor]
    ) -> Mapping[str, int]:
        with _cursor_errors_as_invalid():
            positions = {cursor.partition: view.resolve(cursor) for cursor in cursors}
        if not positions.keys() <= ends.keys():
            raise Invalid(INVALID_CONSUMED_OFFSET_MESSAGE)
        return {
            partition: self._lag_of(event_type, partition, position, ends) for partition, position in positions.items()
        }

    def _lag_of(self, event_type: EventType, partition: str, position: Position, ends: PartitionEnds) -> int:
        if partition not in ends:
            raise Invalid(PARTITION_NOT_FOUND_MESSAGE)
        _, newest = ends[partition]
        return count_events_between(event_type, partition, position, newest)

    def _distance_view(
        self, event_type: EventType, view: PartitionSnapshot, first: Cursor, last: Cursor
    ) -> Mapping[str, Any]:
        start, end = _convert_cursor(view, first), _convert_cursor(view, last)
        if first.partition != last.partition:
            raise Invalid(PARTITIONS_DIFFER_MESSAGE)
        return {
            "initial_cursor": {"partition": first.partition, "offset": first.offset},
            "final_cursor": {"partition": last.partition, "offset": last.offset},
            "distance": count_events_between(event_type, first.partition, start, end),
        }


def _partition_view(partition: str, ends: PartitionEnds, lag: int | None) -> Mapping[str, Any]:
    view = {**_offsets_view(partition, ends), "partition": partition}
    return view if lag is None else {**view, "unconsumed_events": lag}


def _lag_view(partition: str, ends: PartitionEnds, lag: int) -> Mapping[str, Any]:
    """A partition with its lag, with its members in the order that clients know from this operation."""
    return {"partition": partition, **_offsets_view(partition, ends), "unconsumed_events": lag}


def _offsets_view(partition: str, ends: PartitionEnds) -> Mapping[str, str]:
    oldest, newest = ends[partition]
    return {"oldest_available_offset": str(oldest), "newest_available_offset": str(newest)}


@contextmanager
def _cursor_errors_as_invalid() -> Iterator[None]:
    try:
        yield
    except CursorError as error:
        raise Invalid(str(error)) from error


def _convert_cursor(view: PartitionSnapshot, cursor: Cursor) -> Position:
    try:
        return view.resolve(cursor)
    except CursorError as error:
        raise Invalid(CURSOR_NOT_CONVERTIBLE_MESSAGE) from error


# Reading a query


def _parse_cursors(text: str | None) -> Sequence[Cursor]:
    """The cursors of a query parameter; an empty one counts as missing."""
    if not text:
        return ()
    try:
        listed = json_document(text.encode())
        members = [ObjectReader.from_value(each) for each in listed] if isinstance(listed, list) else None
        written = None if members is None else [(each.text("partition"), each.text("offset")) for each in members]
    except (Malformed, UnicodeEncodeError) as error:
        raise Invalid(MALFORMED_CURSORS_MESSAGE) from error
    if written is None:
        raise Invalid(MALFORMED_CURSORS_MESSAGE)
    with _cursor_errors_as_invalid():
        cursors = [_require_cursor(partition, offset) for partition, offset in written]
    if len({cursor.partition for cursor in cursors}) < len(cursors):
        raise Invalid(DUPLICATE_PARTITIONS_MESSAGE)
    return cursors


def _require_cursor(partition: str | None, offset: str | None) -> Cursor:
    if not partition:
        raise CursorError(CursorErrorKind.NULL_PARTITION)
    if not offset:
        raise CursorError(CursorErrorKind.NULL_OFFSET, partition)
    return Cursor(partition, offset)


# Reading a body

CursorOrViolations = Cursor | tuple[Violation, ...]


def _object_readers(items: list[Any]) -> Sequence[ObjectReader]:
    return [ObjectReader.from_value(each, f"list[{at}]") for at, each in enumerate(items)]


def _read_cursor_pairs(sent: list[Any]) -> Sequence[tuple[Cursor, Cursor]]:
    items = _object_readers(sent)
    firsts = [_read_member_cursor(each, "initial_cursor", at) for at, each in enumerate(items)]
    lasts = [_read_member_cursor(each, "final_cursor", at) for at, each in enumerate(items)]
    whole = _require_complete_cursors([*firsts, *lasts])
    return list(zip(whole[: len(items)], whole[len(items) :], strict=True))


def _read_member_cursor(item: ObjectReader, name: str, at: int) -> CursorOrViolations:
    path = f"list[{at}].{name}"
    cursor = item.object(name)
    return (Violation(path, "must not be null"),) if cursor is None else _read_cursor(cursor, path)


def _read_cursor(item: ObjectReader, path: str) -> CursorOrViolations:
    partition, offset = item.text("partition"), item.text("offset")
    if partition and offset:
        return Cursor(partition, offset)
    return tuple(_violations_of_missing_texts(path, {"partition": partition, "offset": offset}))


def _violations_of_missing_texts(path: str, texts: Mapping[str, str | None]) -> Iterator[Violation]:
    for name, text in texts.items():
        if not text:
            message = "must not be null" if text is None else f"cursor {name} cannot be empty"
            yield Violation(f"{path}.{name}", message)


def _require_complete_cursors(cursors_or_violations: Iterable[CursorOrViolations]) -> Sequence[Cursor]:
    """The cursors, if all are complete. Raises otherwise."""
    cursors: list[Cursor] = []
    violations: list[Violation] = []
    for each in cursors_or_violations:
        if isinstance(each, Cursor):
            cursors.append(each)
        else:
            violations.extend(each)
    if violations:
        raise MalformedFields(tuple(violations))
    return cursors
