"""The decisions of a consumer: in every order of lines, broken connections, commits and answers, only handled events
are committed.
"""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nakadi_client.answers import Answer
from nakadi_client.batches import Batch
from nakadi_client.consumer_core import (
    BY_HAND,
    EACH_BATCH,
    Commit,
    CommitPolicy,
    ConsumerCore,
    Count,
    End,
    Extend,
    Find,
    Leave,
    Look,
    Open,
    Patience,
    Rebalance,
    StreamOptions,
    Trouble,
    Wait,
)
from nakadi_client.consuming import tell_found
from nakadi_client.errors import EventsUnreadable, NakadiError, NoAnswer, Refused

NO_ROUTE = Answer(404, b'{"detail":"There is nothing at this path"}')
ENDED = Answer(404, b'{"detail":"Session with stream id s not found"}')


def offset_text(number):
    return f"001-0001-{number:018d}" if number >= 0 else "001-0001--1"


def stream_line(partition, numbers, last=None):
    cursor = {"event_type": "t", "partition": partition, "offset": offset_text(numbers[-1] if last is None else last)}
    cursor["cursor_token"] = "x"
    return msgspec.json.encode({"cursor": cursor, "events": [{"n": n} for n in numbers]})


def keep_alive(partition, number):
    cursor = {"event_type": "t", "partition": partition, "offset": offset_text(number), "cursor_token": "x"}
    return msgspec.json.encode({"cursor": cursor})


def test_damage_ends_a_consumer_when_its_patience_does():
    """If a partition is damaged, a consumer reports that once, and hands out events of other partitions until its
    patience ends.
    """
    core = ConsumerCore(StreamOptions(), EACH_BATCH, lambda: 0, patience=Patience(without_answer=15))
    damage = msgspec.json.encode(
        {**msgspec.json.decode(keep_alive("0", 3)), "info": {"debug": "Offsets 4 to 7", "unreadable": True}}
    )
    core.connection_step(0)
    core.handle_opened_stream("s", 0)
    steps = []
    for now in range(0, 25, 5):
        core.handle_line(stream_line("1", [now]), now)
        core.handle_line(damage, now)
        while not isinstance(step := core.work_step(now), Wait | End):
            steps.append(step)

    assert next(step.error for step in steps if isinstance(step, Trouble)).partition == "0"
    assert sum(isinstance(each, Trouble) for each in steps) == 1
    assert [each.events for each in steps if isinstance(each, Batch)] == [[{"n": 0}], [{"n": 5}], [{"n": 10}]]
    assert isinstance(step.error, EventsUnreadable)


class SimulatedBroker:
    """A broker whose two partitions have gaps in their offsets, and which lets everything happen that may happen to a
    client.
    """

    def __init__(self, seed, *, extends, policy):
        self.random = random.Random(seed)
        self.extends = extends
        options = StreamOptions(commit_timeout=10, batch_flush_timeout=1)
        self.core = ConsumerCore(options, policy, self.random.random)
        # The numbers of the events in each partition, of which some are missing.
        self.log = {partition: [n for n in range(40) if self.random.random() < 0.8] or [0] for partition in ("0", "1")}
        self.committed = {"0": -1, "1": -1}
        self.handled = {"0": set(), "1": set()}
        self.times = Counter()
        self.sent = {}
        self.now = 0.0
        self.streams = 0
        self.live = set()
        self.connected = None
        self.commits_on_their_way = []
        self.in_hand = None

    def run(self, steps):
        for _ in range(steps):
            self.random.choice([self.connection, self.work, self.commits, self.commits, self.lines, self.time])()
            self.check()

    def is_done(self):
        return all(self.committed[partition] >= numbers[-1] for partition, numbers in self.log.items())

    def connection(self):
        if self.connected:
            if self.random.random() < 0.1:
                self.core.handle_closed_stream(self.now, self.random.choice([None, NoAnswer("cut")]))
                self.connected = None
            elif self.core.lost_stream():
                self.core.handle_closed_stream(self.now, NoAnswer("broken by the committer"))
                self.connected = None
            return
        if not isinstance(self.core.connection_step(self.now), Open):
            return
        if self.live and self.random.random() < 0.8:
            self.core.handle_refusal(Answer(409), self.now)
        elif self.random.random() < 0.2:
            self.core.handle_refusal(self.random.choice([NoAnswer("down"), Answer(503)]), self.now)
        else:
            # The broker sends events again that the earlier connection had not committed.
            self.live.clear()
            self.streams += 1
            self.connected = f"s{self.streams}"
            self.live.add(self.connected)
            self.sent = dict(self.committed)
            self.core.handle_opened_stream(self.connected, self.now)

    def lines(self):
        if not self.connected:
            return
        partition = self.random.choice(["0", "1"])
        numbers = [n for n in self.log[partition] if n > self.sent[partition]][: self.random.randint(1, 5)]
        text = stream_line(partition, numbers) if numbers else keep_alive(partition, self.sent[partition])
        try:
            self.core.handle_line(text, self.now)
        except NakadiError:
            assert self.core.lost_stream() == self.connected
            self.core.handle_closed_stream(self.now, NoAnswer("lost"))
            self.connected = None
            return
        if numbers:
            self.sent[partition] = numbers[-1]

    def work(self):
        if self.in_hand is not None:
            # The loop over the batch continues to its end.
            batch, rest = self.in_hand
            if next(rest, None) is None:
                self.finish(batch)
            return
        step = self.core.work_step(self.now)
        if isinstance(step, Batch):
            self.in_hand = (step, iter(step))

    def finish(self, batch):
        for event in batch.events:
            self.handled[batch.partition].add(event["n"])
            self.times[batch.partition, event["n"]] += 1
        self.core.finish_batch(batch, self.now)
        self.in_hand = None

    def commits(self):
        if self.commits_on_their_way and self.random.random() < 0.7:
            self.answer(self.commits_on_their_way.pop())
            return
        step = self.core.commit_step(self.now)
        if not isinstance(step, (Wait, End)):
            assert not self.commits_on_their_way, "one request at a time"
            self.commits_on_their_way.append(step)

    def answer(self, action):
        lost = self.random.random() < 0.15
        if isinstance(action, Look):
            self.core.handle_committed_offsets(
                {("t", partition): offset_text(number) for partition, number in self.committed.items()}
            )
        elif isinstance(action, Extend):
            known = Answer(200) if action.stream_id in self.live else ENDED
            self.core.handle_extend_answer(NoAnswer("lost") if lost else known if self.extends else NO_ROUTE, self.now)
        elif isinstance(action, Leave):
            self.live.discard(action.stream_id)
            self.core.handle_leave_answer(NoAnswer("lost") if lost else Answer(204) if self.extends else NO_ROUTE)
        elif self.random.random() < 0.1:
            self.core.handle_commit_answer(self.random.choice([NoAnswer("lost"), Answer(503)]), self.now)
        elif action.stream_id not in self.live:
            self.core.handle_commit_answer(Answer(422, b'{"detail":"Session with stream id s not found"}'), self.now)
        else:
            self.store(action)
            self.core.handle_commit_answer(NoAnswer("lost") if lost else Answer(204), self.now)

    def store(self, commit):
        for cursor in commit.cursors:
            number = int(cursor.offset.removeprefix("001-0001-"))
            self.committed[cursor.partition] = max(self.committed[cursor.partition], number)

    def time(self):
        self.now += self.random.choice([0.01, 0.1, 1.0, 3.0])

    def check(self):
        """Check that only events that a loop has finished are committed."""
        for partition, number in self.committed.items():
            unhandled = {n for n in self.log[partition] if n <= number} - self.handled[partition]
            batch = self.in_hand[0] if self.in_hand else None
            if batch is not None and batch.partition == partition:
                # The loop has finished these events, but not the batch.
                unhandled -= {event["n"] for event in batch.events[: batch.progress]}
            assert not unhandled, f"{unhandled} of {partition} committed, not handled"


@given(
    seed=st.integers(0, 2**32),
    extends=st.booleans(),
    policy=st.sampled_from([EACH_BATCH, CommitPolicy(events=7), CommitPolicy(seconds=1.0)]),
)
def test_no_order_of_facts_commits_what_was_not_handled_or_stops_for_ever(seed, extends, policy):
    """Whatever breaks, and whenever it does, a commit covers only handled events, and eventually everything is
    committed.
    """
    broker = SimulatedBroker(seed, extends=extends, policy=policy)
    broker.run(400)
    # Some seeds need more than twenty rounds.
    for _ in range(100):
        broker.run(400)
        if broker.is_done():
            break
    assert broker.is_done()
    assert all(set(numbers) == broker.handled[partition] for partition, numbers in broker.log.items())


def open_core(policy=EACH_BATCH, *, limit=None, follow=True, **options):
    core = ConsumerCore(StreamOptions(**options), policy, lambda: 0.0, limit=limit, follow=follow)
    if not follow:
        assert core.connection_step(0.0) == Find()
        core.handle_event_types([])
    assert isinstance(core.connection_step(0.0), Open)
    core.handle_opened_stream("s", 0.0)
    return core


def next_batch(core, now=0.0):
    while isinstance(step := core.work_step(now), (Rebalance, Trouble)):
        pass
    return step


def trouble_of(core, now=0.0):
    while not isinstance(step := core.work_step(now), Trouble):
        assert isinstance(step, Rebalance)
    return step


def test_a_batch_is_committed_when_it_is_done():
    """Nothing is committed before the batch is done; the commit names the cursor and the stream."""
    core = open_core()
    core.handle_line(stream_line("0", [0, 1]), 0.0)
    batch = next_batch(core)
    assert isinstance(core.commit_step(0.0), Wait)
    core.finish_batch(batch, 1.0)
    assert core.commit_step(1.0) == Commit("s", (batch.cursor,))
    assert core.commit_step(1.0) == Wait()
    core.handle_commit_answer(Answer(204), 1.0)
    assert isinstance(core.commit_step(1.0), Wait)
    assert core.health(1.0).commits == 1


def test_batches_that_are_done_together_share_a_commit():
    """The next commit covers everything finished during the last one, with the last cursor of each partition."""
    core = open_core()
    for numbers in ([0], [1], [2]):
        core.handle_line(stream_line("0", numbers), 0.0)
    core.finish_batch(next_batch(core), 0.0)
    assert isinstance(core.commit_step(0.0), Commit)
    core.handle_commit_answer(Answer(204), 0.01)
    core.finish_batch(next_batch(core), 0.01)
    assert core.commit_step(0.01) == Wait(pytest.approx(0.06))
    last = next_batch(core)
    core.finish_batch(last, 0.02)
    assert core.commit_step(0.07) == Commit("s", (last.cursor,))


def test_a_commit_that_got_no_answer_is_made_again():
    """A commit that got no answer is repeated after a pause, together with events finished since then."""
    core = open_core()
    core.handle_line(stream_line("0", [0]), 0.0)
    core.handle_line(stream_line("1", [0]), 0.0)
    first = next_batch(core)
    core.finish_batch(first, 0.0)
    core.commit_step(0.1)
    second = next_batch(core)
    core.handle_commit_answer(NoAnswer("lost"), 0.1)
    core.finish_batch(second, 0.1)
    assert core.commit_step(0.1) == Wait(pytest.approx(0.15))
    assert set(core.commit_step(0.2).cursors) == {first.cursor, second.cursor}


def test_a_commit_that_is_made_again_goes_as_far_as_work_has_come():
    """A repeated commit has the latest cursor of each partition, not the one that got no answer."""
    core = open_core()
    core.handle_line(stream_line("0", [0]), 0.0)
    core.handle_line(stream_line("0", [1]), 0.0)
    core.finish_batch(next_batch(core), 0.0)
    core.commit_step(0.1)
    second = next_batch(core)
    core.finish_batch(second, 0.1)
    core.handle_commit_answer(NoAnswer("lost"), 0.1)
    assert core.commit_step(0.2) == Commit("s", (second.cursor,))


def test_a_stream_that_takes_no_commits_is_dropped():
    """After a commit gets 422, the consumer hands out nothing more of the stream, and closes its connection."""
    core = open_core()
    core.handle_line(stream_line("0", [0]), 0.0)
    core.handle_line(stream_line("0", [1]), 0.0)
    core.finish_batch(next_batch(core), 0.0)
    core.commit_step(1.0)
    core.handle_commit_answer(Answer(422, b"{}"), 1.0)
    assert core.lost_stream() == "s"
    assert isinstance(next_batch(core), Wait)
    with pytest.raises(NakadiError):
        core.handle_line(stream_line("0", [2]), 1.0)
    assert core.health(1.0).commits_lost == 1


def test_work_that_takes_long_is_told_to_the_broker():
    """While work takes long, the consumer extends the stream repeatedly, each time before the commit timeout."""
    core = open_core(commit_timeout=10)
    core.handle_line(stream_line("0", [0]), 0.0)
    next_batch(core)
    assert isinstance(core.commit_step(3.9), Wait)
    assert core.commit_step(4.0) == Extend("s")
    core.handle_extend_answer(Answer(200), 4.1)
    assert isinstance(core.commit_step(8.0), Wait)
    assert core.commit_step(8.1) == Extend("s")


def test_a_broker_that_cannot_be_told_gets_commits_of_what_is_done():
    """If the broker cannot extend streams, the consumer commits a part of the batch, but never more than the loop
    has finished.
    """
    core = open_core(commit_timeout=10)
    core.handle_line(stream_line("0", [3, 5, 9]), 0.0)
    batch = next_batch(core)
    loop = iter(batch)
    next(loop)
    assert core.commit_step(4.0) == Extend("s")
    core.handle_extend_answer(NO_ROUTE, 4.0)
    # Nothing is finished yet, so nothing can be committed.
    assert isinstance(core.commit_step(4.0), Wait)
    next(loop)
    assert core.commit_step(4.3) == Look("s")
    core.handle_committed_offsets({("t", "0"): offset_text(1)})
    commit = core.commit_step(4.3)
    assert commit.is_progress
    # The loop has finished one event after offset 1. The batch does not say at which offset: it is 2 or greater, so a
    # commit of 2 covers no other event.
    assert commit.cursors[0].offset == offset_text(2)


def test_a_stream_that_broke_off_takes_commits_and_is_left():
    """If the connection breaks while a batch is in progress, the consumer commits the batch on the old stream, and then
    leaves that stream.
    """
    core = open_core()
    core.handle_line(stream_line("0", [0]), 0.0)
    core.handle_line(stream_line("0", [1]), 0.0)
    batch = next_batch(core)
    core.handle_closed_stream(1.0, NoAnswer("cut"))
    assert next_batch(core) == Wait()
    assert core.connection_step(2.0) == Open(core.options)
    core.finish_batch(batch, 2.0)
    assert core.commit_step(2.0) == Commit("s", (batch.cursor,))
    core.handle_commit_answer(Answer(204), 2.0)
    assert core.commit_step(2.0) == Leave("s")
    core.handle_leave_answer(Answer(204))
    assert core.commit_step(2.0) == Wait()


def test_a_stop_lets_the_batch_in_hand_be_finished_committed_and_the_stream_left():
    """After a stop, the consumer hands out nothing more, commits the current batch, and then leaves the stream."""
    core = open_core(CommitPolicy(seconds=100))
    core.handle_line(stream_line("0", [0]), 0.0)
    core.handle_line(stream_line("0", [1]), 0.0)
    batch = next_batch(core)
    core.stop()
    assert isinstance(core.commit_step(0.0), Wait)
    core.finish_batch(batch, 0.0)
    assert next_batch(core) == End()
    assert core.commit_step(0.0) == Commit("s", (batch.cursor,))
    core.handle_commit_answer(Answer(204), 0.0)
    assert core.commit_step(0.0) == Leave("s")
    core.handle_leave_answer(Answer(204))
    assert core.lost_stream() == "s"
    core.handle_closed_stream(0.0)
    assert core.connection_step(0.0) == End()
    assert core.commit_step(0.0) == End()


def test_a_batch_that_nobody_works_on_any_more_is_not_waited_for():
    """If the loop was left early, the stream is released at once, and its batch is not committed."""
    core = open_core()
    core.handle_line(stream_line("0", [0]), 0.0)
    batch = next_batch(core)
    core.let_go()
    core.stop()
    assert core.commit_step(0.0) == Leave("s")
    core.finish_batch(batch, 0.0)
    core.handle_leave_answer(Answer(204))
    assert isinstance(core.commit_step(0.0), Wait)


def test_a_commit_by_hand_waits_for_done():
    """With `by_hand`, the order of marks does not matter: the latest marked batch of a partition is committed."""
    core = open_core(BY_HAND)
    core.handle_line(stream_line("0", [0]), 0.0)
    core.handle_line(stream_line("0", [1]), 0.0)
    first, second = next_batch(core), next_batch(core)
    core.finish_batch(second, 0.0)
    core.finish_batch(first, 0.0)
    assert core.commit_step(1.0) == Commit("s", (second.cursor,))


def test_a_window_that_is_full_of_handled_events_is_committed():
    """If the commit policy waits for more events than the window holds, a full window is committed anyway."""
    core = open_core(CommitPolicy(events=1_000), max_uncommitted_events=4)
    core.handle_line(stream_line("0", [0, 1]), 0.0)
    core.finish_batch(next_batch(core), 0.0)
    assert isinstance(core.commit_step(0.0), Commit)


def test_partitions_that_come_and_go_are_told():
    """A consumer reports a partition as gained with its first line, and as lost with its stream, or when only other
    partitions send lines.
    """
    core = open_core(batch_flush_timeout=1)
    core.handle_line(keep_alive("0", -1), 0.0)
    core.handle_line(keep_alive("1", -1), 0.0)
    told = [core.work_step(0.0), core.work_step(0.0)]
    assert [each.gained for each in told] == [{("t", "0")}, {("t", "1")}]
    core.handle_line(keep_alive("0", -1), 9.0)
    step = core.work_step(9.0)
    assert (step.lost, step.assigned) == ({("t", "1")}, {("t", "0")})
    core.handle_closed_stream(10.0)
    assert core.work_step(10.0).lost == {("t", "0")}


@pytest.mark.parametrize(
    ("answer", "pause"), [(Answer(409), 0.25), (Answer(503, retry_after=4.0), 4.0), (NoAnswer("down"), 0.05)]
)
def test_a_stream_that_cannot_be_opened_is_tried_again(answer, pause):
    """The pause before the next attempt depends on the reason for the refusal."""
    core = ConsumerCore(StreamOptions(), EACH_BATCH, lambda: 0.0)
    core.connection_step(0.0)
    core.handle_refusal(answer, 0.0)
    assert core.connection_step(0.0) == Wait(pause)
    assert core.connection_step(pause) == Open(core.options)


def test_what_will_never_be_opened_ends_the_consumer():
    """After some refusals in a row, the consumer ends with the broker's message."""
    core = ConsumerCore(StreamOptions(), EACH_BATCH, lambda: 0.0)
    for now in (0.0, 10.0, 20.0):
        core.connection_step(now)
        core.handle_refusal(Answer(403, b'{"detail":"denied"}'), now)
    step = core.work_step(20.0)
    assert isinstance(step, End)
    assert isinstance(step.error, Refused)


def test_a_problem_in_the_stream_ends_it():
    """A line without a cursor is a Problem, and ends the stream."""
    core = open_core()
    with pytest.raises(NakadiError, match="went wrong"):
        core.handle_line(b'{"detail":"went wrong"}', 0.0)
    with pytest.raises(NakadiError, match="no line"):
        core.handle_line(b"<html>", 0.0)


def test_a_consumer_with_a_limit_asks_for_no_more_and_ends():
    """Each stream requests only the events that the limit still allows; after the last one, the consumer opens and
    hands out nothing more.
    """
    core = ConsumerCore(StreamOptions(stream_limit=4), EACH_BATCH, lambda: 0.0, limit=5)
    assert core.connection_step(0.0).options.stream_limit == 4
    core.handle_opened_stream("s", 0.0)
    core.handle_line(stream_line("0", [0, 1, 2]), 0.0)
    core.finish_batch(next_batch(core), 0.0)
    core.handle_closed_stream(0.0)
    assert isinstance(core.commit_step(0.0), Commit)
    core.handle_commit_answer(Answer(204), 0.0)
    assert core.health(0.0).events_committed == 3

    assert core.connection_step(10.0).options.stream_limit == 2
    core.handle_opened_stream("t", 10.0)
    core.handle_line(stream_line("0", [3, 4]), 10.0)
    assert len(next_batch(core)) == 2
    assert isinstance(next_batch(core), End)
    core.handle_closed_stream(10.0)
    assert isinstance(core.connection_step(20.0), Wait)


def test_a_consumer_that_does_not_follow_ends_when_nothing_waits():
    """After each stream, the consumer asks how many events are left, and continues while there are any."""
    core = open_core(follow=False)
    core.handle_closed_stream(0.0)
    assert isinstance(core.connection_step(0.0), Count)
    core.handle_refusal(NoAnswer("down"), 0.0)
    assert isinstance(core.connection_step(0.0), Wait)
    assert isinstance(core.connection_step(1.0), Count)
    core.handle_uncommitted_count(3)
    assert core.connection_step(1.0).options.stream_keep_alive_limit == 3
    core.handle_opened_stream("t", 1.0)
    core.handle_closed_stream(2.0)
    core.handle_uncommitted_count(0)
    assert isinstance(core.connection_step(2.0), End)
    assert next_batch(core) == End()


def core_with_ends(*ends, **options):
    """A consumer that does not follow, and whose partitions have these newest offsets."""
    core = ConsumerCore(StreamOptions(**options), EACH_BATCH, lambda: 0.0, follow=False)
    partitions = [
        {"partition": str(each), "oldest_available_offset": offset_text(0), "newest_available_offset": offset_text(end)}
        for each, end in enumerate(ends)
    ]
    for content in ({"event_types": ["t"]}, partitions):
        tell_found(core, core.connection_step(0.0), Answer(200, msgspec.json.encode(content)), 0.0)
    return core


def test_a_consumer_that_does_not_follow_ends_while_events_keep_coming():
    """A consumer that does not follow ends when the events of each partition that existed at its beginning are done:
    handled, or committed before. Partitions without events do not count.
    """
    core = core_with_ends(1, 3, -1)
    core.connection_step(0.0)
    core.handle_opened_stream("s", 0.0)
    core.handle_line(stream_line("0", [0, 1, 2]), 0.0)
    core.handle_line(keep_alive("0", 2), 0.0)
    core.handle_line(keep_alive("1", 2), 0.0)
    core.handle_line(stream_line("0", [3, 4]), 0.0)
    core.finish_batch(next_batch(core), 0.0)
    batch = next_batch(core)
    assert batch.events == [{"n": 3}, {"n": 4}]
    core.handle_line(keep_alive("1", 3), 0.0)
    core.finish_batch(batch, 0.0)
    assert next_batch(core) == End()
    assert core.commit_step(0.0).cursors == (batch.cursor,)


def test_no_stream_is_opened_for_events_that_did_not_exist():
    """If no partition had events at the beginning, or none of the chosen ones, the consumer ends at once."""
    assert core_with_ends(-1, -1).connection_step(0.0) == End()
    chosen = ({"event_type": "t", "partition": "1"},)
    assert core_with_ends(3, -1, partitions=chosen).connection_step(0.0) == End()


def test_ends_that_a_broker_does_not_tell_are_not_needed():
    """A consumer that may not see the partitions of an event type ends when no more events wait; one whose broker does
    not answer asks again.
    """
    for answers in ([Answer(404)], [Answer(200, b'{"event_types":["t"]}'), Answer(403)]):
        core = ConsumerCore(StreamOptions(), EACH_BATCH, lambda: 0.0, follow=False)
        tell_found(core, core.connection_step(0.0), NoAnswer("down"), 0.0)
        assert isinstance(core.connection_step(0.0), Wait)
        for answer in answers:
            tell_found(core, core.connection_step(1.0), answer, 1.0)
        assert isinstance(core.connection_step(1.0), Open)
        core.handle_opened_stream("s", 1.0)
        core.handle_closed_stream(1.0)
        assert isinstance(core.connection_step(1.0), Count)


@pytest.mark.parametrize(
    ("answer", "patience"),
    [
        (NoAnswer("down"), Patience(without_answer=30)),
        (Answer(503), Patience(without_answer=30)),
        (Answer(409), Patience(without_slot=30)),
    ],
)
def test_patience_ends_when_nothing_else_has_come_for_its_time(answer, patience):
    """The consumer reports each failure, and raises the last one only if failures have lasted too long."""
    core = ConsumerCore(StreamOptions(), EACH_BATCH, lambda: 0.0, patience=patience)
    core.handle_refusal(answer, 0.0)
    assert trouble_of(core).failures == 1
    core.handle_refusal(answer, 29.0)
    assert trouble_of(core).failures == 2
    core.handle_opened_stream("s", 30.0)
    core.handle_line(keep_alive("0", 1), 30.0)
    core.handle_closed_stream(30.0)
    core.handle_refusal(answer, 30.0)
    assert trouble_of(core).failures == 1
    core.handle_refusal(answer, 60.0)
    assert isinstance(end := next_batch(core), End)
    assert end.error is answer or end.error.status == answer.status


def test_a_stream_that_breaks_at_a_stop_is_no_failure():
    """Stopping a consumer breaks its connection; the loop ends without an error, even without any patience."""
    core = ConsumerCore(StreamOptions(), EACH_BATCH, lambda: 0.0, patience=Patience(without_answer=0))
    core.connection_step(0.0)
    core.handle_opened_stream("s", 0.0)
    core.stop()
    core.handle_closed_stream(0.0, NoAnswer("broken"))
    assert next_batch(core) == End()


def test_a_commit_that_is_lost_is_told():
    """If a commit is lost, the application learns that events come again, and why."""
    core = open_core()
    core.handle_line(stream_line("0", [0]), 0.0)
    core.finish_batch(next_batch(core), 0.0)
    core.commit_step(1.0)
    core.handle_commit_answer(Answer(422, b'{"detail":"too late"}'), 1.0)
    told = str(trouble_of(core).error)
    assert told == "Batches were not committed, so their events come again: too late (422)"


def test_after_an_abort_nothing_is_committed():
    """After an abort, the consumer commits nothing, and closes the connection, so handled and current events come
    again.
    """
    core = open_core()
    core.handle_line(stream_line("0", [0]), 0.0)
    core.handle_line(stream_line("1", [0]), 0.0)
    core.finish_batch(next_batch(core), 0.0)
    in_hand = next_batch(core)
    core.abort()
    core.finish_batch(in_hand, 1.0)
    assert core.lost_stream() == "s"
    assert isinstance(core.commit_step(1.0), Wait)
    core.handle_closed_stream(1.0, NoAnswer("broken"))
    assert isinstance(core.commit_step(1.0), End)
    assert next_batch(core) == End()
