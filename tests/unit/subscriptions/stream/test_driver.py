"""The driver of a session: lines go to the client, and the session continues while the driver waits."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from uuid import UUID

import pytest

from nakadi.model.outcomes import TryLater, UnusableCursor
from nakadi.model.subscription import Assignment, CommittedOffset
from nakadi.ports.clock import SystemClock
from nakadi.subscriptions.stream import driver as driver_module
from nakadi.subscriptions.stream.actions import (
    HandOverPartitions,
    OpenPartition,
    ProcessLease,
    SendBatch,
    SessionContext,
    SessionEnd,
    SharedState,
    SubscriptionStreamLimits,
)
from nakadi.subscriptions.stream.admission import KnownEventTypes, PartitionStart
from nakadi.subscriptions.stream.driver import (
    MAX_STEP_BYTES,
    JsonSubscriptionFormat,
    SessionCallThreads,
    SubscriptionDriver,
    random_cursor_token,
)
from nakadi.subscriptions.stream.session import SubscriptionSession
from tests.support.builders import A_MOMENT, an_event_type
from tests.support.chunks import ReadingRules, some_events
from tests.support.consuming import ME, at, distance
from tests.support.coordination import a_session, entry
from tests.support.streaming import NullFigures, RecordingOutlet

PATIENCE_SECONDS = 60


class RecordingExecutor:
    """Executes every call immediately, and records it."""

    def __init__(self):
        self.performed = []
        self.found = an_event_type()
        self.openings = self.unusable = 0

    def find_start(self, opening):
        self.openings += 1
        if self.openings <= self.unusable:
            raise UnusableCursor("beyond the end")
        return PartitionStart(self.found, opening.position)

    def perform(self, call):
        self.performed.append(call)
        return lambda _: []


class ThreeEventSource:
    """A partition with three events; `stuck` never finds its start."""

    is_topic_missing = False
    has_more = True

    def __init__(self, *, stuck=False):
        self.needs_move = True
        self.moving = asyncio.Event()
        self.left = False
        self._stuck = stuck
        self._runs = [some_events(3)]

    async def move_to_next_event(self, _wake):
        self.moving.set()
        if self._stuck:
            await asyncio.Event().wait()
        self.needs_move = False

    def take_run(self):
        return self._runs.pop() if self._runs else None

    def release(self):
        self.left = True


class DrivenStream:
    """A stream that owns partition 0, on the running loop; the commit timeout is a tenth of a second."""

    def __init__(self, threads, outlet, source, lines=None):
        context = SessionContext(
            measure_distance=distance,
            is_deliverable=lambda _, record: record.value is not None,
            lease=ProcessLease("", 1e9),
            reading_rules=ReadingRules(),
        )
        clock = SystemClock()
        limits = SubscriptionStreamLimits(batch_limit=1, flush_seconds=30, commit_seconds=0.1)
        self.executor = RecordingExecutor()
        self.source = source
        self.opened = None
        self.driver = SubscriptionDriver(
            SubscriptionSession(ME, limits, clock.monotonic(), context),
            self.executor,
            lines or JsonSubscriptionFormat(),
            outlet,
            clock=clock,
            figures=NullFigures(),
            threads=threads if isinstance(threads, SessionCallThreads) else SessionCallThreads(threads, threads),
            open_source=self.open_source,
            known=KnownEventTypes([], lambda: None),
        )
        self.running = asyncio.create_task(self.driver.run())
        self.pass_shared_state(ME)

    def open_source(self, _place, start):
        self.opened = start
        return self.source

    def pass_shared_state(self, owners, committed=-1):
        """Partition 0 belongs to these sessions, and is committed up to this offset."""
        each = entry(0, owners)
        self.driver.add_state(
            SharedState(
                Assignment(initialised=True, entries=(each,), sessions=(a_session(ME), a_session("other"))),
                {each.partition: CommittedOffset(at(committed), ME, A_MOMENT)},
            )
        )

    async def wait_for_end(self):
        await asyncio.wait_for(self.running, PATIENCE_SECONDS)
        return self.driver.session.end


class UnreadOutlet(RecordingOutlet):
    """A client that reads nothing; `stuck` is set once there was something to write."""

    def __init__(self):
        super().__init__()
        self.stuck = asyncio.Event()

    async def write(self, _chunk):
        self.stuck.set()
        await asyncio.Event().wait()


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(driver_module, "MAX_READ_AFTER_END_SECONDS", 0.0)
    with ThreadPoolExecutor(1) as threads:
        yield threads


def test_a_client_that_does_not_read_keeps_no_one_waiting(threads):
    """Another session waits for a partition of a client that has stopped reading in the middle of a batch: the stream
    ends when the commit timeout is over, not when the client continues to read. (S219, S243)"""

    async def wait_for_end():
        outlet = UnreadOutlet()
        stream = DrivenStream(threads, outlet, ThreeEventSource())
        await asyncio.wait_for(outlet.stuck.wait(), PATIENCE_SECONDS)
        stream.pass_shared_state(f"{ME}>other")
        return await stream.wait_for_end()

    assert asyncio.run(wait_for_end()) is not None


def test_a_log_that_does_not_answer_keeps_no_one_waiting(threads):
    """Another session waits for a partition of a stream whose log does not say where to continue: the hand-over takes
    place, and the source is released. (S219, S242)"""

    async def wait_for_end():
        source = ThreeEventSource(stuck=True)
        stream = DrivenStream(threads, RecordingOutlet(), source)
        await asyncio.wait_for(source.moving.wait(), PATIENCE_SECONDS)
        stream.pass_shared_state(f"{ME}>other")
        end = await stream.wait_for_end()
        assert source.left
        return end, [type(each) for each in stream.executor.performed]

    assert asyncio.run(wait_for_end()) == (SessionEnd.RELEASE_TIMEOUT, [HandOverPartitions])


def test_what_is_committed_meanwhile_is_handed_over(threads):
    """A client commits what it received before it stopped reading: the partition goes to the session that waits for it.
    (S242)"""

    async def wait_for_end():
        outlet = UnreadOutlet()
        stream = DrivenStream(threads, outlet, ThreeEventSource())
        await asyncio.wait_for(outlet.stuck.wait(), PATIENCE_SECONDS)
        stream.pass_shared_state(f"{ME}>other", committed=2)
        await stream.wait_for_end()
        return [type(each) for each in stream.executor.performed]

    assert asyncio.run(wait_for_end()) == [HandOverPartitions]


def test_a_partition_that_opens_after_a_change_is_read_as_changed(threads):
    """If an event type moves to another timeline while a partition is being opened, and the stream learns of it first,
    the partition is read by the new state of the event type. (S299)"""

    async def revision():
        stream = DrivenStream(threads, RecordingOutlet(), ThreeEventSource())
        stream.executor.found = an_event_type(name="order", revision=1)
        stream.driver.update_event_type(an_event_type(name="order", revision=2))
        await stream.wait_for_end()
        return stream.opened.event_type.revision

    assert asyncio.run(revision()) == 2


def test_a_commit_beyond_the_end_waits_for_events_for_a_moment(threads, monkeypatch):
    """For a position beyond the end of the log, the end is read again for a moment: if events arrive soon, the stream
    continues. (S127, S207)"""
    monkeypatch.setattr(driver_module, "OPEN_BEYOND_END_RETRY_SECONDS", PATIENCE_SECONDS)

    async def open_twice():
        stream = DrivenStream(threads, RecordingOutlet(), ThreeEventSource())
        stream.executor.unusable = 2
        end = await stream.wait_for_end()
        return end, stream.executor.openings

    assert asyncio.run(open_twice()) == (SessionEnd.COMMIT_TIMEOUT, 3)


def test_a_commit_beyond_the_end_ends_the_stream(threads, monkeypatch):
    """A position beyond the end of the log, at which no events arrive, cannot be read: the stream ends. (S127, S207)"""
    monkeypatch.setattr(driver_module, "OPEN_BEYOND_END_RETRY_SECONDS", 0.0)

    async def open_twice():
        stream = DrivenStream(threads, RecordingOutlet(), ThreeEventSource())
        stream.executor.unusable = 1000
        return await stream.wait_for_end()

    assert asyncio.run(open_twice()) is SessionEnd.REFUSED


def test_a_client_that_reads_gets_everything(threads):
    """While the client reads, it gets the events in order; the stream ends because nothing is committed. (S203)"""

    async def wait_for_end():
        outlet = RecordingOutlet()
        end = await DrivenStream(threads, outlet, ThreeEventSource()).wait_for_end()
        return end, [line.count("events") for line in outlet.text.splitlines()]

    end, batches = asyncio.run(wait_for_end())
    assert end is SessionEnd.COMMIT_TIMEOUT
    assert batches == [1, 1, 1, 0]


class NotedThreads(ThreadPoolExecutor):
    """A pool that records the calls that the driver gives it."""

    def __init__(self):
        super().__init__(1)
        self.calls = []

    def submit(self, fn, /, *args, **kwargs):
        self.calls += [type(each) for each in args]
        return super().submit(fn, *args, **kwargs)


def test_beginning_with_a_partition_holds_up_no_other_call(monkeypatch):
    """Separate threads look up the start of a partition, because this also reads the registry, which may not answer."""
    monkeypatch.setattr(driver_module, "MAX_READ_AFTER_END_SECONDS", 0.0)
    with NotedThreads() as opening, NotedThreads() as others:

        async def wait_for_end():
            outlet = UnreadOutlet()
            stream = DrivenStream(
                SessionCallThreads(for_opening=opening, for_others=others), outlet, ThreeEventSource()
            )
            await asyncio.wait_for(outlet.stuck.wait(), PATIENCE_SECONDS)
            stream.pass_shared_state(f"{ME}>other", committed=2)
            await stream.wait_for_end()

        asyncio.run(wait_for_end())
    assert (opening.calls, others.calls) == ([OpenPartition], [HandOverPartitions])


def test_tokens_are_random_uuids():
    """Each line has a token of its own, which is a valid UUID; some clients check that. (S105)"""
    tokens = [random_cursor_token() for _ in range(1000)]
    assert len(set(tokens)) == 1000
    assert all(str(UUID(each)) == each and UUID(each).version == 4 for each in tokens)


class SteppingFormat(JsonSubscriptionFormat):
    """Makes each batch in steps; `pauses` has the steps after which other tasks had their turn."""

    def __init__(self, steps, size=0):
        super().__init__()
        self.steps_left = steps
        self.size = size
        self.steps = 0
        self.pauses = []
        self.begun = asyncio.Event()

    def encode_line(self, line):
        return self.encode_batch(line) if isinstance(line, SendBatch) else super().encode_line(line)

    def encode_batch(self, line):
        for number in range(self.steps_left):
            if number:
                yield
            self.steps += 1
            self.begun.set()
        return super().encode_line(line).rstrip(b"\n").ljust(self.size) + b"\n"

    async def watch(self):
        while True:
            self.pauses.append(self.steps)
            await asyncio.sleep(0)


@pytest.mark.parametrize("steps", [1, 5])
def test_others_have_their_turn_between_steps(threads, steps):
    """However long the lines are, other work waits for one step at most, and the lines stay in order. (P176)"""

    async def wait_for_end():
        lines = SteppingFormat(steps, MAX_STEP_BYTES)
        watching = asyncio.create_task(lines.watch())
        outlet = RecordingOutlet()
        await DrivenStream(threads, outlet, ThreeEventSource(), lines).wait_for_end()
        watching.cancel()
        return [json.loads(each) for each in outlet.text.splitlines()], lines

    found, lines = asyncio.run(wait_for_end())
    assert [each.get("events", [None])[0] for each in found] == [0, 1, 2, None]
    assert [each["cursor"]["offset"][-1] for each in found[:3]] == ["0", "1", "2"]
    assert lines.steps == 3 * steps
    assert all(after - before <= 1 for before, after in pairwise(lines.pauses))


def test_facts_arrive_while_a_line_is_made(threads):
    """Another session waits for a partition of a stream that makes an endless line: the stream releases the partition
    when its client has gone. (S242)"""

    async def wait_for_end():
        outlet = RecordingOutlet()
        lines = SteppingFormat(10**9)
        stream = DrivenStream(threads, outlet, ThreeEventSource(), lines)
        await asyncio.wait_for(lines.begun.wait(), PATIENCE_SECONDS)
        outlet.leaving.set()
        await stream.wait_for_end()
        return outlet.written, stream.source.left

    assert asyncio.run(wait_for_end()) == ([], True)


class RefusingFormat(SteppingFormat):
    def encode_batch(self, line):
        yield from super().encode_batch(line)
        if json.loads(line.runs[0].values[0]) == 1:
            raise TryLater("not this one")
        return JsonSubscriptionFormat.encode_line(self, line)


@pytest.mark.parametrize("steps", [1, 3])
def test_nothing_follows_a_batch_that_cannot_be_encoded(threads, steps):
    """If a batch cannot be encoded, the stream ends with the data before it. (P175)"""

    async def wait_for_end():
        outlet = RecordingOutlet()
        end = await DrivenStream(threads, outlet, ThreeEventSource(), RefusingFormat(steps)).wait_for_end()
        return end, [json.loads(each).get("events") for each in outlet.text.splitlines()]

    assert asyncio.run(wait_for_end()) == (SessionEnd.REFUSED, [[0]])
