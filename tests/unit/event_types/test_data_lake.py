"""The annotations that a data lake goes by."""

from datetime import timedelta

import pytest

from nakadi.event_types.rules import MATERIALIZE, PERIOD, REASON, check_data_lake_annotations, data_lake_retention
from nakadi.model.event_type import CleanupPolicy
from nakadi.model.outcomes import Invalid
from tests.support.builders import an_event_type

WHY = {REASON: "we need it"}


def refusal(annotations, **options) -> str:
    with pytest.raises(Invalid) as refused:
        check_data_lake_annotations(annotations, **options)
    return refused.value.detail


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"other": "x"},
        {MATERIALIZE: "off"},
        {MATERIALIZE: "on", PERIOD: "unlimited", **WHY},
        {PERIOD: "30 days", **WHY},
        {REASON: ""},
    ],
)
def test_valid_annotations(annotations):
    """Events are kept or not, for a period that has a reason. (R256)"""
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
    """A period is a number of days, weeks, months or years, spelt long or short, limits included. (R256)"""
    check_data_lake_annotations({PERIOD: period, **WHY})


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
    message = refusal({PERIOD: period, **WHY})
    assert message.startswith(f"Annotation {PERIOD} does not comply with regex. See documentation (docs/analytics.md")
    assert message.endswith(") for more details.")


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        (
            {MATERIALIZE: "yes"},
            f'Annotation {MATERIALIZE} is not valid. Provided value: "yes". Possible values are: "on" or "off".',
        ),
        ({MATERIALIZE: "on"}, f'Annotation {PERIOD} is required, when {MATERIALIZE} is "on".'),
        ({MATERIALIZE: "on", PERIOD: "1 year"}, f"Annotation {REASON} is required, when {PERIOD} is specified."),
        ({PERIOD: "1 year", REASON: ""}, f"Annotation {REASON} is required, when {PERIOD} is specified."),
    ],
)
def test_annotations_that_require_others(annotations, message):
    """To keep events needs a period, a period needs a reason. (R256)"""
    assert refusal(annotations) == message


def test_the_annotation_may_be_mandatory():
    """Where it is demanded, whether events are kept has to be said. (R256)"""
    assert refusal({}, mandatory=True) == f"Annotation {MATERIALIZE} is required"
    check_data_lake_annotations({MATERIALIZE: "off"}, mandatory=True)


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, timedelta(days=2)),
        ({"annotations": {PERIOD: "30 days"}}, timedelta(days=30)),
        ({"annotations": {PERIOD: "2w"}}, timedelta(days=14)),
        ({"annotations": {PERIOD: "1 year"}}, timedelta(days=366)),
        ({"annotations": {PERIOD: "unlimited"}}, None),
        ({"cleanup_policy": CleanupPolicy.COMPACT}, None),
        ({"cleanup_policy": CleanupPolicy.COMPACT_AND_DELETE}, timedelta(days=2)),
    ],
)
def test_retention_in_the_data_lake(changes, kept):
    """A data lake keeps events for the annotated period, else as long as the broker. (R256)"""
    assert data_lake_retention(an_event_type(**changes)) == kept
