"""Estimates the memory that reading a body takes, by counting its symbols."""

from __future__ import annotations

from nakadi.publishing.batch import (
    DEFAULT_LIMITS,
    MAX_BATCH_PIECE_BYTES,
    MAX_BATCH_PIECE_MEMORY_BYTES,
    MAX_EVENT_MEMORY_BYTES,
    MAX_PARSED_EVENT_BYTES,
    BatchLimits,
)
from nakadi.schemas.strict_json import estimate_parsed_memory

# A body up to this length is parsed at once, whatever its content: at worst that takes 6 MB.
SHORT_BODY_BYTES = 128 * 1024
# How much memory an event takes in addition to its text and its parsed form: for a view of the text at first, later for
# a record.
_EVENT_OVERHEAD_BYTES = 500


def is_parsed_at_once(body: bytes) -> bool:
    """Whether the events of a body need not be parsed a piece at a time."""
    return len(body) <= SHORT_BODY_BYTES or (
        len(body) <= MAX_BATCH_PIECE_BYTES and estimate_parsed_memory(body) <= MAX_BATCH_PIECE_MEMORY_BYTES
    )


def estimate_batch_memory(body: bytes, limits: BatchLimits = DEFAULT_LIMITS) -> int:
    """An upper estimate of the memory that reading a body and storing its events takes, in addition to the body
    itself.
    """
    if len(body) <= SHORT_BODY_BYTES:
        return 10 * len(body)  # a rough estimate: for a short body, counting would take longer than exactness is worth
    events = min(body.count(b"{"), limits.max_events)
    parsed = min(4 * len(body) + estimate_parsed_memory(body), 4 * MAX_PARSED_EVENT_BYTES + MAX_EVENT_MEMORY_BYTES)
    return 3 * len(body) + _EVENT_OVERHEAD_BYTES * events + parsed
