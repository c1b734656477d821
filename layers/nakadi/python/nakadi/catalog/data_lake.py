"""The annotations that a data lake goes by: whether events are kept there, for how long, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

from nakadi.model.event_type import CleanupPolicy, EventType
from nakadi.model.outcomes import Invalid

MATERIALIZE = "datalake.zalando.org/materialize-events"
PERIOD = "datalake.zalando.org/retention-period"
REASON = "datalake.zalando.org/retention-period-reason"

_PERIOD = re.compile(r"([1-9][0-9]{0,3})(?: (day|week|month|year)s?|([dwmy]))")
_DAYS = {"d": 1, "w": 7, "m": 31, "y": 366}
_FEWEST_AND_MOST = {"d": (7, 3650), "w": (1, 521), "m": (1, 120), "y": (1, 10)}


def check_data_lake_annotations(annotations: Mapping[str, str | None], *, mandatory: bool = False) -> None:
    materialize, period = annotations.get(MATERIALIZE), annotations.get(PERIOD)
    if materialize not in (None, "on", "off"):
        raise Invalid(
            f'Annotation {MATERIALIZE} is not valid. Provided value: "{materialize}". '
            'Possible values are: "on" or "off".'
        )
    if materialize == "on" and period is None:
        raise Invalid(f'Annotation {PERIOD} is required, when {MATERIALIZE} is "on".')
    if period is not None:
        _check_period(period, annotations.get(REASON))
    if mandatory and materialize is None:
        raise Invalid(f"Annotation {MATERIALIZE} is required")


def kept_for(event_type: EventType) -> timedelta | None:
    """How long a data lake keeps an event: as the annotation says, or as long as the broker; None is for ever."""
    period = event_type.annotations.get(PERIOD)
    if period == "unlimited":
        return None
    found = _PERIOD.fullmatch(period or "")
    if found is not None:
        return timedelta(days=int(found[1]) * _DAYS[(found[2] or found[3])[0]])
    if event_type.cleanup_policy is CleanupPolicy.COMPACT:
        return None
    return timedelta(milliseconds=event_type.retention_time)


def _check_period(period: str, reason: str | None) -> None:
    if not reason:
        raise Invalid(f"Annotation {REASON} is required, when {PERIOD} is specified.")
    if period != "unlimited" and not _is_period(period):
        raise Invalid(
            f"Annotation {PERIOD} does not comply with regex. See documentation (docs/analytics.md, Retention periods) "
            "for more details."
        )


def _is_period(text: str) -> bool:
    period = _PERIOD.fullmatch(text)
    if period is None:
        return False
    fewest, most = _FEWEST_AND_MOST[(period[2] or period[3])[0]]
    return fewest <= int(period[1]) <= most
