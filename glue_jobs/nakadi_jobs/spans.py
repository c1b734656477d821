"""OpenTelemetry spans for a run and its steps. `--traces otlp`, or NAKADI_TRACES, switches them on; otherwise, no
package is loaded for them. Every run is recorded: runs are rare, and each has as many steps as event types, tables or
parts of the archive.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from nakadi.model.outcomes import BadSetting

if TYPE_CHECKING:
    from nakadi.common.tracing import TraceContext, Tracer


class Spans(Struct):
    """Begins and ends the spans of a run. `run` is the context of the run in progress. Threads that work on steps of a
    run only read it.
    """

    tracer: Tracer | None = None
    run: TraceContext = {}

    @contextmanager
    def of_run(self, job: str) -> Iterator[None]:
        """Record a run as a separate trace, which ends with the block."""
        if self.tracer is None:
            yield
            return
        span = self.tracer.begin("job", job, {})
        assert span is not None, "every run is recorded"
        self.run = span.context
        try:
            yield
        except BaseException as error:
            span.end(type(error).__name__)
            raise
        else:
            span.end()
        finally:
            self.run = {}

    @contextmanager
    def of_step(self, what: str, subject: str = "") -> Iterator[None]:
        """Record a part of the run as a span, which ends with the block. `subject` is the event type or the table that
        the step works on.
        """
        span = self.tracer.begin_part(what, subject, self.run) if self.tracer is not None else None
        try:
            yield
        except BaseException as error:
            if span is not None:
                span.end(type(error).__name__)
            raise
        if span is not None:
            span.end()

    def close(self) -> None:
        if self.tracer is not None:
            self.tracer.close()


def open_spans(exporter: str) -> Spans:
    """Open the exporter of spans that the setting names; without one, spans do nothing. Raises `BadSetting`."""
    if not exporter:
        return Spans()
    try:
        from nakadi.app.open_telemetry import open_tracer  # noqa: PLC0415  # it needs packages that need not be there
    except ImportError as error:
        raise BadSetting(f"--traces needs more packages, pip install 'nakadi-serverless[otel]': {error}") from error
    return Spans(open_tracer(exporter, percent=100))
