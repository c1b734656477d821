"""The annotations that the broker knows, and warnings about those that look similar.

    >>> annotation_warnings({"nakadi.io/table-sort-bye": "id"}, EVENT_TYPE_ANNOTATIONS)
    ['The annotation nakadi.io/table-sort-bye means nothing to the broker; the nearest is nakadi.io/table-sort-by']

Owners may set annotations of their own, so the broker does not reject a misspelled one. The prefixes below belong to
the broker: an unknown name under them is most likely a mistake, which its author would notice only when the expected
effect is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

BROKER_PREFIXES = ("nakadi.zalando.org/", "nakadi.io/", "datalake.zalando.org/")

MATERIALIZE_ANNOTATION = "datalake.zalando.org/materialize-events"
RETENTION_ANNOTATION = "datalake.zalando.org/retention-period"
RETENTION_REASON_ANNOTATION = "datalake.zalando.org/retention-period-reason"
PARTITION_BY_ANNOTATION = "nakadi.io/table-partition-by"
SORT_BY_ANNOTATION = "nakadi.io/table-sort-by"
EXPECTATION_ANNOTATION = "nakadi.io/expect"
"""States an expectation. So does each annotation whose name begins with this name and a hyphen."""
PERSONAL_DATA_ANNOTATION = "nakadi.io/personal-data"
TABLE_OBJECTIVE_ANNOTATION = "nakadi.io/table-objective"
DEDUPLICATION_ANNOTATION = "nakadi.io/deduplication-window-seconds"
"""Means the same as the field `deduplication`, for clients that cannot send unknown fields."""

EVENT_TYPE_ANNOTATIONS = (
    MATERIALIZE_ANNOTATION,
    RETENTION_ANNOTATION,
    RETENTION_REASON_ANNOTATION,
    PARTITION_BY_ANNOTATION,
    SORT_BY_ANNOTATION,
    EXPECTATION_ANNOTATION,
    PERSONAL_DATA_ANNOTATION,
    TABLE_OBJECTIVE_ANNOTATION,
    DEDUPLICATION_ANNOTATION,
)

SEND_COUNT_ANNOTATION = "nakadi.zalando.org/subscription-max-event-send-count"
POLICY_ANNOTATION = "nakadi.zalando.org/subscription-unprocessable-event-policy"
PRESSURE_METRIC_ANNOTATION = "nakadi.io/pressure-metric"
"""`on`: housekeeping on AWS shows the pressure of the subscription as a metric, by which its consumers can be
scaled.
"""
SUBSCRIPTION_ANNOTATIONS = (SEND_COUNT_ANNOTATION, POLICY_ANNOTATION, PRESSURE_METRIC_ANNOTATION)

MAX_WARNINGS = 5
"""How many warnings a header of an answer has at most."""


def annotation_warnings(keys: Iterable[str], known: Iterable[str]) -> list[str]:
    """A sentence for each unknown key under a prefix of the broker, with the nearest known one."""
    names = tuple(known)
    strange = sorted(
        key
        for key in keys
        if key.lower().startswith(BROKER_PREFIXES)
        and key not in names
        and not (EXPECTATION_ANNOTATION in names and is_expectation(key))
    )
    return [_warning(key, names) for key in strange[:MAX_WARNINGS]]


def is_expectation(key: str) -> bool:
    return key == EXPECTATION_ANNOTATION or key.startswith(f"{EXPECTATION_ANNOTATION}-")


def _warning(key: str, known: tuple[str, ...]) -> str:
    found = get_close_matches(key.lower(), known, n=1)
    nearest = f"; the nearest is {found[0]}" if found else ""
    return f"The annotation {key} means nothing to the broker{nearest}"
