"""What a client asks of a stream: its parameters, and the limits that follow from them."""

from __future__ import annotations

from msgspec import Struct

from nakadi.model.outcomes import Invalid
from nakadi.model.subscription import EventTypePartition
from nakadi.streaming.session import (
    DEFAULT_FLUSH_TIMEOUT_SECONDS,
    DEFAULT_STREAM_SECONDS_RANGE,
    MAX_STREAM_SECONDS,
    PickSeconds,
    shortened_seconds,
)

DEFAULT_MAX_UNCOMMITTED_EVENTS = 10

# Clients take a connection for dead that is silent for half a minute, whatever flush timeout they asked for.
MAX_SECONDS_BETWEEN_LINES = 25.0


class SubscriptionStreamParameters(Struct, frozen=True, kw_only=True):
    """The parameters of a request; None for those that it leaves out."""

    batch_limit: int | None = None
    max_uncommitted_events: int | None = None
    stream_limit: int | None = None
    batch_flush_timeout: int | None = None
    batch_timespan: int | None = None
    stream_timeout: int | None = None
    stream_keep_alive_limit: int | None = None
    commit_timeout: int | None = None
    partitions: tuple[EventTypePartition, ...] = ()


class SubscriptionStreamLimits(Struct, frozen=True, kw_only=True):
    """How a stream goes. Times are in seconds; a limit or a timespan of 0 is none.

    `max_uncommitted_events` is how many events may be sent and not yet committed, all partitions together.
    """

    batch_limit: int = 1
    max_uncommitted_events: int = DEFAULT_MAX_UNCOMMITTED_EVENTS
    stream_limit: int = 0
    flush_seconds: float = DEFAULT_FLUSH_TIMEOUT_SECONDS
    batch_timespan_seconds: float = 0
    stream_seconds: float = MAX_STREAM_SECONDS
    keep_alive_limit: int = 0
    commit_seconds: float = 60
    max_seconds_between_lines: float = MAX_SECONDS_BETWEEN_LINES


def stream_limits(
    asked: SubscriptionStreamParameters,
    max_commit_seconds: int,
    pick_seconds: PickSeconds,
    max_stream_seconds: int | None = None,
) -> SubscriptionStreamLimits:
    """The limits of a stream, or `Invalid` for the first rule that they break.

    Zeros mean what leaving the parameter out means, because there are clients that always name everything.
    """
    batch_limit = 1 if asked.batch_limit is None else asked.batch_limit
    commit_timeout = asked.commit_timeout or max_commit_seconds
    _refuse_unless(batch_limit >= 1, "batch_limit can't be lower than 1")
    _refuse_unless(commit_timeout <= max_commit_seconds, f"commit_timeout can not be more than {max_commit_seconds}")
    _refuse_unless(commit_timeout >= 0, "commit_timeout can not be less than 0")
    for name in ("max_uncommitted_events", "stream_limit", "batch_flush_timeout", "batch_timespan"):
        _check_not_negative(name, getattr(asked, name))
    _check_not_negative("stream_keep_alive_limit", asked.stream_keep_alive_limit)
    seconds = _stream_seconds(asked.stream_timeout, pick_seconds)
    return SubscriptionStreamLimits(
        batch_limit=batch_limit,
        max_uncommitted_events=asked.max_uncommitted_events or DEFAULT_MAX_UNCOMMITTED_EVENTS,
        stream_limit=asked.stream_limit or 0,
        flush_seconds=asked.batch_flush_timeout or DEFAULT_FLUSH_TIMEOUT_SECONDS,
        batch_timespan_seconds=asked.batch_timespan or 0,
        stream_seconds=shortened_seconds(seconds, max_stream_seconds, pick_seconds),
        keep_alive_limit=asked.stream_keep_alive_limit or 0,
        commit_seconds=commit_timeout,
    )


def _stream_seconds(asked: int | None, pick_seconds: PickSeconds) -> int:
    return (
        asked if asked is not None and 0 < asked <= MAX_STREAM_SECONDS else pick_seconds(*DEFAULT_STREAM_SECONDS_RANGE)
    )


def _check_not_negative(name: str, value: int | None) -> None:
    _refuse_unless((value or 0) >= 0, f"{name} can't be lower than 0")


def _refuse_unless(condition: bool, message: str) -> None:
    if not condition:
        raise Invalid(message)
