"""The objective of a table, and how jobs count against it."""

from datetime import timedelta

import pytest

from nakadi.event_types.table_objective import (
    TableFreshness,
    TableObjective,
    count_commit,
    table_objective,
    table_windows,
    valid_table_objective,
)
from nakadi.event_types.table_retention import check_data_lake_annotations
from nakadi.model.annotations import EVENT_TYPE_ANNOTATIONS, annotation_warnings
from nakadi.model.objective import ConsumedBatch, MinuteCounts, minute_of
from nakadi.model.outcomes import Invalid
from tests.support.builders import A_MOMENT, an_event_type

ANNOTATION = "nakadi.io/table-objective"
OBJECTIVE = TableObjective(99, 3600)
TEN_MINUTES = minute_of(A_MOMENT) - minute_of(A_MOMENT) % 10


def added(events, minutes_ago, now=A_MOMENT):
    return ConsumedBatch(events, now - timedelta(minutes=minutes_ago))


@pytest.mark.parametrize(
    ("text", "percent", "seconds"),
    [
        ("99% within 1 hour", 99, 3600),
        ("99.9% within 15 minutes", 99.9, 900),
        ("50% within 1 second", 50, 1),
        ("95% within 7 days", 95, 604800),
    ],
)
def test_an_annotation_states_the_objective(text, percent, seconds):
    """The annotation is parsed to a percentage and a time, and the broker does not warn about its name. (T13)"""
    check_data_lake_annotations({ANNOTATION: text})
    assert table_objective({ANNOTATION: text}) == TableObjective(percent, seconds)
    assert table_objective({}) is None
    assert annotation_warnings([ANNOTATION], EVENT_TYPE_ANNOTATIONS) == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "99", "99 within 1 hour", "99% within an hour", "100% within 1 hour", "0% within 1 hour"),
        *("99% within 0 hours", "99% within 8 days", "99.9999% within 1 day", "99% within 1 hour ", "99% in 1 hour"),
    ],
)
def test_what_is_no_objective_is_refused(text):
    """The message about an invalid objective names the annotation and its value. An invalid objective that an
    administrator has stored nevertheless is ignored. (T13)
    """
    with pytest.raises(Invalid) as refused:
        check_data_lake_annotations({ANNOTATION: text})
    assert refused.value.detail.startswith(f"Annotation {ANNOTATION} is not valid: ")
    assert refused.value.detail.endswith(f'Provided value: "{text}".')
    assert valid_table_objective(an_event_type(annotations={ANNOTATION: text})) is None


def test_a_commit_counts_what_it_adds():
    """Events are late if they arrived later than the objective demands. The events of ten minutes share one count.
    (T14)
    """
    since = A_MOMENT - timedelta(days=1)
    first = count_commit(OBJECTIVE, None, [added(5, 59), added(3, 61)], since, A_MOMENT)
    assert first == TableFreshness(3600, since, (MinuteCounts(TEN_MINUTES, 5, 3),))
    second = count_commit(OBJECTIVE, first, [added(2, 1)], A_MOMENT, A_MOMENT)
    assert second == TableFreshness(3600, since, (MinuteCounts(TEN_MINUTES, 7, 3),))


def test_events_from_before_the_objective_do_not_count():
    """If the objective's time changes, the counts restart; if its share changes, they do not. (T14)"""
    since = A_MOMENT - timedelta(minutes=30)
    known = count_commit(OBJECTIVE, None, [added(5, 31), added(1, 29)], since, A_MOMENT)
    assert known.counts == (MinuteCounts(TEN_MINUTES, 1, 0),)
    assert count_commit(TableObjective(50, 3600), known, [], A_MOMENT, A_MOMENT) == known
    other = count_commit(TableObjective(99, 60), known, [added(1, 31), added(1, 29)], since, A_MOMENT)
    assert other.counts == (MinuteCounts(TEN_MINUTES, 0, 1),)


def test_windows_are_an_hour_and_a_day():
    """Each window has a burn rate; counts of another objective mean nothing, and older counts are dropped. (T15)"""
    known = count_commit(OBJECTIVE, None, [added(98, 1), added(2, 90)], A_MOMENT - timedelta(days=1), A_MOMENT)
    later = A_MOMENT + timedelta(hours=2)
    [hour, day] = table_windows(OBJECTIVE, known, A_MOMENT)
    assert (hour.minutes, hour.events, hour.late, hour.burn_rate) == (60, 100, 2, 2.0)
    assert (day.minutes, day.events, day.late, day.burn_rate) == (1440, 100, 2, 2.0)
    assert [each.events for each in table_windows(OBJECTIVE, known, later)] == [0, 100]
    assert [each.events for each in table_windows(TableObjective(99, 60), known, A_MOMENT)] == [0, 0]
    next_day = A_MOMENT + timedelta(days=1, minutes=10)
    assert len(count_commit(OBJECTIVE, known, [], A_MOMENT, next_day).counts) == 1
