import pytest

from nakadi.model.events import AppendRefused, AppendStored
from nakadi.publishing.batch import (
    BatchRejected,
    BatchStatus,
    PublishingStep,
    eid_of,
    outcome_of_partial_append,
    outcome_of_rejection,
)
from tests.support.builders import an_event_type
from tests.support.publishing import PublisherInMemory, statuses_and_steps

EVENTS = [{"metadata": {"eid": name}} for name in "abc"]


@pytest.mark.parametrize(
    ("step", "reached", "expected"),
    [
        (PublishingStep.VALIDATING, PublishingStep.NONE, ["validating", "validating", "none"]),
        (PublishingStep.VALIDATING, PublishingStep.VALIDATING, ["validating", "validating", "validating"]),
        (PublishingStep.PARTITIONING, PublishingStep.VALIDATING, ["partitioning", "partitioning", "validating"]),
        (PublishingStep.ENRICHING, PublishingStep.PARTITIONING, ["enriching", "enriching", "partitioning"]),
    ],
)
def test_one_event_fails_and_the_others_are_given_up(step, reached, expected):
    """Events before the failing one reached the same step; events after it reached only the step before. (P116, P122,
    P123, P124)"""
    outcome = outcome_of_rejection(EVENTS, BatchRejected(step, 1, "why", prior_step=reached))
    assert outcome.status is BatchStatus.REJECTED
    assert statuses_and_steps(outcome) == list(zip(["aborted", "failed", "aborted"], expected, strict=True))
    assert [item.eid for item in outcome.items] == ["a", "b", "c"]
    assert [item.detail for item in outcome.items] == ["", "why", ""]


def test_a_batch_rejected_as_a_whole_fails_no_single_event():
    """If no event is at fault, all events are aborted at the step that they had reached. (P121)"""
    outcome = outcome_of_rejection(
        EVENTS, BatchRejected(PublishingStep.PARTITIONING, prior_step=PublishingStep.VALIDATING)
    )
    assert statuses_and_steps(outcome) == [("aborted", "validating")] * 3


def test_partitions_are_reported_once_they_are_chosen():
    """An item has the partition as soon as it is chosen, and null before. (P120)"""
    outcome = outcome_of_rejection(
        EVENTS,
        BatchRejected(PublishingStep.PARTITIONING, 1, "why", prior_step=PublishingStep.VALIDATING, partitions=[7]),
    )
    assert [item.partition for item in outcome.items] == ["7", None, None]


def test_everything_stored_needs_no_items():
    """When everything is stored, there is nothing to report. (P110)"""
    house = PublisherInMemory()
    outcome = house.publish(house.add(an_event_type()), [{"a": 1}])
    assert (outcome.status, outcome.items) == (BatchStatus.STORED, ())


@pytest.mark.parametrize("reason", ["timed out", "internal error", "interrupted"])
def test_storing_has_results_of_its_own_for_each_partition(reason):
    """Stored events are `submitted`, and the others are `failed` with the log's reason. (P111, P117, P118, P121)"""
    outcome = outcome_of_partial_append(EVENTS, [0, 1, 0], {0: AppendStored(), 1: AppendRefused(reason)})
    assert outcome.status is BatchStatus.NOT_ALL_STORED
    assert statuses_and_steps(outcome) == [
        ("submitted", "publishing"),
        ("failed", "publishing"),
        ("submitted", "publishing"),
    ]
    assert [item.detail for item in outcome.items] == ["", reason, ""]
    assert [item.partition for item in outcome.items] == ["0", "1", "0"]


@pytest.mark.parametrize(
    ("event", "eid"),
    [
        ({"metadata": {"eid": "x"}}, "x"),
        ({"metadata": {"eid": 17}}, "17"),
        ({"metadata": {"eid": 1.50}}, "1.5"),
        ({"metadata": {"eid": None}}, ""),
        ({"metadata": {}}, ""),
        ({"metadata": []}, ""),
        ({}, ""),
    ],
)
def test_an_event_s_id_as_text(event, eid):
    """The id is the string in the metadata, or empty if there is none. (P119)"""
    assert eid_of(event) == eid
