"""Cursors: how clients name a place in an event type."""

from __future__ import annotations

from msgspec import Struct


class Cursor(Struct, frozen=True):
    """A place as a client wrote it; delivery goes on *behind* it."""

    partition: str
    offset: str


class Position(Struct, frozen=True, order=True):
    """A place as the broker understands it: the event `offset` of the timeline `timeline`; -1 is before the first."""

    timeline: int
    offset: int

    def __str__(self) -> str:
        """The form that is published: `001-0001-000000000000000012`, `001-0001--1`."""
        number = f"{self.offset:018d}" if self.offset >= 0 else str(self.offset)
        return f"001-{self.timeline:04x}-{number}"
