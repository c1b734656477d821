"""The annotations for the retention in a data lake."""

from datetime import timedelta

import pytest

from nakadi.event_types.table_retention import (
    MATERIALIZE_ANNOTATION,
    RETENTION_ANNOTATION,
    RETENTION_REASON_ANNOTATION,
    check_data_lake_annotations,
    data_lake_retention,
)
from nakadi.model.event_type import CleanupPolicy
from nakadi.model.outcomes import Invalid
from tests.support.builders import an_event_type

WHY = {RETENTION_REASON_ANNOTATION: "we need it"}


def refusal(annotations, **options) -> str:
    with pytest.raises(Invalid) as refused:
        check_data_lake_annotations(annotations, **options)
    return refused.value.detail


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"other": "x"},
        {MATERIALIZE_ANNOTATION: "off"},
        {MATERIALIZE_ANNOTATION: "on", RETENTION_ANNOTATION: "unlimited", **WHY},
        {RETENTION_ANNOTATION: "30 days", **WHY},
        {RETENTION_REASON_ANNOTATION: ""},
    ],
)
def test_valid_annotations(annotations):
    """Events are either not kept, or kept for a period with a reason. (R256)"""
    check_data_lake_annotations(annotations)


@pytest.mark.parametrize(
    "period",
    [
        "7 days",
        "1 week",
        "521 weeks",
        "1 month",
        "120 months",
        "1 year",
        "10 years",
        "7 day",
        "7d",
        "3650d",
        "521w",
        "1y",
    ],
)
def test_valid_periods(period):
    """A period is a number of days, weeks, months or years, with a long or short unit; the limits are valid. (R256)"""
    check_data_lake_annotations({RETENTION_ANNOTATION: period, **WHY})


@pytest.mark.parametrize(
    "period",
    [
        *("6 days", "3651 days", "0 weeks", "522 weeks", "121 months", "11 years", "6d", "11y"),
        *("7days", "7 d", "7  days", "07 days", "days", "-7 days", "for ever", "Unlimited", "7 DAYS", "7 days\n"),
        "99999999999999999999d",
    ],
)
def test_invalid_periods_are_refused(period):
    """Any other period is refused, with a reference to the documentation. (R256)"""
    message = refusal({RETENTION_ANNOTATION: period, **WHY})
    assert message.startswith(
        f"Annotation {RETENTION_ANNOTATION} does not comply with regex. See documentation (docs/analytics.md"
    )
    assert message.endswith(") for more details.")


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        (
            {MATERIALIZE_ANNOTATION: "yes"},
            (
                f'Annotation {MATERIALIZE_ANNOTATION} is not valid. Provided value: "yes". '
                'Possible values are: "on" or "off".'
            ),
        ),
        (
            {MATERIALIZE_ANNOTATION: "on"},
            f'Annotation {RETENTION_ANNOTATION} is required, when {MATERIALIZE_ANNOTATION} is "on".',
        ),
        (
            {MATERIALIZE_ANNOTATION: "on", RETENTION_ANNOTATION: "1 year"},
            f"Annotation {RETENTION_REASON_ANNOTATION} is required, when {RETENTION_ANNOTATION} is specified.",
        ),
        (
            {RETENTION_ANNOTATION: "1 year", RETENTION_REASON_ANNOTATION: ""},
            f"Annotation {RETENTION_REASON_ANNOTATION} is required, when {RETENTION_ANNOTATION} is specified.",
        ),
    ],
)
def test_annotations_that_require_others(annotations, message):
    """An annotation that keeps events requires a period, and a period requires a reason. (R256)"""
    assert refusal(annotations) == message


def test_the_annotation_may_be_mandatory():
    """If the annotation is mandatory, an event type must say whether events are kept. (R256)"""
    assert refusal({}, mandatory=True) == f"Annotation {MATERIALIZE_ANNOTATION} is required"
    check_data_lake_annotations({MATERIALIZE_ANNOTATION: "off"}, mandatory=True)


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, timedelta(days=2)),
        ({"annotations": {RETENTION_ANNOTATION: "30 days"}}, timedelta(days=30)),
        ({"annotations": {RETENTION_ANNOTATION: "2w"}}, timedelta(days=14)),
        ({"annotations": {RETENTION_ANNOTATION: "1 year"}}, timedelta(days=366)),
        ({"annotations": {RETENTION_ANNOTATION: "unlimited"}}, None),
        ({"cleanup_policy": CleanupPolicy.COMPACT}, None),
        ({"cleanup_policy": CleanupPolicy.COMPACT_AND_DELETE}, timedelta(days=2)),
    ],
)
def test_retention_in_the_data_lake(changes, kept):
    """A data lake keeps events for the annotated period, or otherwise for as long as the broker. (R256)"""
    assert data_lake_retention(an_event_type(**changes)) == kept
