"""A client that leaves, one whose connection is lost, and one that asks for more time to commit."""

import pytest
from msgspec.structs import replace

from nakadi.model.subscription import Standstill
from nakadi.subscriptions.api.fields import RetryPolicy, UnprocessablePolicy
from nakadi.subscriptions.stream.actions import AutoCommit, FailureCountChange, GrantExtension, SessionEnd
from tests.support.chunks import a_chunk
from tests.support.consuming import ME, SessionHarness, at
from tests.support.coordination import a_place, entry

STARTED = "Stream started"
SKIPPING = RetryPolicy(UnprocessablePolicy.SKIP_EVENT, 3)


def ask(harness, **changes):
    """Write a request into the session's entry in the assignment, and report it to the session."""
    sessions = tuple(replace(each, **changes) if each.id == ME else each for each in harness.assignment.sessions)
    harness.assignment = replace(harness.assignment, revision=harness.assignment.revision + 1, sessions=sessions)
    harness.pass_shared_state()


def failures(harness):
    return [each.failed_streams for each in harness.session.departure_record().failure_counts]


# Leaving


def test_a_client_that_leaves_is_not_waited_for():
    """The session ends at once and without a message, although events are not committed. (S324)"""
    harness = SessionHarness(0, commit_seconds=60)
    harness.arrive(1)
    assert harness.take_messages() == [f"0:0-0 {STARTED}"]
    ask(harness, is_leaving=True)
    assert (harness.session.end, harness.take_messages()) == (SessionEnd.LEFT, [])
    harness.arrive(1, start=1)
    assert harness.take_messages() == []


def test_a_client_may_leave_while_its_stream_closes():
    """A session that waits for the last commits ends without them. (S324)"""
    harness = SessionHarness(0, stream_seconds=10, commit_seconds=60)
    harness.arrive(1)
    harness.wait(11)
    assert (harness.session.reason, harness.session.end) == (SessionEnd.TIMEOUT, None)
    ask(harness, is_leaving=True)
    assert harness.session.end is SessionEnd.LEFT


def test_what_is_not_committed_when_a_client_leaves_has_failed():
    """Every partition with uncommitted events gets one more failure, and no other partition does. (S328, S254)"""
    harness = SessionHarness(0, 1, policy=SKIPPING, max_uncommitted_events=10)
    harness.arrive(1)
    harness.arrive(1, partition=1)
    harness.commit(0, partition=1)
    ask(harness, is_leaving=True)
    assert failures(harness) == [1, 0]


def test_a_commit_right_before_leaving_counts():
    """A session that learns of the last commit and of the leaving at the same time records that nothing has failed.
    (S328, S256)"""
    owned = replace(entry(0, ME), failed_streams=2)
    harness = SessionHarness(entries=[owned], policy=SKIPPING)
    harness.arrive(1)
    harness.offsets[a_place(0)] = replace(harness.offsets[a_place(0)], position=at(0))
    ask(harness, is_leaving=True)
    assert harness.session.departure_record().failure_counts == (FailureCountChange(a_place(0), 0, None),)


def test_leaving_is_no_timeout():
    """Only a session whose commit timeout has passed is recorded as timed out. (S333)"""
    left, late = SessionHarness(0), SessionHarness(0, commit_seconds=5)
    for harness in (left, late):
        harness.arrive(1)
    ask(left, is_leaving=True)
    late.wait(6)
    assert late.session.end is SessionEnd.COMMIT_TIMEOUT
    assert [harness.session.departure_record().has_timed_out for harness in (left, late)] == [False, True]


@pytest.mark.parametrize("leaves", [True, False])
def test_who_leaves_says_where_partitions_stand(leaves):
    """Each partition counts one more stream if events that were sent are not committed, with or without a policy.
    Skipped events before the first uncommitted one are committed. (S340)
    """
    harness = SessionHarness(
        0, 1, commit_seconds=5, max_uncommitted_events=10, deliverable=lambda record: record.value != b'"skipped"'
    )
    harness.rules.skips_misplaced_events = True
    harness.arrive(a_chunk("skipped", "sent").run_from_offset(0))
    harness.arrive(2, partition=1)
    harness.commit(1, partition=1)
    if leaves:
        ask(harness, is_leaving=True)
    else:
        harness.wait(6)
    record = harness.session.departure_record()
    assert record.standstills == (Standstill(a_place(0), at(0), 1), Standstill(a_place(1), at(1), 0))
    assert record.commit_positions == {a_place(0): at(0)}


# Disconnecting


def test_a_disconnect_releases_if_the_client_wants_it():
    """With `on_disconnect=release`, the session ends with the connection, and its uncommitted events count as failed.
    (S329, S254)"""
    harness = SessionHarness(0, policy=SKIPPING, releases_on_disconnect=True)
    harness.arrive(1)
    harness.tell(harness.session.handle_disconnect(harness.now))
    assert harness.session.end is SessionEnd.RELEASED
    assert failures(harness) == [1]
    assert not harness.session.departure_record().has_timed_out


def test_a_disconnect_releases_a_stream_that_closes():
    """A session that waits for the last commits does not wait for a client that has left. (S329)"""
    harness = SessionHarness(0, stream_seconds=10, commit_seconds=60, releases_on_disconnect=True)
    harness.arrive(1)
    harness.wait(11)
    assert (harness.session.reason, harness.session.end) == (SessionEnd.TIMEOUT, None)
    harness.tell(harness.session.handle_disconnect(harness.now))
    assert harness.session.end is SessionEnd.RELEASED


def test_skipped_events_are_committed_by_whoever_leaves():
    """When a session ends, events that were skipped for its client are committed, so they are not read again. (S232)"""
    harness = SessionHarness(0, deliverable=lambda _: False)
    harness.rules.skips_misplaced_events = True
    harness.arrive(3)
    ask(harness, is_leaving=True)
    assert not any(isinstance(each, AutoCommit) for each in harness.take_calls())
    assert {each.offset for each in harness.session.departure_record().commit_positions.values()} == {2}


# Extending


def test_an_extension_starts_the_commit_timeout_again():
    """A client that asks for more time gets a whole commit timeout from that moment. (S330)"""
    harness = SessionHarness(0, commit_seconds=20)
    harness.arrive(1)
    harness.wait(15)
    ask(harness, extensions_requested=1)
    assert harness.take_calls() == [GrantExtension(1, 35.0)]
    harness.wait(19)
    assert harness.session.end is None
    harness.wait(2)
    assert harness.session.end is SessionEnd.COMMIT_TIMEOUT


def test_an_extension_is_granted_once():
    """The recorded extension does not count as another request, but the next request does. (S330)"""
    harness = SessionHarness(0, commit_seconds=20)
    ask(harness, extensions_requested=1)
    ask(harness, extensions_requested=1, extensions_granted=1)
    assert harness.take_calls() == [GrantExtension(1, 20.0)]
    harness.wait(5)
    ask(harness, extensions_requested=2)
    assert harness.take_calls() == [GrantExtension(2, 25.0)]


def test_an_extension_does_not_put_off_a_hand_over():
    """If another session waits for a partition, the stream closes in time, and an extension has no effect: so the
    partition moves within two commit timeouts. (S331, S243)"""
    harness = SessionHarness(0, commit_seconds=20)
    harness.arrive(1)
    harness.change(entry(0, f"{ME}>other"))
    harness.wait(15)
    ask(harness, extensions_requested=1)
    harness.wait(6)
    assert harness.session.reason is SessionEnd.RELEASE_TIMEOUT
    ask(harness, extensions_requested=2)
    assert harness.take_calls() == [GrantExtension(1, 35.0), GrantExtension(2, 35.0)]
    harness.wait(15)
    assert harness.session.end is SessionEnd.RELEASE_TIMEOUT


@pytest.mark.parametrize("waited", [1, 14])
def test_an_extension_does_not_put_off_a_close(waited):
    """A closing stream continues to close, and the answer contains the time until which it waits for commits. (S331,
    S210)"""
    harness = SessionHarness(0, stream_seconds=10, commit_seconds=20)
    harness.wait(5)
    harness.arrive(1)
    harness.wait(5 + waited)
    assert harness.session.reason is SessionEnd.TIMEOUT
    ask(harness, extensions_requested=1)
    assert harness.take_calls() == [GrantExtension(1, 25.0)]
    harness.wait(24.9 - harness.now)
    assert harness.session.end is None
    harness.wait(0.2)
    assert harness.session.end is SessionEnd.TIMEOUT
