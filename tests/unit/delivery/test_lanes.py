"""Which events go into a delivery, and what follows from the sink's answer."""

from __future__ import annotations

from math import inf

import pytest

from nakadi.common.states import UnexpectedFact
from nakadi.delivery.answers import Answer, Verdict
from nakadi.delivery.lane_states import DeliveryState, LaneState
from nakadi.delivery.lanes import (
    ATTEMPTS_BEFORE_HALVING,
    COMMIT_WAIT_SECONDS,
    GONE_REASON,
    MAX_LANES_ALONE,
    MAX_PAUSE_SECONDS,
    BeginAttempt,
    CommitDelivered,
    DeliveryLimits,
    DeliverySession,
    Lane,
    PartitionDeliveries,
    pause_seconds,
)
from nakadi.delivery.queues import MAX_BATCH_BYTES
from nakadi.model.event_type import Position
from nakadi.model.events import Record
from nakadi.model.sink import Parallel
from nakadi.model.subscription import EventTypePartition, OffsetRange
from tests.support.chunks import a_chunk, some_events, values
from tests.support.sink_simulation import SinkSimulation

FIRST, SECOND = EventTypePartition("a", "0"), EventTypePartition("a", "1")


def a_session(*, batch_limit=100, max_in_flight=1, max_event_attempts=None, share=1.0, parallel=Parallel.PARTITION):
    limits = DeliveryLimits(
        batch_limit=batch_limit,
        max_in_flight=max_in_flight,
        max_event_attempts=max_event_attempts,
        parallel=parallel,
    )
    return DeliverySession(limits, lambda: share)


class Receiver:
    """Answers the attempts of a session one after another, and lets time pass between them."""

    def __init__(self, session, poison=()):
        self.session = session
        self.poison = {str(each).encode() for each in poison}
        self.now = 0.0
        self.tried: list[list[int]] = []
        self.committed: list[int] = []
        self.waiting = []

    def work(self, actions, times=1000):
        waiting = self.waiting
        waiting += actions
        for _ in range(times):
            if not waiting:
                if self.session.state is not DeliveryState.DELIVERING or self.session.next_tick_at() == float("inf"):
                    return
                self.now = max(self.now, self.session.next_tick_at())
                waiting += self.session.tick(self.now)
                continue
            match waiting.pop(0):
                case CommitDelivered(partition, position):
                    self.committed.append(position.offset)
                    waiting += self.session.end_commit(partition, self.now, is_committed=True)
                case BeginAttempt(number, batch):
                    sent = values(batch.runs)
                    self.tried.append([int(each) for each in sent])
                    answer = Answer(500 if self.poison.intersection(sent) else 200)
                    waiting += self.session.handle_answer(number, answer, self.now)


def test_events_that_gather_during_a_delivery_go_together_into_the_next():
    """The broker does not wait for a full batch, but sends the events that have arrived. (X10)"""
    session = a_session(batch_limit=3)
    [first] = session.receive(FIRST, [some_events(1)], 0)
    assert not session.receive(FIRST, [some_events(2, start=1)], 0)
    assert not session.receive(FIRST, [some_events(2, start=3)], 0)
    commit, second = session.handle_answer(first.number, Answer(200), 0)
    assert commit == CommitDelivered(FIRST, Position(1, 0))
    assert values(second.batch.runs) == [b"1", b"2", b"3"]
    assert second.batch.attempt == 1


def test_a_partition_has_one_delivery_at_a_time_and_partitions_take_turns():
    """Deliveries of a partition never overtake each other, and no partition waits for ever. (X11)"""
    session = a_session(batch_limit=1, max_in_flight=2)
    [first] = session.receive(FIRST, [some_events(3)], 0)
    [other] = session.receive(SECOND, [some_events(3)], 0)
    assert (first.batch.partition, other.batch.partition) == (FIRST, SECOND)
    _, following = session.handle_answer(first.number, Answer(200), 0)
    assert following.batch.partition == FIRST
    single = a_session(batch_limit=1)
    [begun] = single.receive(FIRST, [some_events(3)], 0)
    single.receive(SECOND, [some_events(3)], 0)
    assert single.handle_answer(begun.number, Answer(200), 0)[1].batch.partition == SECOND


def test_a_batch_is_tried_again_unchanged_and_under_its_id():
    """A receiver that has seen the id of a batch has seen exactly the events of that batch. (X12)"""
    session = a_session()
    [first] = session.receive(FIRST, [some_events(2)], 0)
    session.receive(FIRST, [some_events(2, start=2)], 0)
    assert not session.handle_answer(first.number, Answer(500), 0)
    [again] = session.tick(session.next_tick_at())
    assert values(again.batch.runs) == [b"0", b"1"]
    assert again.batch.attempt == 2
    assert again.batch.id_for("s") == first.batch.id_for("s") != first.batch.id_for("t")


@pytest.mark.parametrize(("tries", "longest"), [(1, 1), (2, 2), (3, 4), (7, 60), (1000, 60)])
def test_pauses_grow_and_are_random(tries, longest):
    """The pauses between attempts grow exponentially, with full jitter. (X13)"""
    assert pause_seconds(tries, 0.0) == 0
    assert pause_seconds(tries, 0.5) == longest / 2
    assert pause_seconds(tries, 1.0) == longest


def test_retry_after_holds_up_every_lane():
    """After an answer with `Retry-After`, nothing is delivered to the sink until that time, from any partition.
    (X14)
    """
    session = a_session(share=0.0)
    [first] = session.receive(FIRST, [some_events(1)], 0)
    session.receive(SECOND, [some_events(1)], 0)
    assert not session.handle_answer(first.number, Answer(503, "", 30.0), 0)
    assert session.next_tick_at() == 30
    assert not session.tick(29.9)
    assert [each.batch.partition for each in session.tick(30)] == [SECOND]


@pytest.mark.parametrize("answer", [Answer(503), Answer(429), Answer(None, was_sent=False)])
def test_who_asks_for_time_or_is_not_reached_blames_no_event(answer):
    """However long an outage lasts, no event is given up. (X15)"""
    session = a_session(max_event_attempts=2)
    [attempt] = session.receive(FIRST, [some_events(4)], 0)
    now = 0.0
    for _ in range(50):
        assert not session.handle_answer(attempt.number, answer, now)
        now = session.next_tick_at()
        [attempt] = session.tick(now)
        assert attempt.batch.count == 4
    assert session.state is DeliveryState.DELIVERING


def test_halves_lead_to_the_event_that_fails():
    """The batch is tried unchanged a few times, then in halves; the events before the failing one are committed.
    (X16)"""
    session = a_session(max_event_attempts=2)
    receiver = Receiver(session, poison=[5])
    receiver.work(session.receive(FIRST, [some_events(8)], 0))
    whole = [list(range(8))] * ATTEMPTS_BEFORE_HALVING
    assert receiver.tried == [*whole, [0, 1, 2, 3], [4, 5], [4], [5], [5]]
    assert receiver.committed == [3, 4]
    assert session.given_up == (FIRST, Position(1, 5))
    assert session.state is DeliveryState.SETTLED


def test_without_a_policy_the_failing_event_is_tried_for_ever():
    """Without a policy, the partition of the failing event stops, but no other partition does. (X17)"""
    session = a_session(batch_limit=4)
    receiver = Receiver(session, poison=[1])
    receiver.work([*session.receive(FIRST, [some_events(3)], 0)], times=100)
    assert receiver.tried[-1] == [1]
    assert receiver.committed == [0]
    assert session.given_up is None
    receiver.work(session.receive(SECOND, [some_events(1, start=7)], receiver.now), times=10)
    assert 7 in receiver.committed


def test_a_fault_that_passes_costs_nothing():
    """If the halves succeed after all, everything is delivered, and later batches are whole again. (X16)"""
    session = a_session(max_event_attempts=5)
    receiver = Receiver(session, poison=[2])
    actions = session.receive(FIRST, [some_events(8)], 0)
    receiver.work(actions, times=2 * ATTEMPTS_BEFORE_HALVING)
    receiver.poison.clear()
    receiver.work([])
    assert receiver.committed[-1] == 7
    receiver.work(session.receive(FIRST, [some_events(8, start=8)], receiver.now))
    assert receiver.tried[-1] == list(range(8, 16))


def test_410_ends_the_deliveries():
    """After a 410, the session begins no delivery, and ends once those under way are finished and committed. (X18)"""
    session = a_session(max_in_flight=2)
    [first] = session.receive(FIRST, [some_events(1)], 0)
    [other] = session.receive(SECOND, [some_events(1)], 0)
    assert not session.handle_answer(first.number, Answer(410), 0)
    assert (session.pause_reason, session.state) == (GONE_REASON, DeliveryState.SETTLING)
    [commit] = session.handle_answer(other.number, Answer(200), 0)
    assert session.state is DeliveryState.SETTLING
    assert isinstance(commit, CommitDelivered)
    session.end_commit(SECOND, 0, is_committed=True)
    assert session.state is DeliveryState.SETTLED


def test_a_failed_commit_gives_nothing_up():
    """If a commit fails, no event is given up: the next stream begins at the committed offset, and would mistake
    another event for the failed one. (X16)
    """
    session = a_session(batch_limit=1, max_in_flight=2, max_event_attempts=2)
    [first] = session.receive(FIRST, [some_events(2)], 0)
    _, failing = session.handle_answer(first.number, Answer(200), 0)
    session.handle_answer(failing.number, Answer(500), 0)
    [failing] = session.tick(session.next_tick_at())
    session.handle_answer(failing.number, Answer(500), 0)
    assert session.given_up == (FIRST, Position(1, 1))
    assert session.state is DeliveryState.SETTLING
    session.end_commit(FIRST, 1, is_committed=False)
    assert session.given_up is None
    assert session.state is DeliveryState.SETTLED


def test_deliveries_that_follow_each_other_share_commits():
    """A partition has one commit at a time, and a few milliseconds between commits; the last delivery is committed
    at once. (X33)
    """
    session = a_session(batch_limit=1)
    [attempt] = session.receive(FIRST, [some_events(4)], 0)
    commit, attempt = session.handle_answer(attempt.number, Answer(200), 0)
    assert commit == CommitDelivered(FIRST, Position(1, 0))
    [attempt] = session.handle_answer(attempt.number, Answer(200), 0.001)
    assert not session.end_commit(FIRST, 0.002, is_committed=True)
    assert session.next_tick_at() == COMMIT_WAIT_SECONDS
    [attempt] = session.handle_answer(attempt.number, Answer(200), 0.003)
    assert session.tick(COMMIT_WAIT_SECONDS) == [CommitDelivered(FIRST, Position(1, 2))]
    assert session.next_tick_at() == inf
    assert not session.handle_answer(attempt.number, Answer(200), 0.006)
    assert session.end_commit(FIRST, 0.007, is_committed=True) == [CommitDelivered(FIRST, Position(1, 3))]


def test_a_lane_that_fails_or_settles_commits_at_once():
    """If a lane fails, or the session ends, delivered events are committed at once, because no further delivery
    follows. (X30, X33)
    """
    for fails in (True, False):
        session = a_session(batch_limit=1)
        [first] = session.receive(FIRST, [some_events(4)], 0)
        _, second = session.handle_answer(first.number, Answer(200), 0)
        session.end_commit(FIRST, 0, is_committed=True)
        [third] = session.handle_answer(second.number, Answer(200), 0.001)
        ended = session.handle_answer(third.number, Answer(503), 0.002) if fails else session.stop(0.002)
        assert ended == [CommitDelivered(FIRST, Position(1, 1))]


def test_long_events_make_small_batches():
    """The body of a delivery has at most about a megabyte, or a single event. (X10)"""
    session = a_session()
    size = MAX_BATCH_BYTES // 3
    [attempt] = session.receive(FIRST, [some_events(2, size=size), some_events(5, start=2, size=size)], 0)
    assert attempt.batch.count == 3
    [huge] = a_session().receive(FIRST, [some_events(2, size=2 * MAX_BATCH_BYTES)], 0)
    assert huge.batch.count == 1


def test_an_answer_counts_once():
    session = a_session()
    [first] = session.receive(FIRST, [some_events(1)], 0)
    assert session.handle_answer(first.number, Answer(200), 0)
    assert not session.handle_answer(first.number, Answer(200), 0)
    assert session.next_tick_at() == float("inf")


def test_a_fact_without_a_place_is_an_error():
    lane = Lane(
        PartitionDeliveries(FIRST, DeliveryLimits(batch_limit=1, max_in_flight=1, max_event_attempts=None)),
        [some_events(1)],
    )
    assert lane.state is LaneState.READY
    with pytest.raises(UnexpectedFact):
        lane.mark_due()


def test_what_a_sink_has_taken_in_is_committed_and_the_next_event_goes_by_itself():
    """A sink that reports which event failed gets that event again, and none that it has accepted. (X35)"""
    session = a_session(max_event_attempts=2)
    [first] = session.receive(FIRST, [some_events(2), some_events(4, start=2)], 0)
    part = Answer(None, "3 failed", verdict=Verdict.FAILED, delivered=3)
    [commit] = session.handle_answer(first.number, part, 0)
    assert commit == CommitDelivered(FIRST, Position(1, 2))
    assert session.next_tick_at() > 0, "the next attempt has its pause"

    session.end_commit(FIRST, 0, is_committed=True)
    [second] = session.tick(session.next_tick_at())
    assert values(second.batch.runs) == [b"3"]
    commit, third = session.handle_answer(second.number, Answer(200), 9)
    assert (commit, values(third.batch.runs)) == (CommitDelivered(FIRST, Position(1, 3)), [b"4", b"5"])


def test_the_first_event_goes_by_itself_if_a_sink_names_it():
    """If a sink names the first event of a batch, that event is tried alone; no batch is halved, and nothing is
    committed. (X35)
    """
    session = a_session(max_event_attempts=1)
    [first] = session.receive(FIRST, [some_events(3)], 0)
    assert session.handle_answer(first.number, Answer(None, verdict=Verdict.FAILED, delivered=0), 0) == []
    [second] = session.tick(session.next_tick_at())
    assert values(second.batch.runs) == [b"0"]
    session.handle_answer(second.number, Answer(None, verdict=Verdict.FAILED, delivered=0), 1)
    assert session.given_up == (FIRST, Position(1, 0))


def test_a_batch_of_which_nothing_was_taken_in_yet_stays_as_it_is():
    """If the sink has accepted nothing of a batch, the batch stays the same even if further events arrive, so its id
    means the same events. (X12)
    """
    session = a_session()
    [first] = session.receive(FIRST, [some_events(3)], 0)
    session.handle_answer(first.number, Answer(None, verdict=Verdict.LATER, delivered=0), 0)
    session.receive(FIRST, [some_events(2, start=3)], 0)
    [second] = session.tick(session.next_tick_at())
    assert second.batch.id_for("s") == first.batch.id_for("s")


def test_an_event_that_a_sink_names_is_given_up_after_its_attempts():
    """The events before the one that the sink names are committed first. (X16, X35)"""
    session = a_session(max_event_attempts=1)
    [first] = session.receive(FIRST, [some_events(3)], 0)
    session.handle_answer(first.number, Answer(None, verdict=Verdict.FAILED, delivered=1), 0)
    [second] = session.tick(session.next_tick_at())
    session.handle_answer(second.number, Answer(None, verdict=Verdict.FAILED), 1)
    assert session.given_up == (FIRST, Position(1, 1))
    assert session.state is DeliveryState.SETTLING, "until what is delivered is committed"
    session.end_commit(FIRST, 2, is_committed=True)
    assert session.state is DeliveryState.SETTLED


def test_a_sink_that_has_taken_in_a_part_and_asks_for_time_blames_no_event():
    """(X15, X35)"""
    session = a_session(max_event_attempts=1)
    [first] = session.receive(FIRST, [some_events(4)], 0)
    session.handle_answer(first.number, Answer(None, "", 5.0, verdict=Verdict.LATER, delivered=2), 0)
    assert session.next_tick_at() >= 5
    [second] = session.tick(session.next_tick_at())
    assert values(second.batch.runs) == [b"2", b"3"]


def keyed_events(*keys, start=0):
    """Events whose values are their offsets, with their keys."""
    records = [Record(str(start + index).encode(), key) for index, key in enumerate(keys)]
    return a_chunk(*records, start=start).run_from_offset(start)


def a_session_by_key(**limits):
    return a_session(**{"batch_limit": 1, "max_in_flight": 3, "parallel": Parallel.KEY, **limits})


def sent_values(actions):
    return [values(each.batch.runs) for each in actions if isinstance(each, BeginAttempt)]


def test_by_key_deliveries_of_a_partition_go_at_the_same_time_and_those_of_a_key_do_not():
    """A sink gets as many deliveries at once as may be in flight. Events without a key stay in order, too. (X60)"""
    session = a_session_by_key()
    begun = session.receive(FIRST, [keyed_events("a", "a", None, "b", None, "c")], 0)
    assert sent_values(begun) == [[b"0"], [b"2"], [b"3"]]
    assert sent_values(session.handle_answer(begun[1].number, Answer(200), 0)) == [[b"4"]], (
        "the first of its key by now"
    )
    assert sent_values(session.handle_answer(begun[0].number, Answer(200), 0)) == [[b"1"]]


def test_by_key_a_batch_has_the_next_events_of_several_keys():
    """Events in flight delay only events with the same keys; a batch keeps the order of the partition. (X10, X60)"""
    session = a_session_by_key(batch_limit=3)
    [first] = session.receive(FIRST, [keyed_events("a", "b")], 0)
    [second] = session.receive(FIRST, [keyed_events("a", "c", "c", "d", start=2)], 0)
    assert values(second.batch.runs) == [b"3", b"4", b"5"]
    assert sent_values(session.handle_answer(first.number, Answer(200), 0)) == [[b"2"]]


def test_by_key_other_events_between_the_same_two_are_another_batch():
    """The id of a batch depends on all of its events, not only on the first and the last. (X12)"""
    batches = []
    for middle in ("b", "a"):
        session = a_session_by_key(batch_limit=3)
        session.receive(FIRST, [keyed_events("b")], 0)
        [begun] = session.receive(FIRST, [keyed_events("a", middle, "a", start=1)], 0)
        batches.append(begun.batch)
    assert [values(each.runs) for each in batches] == [[b"1", b"3"], [b"1", b"2", b"3"]]
    assert batches[0].id_for("s") != batches[1].id_for("s")


def test_by_key_commits_move_up_to_the_first_event_that_is_missing():
    """Events that were delivered after the first missing one are committed ahead, so they are not delivered again.
    (X61)
    """
    session = a_session_by_key()
    begun = session.receive(FIRST, [keyed_events("a", "b", "c", start=5)], 0)
    [commit] = session.handle_answer(begun[2].number, Answer(200), 0)
    assert commit == CommitDelivered(FIRST, Position(1, 4), (OffsetRange(1, 7, 7),))
    session.handle_answer(begun[1].number, Answer(200), 1)
    [commit] = session.end_commit(FIRST, 1, is_committed=True)
    assert commit == CommitDelivered(FIRST, Position(1, 4), (OffsetRange(1, 6, 7),))
    session.end_commit(FIRST, 1, is_committed=True)
    [commit] = session.handle_answer(begun[0].number, Answer(200), 2)
    assert commit == CommitDelivered(FIRST, Position(1, 7), ())


def test_by_key_a_failing_event_holds_up_its_key_alone():
    """Without a policy, the lane retries the event forever. All other events continue, including those of its former
    batch. (X17, X62)"""
    session = a_session_by_key(batch_limit=4, max_in_flight=1)
    receiver = Receiver(session, poison=[1])
    receiver.work(session.receive(FIRST, [keyed_events("a", "b", "c", "b", "d", "e")], 0), times=200)
    delivered = {each for batch in receiver.tried if 1 not in batch for each in batch}
    assert delivered == {0, 2, 4, 5}
    assert receiver.tried[-1] == [1]
    assert receiver.committed[-1] == 0
    receiver.poison.clear()
    receiver.work([])
    assert receiver.committed[-1] == 5


def test_by_key_an_event_is_given_up_once_all_before_it_are_delivered():
    """Until then, the next stream would take the first event that is not consumed for the failed one. (X16, X62)"""
    session = a_session_by_key(max_in_flight=2, max_event_attempts=1)
    slow, failing = session.receive(FIRST, [keyed_events("a", "b")], 0)
    session.handle_answer(failing.number, Answer(500), 0)
    assert session.given_up is None
    assert session.state is DeliveryState.DELIVERING
    [commit] = session.handle_answer(slow.number, Answer(200), 1)
    assert session.given_up == (FIRST, Position(1, 1))
    assert commit == CommitDelivered(FIRST, Position(1, 0), ())


def test_by_key_a_sink_that_fails_at_everything_is_not_sent_everything():
    """Failing single events block no slot, but only a limited number of them are tried at a time. (X62)"""
    session = a_session_by_key(max_in_flight=5, share=0.0)
    waiting = [*session.receive(FIRST, [keyed_events(*map(str, range(300)))], 0)]
    tried = set()
    for now in range(1000):
        if not waiting:
            waiting += session.tick(now)
            continue
        attempt = waiting.pop(0)
        tried.update(values(attempt.batch.runs))
        waiting += session.handle_answer(attempt.number, Answer(500), now)
    assert MAX_LANES_ALONE <= len(tried) <= MAX_LANES_ALONE + 5


BY_KEY_OR_NOT = pytest.mark.parametrize("parallel", Parallel)


@BY_KEY_OR_NOT
@pytest.mark.parametrize("seed", range(60))
def test_a_sink_that_loses_doubles_and_delays_answers_gets_everything_in_order(seed, parallel):
    """No event is lost, overtaken, committed without being accepted, or sent again after its commit. Processes that
    end settle first; killed ones do not. (X11, X12, X17, X30, X32, X33, X60, X61)
    """
    SinkSimulation(seed, has_policy=False, parallel=parallel).run()


@BY_KEY_OR_NOT
@pytest.mark.parametrize("seed", range(60))
def test_only_events_that_the_sink_fails_at_are_given_up(seed, parallel):
    """Every other event is delivered, in order. (X11, X15, X16, X62)"""
    simulation = SinkSimulation(seed, parallel=parallel)
    simulation.run()
    assert simulation.parked == simulation.poison


@pytest.mark.parametrize("seed", range(20))
def test_a_sink_that_was_down_for_an_hour_gets_everything_in_order(seed):
    """During an outage, no event is given up, and the sink is called about once a minute; soon afterwards, it gets
    everything. (X13, X15)
    """
    simulation = SinkSimulation(seed, has_policy=False, outage_seconds=3600.0)
    simulation.run()
    [after, *_] = [each for each in simulation.called_at if each >= simulation.down_until]
    # The longest pause between attempts, and the time that the simulation may let pass before its next step.
    assert after <= simulation.down_until + 5 * MAX_PAUSE_SECONDS
    # Each process that takes over starts with short pauses.
    beginnings = simulation.streams * len(simulation.partitions)
    assert sum(each < simulation.down_until for each in simulation.called_at) <= 12 * beginnings + 240 * len(
        simulation.partitions
    )


def test_simulations_have_processes_that_are_killed():
    """The simulations kill processes; otherwise, they would show nothing about processes that are killed."""
    simulations = [SinkSimulation(seed, has_policy=False) for seed in range(10)]
    for each in simulations:
        each.run()
    assert sum(each.kills for each in simulations) > 5


def test_simulations_have_more_deliveries_at_once_than_partitions():
    """The simulations have more deliveries at once than partitions; otherwise, they would show nothing about deliveries
    by key. (X60)
    """
    simulations = [SinkSimulation(seed, partition_count=1, parallel=Parallel.KEY) for seed in range(10)]
    for each in simulations:
        each.run()
    assert max(each.most_in_flight for each in simulations) > 2
