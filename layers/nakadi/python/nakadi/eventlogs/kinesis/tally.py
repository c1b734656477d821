"""Counting: what a record means for its partition.

An offset is a pure function of the log, so every reader that starts from the same place comes to the same number:

* A whole frame gets the next numbers.
* The parts of a long frame get theirs together, where the last one lies. So they are next to each other, or nowhere:
  if one is missing, or the last came too late, no number is spent.
* Behind the first seal nothing counts.
* No event was stored before the one in front of it, whatever the clocks of two publishers said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from nakadi.eventlogs.kinesis import envelopes
from nakadi.eventlogs.kinesis.envelopes import Envelope
from nakadi.model.log_index import Counted, Mark, Part

ABANDONED_AFTER_MS = 60_000
"""Between the arrivals of an append's first part and its last. Its publisher gives up long before."""


class Arrived(NamedTuple):
    """A record as the stream has it; `at` is when it arrived there, in milliseconds."""

    mark: Mark
    key: str
    at: int
    data: bytes


class Numbered(NamedTuple):
    """A frame in its place. Its bytes are those of these records, one after the other."""

    first: int
    events: int
    stored_at: int
    marks: tuple[Mark, ...]


def count(state: Counted, record: Arrived, envelope: Envelope | None) -> tuple[Counted, Numbered | None]:
    """The partition with this record, which follows all it has counted, and the frame that it completes, if any."""
    if envelope is None or state.sealed_at is not None:
        return replace(state, mark=record.mark), None
    if envelope.kind == envelopes.SEAL:
        return replace(state, mark=record.mark, sealed_at=record.mark, parts=()), None
    parts = _still_expected(state.parts, record.at)
    if envelope.kind == envelopes.WHOLE:
        return _numbered(state, record, envelope, parts, (record.mark,))
    return _with_part(state, record, envelope, parts)


def _with_part(
    state: Counted, record: Arrived, envelope: Envelope, parts: tuple[Part, ...]
) -> tuple[Counted, Numbered | None]:
    mine = [part for part in parts if part.append == envelope.append]
    others = tuple(part for part in parts if part.append != envelope.append)
    if envelope.part != len(mine):
        return replace(state, mark=record.mark, parts=parts), None
    if envelope.part == envelope.parts - 1:
        return _numbered(state, record, envelope, others, (*(part.mark for part in mine), record.mark))
    part = Part(envelope.append, envelope.part, record.mark, mine[0].arrived if mine else record.at)
    return replace(state, mark=record.mark, parts=(*others, *mine, part)), None


def _numbered(
    state: Counted, record: Arrived, envelope: Envelope, parts: tuple[Part, ...], marks: tuple[Mark, ...]
) -> tuple[Counted, Numbered]:
    latest = max(state.latest, envelope.stored_at)
    counted = Counted(mark=record.mark, next=state.next + envelope.events, latest=latest, parts=parts)
    return counted, Numbered(state.next, envelope.events, latest, marks)


def _still_expected(parts: tuple[Part, ...], now: int) -> tuple[Part, ...]:
    return tuple(part for part in parts if now - part.arrived <= ABANDONED_AFTER_MS) if parts else parts
