"""What was measured of the traffic of event types, beside what their owners expect of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from nakadi.model.event_type import Statistics

KIND = "measured-statistics"
"""Documents under the ids of event types: a name that is used again begins without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The traffic between two moments, in the words of the expected one, and how many partitions it asks for."""

    statistic: Statistics
    recommended_partitions: int
    since: datetime
    until: datetime


def measured_body(measured: Measured) -> Mapping[str, Any]:
    return {
        "statistic": asdict(measured.statistic),
        "recommended_partitions": measured.recommended_partitions,
        "since": measured.since.isoformat(),
        "until": measured.until.isoformat(),
    }


def measured_of(body: Mapping[str, Any]) -> Measured:
    return Measured(
        statistic=Statistics(**body["statistic"]),
        recommended_partitions=body["recommended_partitions"],
        since=datetime.fromisoformat(body["since"]),
        until=datetime.fromisoformat(body["until"]),
    )
