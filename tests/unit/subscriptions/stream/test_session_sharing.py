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
    table = SessionHarness(0, 1, batch_limit=1, max_uncommitted_events=3)
    table.arrive(5)
    table.take_messages()
    table.change(entry(0, f"{ME}>other"))
    assert not table.session.wants_events(a_place(0))
    table.commit(1)
    assert (table.take_messages(), table.take_calls()) == ([], [])
    table.commit(2)
    assert table.take_calls() == [HandOverPartitions(frozenset({a_place(0)}))]
    table.arrive(1, partition=1)
    assert table.take_messages() == ["1:0-0"]


def test_a_partition_without_anything_outstanding_is_released_at_once():
    """If nothing is uncommitted, a partition is released at once, and only once. (S242)"""
    table = SessionHarness(0)
    table.change(entry(0, f"{ME}>other"))
    table.pass_shared_state()
    assert table.take_calls() == [HandOverPartitions(frozenset({a_place(0)}))]
    table.change(entry(0, "other"))
    assert table.take_calls() == [ClosePartition(a_place(0))]


def test_a_partition_that_is_not_committed_in_time():
    """If a partition for which another session waits is not committed in time, the whole stream closes. (S219, S243)"""
    table = SessionHarness(0, 1, commit_seconds=20, max_uncommitted_events=100, flush_seconds=1000)
    table.arrive(1)
    table.wait(5)
    table.change(entry(0, f"{ME}>other"))
    for offset, seconds in enumerate((10, 9.5)):
        table.arrive(1, start=offset, partition=1)
        table.commit(offset, partition=1)
        table.wait(seconds)
    assert table.session.reason is None
    table.wait(0.5)
    assert table.session.reason is SessionEnd.RELEASE_TIMEOUT
    assert table.take_messages() == [f"0:0-0 {STARTED}", "1:0-0", "1:1-1"]


def test_commits_of_other_partitions_do_not_put_off_a_hand_over():
    """A partition for which another session waits is free after two commit timeouts, regardless of commits in other
    partitions. (S219, S243, S210)"""
    table = SessionHarness(0, 1, commit_seconds=3, max_uncommitted_events=100, flush_seconds=1000)
    table.arrive(1)
    table.arrive(90, partition=1)
    table.change(entry(0, f"{ME}>other"))
    for offset in range(6):
        table.wait(1)
        table.commit(offset, partition=1)
    assert table.session.end is SessionEnd.RELEASE_TIMEOUT


@pytest.mark.parametrize("begin", ["gone", "reset", "timeout"])
def test_commits_do_not_put_off_the_end_of_a_closing_stream(begin):
    """A stream that closes for any reason ends one commit timeout later, however much is committed meanwhile. (S210,
    S220, S215, S138)"""
    table = SessionHarness(
        0,
        commit_seconds=3,
        max_uncommitted_events=100,
        flush_seconds=1000,
        stream_seconds=5 if begin == "timeout" else 4200,
    )
    table.wait(4)
    table.arrive(90)
    if begin == "gone":
        table.tell(table.session.handle_disconnect(table.now))
    elif begin == "reset":
        table.pass_shared_state(resetting=True)
    for offset in range(4):
        table.wait(1)
        table.commit(offset)
    assert table.session.state is SessionState.ENDED


def test_a_partition_that_stays_after_all():
    """If no session waits any more, the partition continues as before. (S240)"""
    table = SessionHarness(0, max_uncommitted_events=3, commit_seconds=20)
    table.arrive(5)
    table.take_messages()
    table.change(entry(0, f"{ME}>other"))
    table.change(entry(0, ME))
    table.commit(0)
    assert table.take_messages() == ["0:3-3"]


def test_a_partition_that_comes_back_while_it_is_released():
    """While a hand-over is in progress, nothing is sent until the session knows the result. (S315, S312)"""
    table = SessionHarness(0)
    table.change(entry(0, f"{ME}>other"))
    table.take_calls()
    table.change(entry(0, ME))
    assert not table.session.wants_events(a_place(0))
    table.tell(table.session.end_hand_over([a_place(0)], table.assignment.revision, table.now))
    assert table.session.wants_events(a_place(0))


def test_what_was_read_before_a_hand_over_is_not_believed():
    """After a hand-over, a state that was read before it does not give the partition back to the session. (S312,
    S315)"""
    table = SessionHarness(0)
    table.change(entry(0, f"{ME}>other"))
    table.take_calls()
    table.tell(table.session.end_hand_over([a_place(0)], 17, table.now))
    table.change(entry(0, ME))
    assert not table.session.wants_events(a_place(0))
    table.assignment = type(table.assignment)(
        revision=17, initialised=True, entries=(entry(0, ME),), sessions=table.assignment.sessions
    )
    table.pass_shared_state()
    assert table.session.wants_events(a_place(0))


def test_a_partition_that_someone_waits_for_again_after_its_hand_over():
    """A partition that was handed over and came back, and for which another session waits by then, is handed over
    again, and none of its events are sent. (S242, S312, S315)"""
    table = SessionHarness(0)
    table.change(entry(0, f"{ME}>other"))
    hand_over = HandOverPartitions(frozenset({a_place(0)}))
    assert table.take_calls() == [hand_over]
    table.tell(table.session.end_hand_over([a_place(0)], table.assignment.revision + 2, table.now))
    table.change(entry(0, "other"))
    assert table.take_calls() == []
    table.change(entry(0, f"{ME}>other"))
    assert not table.session.wants_events(a_place(0))
    assert table.take_calls() == [hand_over]


def test_a_new_partition_is_read_from_its_offset():
    """A partition that was taken over is read from the offset that is stored after the session became its owner. (S244,
    S315)"""
    table = SessionHarness(0, entries=[entry(1, "other")], opening=False)
    table.take_calls()
    table.offsets[a_place(1)] = CommittedOffset(at(41), "other", A_MOMENT)
    table.change(entry(1, ME))
    assert table.take_calls() == [OpenPartition(a_place(1), at(41), 2)]


def test_an_offset_of_another_is_not_begun_from():
    """As long as the offset names another owner, reading does not start. (S244, S315)"""
    table = SessionHarness(0, opening=False)
    table.take_calls()
    table.assignment = type(table.assignment)(
        revision=2, initialised=True, entries=(entry(0, ME), entry(1, ME)), sessions=table.assignment.sessions
    )
    table.offsets[a_place(1)] = CommittedOffset(at(41), "other", A_MOMENT)
    table.pass_shared_state()
    assert table.take_calls() == []


def test_an_answer_that_came_too_late():
    """If another opening has overtaken an opening, its answer is ignored. (S208)"""
    table = SessionHarness(0, opening=False)
    [first] = table.take_calls()
    table.commit(5)
    [second] = table.take_calls()
    assert not table.session.expects_opening(first)
    table.tell(table.session.handle_opening(first, at(-1), 0, table.now))
    table.arrive(1)
    assert table.take_messages() == []
    table.tell(table.session.handle_opening(second, at(5), 0, table.now))
    table.arrive(1, start=6)
    assert table.take_messages() == [f"0:6-6 {STARTED}"]


def test_a_closing_session_releases():
    """A closing session releases each partition for which another session waits as soon as it is committed. (S248)"""
    table = SessionHarness(0, 1, max_uncommitted_events=10)
    table.arrive(1)
    table.arrive(1, partition=1)
    table.tell(table.session.handle_disconnect(table.now))
    table.change(entry(0, f"{ME}>other"), entry(1, f"{ME}>other"))
    assert table.take_calls() == []
    table.commit(0)
    assert table.take_calls() == [HandOverPartitions(frozenset({a_place(0)}))]
    table.change(entry(0, "other"), entry(1, "other"))
    assert table.session.end is SessionEnd.GONE
