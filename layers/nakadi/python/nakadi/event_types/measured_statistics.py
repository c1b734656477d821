"""The measured traffic of event types, which a job writes into the registry."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct, to_builtins

from nakadi.common.converting import Converter
from nakadi.event_types.documents import DocumentBody
from nakadi.model.event_type import (
    Statistics,
)

MEASURED_STATISTICS_KIND = "measured-statistics"
"""These documents are keyed by the ids of event types, so an event type that is created again begins without measured
statistics.
"""


class MeasuredStatistics(
    Struct, frozen=True, kw_only=True, rename={"measured_since": "since", "measured_until": "until"}
):
    """The measured traffic of an event type between two times, and the number of partitions that it needs."""

    statistic: Statistics
    recommended_partitions: int
    measured_since: datetime
    measured_until: datetime


_measured_statistics = Converter(MeasuredStatistics)


def measured_statistics_body(measured: MeasuredStatistics) -> DocumentBody:
    body: DocumentBody = to_builtins(measured)
    return body


def measured_statistics_from_body(body: DocumentBody) -> MeasuredStatistics:
    return _measured_statistics.from_builtins(body)
