"""Spans: what the broker did for one request or batch, as a part of a trace, which a client or the broker began.

The rest of the broker uses only the interface of a tracer, so it runs without the packages that send spans
(`app/open_telemetry.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

TraceContext = Mapping[str, str]
"""The headers `traceparent` and `tracestate` of https://www.w3.org/TR/trace-context; empty outside of a trace."""

_SAMPLED_BIT = 1


class Span(Protocol):
    """A piece of work that has begun. `context` has the headers for work that continues its trace."""

    @property
    def context(self) -> TraceContext: ...

    def end(self, error: str = "", **figures: int) -> None:
        """Record that the work has ended, successfully or with the named kind of error. Figures become attributes,
        named by the last words of their names.
        """


class Tracer(Protocol):
    """Begins spans of the traces that are sampled, and sends them when they have ended.

    No call waits or raises, so work goes on as it would without a tracer.
    """

    def begin(self, operation: str, destination: str, parent: TraceContext, *, group: str = "") -> Span | None:
        """Begin a span below `parent`, or a trace of its own; None if the trace is not sampled."""

    def begin_part(self, operation: str, destination: str, parent: TraceContext) -> Span | None:
        """Begin a span below `parent`; None if there is no parent, or its trace is not sampled."""

    def begin_linked(
        self, operation: str, destination: str, events: Iterable[bytes], *, group: str = ""
    ) -> Span | None:
        """Begin a span with links to the traces of these events; None if none of the traces is sampled."""

    def close(self) -> None:
        """Send the remaining spans, for a few seconds at most."""


def is_sampled(traceparent: str) -> bool:
    """Whether a valid `traceparent` says that its trace is recorded."""
    return bool(int(traceparent[53:55], 16) & _SAMPLED_BIT)
