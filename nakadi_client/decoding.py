"""Lines of a stream as values: the cursor, and events as the application wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from nakadi_client.errors import EventsUnreadable, NakadiError, Poison

Event = TypeVar("Event")


class Cursor(msgspec.Struct, frozen=True):
    """A place in a partition, as the broker wrote it; committing it commits everything up to it.

    The broker omits the event type if the request names it.
    """

    partition: str
    offset: str
    event_type: str = ""
    cursor_token: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """The event type and the partition."""
        return self.event_type, self.partition


class PoisonEvent(msgspec.Struct, frozen=True):
    """An event that does not fit the model, as stored, and why."""

    raw: bytes
    error: str


class Line(msgspec.Struct, Generic[Event]):
    """One line. A keep-alive has no events; a line without a cursor is a Problem of the broker's.

    `unreadable` is set if the Problem reports damage in the archive.
    """

    cursor: Cursor | None = None
    events: list[Event] | None = None
    info: dict[str, Any] | None = None
    detail: str | None = None
    title: str | None = None
    unreadable: dict[str, Any] | None = None

    def end_of_stream(self) -> NakadiError:
        """The error of a line without a cursor, which ends the stream."""
        if self.unreadable:
            partition = str(self.unreadable.get("partition"))
            return EventsUnreadable(self.detail or "The next events cannot be read.", partition=partition)
        return NakadiError(f"The broker ended the stream: {self.detail or self.title}")


class Decoded(msgspec.Struct, frozen=True):
    """A line, and those of its events that do not fit."""

    line: Line[Any]
    poison: tuple[PoisonEvent, ...] = ()


class LineDecoder:
    """Decodes lines into events of `model`: a type that msgspec supports, a pydantic model, or None for dictionaries.

    With `msgspec.Raw`, events stay as stored, to the last digit: `bytes(event)` is their JSON.
    """

    def __init__(self, model: Any = None) -> None:
        self._one = _decoder_of_events(model)
        # pydantic reads its models one by one.
        whole = Any if model is None else model
        self._whole = None if _is_pydantic(model) else msgspec.json.Decoder(Line[whole])  # type: ignore[valid-type]
        self._raw = msgspec.json.Decoder(Line[msgspec.Raw])

    def decode(self, line: bytes) -> Decoded:
        """Read a line. Raises `msgspec.DecodeError` if it is not a line of a stream."""
        if self._whole is not None:
            try:
                return Decoded(self._whole.decode(line))
            except msgspec.ValidationError:
                pass  # At least one event does not fit, so they are read one by one.
        found = self._raw.decode(line)
        events, poison = _split_events(found.events or (), self._one)
        whole: Line[Any] = Line(found.cursor, None if found.events is None else events, found.info)
        return Decoded(whole, poison)


class CloudEventDecoder:
    """Decodes the lines of a stream of CloudEvents, which are lists. The last event of a list has the cursor."""

    def __init__(self, model: Any = None) -> None:
        self._one = _decoder_of_events(model)
        self._line = msgspec.json.Decoder(list[msgspec.Raw] | Line[msgspec.Raw])
        self._cursor = msgspec.json.Decoder(_PlaceOfCloudEvent)

    def decode(self, line: bytes) -> Decoded:
        """Read a line. Raises `msgspec.DecodeError` if it is not a line of a stream."""
        found = self._line.decode(line)
        if isinstance(found, Line):
            return Decoded(Line(None, None, None, found.detail, found.title, found.unreadable))
        place = self._cursor.decode(bytes(found[-1])) if found else None
        cursor = None if place is None else Cursor(place.partition, place.offset, place.eventtype)
        events, poison = _split_events(found, self._one)
        return Decoded(Line(cursor, events), poison)


class _PlaceOfCloudEvent(msgspec.Struct):
    partition: str
    offset: str
    eventtype: str


def _split_events(
    found: Iterable[msgspec.Raw], decode: Callable[[bytes], Any]
) -> tuple[list[Any], tuple[PoisonEvent, ...]]:
    """The events that fit, and the others."""
    events: list[Any] = []
    poison: list[PoisonEvent] = []
    for raw in found:
        try:
            events.append(decode(bytes(raw)))
        except Poison as error:
            poison.append(PoisonEvent(bytes(raw), str(error)))
    return events, tuple(poison)


def _decoder_of_events(model: Any) -> Callable[[bytes], Any]:
    if _is_pydantic(model):

        def decode(raw: bytes) -> Any:
            try:
                return model.model_validate_json(raw)
            except ValueError as error:
                raise Poison(str(error)) from error

        return decode
    decoder = msgspec.json.Decoder(Any if model is None else model)

    def decode_with_msgspec(raw: bytes) -> Any:
        try:
            return decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise Poison(str(error)) from error

    return decode_with_msgspec


def _is_pydantic(model: Any) -> bool:
    # This package does not import pydantic.
    return hasattr(model, "model_validate_json")
