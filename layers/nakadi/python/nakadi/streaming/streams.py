"""Streams of an event type's events: checks a request, and serves the stream."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum

from msgspec import Struct

from nakadi.common.metrics import Metrics
from nakadi.event_types.cursors import CursorError
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import CursorResolver
from nakadi.model.authorization import Subject
from nakadi.model.event_type import EventType, Position
from nakadi.model.outcomes import UnusableCursor
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLogs
from nakadi.streaming.access import ReadAccess, StreamAccessMonitor
from nakadi.streaming.driver import DescribeProblem, LowLevelDriver, StreamFigures, StreamOutlet
from nakadi.streaming.feeds import Feeds, PartitionReader
from nakadi.streaming.formats import StreamFormat
from nakadi.streaming.session import (
    LowLevelSession,
    PickSeconds,
    StreamLimits,
    StreamParameters,
    parse_cursors_header,
    parse_header_ends,
    stream_limits,
)


class AcceptedStream(Struct, frozen=True, kw_only=True):
    """A stream that may begin: who reads, where its partitions begin and perhaps end, and its limits. It holds no
    resources yet.
    """

    subject: Subject
    event_type: EventType
    starts: Mapping[str, Position]
    ends: Mapping[str, Position]
    limits: StreamLimits


@contextmanager
def count_stream(metrics: Metrics, api: str, end: Callable[[], Enum | None]) -> Iterator[None]:
    """Count a stream from its beginning to its end; `end` returns the reason why a completed stream ended."""
    metrics.streams_opened.add(1, api)
    metrics.open_streams.add(1, api)
    reason = "failed"
    try:
        yield
        reason = ""
    except ConnectionError:
        reason = "gone"
        raise
    except (asyncio.CancelledError, TimeoutError):
        reason = "cut_off"
        raise
    finally:
        found = end()
        metrics.open_streams.add(-1, api)
        metrics.streams_ended.add(1, api, found.name.lower() if found is not None else reason or "ended")


class EventStreams:
    """The streams of event types. `max_stream_seconds` is the longest duration of a stream here, and
    `longest_silence_seconds` the longest time between two batches, including empty ones; None means that only the API's
    own limits apply.
    """

    def __init__(  # noqa: PLR0913  # every part by its name
        self,
        *,
        event_types: EventTypes,
        access: ReadAccess,
        cursor_resolver: CursorResolver,
        logs: EventLogs,
        clock: Clock,
        max_stream_seconds: int | None = None,
        longest_silence_seconds: int | None = None,
        pick_seconds: PickSeconds = random.randint,
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics or Metrics()
        self._access = access
        self._cursor_resolver = cursor_resolver
        self._clock = clock
        self._max_stream_seconds = max_stream_seconds
        self._longest_silence_seconds = longest_silence_seconds
        self._pick_seconds = pick_seconds
        self._feeds = Feeds(logs)
        self._monitor = StreamAccessMonitor(access)
        event_types.add_change_listener(lambda _: self._monitor.check_soon())

    def open(self, name: str, asked: StreamParameters, cursors_header: str | None, subject: Subject) -> AcceptedStream:
        """Check a request for a stream. Clients can observe the order of the checks. Raises outcomes."""
        event_type = self._access.authorize(name, subject)
        starts, ends = self._bounds(event_type, cursors_header)
        limits = stream_limits(asked, self._pick_seconds, self._max_stream_seconds, self._longest_silence_seconds)
        return AcceptedStream(subject=subject, event_type=event_type, starts=starts, ends=ends, limits=limits)

    async def serve(
        self,
        accepted: AcceptedStream,
        lines: StreamFormat,
        outlet: StreamOutlet,
        figures: StreamFigures,
        describe: DescribeProblem,
    ) -> None:
        """Stream until the end. `describe` encodes the reason for an early end."""
        event_type, subject, access = accepted.event_type, accepted.subject, self._access
        driver = LowLevelDriver(
            LowLevelSession(
                accepted.limits, accepted.starts, self._clock.monotonic(), lambda each: access.may_read(each, subject)
            ),
            [
                PartitionReader(
                    self._feeds, self._cursor_resolver, event_type, partition, start, accepted.ends.get(partition)
                )
                for partition, start in accepted.starts.items()
            ],
            lines,
            outlet,
            event_type=event_type.name,
            clock=self._clock,
            figures=figures,
            describe=describe,
            find_out=self._monitor.check_soon,
        )
        with (
            count_stream(self._metrics, "low-level", lambda: driver.session.end),
            self._monitor.monitor(driver, subject, event_type),
        ):
            await driver.run(accepted.limits.stream_seconds)

    def close(self) -> None:
        """Called when no stream is open any longer."""
        self._monitor.close()
        self._feeds.close()

    def _bounds(
        self, event_type: EventType, cursors_header: str | None
    ) -> tuple[Mapping[str, Position], Mapping[str, Position]]:
        """Where partitions begin, and where some of them end."""
        if cursors_header is None:
            return self._cursor_resolver.end_positions(event_type), {}
        try:
            starts = self._cursor_resolver.start_positions(event_type, parse_cursors_header(cursors_header))
            ends = parse_header_ends(cursors_header)
            return starts, {end.partition: self._cursor_resolver.resolve(event_type, end) for end in ends}
        except CursorError as error:
            raise UnusableCursor(str(error)) from error
