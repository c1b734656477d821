"""The errors of reading and writing. Each message is a sentence for the person who wrote the job."""

from __future__ import annotations


class BadWrite(Exception):
    """Raised for an event type that cannot be written."""


class BadRead(Exception):
    """Raised for event types, columns or times that cannot be read."""
