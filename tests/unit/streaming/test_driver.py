"""The driver passes facts to a session and actions to a client, with a log in memory."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from nakadi.common.waiting import run_blocking
from nakadi.event_types.snapshot import CursorResolver
from nakadi.http.message import ClientGone
from nakadi.model.event_type import EventType, Position
from nakadi.model.events import Record
from nakadi.model.outcomes import NotPermitted, Unavailable
from nakadi.ports.clock import SystemClock
from nakadi.ports.event_log import OffsetUnavailable
from nakadi.streaming import driver as driver_module
from nakadi.streaming import feeds as feeds_module
from nakadi.streaming.driver import LowLevelDriver
from nakadi.streaming.feeds import Feeds, PartitionReader
from nakadi.streaming.formats import EventStreamFormat, JsonStreamFormat
from nakadi.streaming.session import LowLevelSession, StreamEnd, StreamLimits
from tests.support.builders import a_timeline, an_event_type
from tests.support.patience import PATIENCE, wait_on_loop
from tests.support.streaming import NullFigures, ObservedLog, RecordingOutlet

Scenario = Callable[["StreamSetup"], Awaitable[None]]


class StreamSetup:
    """An event type, its log, and streams of its events."""

    def __init__(self) -> None:
        self.log = ObservedLog()
        self.event_type = an_event_type(partitions=2)
        self.log.create_topic(self.event_type.timeline.topic, 2)
        self.feeds = Feeds(self.log)
        self.asked_what_became = asyncio.Event()
        self.running: list[asyncio.Task[None]] = []

    def publish(self, *values: str, partition: int = 0) -> None:
        self.log.publish(self.event_type.timeline.topic, *values, partition=partition)

    def stream(
        self,
        outlet: RecordingOutlet,
        starts: dict[str, Position] | None = None,
        ends: dict[str, Position] | None = None,
        **limits: float,
    ) -> LowLevelDriver:
        """Begin to serve a stream, and return its driver."""
        starts = starts or {"0": Position(1, -1)}
        cursors = CursorResolver(self.log)
        clock = SystemClock()
        wanted = StreamLimits(**{"flush_seconds": 1000} | limits)
        driver = LowLevelDriver(
            LowLevelSession(wanted, starts, clock.monotonic()),
            [
                PartitionReader(self.feeds, cursors, self.event_type, partition, start, (ends or {}).get(partition))
                for partition, start in starts.items()
            ],
            JsonStreamFormat(),
            outlet,
            event_type=self.event_type.name,
            clock=clock,
            figures=NullFigures(),
            describe=lambda error: f"PROBLEM {getattr(error, 'public', None) or error}".encode(),
            find_out=self.asked_what_became.set,
        )
        self.running.append(asyncio.ensure_future(driver.run(wanted.stream_seconds)))
        return driver

    async def wait_until_asked(self) -> None:
        """Wait until a stream has asked to be notified of a topic's events."""
        async with asyncio.timeout(PATIENCE):
            await self.asked_what_became.wait()

    async def wait_for_end(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self.running)

    def switch_timeline(self, *, events: int) -> EventType:
        """The event type after a switch to another timeline; the old one had this many events in partition 0."""
        old = replace(self.event_type.timeline, latest_positions={0: events - 1, 1: -1})
        new = a_timeline(order=old.order + 1, partitions=2)
        self.log.create_topic(new.topic, 2)
        changed = replace(self.event_type, timelines=(*self.event_type.timelines[:-1], old, new))
        self.event_type = changed
        return changed


def run_with_setup(scenario: Scenario) -> None:
    async def run_scenario() -> None:
        stage = StreamSetup()
        try:
            await scenario(stage)
        finally:
            for task in stage.running:
                task.cancel()
            await asyncio.gather(*stage.running, return_exceptions=True)
            stage.feeds.close()

    asyncio.run(run_scenario())


def line(offset: int, *values: str, partition: int = 0, timeline: int = 1) -> str:
    events = ",".join(f'"{value}"' for value in values)
    cursor = f'{{"partition":"{partition}","offset":"{Position(timeline, offset)}"}}'
    return f'{{"cursor":{cursor},"events":[{events}]}}'


def test_events_are_carried_as_they_come():
    """Published events reach the client line by line. (L41, L45, L46)"""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        stage.publish("a", "b", "c")
        stage.stream(outlet, batch_limit=2, stream_limit=4)
        assert await outlet.lines(1) == [line(1, "a", "b")]
        stage.publish("d")
        await stage.wait_for_end()
        assert outlet.text == f"{line(1, 'a', 'b')}\n{line(3, 'c', 'd')}\n"

    run_with_setup(scenario)


def test_all_partitions_are_followed():
    """A stream over several partitions sends each from its own start. (L20)"""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        stage.publish("a", "b")
        stage.publish("c", partition=1)
        stage.stream(outlet, {"0": Position(1, 0), "1": Position(1, -1)}, stream_limit=2)
        await stage.wait_for_end()
        assert sorted(outlet.text.splitlines()) == sorted([line(1, "b"), line(0, "c", partition=1)])

    run_with_setup(scenario)


def test_a_partition_is_read_up_to_its_end():
    """However the reads are cut, no event after the end is sent, and all before it are. (L78)"""
    for most_events in (1, 2, 3, 1000):

        async def scenario(stage: StreamSetup, most_events: int = most_events) -> None:
            outlet = RecordingOutlet()
            stage.log.most_events = most_events
            stage.publish("a", "b", "c", "d", "e")
            driver = stage.stream(outlet, ends={"0": Position(1, 2)}, batch_limit=10)
            await stage.wait_for_end()
            assert outlet.text == f"{line(2, 'a', 'b', 'c')}\n" + line(2).replace(',"events":[]', "") + "\n"
            assert driver.session.end is StreamEnd.COMPLETE

        run_with_setup(scenario)


def test_a_partition_ends_in_a_later_timeline():
    """The stream crosses timelines on the way, even one without events before the end. (L67, L78)"""
    for end, expected in (
        (Position(1, 1), [line(1, "a", "b")]),
        (Position(2, -1), [line(1, "a", "b")]),
        (Position(2, 0), [line(0, "a", "b", "c", timeline=2)]),
    ):

        async def scenario(stage: StreamSetup, end: Position = end, expected: list[str] = expected) -> None:
            outlet = RecordingOutlet()
            stage.publish("a", "b")
            stage.switch_timeline(events=2)
            stage.publish("c", "d")
            stage.stream(outlet, ends={"0": end}, batch_limit=10)
            await stage.wait_for_end()
            at_end = f'{{"cursor":{{"partition":"0","offset":"{end}"}}}}'
            assert outlet.text.splitlines() == [*expected, at_end]

        run_with_setup(scenario)


def test_a_stream_with_an_end_says_that_the_log_does_not_answer(monkeypatch):
    """After several failed reads, a stream with an end sends all events before the unreadable ones, and ends with a
    Problem, because silence would look like the end. (L81)
    """
    monkeypatch.setattr(feeds_module, "MIN_READ_RETRY_PAUSE_SECONDS", 0.001)

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        stage.publish("a", "b")
        stage.log.most_events = 1
        stage.log.troubles = [None, *[Unavailable("/mnt", public="The archive is not there.")] * 1000]
        driver = stage.stream(outlet, ends={"0": Position(1, 1)}, batch_limit=10)
        await stage.wait_for_end()
        what = f"Events up to {Position(1, 1)} of partition 0 of {stage.event_type.name}"
        problem = f"PROBLEM {what} exist, but could not be read: The archive is not there."
        assert outlet.text.splitlines() == [line(0, "a"), problem]
        assert driver.session.end is StreamEnd.REFUSED

    run_with_setup(scenario)


def test_a_stream_with_an_end_does_not_wait_for_ever(monkeypatch):
    """If a read of events before the end hangs, the stream ends with a Problem that says so. (L81)"""
    monkeypatch.setattr(feeds_module, "SLOW_READ_SECONDS", 0.001)

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        stage.publish("a", "b")
        stage.log.most_events, stage.log.hanging_start = 1, 1
        driver = stage.stream(outlet, ends={"0": Position(1, 1)}, batch_limit=10)
        await stage.wait_for_end()
        stage.log.answers.set()
        [sent, problem] = outlet.text.splitlines()
        assert sent == line(0, "a")
        assert problem.startswith(f"PROBLEM Events up to {Position(1, 1)} of partition 0 of {stage.event_type.name} ")
        assert " exist, but could not be read: The log has not answered for " in problem
        assert driver.session.end is StreamEnd.REFUSED

    run_with_setup(scenario)


def test_a_stream_without_an_end_waits_for_the_log(monkeypatch):
    """(L53, L81)"""
    monkeypatch.setattr(feeds_module, "MIN_READ_RETRY_PAUSE_SECONDS", 0.001)

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        stage.publish("a")
        stage.log.troubles = [Unavailable("down")] * 6
        stage.stream(outlet, stream_limit=1)
        await stage.wait_for_end()
        assert outlet.text.splitlines() == [line(0, "a")]

    run_with_setup(scenario)


def test_small_lines_that_are_due_together_travel_together():
    """Batches of single events from one read are written together. (L46, L50)"""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        stage.publish(*map(str, range(500)))
        stage.stream(outlet, stream_limit=500)
        await stage.wait_for_end()
        assert outlet.text.count("\n") == 500
        assert len(outlet.written) < 10

    run_with_setup(scenario)


def test_time_passes_without_events():
    """Timers wake a stream that nothing else wakes. (L47, L49, L53)"""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        driver = stage.stream(outlet, flush_seconds=0.02, keep_alive_limit=3)
        await stage.wait_for_end()
        assert outlet.text == '{"cursor":{"partition":"0","offset":"001-0001--1"}}\n' * 3
        assert driver.session.end is StreamEnd.KEEP_ALIVES

    run_with_setup(scenario)


def test_an_event_does_not_wait_for_a_timer():
    """A stream with long timeouts sends a full batch at once."""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        stage.stream(outlet, flush_seconds=1000)
        await asyncio.sleep(0.01)
        stage.publish("a")
        assert await outlet.lines(1) == [line(0, "a")]

    run_with_setup(scenario)


def test_an_idle_stream_notices_that_its_client_has_gone():
    """If a client leaves while nothing is sent, the stream ends and releases its resources. (L53)"""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        driver = stage.stream(outlet)
        await asyncio.sleep(0.01)
        outlet.leaving.set()
        await stage.wait_for_end()
        assert driver.session.end is StreamEnd.GONE
        assert stage.log.watchers == 0

    run_with_setup(scenario)


def test_a_write_to_no_one_ends_the_stream():
    """An error of the outlet is raised, and all resources are released. (L53)"""

    async def scenario(stage: StreamSetup) -> None:
        class ClosedOutlet(RecordingOutlet):
            async def write(self, _chunk: bytes) -> None:
                raise ClientGone

        stage.publish("a")
        stage.stream(ClosedOutlet())
        with pytest.raises(ClientGone):
            await stage.wait_for_end()
        assert stage.log.watchers == 0

    run_with_setup(scenario)


def test_draining_ends_the_stream_with_what_it_holds():
    """When the process ends, buffered events are sent and the stream ends cleanly."""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        stage.publish("a", "b", "c")
        stage.stream(outlet, batch_limit=2)
        await outlet.lines(1)
        outlet.ending.set()
        await stage.wait_for_end()
        assert outlet.text == f"{line(1, 'a', 'b')}\n{line(2, 'c')}\n"

    run_with_setup(scenario)


def test_a_refusal_is_the_last_line():
    """The driver writes the reason for the end after the events. (L60)"""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        stage.publish("a")
        driver = stage.stream(outlet)
        await outlet.lines(1)
        driver.add_fact(lambda _: driver.session.handle_refusal(NotPermitted("no more")))
        await stage.wait_for_end()
        assert outlet.text == f"{line(0, 'a')}\nPROBLEM no more\n"

    run_with_setup(scenario)


def test_a_slow_client_holds_up_only_itself():
    """While one client reads nothing, another one gets all events; the slow one gets them later. (L68)"""

    async def scenario(stage: StreamSetup) -> None:
        slow, fast = RecordingOutlet(slow=True), RecordingOutlet()
        stage.stream(slow, stream_limit=300)
        stage.stream(fast, stream_limit=300)
        for number in range(30):
            stage.publish(*[f"{number}-{each}" * 100 for each in range(10)])
        await fast.until(lambda text: text.count("\n") == 300)
        assert slow.written == []
        slow.room.set()
        await stage.wait_for_end()
        assert slow.text == fast.text

    run_with_setup(scenario)


def test_a_client_that_takes_nothing_does_not_stay_for_ever(monkeypatch):
    """A stream whose client does not read is given up a certain time after its end. (L53)"""
    monkeypatch.setattr(driver_module, "SLOW_CLIENT_MARGIN_SECONDS", 0.01)

    async def scenario(stage: StreamSetup) -> None:
        starts = {"0": Position(1, -1)}
        driver = stage.stream(RecordingOutlet(slow=True), starts, stream_seconds=0.05)
        driver._lines = EventStreamFormat(starts)  # this format has something to write from the start
        with pytest.raises(TimeoutError):
            await stage.wait_for_end()
        # On a busy machine, the time may be over while a thread still opens the log, which then gives up the watch.
        await wait_on_loop(lambda: stage.log.watchers == 0)

    run_with_setup(scenario)


def test_events_that_are_not_delivered_do_not_move_the_cursor():
    """A partition with only tombstones keeps reporting the same position. (L58)"""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        stage.publish("a")
        run_blocking(stage.log.append(stage.event_type.timeline.topic, {0: [Record(None, key="k")] * 3}))
        stage.stream(outlet, flush_seconds=0.05)
        lines = (await outlet.until(lambda text: f"{line(0, 'a')}\n{{" in text and text.endswith("}\n"))).splitlines()
        assert lines[lines.index(line(0, "a")) + 1] == f'{{"cursor":{{"partition":"0","offset":"{Position(1, 0)}"}}}}'

    run_with_setup(scenario)


# Timelines


def test_a_stream_crosses_into_the_next_timeline():
    """After the last event of a timeline, an open stream continues with the first event of the next one. (L67)"""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        stage.publish("a", "b")
        driver = stage.stream(outlet)
        await outlet.lines(2)
        driver.update_event_type(stage.switch_timeline(events=2))
        stage.publish("c")
        assert await outlet.lines(3) == [line(0, "a"), line(1, "b"), line(0, "c", timeline=2)]

    run_with_setup(scenario)


def test_a_switch_in_the_middle_of_reading_loses_nothing():
    """The remaining events of the old timeline come before those of the new timeline. (L67, L68)"""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet(slow=True)
        stage.log.most_events = 2
        stage.publish(*"abcdef")
        driver = stage.stream(outlet)
        await asyncio.sleep(0.02)
        driver.update_event_type(stage.switch_timeline(events=6))
        stage.publish("g")
        outlet.room.set()
        lines = await outlet.lines(7)
        assert lines == [line(n, v) for n, v in enumerate("abcdef")] + [line(0, "g", timeline=2)]

    run_with_setup(scenario)


@pytest.mark.parametrize("consumed", range(-1, 6))
def test_every_cursor_leads_to_exactly_what_follows_it(consumed):
    """From any position, even across timelines and an empty one, a stream has no gap and no repetition. (L67, L68)"""

    async def scenario(stage: StreamSetup) -> None:
        expected = [line(n, v) for n, v in enumerate("abc")] + [line(n, v, timeline=3) for n, v in enumerate("def")]
        places = [Position(1, n) for n in range(3)] + [Position(3, n) for n in range(3)]
        stage.publish(*"abc")
        stage.switch_timeline(events=3)
        stage.switch_timeline(events=0)
        stage.publish(*"def")
        outlet = RecordingOutlet()
        start = Position(1, -1) if consumed < 0 else places[consumed]
        behind = expected[consumed + 1 :]
        stage.stream(outlet, {"0": start}, **({"stream_limit": len(behind)} if behind else {"stream_seconds": 0.2}))
        await stage.wait_for_end()
        assert outlet.text.splitlines() == behind

    run_with_setup(scenario)


def test_events_that_expired_under_a_stream_end_it_with_a_reason():
    """A stream whose next events are removed reports it as it would for a cursor to these events. (L63)"""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        stage.log.troubles = [OffsetUnavailable("gone")]
        stage.stream(outlet, {"0": Position(1, 4)})
        await stage.wait_for_end()
        assert outlet.text == (
            f"PROBLEM offset 000000000000000004 for partition 0 event type {stage.event_type.name} is unavailable as "
            "retention time of data elapsed. PATCH partition offset with valid and available offset\n"
        )

    run_with_setup(scenario)


def test_a_timeline_that_was_cleaned_up_under_a_stream_ends_it_with_a_reason():
    """If a stream is still in a timeline whose events are removed, it ends rather than skipping the gap. (L63, L68)"""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        topic = stage.event_type.timeline.topic
        stage.publish("a")
        driver = stage.stream(outlet)
        await outlet.lines(1)
        stage.log.delete_topic(topic)
        stage.log._log._announcements.announce_events(topic, 0)
        await stage.wait_until_asked()
        changed = stage.switch_timeline(events=5)
        old, new = changed.timelines
        driver.update_event_type(replace(changed, timelines=(replace(old, deleted=True), new)))
        await stage.wait_for_end()
        assert "PROBLEM offset 000000000000000000 for partition 0" in outlet.text

    run_with_setup(scenario)


def test_a_timeline_out_of_reach_ends_the_stream_with_a_reason():
    """If the log in which a stream has to continue cannot be opened, the stream reports it and ends. (L53)"""

    async def scenario(stage: StreamSetup) -> None:
        def raise_unavailable(storage_id: str) -> None:
            raise Unavailable(f"{storage_id} is away")

        stage.log.for_storage = raise_unavailable
        outlet = RecordingOutlet()
        stage.stream(outlet)
        await stage.wait_for_end()
        assert outlet.text == "PROBLEM default is away\n"

    run_with_setup(scenario)


def test_a_missing_topic_ends_nothing_by_itself():
    """Only the event type can explain a missing topic; until then, the stream stays open. (L61)"""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        stage.log.delete_topic(stage.event_type.timeline.topic)
        driver = stage.stream(outlet, flush_seconds=0.02)
        await stage.wait_until_asked()
        before = outlet.text.count("\n")
        assert (await outlet.lines(before + 1))[-1].startswith('{"cursor"')
        assert driver.session.end is None

    run_with_setup(scenario)


# Format


def test_the_form_of_lines_is_not_the_drivers_business():
    """Server-sent events are sent in the same way as lines of JSON, and begin immediately."""

    async def scenario(stage: StreamSetup) -> None:
        outlet = RecordingOutlet()
        starts = {"0": Position(1, -1)}
        driver = stage.stream(outlet, starts)
        driver._lines = EventStreamFormat(starts)
        opening = 'retry: 3000\nid: [{"partition":"0","offset":"001-0001--1"}]\n\n'
        assert await outlet.until(lambda text: text.endswith("\n\n")) == opening

    run_with_setup(scenario)
