"""How a session shares the partitions of its subscription with other sessions."""

import pytest

from nakadi.model.subscription import CommittedOffset
from nakadi.subscriptions.stream.actions import ClosePartition, HandOverPartitions, OpenPartition, SessionEnd
from nakadi.subscriptions.stream.session_states import SessionState
from tests.support.builders import A_MOMENT
from tests.support.consuming import ME, SessionHarness, at
from tests.support.coordination import a_place, entry

STARTED = "Stream started"


def test_a_partition_that_someone_waits_for():
    """The session sends nothing more from a partition for which another session waits, and releases it once everything
    is committed. (S241, S242, S316, S129)"""
    harness = SessionHarness(0, 1, batch_limit=1, max_uncommitted_events=3)
    harness.arrive(5)
    harness.take_messages()
    harness.change(entry(0, f"{ME}>other"))
    assert not harness.session.wants_events(a_place(0))
    harness.commit(1)
    assert (harness.take_messages(), harness.take_calls()) == ([], [])
    harness.commit(2)
    assert harness.take_calls() == [HandOverPartitions(frozenset({a_place(0)}))]
    harness.arrive(1, partition=1)
    assert harness.take_messages() == ["1:0-0"]


def test_a_partition_without_anything_outstanding_is_released_at_once():
    """If nothing is uncommitted, a partition is released at once, and only once. (S242)"""
    harness = SessionHarness(0)
    harness.change(entry(0, f"{ME}>other"))
    harness.pass_shared_state()
    assert harness.take_calls() == [HandOverPartitions(frozenset({a_place(0)}))]
    harness.change(entry(0, "other"))
    assert harness.take_calls() == [ClosePartition(a_place(0))]


def test_a_partition_that_is_not_committed_in_time():
    """If a partition for which another session waits is not committed in time, the whole stream closes. (S219, S243)"""
    harness = SessionHarness(0, 1, commit_seconds=20, max_uncommitted_events=100, flush_seconds=1000)
    harness.arrive(1)
    harness.wait(5)
    harness.change(entry(0, f"{ME}>other"))
    for offset, seconds in enumerate((10, 9.5)):
        harness.arrive(1, start=offset, partition=1)
        harness.commit(offset, partition=1)
        harness.wait(seconds)
    assert harness.session.reason is None
    harness.wait(0.5)
    assert harness.session.reason is SessionEnd.RELEASE_TIMEOUT
    assert harness.take_messages() == [f"0:0-0 {STARTED}", "1:0-0", "1:1-1"]


def test_commits_of_other_partitions_do_not_put_off_a_hand_over():
    """A partition for which another session waits is free after two commit timeouts, regardless of commits in other
    partitions. (S219, S243, S210)"""
    harness = SessionHarness(0, 1, commit_seconds=3, max_uncommitted_events=100, flush_seconds=1000)
    harness.arrive(1)
    harness.arrive(90, partition=1)
    harness.change(entry(0, f"{ME}>other"))
    for offset in range(6):
        harness.wait(1)
        harness.commit(offset, partition=1)
    assert harness.session.end is SessionEnd.RELEASE_TIMEOUT


@pytest.mark.parametrize("begin", ["gone", "reset", "timeout"])
def test_commits_do_not_put_off_the_end_of_a_closing_stream(begin):
    """A stream that closes for any reason ends one commit timeout later, however much is committed meanwhile. (S210,
    S220, S215, S138)"""
    harness = SessionHarness(
        0,
        commit_seconds=3,
        max_uncommitted_events=100,
        flush_seconds=1000,
        stream_seconds=5 if begin == "timeout" else 4200,
    )
    harness.wait(4)
    harness.arrive(90)
    if begin == "gone":
        harness.tell(harness.session.handle_disconnect(harness.now))
    elif begin == "reset":
        harness.pass_shared_state(resetting=True)
    for offset in range(4):
        harness.wait(1)
        harness.commit(offset)
    assert harness.session.state is SessionState.ENDED


def test_a_partition_that_stays_after_all():
    """If no session waits any more, the partition continues as before. (S240)"""
    harness = SessionHarness(0, max_uncommitted_events=3, commit_seconds=20)
    harness.arrive(5)
    harness.take_messages()
    harness.change(entry(0, f"{ME}>other"))
    harness.change(entry(0, ME))
    harness.commit(0)
    assert harness.take_messages() == ["0:3-3"]


def test_a_partition_that_comes_back_while_it_is_released():
    """While a hand-over is in progress, nothing is sent until the session knows the result. (S315, S312)"""
    harness = SessionHarness(0)
    harness.change(entry(0, f"{ME}>other"))
    harness.take_calls()
    harness.change(entry(0, ME))
    assert not harness.session.wants_events(a_place(0))
    harness.tell(harness.session.end_hand_over([a_place(0)], harness.assignment.revision, harness.now))
    assert harness.session.wants_events(a_place(0))


def test_what_was_read_before_a_hand_over_is_not_believed():
    """After a hand-over, a state that was read before it does not give the partition back to the session. (S312,
    S315)"""
    harness = SessionHarness(0)
    harness.change(entry(0, f"{ME}>other"))
    harness.take_calls()
    harness.tell(harness.session.end_hand_over([a_place(0)], 17, harness.now))
    harness.change(entry(0, ME))
    assert not harness.session.wants_events(a_place(0))
    harness.assignment = type(harness.assignment)(
        revision=17, initialised=True, entries=(entry(0, ME),), sessions=harness.assignment.sessions
    )
    harness.pass_shared_state()
    assert harness.session.wants_events(a_place(0))


def test_a_partition_that_someone_waits_for_again_after_its_hand_over():
    """If a partition was handed over and came back, and another session waits for it again by then, it is handed over
    again, and none of its events are sent. (S242, S312, S315)"""
    harness = SessionHarness(0)
    harness.change(entry(0, f"{ME}>other"))
    hand_over = HandOverPartitions(frozenset({a_place(0)}))
    assert harness.take_calls() == [hand_over]
    harness.tell(harness.session.end_hand_over([a_place(0)], harness.assignment.revision + 2, harness.now))
    harness.change(entry(0, "other"))
    assert harness.take_calls() == []
    harness.change(entry(0, f"{ME}>other"))
    assert not harness.session.wants_events(a_place(0))
    assert harness.take_calls() == [hand_over]


def test_a_new_partition_is_read_from_its_offset():
    """A partition that was taken over is read from the offset that is stored after the session became its owner. (S244,
    S315)"""
    harness = SessionHarness(0, entries=[entry(1, "other")], opening=False)
    harness.take_calls()
    harness.offsets[a_place(1)] = CommittedOffset(at(41), "other", A_MOMENT)
    harness.change(entry(1, ME))
    assert harness.take_calls() == [OpenPartition(a_place(1), at(41), 2)]


def test_an_offset_of_another_is_not_begun_from():
    """As long as the offset names another owner, reading does not start. (S244, S315)"""
    harness = SessionHarness(0, opening=False)
    harness.take_calls()
    harness.assignment = type(harness.assignment)(
        revision=2, initialised=True, entries=(entry(0, ME), entry(1, ME)), sessions=harness.assignment.sessions
    )
    harness.offsets[a_place(1)] = CommittedOffset(at(41), "other", A_MOMENT)
    harness.pass_shared_state()
    assert harness.take_calls() == []


def test_an_answer_that_came_too_late():
    """If a partition is opened again before an earlier opening is answered, the answer to the earlier one is ignored.
    (S208)
    """
    harness = SessionHarness(0, opening=False)
    [first] = harness.take_calls()
    harness.commit(5)
    [second] = harness.take_calls()
    assert not harness.session.expects_opening(first)
    harness.tell(harness.session.handle_opening(first, at(-1), 0, harness.now))
    harness.arrive(1)
    assert harness.take_messages() == []
    harness.tell(harness.session.handle_opening(second, at(5), 0, harness.now))
    harness.arrive(1, start=6)
    assert harness.take_messages() == [f"0:6-6 {STARTED}"]


def test_a_closing_session_releases():
    """A closing session releases each partition for which another session waits as soon as it is committed. (S248)"""
    harness = SessionHarness(0, 1, max_uncommitted_events=10)
    harness.arrive(1)
    harness.arrive(1, partition=1)
    harness.tell(harness.session.handle_disconnect(harness.now))
    harness.change(entry(0, f"{ME}>other"), entry(1, f"{ME}>other"))
    assert harness.take_calls() == []
    harness.commit(0)
    assert harness.take_calls() == [HandOverPartitions(frozenset({a_place(0)}))]
    harness.change(entry(0, "other"), entry(1, "other"))
    assert harness.session.end is SessionEnd.GONE
