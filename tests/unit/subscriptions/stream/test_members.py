"""How the streams of a process learn of changes to the subscriptions that they share."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from nakadi.engines.memory.coordination import MemoryCoordination
from nakadi.model.event_type import Position
from nakadi.model.subscription import EMPTY_ASSIGNMENT, OffsetsCommitted, Standstill, SubscriptionChange
from nakadi.subscriptions.api.assignments import with_entries
from nakadi.subscriptions.stream.actions import DepartureRecord, FailureCountChange
from nakadi.subscriptions.stream.members import (
    FULL_READ_INTERVAL_SECONDS,
    SharedStateReader,
    SubscriptionSessions,
    SubscriptionWatch,
)
from tests.support.clock import HandMovedClock
from tests.support.coordination import a_place, a_session, an_assignment
from tests.support.patience import wait_on_loop

PATIENCE_SECONDS = 60


class SilentCoordination(MemoryCoordination):
    """A coordination that does not report changes, and whose next read may be made to fail."""

    def __init__(self):
        super().__init__()
        self.assignments_read = 0
        self.failures = []

    def assignment(self, subscription):
        if self.failures:
            raise self.failures.pop()
        self.assignments_read += 1
        return super().assignment(subscription)

    def add_change_listener(self, _subscription, _changed):
        return lambda: None


@pytest.fixture
def clock():
    return HandMovedClock()


@pytest.fixture
def coordination(clock):
    coordination = SilentCoordination()
    new = an_assignment("first", "first", sessions=[a_session("first")])
    coordination.replace_assignment(
        "s", EMPTY_ASSIGNMENT, new, clock.now(), {each.partition: Position(1, -1) for each in new.entries}
    )
    coordination.assignments_read = 0
    return coordination


def test_after_a_commit_only_the_offsets_are_read(coordination, clock):
    """While only offsets change, the assignment is not read again."""
    reader = SharedStateReader(SubscriptionSessions(coordination, "s", clock, execute_reset=print))
    reader.read({SubscriptionChange.ASSIGNMENT})
    reader.read({SubscriptionChange.OFFSETS})
    assert coordination.assignments_read == 1


def test_commits_without_a_pause_do_not_hide_a_change(coordination, clock):
    """A change of the assignment that was not reported is found within a minute, even while commits are reported all
    the time. (S247, S243)"""
    reader = SharedStateReader(SubscriptionSessions(coordination, "s", clock, execute_reset=print))
    before = reader.read({SubscriptionChange.ASSIGNMENT}).assignment
    SubscriptionSessions(coordination, "s", clock, execute_reset=print).join(a_session("second"))
    for _ in range(int(FULL_READ_INTERVAL_SECONDS) - 1):
        clock.move(1)
        assert reader.read({SubscriptionChange.OFFSETS}).assignment == before
    clock.move(1)
    assert reader.read({SubscriptionChange.OFFSETS}).assignment.session("second") is not None


def is_committed(reader, session, partition, offset):
    """Report a commit of one partition, and return whether the report was enough to know the state, and the
    partition's position in it.
    """
    place = a_place(partition)
    known = reader.add_commits([OffsetsCommitted(session, ((place, Position(1, offset)),))])
    return known, reader.shared.offsets[place].position.offset


def test_a_commit_that_says_what_it_moved_is_not_read(coordination, clock):
    """Positions in the report of a commit count only if they come from the owner, and never move back."""
    reader = SharedStateReader(SubscriptionSessions(coordination, "s", clock, execute_reset=print))
    reader.read({SubscriptionChange.ASSIGNMENT})
    coordination.close()
    assert is_committed(reader, "first", "1", 7) == (True, 7)
    assert is_committed(reader, "first", "1", 5) == (True, 7)
    assert is_committed(reader, "second", "1", 9) == (True, 7)
    assert reader.shared.offsets[a_place("0")].position == Position(1, -1)


def test_a_commit_does_not_stand_for_other_changes(coordination, clock):
    """If something else has changed, or if nothing was read yet, or not for a minute, everything is read."""
    reader = SharedStateReader(SubscriptionSessions(coordination, "s", clock, execute_reset=print))
    moved = OffsetsCommitted("first", ((a_place("0"), Position(1, 7)),))
    assert not reader.add_commits({moved})
    reader.read({moved})
    assert not reader.add_commits({moved, SubscriptionChange.ASSIGNMENT})
    assert not reader.add_commits({moved, SubscriptionChange.OFFSETS})
    assert not reader.add_commits(())
    clock.move(FULL_READ_INTERVAL_SECONDS)
    assert not reader.add_commits({moved})
    assert coordination.assignments_read == 1


def test_a_commit_is_heard_without_a_thread(clock):
    """Listeners learn of commits even if the only thread that reads is busy."""
    coordination = MemoryCoordination()
    new = an_assignment("first", sessions=[a_session("first")])
    coordination.replace_assignment(
        "s", EMPTY_ASSIGNMENT, new, clock.now(), {each.partition: Position(1, -1) for each in new.entries}
    )

    async def follow_changes():
        states, busy = asyncio.Queue(), threading.Event()
        with ThreadPoolExecutor(1) as threads:
            members = SubscriptionSessions(coordination, "s", clock, execute_reset=print)
            end = SubscriptionWatch(threads).follow(members, states.put_nowait)
            try:
                await asyncio.wait_for(states.get(), PATIENCE_SECONDS)
                threads.submit(busy.wait, PATIENCE_SECONDS)
                members.commit("first", {a_place("0"): Position(1, 7)})
                return await asyncio.wait_for(states.get(), PATIENCE_SECONDS)
            finally:
                busy.set()
                end()

    assert asyncio.run(follow_changes()).offsets[a_place("0")].position == Position(1, 7)


def test_a_stream_that_leaves_while_its_watch_begins_leaves_no_watch(clock):
    """The thread that begins the watch cannot be stopped: the watch ends when the thread has returned."""
    begins, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    class SlowCoordination(MemoryCoordination):
        def add_change_listener(self, subscription, on_change):
            begins.set()
            assert goes_on.wait(PATIENCE_SECONDS)
            end = super().add_change_listener(subscription, on_change)
            return lambda: (end(), ended.set())

    async def leave():
        with ThreadPoolExecutor(1) as threads:
            members = SubscriptionSessions(SlowCoordination(), "s", clock, execute_reset=print)
            end = SubscriptionWatch(threads).follow(members, print)
            assert await asyncio.to_thread(begins.wait, PATIENCE_SECONDS)
            end()
            await asyncio.sleep(0)
            goes_on.set()
            return await asyncio.to_thread(ended.wait, PATIENCE_SECONDS)

    assert asyncio.run(leave())


def test_an_idle_subscription_has_no_task_and_is_read_again(coordination, clock, monkeypatch):
    """A change whose report was lost is found by the next regular read; between two reads, there is only a timer.
    (S247)"""
    monkeypatch.setattr("nakadi.subscriptions.stream.members.FULL_READ_INTERVAL_SECONDS", 0.05)

    async def follow_changes():
        states = asyncio.Queue()
        with ThreadPoolExecutor(1) as threads:
            members = SubscriptionSessions(coordination, "s", clock, execute_reset=print)
            end = SubscriptionWatch(threads).follow(members, states.put_nowait)
            try:
                await asyncio.wait_for(states.get(), PATIENCE_SECONDS)
                await wait_on_loop(lambda: asyncio.all_tasks() == {asyncio.current_task()})
                members.join(a_session("second"))
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while (await states.get()).assignment.session("second") is None:
                        pass
            finally:
                end()
            await wait_on_loop(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    asyncio.run(follow_changes())


@pytest.mark.parametrize("failure", [RuntimeError("a mistake"), OSError("no such file"), KeyError("gone")])
def test_a_look_that_fails_is_not_the_last_one(coordination, clock, failure, caplog):
    """If reading a subscription fails with any error, the log names the subscription, and its streams learn of changes
    later."""

    async def follow_changes():
        coordination.failures = [failure]
        looked = asyncio.get_running_loop().create_future()
        with ThreadPoolExecutor(1) as threads:
            end = SubscriptionWatch(threads).follow(
                SubscriptionSessions(coordination, "s", clock, execute_reset=print), looked.set_result
            )
            try:
                return await asyncio.wait_for(looked, PATIENCE_SECONDS)
            finally:
                end()

    assert asyncio.run(follow_changes()).assignment.session("first") is not None
    assert "of s failed" in caplog.text


def test_whoever_leaves_writes_down_what_its_partitions_have_failed_at(coordination, clock):
    """A session that leaves writes the counts of failures that it knows; a partition that was taken from it keeps its
    own count. (S254, S262, S340)
    """
    members = SubscriptionSessions(coordination, "s", clock, execute_reset=print)
    old = members.assignment()
    taken = [replace(old.entries[1], owner=None, failed_streams=1)]
    coordination.replace_assignment("s", old, with_entries(old, taken), clock.now())
    counts = tuple(FailureCountChange(a_place(each), 2 + each, Position(1, 7)) for each in (0, 1))
    standstills = tuple(Standstill(a_place(each), Position(1, 6), 1) for each in (0, 1))
    members.leave("first", DepartureRecord(counts, standstills=standstills))
    left = members.assignment()
    assert left.sessions == ()
    assert left.standstills == standstills[:1]
    assert [(each.failed_streams, each.search_end) for each in left.entries] == [(2, Position(1, 7)), (1, None)]
