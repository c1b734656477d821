"""Events at which consumers fail repeatedly."""

import orjson
import pytest

from nakadi.model.events import Record
from nakadi.model.subscription import PartitionAssignment
from nakadi.subscriptions.api.fields import (
    POLICY_ANNOTATION,
    SEND_COUNT_ANNOTATION,
    RetryPolicy,
    UnprocessablePolicy,
    retry_policy_from_annotations,
)
from nakadi.subscriptions.stream.actions import FailureCountChange, GiveUpOnEvent
from nakadi.subscriptions.stream.calls import dead_letter_event
from tests.support.chunks import a_chunk
from tests.support.consuming import ME, SessionHarness, at
from tests.support.coordination import a_place, entry

SKIPPING = RetryPolicy(UnprocessablePolicy.SKIP_EVENT, 3)
STARTED = "Stream started"
EID = "70779f46-950d-4e48-9fca-10c413845e7f"


def failed_partition(fails, search_end=None):
    """The entry of partition 0, which is assigned to this session after this number of failed streams."""
    return PartitionAssignment(a_place(0), ME, None, fails, None if search_end is None else at(search_end))


def a_harness(fails, search_end=None, policy=SKIPPING, **limits):
    return SessionHarness(
        entries=[failed_partition(fails, search_end)],
        policy=policy,
        **{"batch_limit": 5, "max_uncommitted_events": 20} | limits,
    )


def make_tracked_session(fails, search_end):
    return f"Auto DLQ failed commits tracking: {{order:0 failedCommitsCount={fails} lastDeadLetterOffset={search_end}}}"


def failures_at_the_end(harness):
    """The number of failures of each partition when the session leaves."""
    return {
        int(each.partition.partition): each.failed_streams for each in harness.session.departure_record().failure_counts
    }


# Counting


def test_failures_are_counted_after_an_orderly_end():
    """A stream that ends without a commit of what it sent has failed at every partition with such events. (S254,
    S255)"""
    harness = SessionHarness(0, 1, 2, policy=SKIPPING, max_uncommitted_events=10, commit_seconds=20)
    harness.arrive(1)
    harness.arrive(1, partition=1)
    harness.commit(0, partition=1)
    harness.arrive(1, partition=2)
    harness.wait(60)
    assert failures_at_the_end(harness) == {0: 1, 1: 0, 2: 1}


@pytest.mark.parametrize("lease_ends", [False, True])
def test_failures_are_not_counted_after_an_abrupt_end(lease_ends):
    """An end without an opportunity to commit is not a failure. (S254)"""
    harness = SessionHarness(0, policy=SKIPPING)
    harness.arrive(1)
    if lease_ends:
        harness.lease.valid_until = harness.now
        harness.tick()
    else:
        harness.session.handle_shutdown()
    assert not any(failures_at_the_end(harness).values())


@pytest.mark.parametrize("seconds", [1, 15])
def test_a_stream_that_is_cut_off_has_failed_at_nothing(seconds):
    """If a process ends in the middle of a stream, or while the stream closes, the client has no opportunity to commit.
    (S254)"""
    harness = SessionHarness(0, policy=SKIPPING, stream_seconds=10, commit_seconds=20)
    harness.arrive(1)
    harness.wait(seconds)
    assert harness.session.end is None
    departure = harness.session.departure_record()
    assert not any(each.failed_streams for each in departure.failure_counts)
    assert not departure.has_timed_out


def test_nothing_is_counted_without_a_policy():
    """Without the annotations that state a policy, nothing is counted, and an event is sent for ever. (S252)"""
    harness = SessionHarness(entries=[failed_partition(17)], commit_seconds=20)
    harness.arrive(1)
    assert harness.take_messages() == [f"0:0-0 {STARTED}"]
    harness.wait(60)
    assert (failures_at_the_end(harness), harness.take_calls()) == ({}, [])


def test_a_commit_forgets_failures():
    """Any progress of a partition resets its count. (S256)"""
    harness = a_harness(fails=2)
    harness.arrive(5)
    harness.commit(0)
    assert harness.take_calls() == [FailureCountChange(a_place(0), 0, None)]
    harness.commit(1)
    assert harness.take_calls() == []


# Searching


def test_after_so_many_failures_events_come_one_by_one():
    """After a number of failed streams, the failing event is searched for: within the length of a batch, events are
    sent alone, each after the commit of the one before, and other partitions continue normally. (S257, S258)"""
    harness = SessionHarness(
        1, entries=[failed_partition(3)], policy=SKIPPING, batch_limit=5, max_uncommitted_events=20, flush_seconds=20
    )
    assert harness.take_calls() == [FailureCountChange(a_place(0), 0, at(4))]
    harness.arrive(7)
    harness.arrive(5, partition=1)
    assert harness.take_messages() == [f"0:0-0 {STARTED}; {make_tracked_session(3, 'null')}", "1:0-4"]
    harness.wait(20)
    assert "0@0" in harness.take_messages()
    harness.commit(0)
    assert harness.take_messages() == ["0:1-1"]


def test_the_search_ends():
    """After the end of the search, batches are normal again, within the same stream. (S261)"""
    harness = a_harness(fails=0, search_end=4)
    harness.arrive(12)
    for offset in range(5):
        harness.commit(offset)
    assert harness.take_messages()[-1] == "0:5-9"
    assert harness.take_calls() == [FailureCountChange(a_place(0), 0, None)]


def test_the_search_goes_on_in_the_next_stream():
    """The next reader of the partition knows up to where the search extends. (S262, S264)"""
    harness = a_harness(fails=1, search_end=4)
    harness.arrive(3)
    assert harness.take_messages() == [f"0:0-0 {STARTED}; {make_tracked_session(1, at(4))}"]


def test_an_event_is_dropped():
    """An event that was sent alone as many times as the policy allows, without a commit, is not sent again; the search
    continues after it. (S259, S260)
    """
    harness = a_harness(fails=3, search_end=4)
    harness.arrive(3)
    [drop] = harness.take_calls()
    assert (drop.partition, drop.event.end, drop.failed_streams) == (a_place(0), at(0), 3)
    harness.tick()
    assert (harness.take_messages(), harness.take_calls()) == ([], [])
    harness.commit(0)
    assert harness.take_calls() == [FailureCountChange(a_place(0), 0, at(4))]
    assert harness.take_messages() == [f"0:1-1 {STARTED}; {make_tracked_session(3, at(4))}"]


def test_partitions_of_the_same_number_are_kept_apart():
    """The state of a partition does not affect a partition of another event type: a deviation from the original.
    (S272)"""
    other = a_place(0, event_type="another")
    harness = SessionHarness(entries=[failed_partition(3), PartitionAssignment(other, ME)], policy=SKIPPING)
    assert [each.partition for each in harness.take_calls()] == [a_place(0)]


def test_a_partition_waits_while_its_event_is_dropped():
    """No session gets a partition while one of its events is being parked or dropped. (S316)"""
    harness = a_harness(fails=3, search_end=4)
    harness.arrive(1)
    harness.take_calls()
    harness.change(entry(0, f"{ME}>other"))
    assert harness.take_calls() == []


# Policies and dead letters


@pytest.mark.parametrize(
    ("annotations", "policy"),
    [
        ({}, None),
        ({SEND_COUNT_ANNOTATION: "3", POLICY_ANNOTATION: "SKIP_EVENT"}, SKIPPING),
        (
            {SEND_COUNT_ANNOTATION: "10", POLICY_ANNOTATION: "DEAD_LETTER_QUEUE"},
            RetryPolicy(UnprocessablePolicy.DEAD_LETTER_QUEUE, 10),
        ),
    ],
)
def test_annotations_determine_the_policy_for_failed_events(annotations, policy):
    """Two annotations together determine how events that cannot be processed are treated. (S250, S253)"""
    assert retry_policy_from_annotations(annotations) == policy


def a_drop(event):
    record = Record(orjson.dumps(event))
    return GiveUpOnEvent(a_place(3), a_chunk(record, start=12).run_from_offset(12), 3)


def test_a_dead_letter_has_the_event_its_place_and_the_reason():
    """A dead letter has the event unchanged, its position, and the reason. (S265)"""
    event = {"metadata": {"eid": EID, "event_type": "order", "occurred_at": "2026-11-21T12:00:00Z"}, "n": 1}
    assert dead_letter_event(EID, a_drop(event)) == {
        "subscription_id": EID,
        "event_type": "order",
        "partition": "3",
        "offset": "001-0001-000000000000000012",
        "error": {"message": "Nakadi Auto DLQ: skipped due to failed commits count: 3"},
        "event": event,
    }


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": {"eid": EID}}])
def test_every_event_fits_into_a_letter(metadata):
    """If an event lacks metadata that the store requires, the broker generates them, so that the event blocks nothing:
    a deviation from the original. (S269)"""
    event = dead_letter_event(EID, a_drop({"n": 1, **metadata}))["event"]
    assert event["metadata"]["event_type"] == "order"
    assert set(event["metadata"]) == {"event_type", "eid", "occurred_at"}
    assert event["metadata"]["eid"] == EID or not (metadata.get("metadata") or {}).get("eid")
