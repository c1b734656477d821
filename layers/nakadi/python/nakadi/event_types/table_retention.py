"""The annotations that say whether an event type has a table, what the table contains, and how long it keeps events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

from nakadi.event_types.expectations import BadExpectation, check_expectations
from nakadi.event_types.personal_data import BadPersonalData, personal_data_paths
from nakadi.event_types.table_layout import BadTableLayout, table_layout_from_annotations
from nakadi.event_types.table_objective import BadTableObjective, table_objective
from nakadi.model.annotations import (
    MATERIALIZE_ANNOTATION,
    RETENTION_ANNOTATION,
    RETENTION_REASON_ANNOTATION,
)
from nakadi.model.event_type import CleanupPolicy, EventType
from nakadi.model.outcomes import Invalid

_RETENTION_PERIOD_PATTERN = re.compile(r"([1-9][0-9]{0,3})(?: (day|week|month|year)s?|([dwmy]))")
_DAYS_BY_RETENTION_UNIT = {"d": 1, "w": 7, "m": 31, "y": 366}
_RETENTION_PERIOD_LIMITS = {"d": (7, 3650), "w": (1, 521), "m": (1, 120), "y": (1, 10)}


def check_data_lake_annotations(annotations: Mapping[str, str | None], *, mandatory: bool = False) -> None:
    materialize, period = annotations.get(MATERIALIZE_ANNOTATION), annotations.get(RETENTION_ANNOTATION)
    if materialize not in (None, "on", "off"):
        raise Invalid(
            f'Annotation {MATERIALIZE_ANNOTATION} is not valid. Provided value: "{materialize}". '
            'Possible values are: "on" or "off".'
        )
    if materialize == "on" and period is None:
        raise Invalid(f'Annotation {RETENTION_ANNOTATION} is required, when {MATERIALIZE_ANNOTATION} is "on".')
    if period is not None:
        _check_retention_period(period, annotations.get(RETENTION_REASON_ANNOTATION))
    try:
        table_layout_from_annotations(annotations)
        check_expectations(annotations)
        personal_data_paths(annotations)
        table_objective(annotations)
    except (BadTableLayout, BadExpectation, BadPersonalData, BadTableObjective) as reason:
        raise Invalid(str(reason)) from None
    if mandatory and materialize is None:
        raise Invalid(f"Annotation {MATERIALIZE_ANNOTATION} is required")


def data_lake_retention(event_type: EventType) -> timedelta | None:
    """How long a data lake keeps events: the annotated period, otherwise the retention time; None means forever."""
    period = event_type.annotations.get(RETENTION_ANNOTATION)
    if period == "unlimited":
        return None
    found = _RETENTION_PERIOD_PATTERN.fullmatch(period or "")
    if found is not None:
        return timedelta(days=int(found[1]) * _DAYS_BY_RETENTION_UNIT[(found[2] or found[3])[0]])
    if event_type.cleanup_policy is CleanupPolicy.COMPACT:
        return None
    return timedelta(milliseconds=event_type.retention_time)


def _check_retention_period(period: str, reason: str | None) -> None:
    if not reason:
        raise Invalid(
            f"Annotation {RETENTION_REASON_ANNOTATION} is required, when {RETENTION_ANNOTATION} is specified."
        )
    if period != "unlimited" and not _is_valid_retention_period(period):
        raise Invalid(
            f"Annotation {RETENTION_ANNOTATION} does not comply with regex. "
            "See documentation (docs/analytics.md, Retention periods) "
            "for more details."
        )


def _is_valid_retention_period(text: str) -> bool:
    period = _RETENTION_PERIOD_PATTERN.fullmatch(text)
    if period is None:
        return False
    fewest, most = _RETENTION_PERIOD_LIMITS[(period[2] or period[3])[0]]
    return fewest <= int(period[1]) <= most
