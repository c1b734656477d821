"""All followers of a partition share one reader."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from nakadi.model.event_type import Timeline
from nakadi.model.events import EventSlice
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import OffsetUnavailable, UnknownTopic
from nakadi.streaming import feeds as feed_module
from nakadi.streaming.feeds import FeedFollower, Feeds
from tests.support.builders import a_timeline
from tests.support.patience import PATIENCE, wait_on_loop
from tests.support.streaming import ObservedLog

Scenario = Callable[["FeedSetup"], Awaitable[None]]


class FeedSetup:
    def __init__(self) -> None:
        self.log = ObservedLog()
        self.timeline: Timeline = a_timeline()
        self.log.create_topic(self.timeline.topic, 1)
        self.feeds = Feeds(self.log, threads=1)
        self.woken = asyncio.Event()

    def publish(self, *values: str) -> None:
        self.log.publish(self.timeline.topic, *values)

    async def follow(self, offset: int = 0) -> FeedFollower:
        return await self.feeds.follow(self.timeline, 0, offset, self.woken.set)

    async def take_events(self, follower: FeedFollower, count: int) -> list[str]:
        """Wait for this number of events of a follower, and return them."""
        found: list[str] = []
        async with asyncio.timeout(PATIENCE):
            while len(found) < count:
                self.woken.clear()
                run = follower.take_run()
                if run is None:
                    await self.woken.wait()
                elif run.count:
                    found += [value.decode().strip('"') for value in run.values]
        return found

    async def idle(self) -> None:
        """Wait until the only reading thread has returned its results, and no further read is requested."""
        seen = -1
        while seen != len(self.log.reads):
            seen = len(self.log.reads)
            await asyncio.get_running_loop().run_in_executor(self.feeds._threads, lambda: None)
            await asyncio.sleep(0)


def run_with_setup(scenario: Scenario) -> None:
    async def run_scenario() -> None:
        async with a_stage() as stage:
            await scenario(stage)

    asyncio.run(run_scenario())


@asynccontextmanager
async def a_stage() -> AsyncIterator[FeedSetup]:
    stage = FeedSetup()
    try:
        yield stage
    finally:
        stage.feeds.close()


def test_what_is_there_is_taken_from_the_offset_on():
    """A follower gets the events from its offset, in order. (L33)"""

    async def scenario(stage: FeedSetup) -> None:
        stage.publish("a", "b", "c", "d")
        assert await stage.take_events(await stage.follow(1), 3) == ["b", "c", "d"]

    run_with_setup(scenario)


def test_new_events_wake_any_client_that_waits():
    """An event that is stored while a follower waits is passed to the follower without a poll."""

    async def scenario(stage: FeedSetup) -> None:
        follower = await stage.follow()
        assert follower.take_run() is None
        await stage.idle()
        reads = len(stage.log.reads)
        await asyncio.sleep(0.05)
        assert len(stage.log.reads) == reads
        stage.publish("a")
        assert await stage.take_events(follower, 1) == ["a"]

    run_with_setup(scenario)


def test_one_that_has_everything_waits_without_asking():
    """A follower that has taken the newest events need not poll: it is woken when there are more."""

    async def scenario(stage: FeedSetup) -> None:
        follower = await stage.follow()
        stage.publish("a")
        assert await stage.take_events(follower, 1) == ["a"]
        assert follower.is_waiting
        await stage.idle()
        assert follower.is_waiting
        stage.woken.clear()
        stage.publish("b")
        async with asyncio.timeout(PATIENCE):
            await stage.woken.wait()
        assert not follower.is_waiting
        assert await stage.take_events(follower, 1) == ["b"]

    run_with_setup(scenario)


def test_a_follower_that_is_behind_gets_cached_events_at_once():
    """A follower whose next events are in the window, or have to be read for it alone, does not count as waiting."""

    async def scenario(stage: FeedSetup) -> None:
        stage.log.most_events = 2
        stage.publish(*map(str, range(6)))
        ahead, behind = await stage.follow(), await stage.follow()
        assert await stage.take_events(ahead, 6) == list(map(str, range(6)))
        assert await stage.take_events(behind, 2) == ["0", "1"]
        assert ahead.is_waiting
        assert not behind.is_waiting

    run_with_setup(scenario)


def test_the_log_is_read_once_for_everyone():
    """Followers that keep up share the events that were read once."""

    async def scenario(stage: FeedSetup) -> None:
        followers = [await stage.follow() for _ in range(20)]
        for follower in followers:
            assert follower.take_run() is None
        await stage.idle()
        before = len(stage.log.reads)
        stage.publish("a", "b")
        for follower in followers:
            assert await stage.take_events(follower, 2) == ["a", "b"]
        await stage.idle()
        assert len(stage.log.reads) - before == 1, "it finds the events, and that there are no more"

    run_with_setup(scenario)


def test_one_that_comes_from_behind_catches_up_and_joins():
    """A follower that begins further back reads on its own until it has reached the others, and misses nothing. (L34,
    L68)"""

    async def scenario(stage: FeedSetup) -> None:
        stage.log.most_events = 3
        stage.publish(*map(str, range(20)))
        ahead = await stage.follow(20)
        assert ahead.take_run() is None
        await stage.idle()
        behind = await stage.follow(0)
        assert await stage.take_events(behind, 20) == list(map(str, range(20)))
        assert behind.take_run() is None
        await stage.idle()
        before = len(stage.log.reads)
        stage.publish("new")
        assert await stage.take_events(behind, 1) == ["new"]
        assert await stage.take_events(ahead, 1) == ["new"]
        await stage.idle()
        assert len(stage.log.reads) - before == 1

    run_with_setup(scenario)


def test_one_ahead_of_the_reader_takes_it_along():
    """A follower at the end does not wait for one that began far back; both get all events."""

    async def scenario(stage: FeedSetup) -> None:
        stage.log.most_events = 2
        stage.publish(*map(str, range(10)))
        behind = await stage.follow(0)
        assert await stage.take_events(behind, 2) == ["0", "1"]
        ahead = await stage.follow(10)
        assert ahead.take_run() is None
        stage.publish("new")
        assert await stage.take_events(ahead, 1) == ["new"]
        assert await stage.take_events(behind, 9) == [*map(str, range(2, 10)), "new"]

    run_with_setup(scenario)


def test_followers_that_catch_up_together_read_together():
    """Followers that begin at the same position share the reads."""

    async def scenario(stage: FeedSetup) -> None:
        stage.publish(*map(str, range(10)))
        ahead = await stage.follow(10)
        assert ahead.take_run() is None
        await stage.idle()
        followers = [await stage.follow(0) for _ in range(10)]
        for follower in followers:
            assert follower.take_run() is None
        for follower in followers:
            assert len(await stage.take_events(follower, 10)) == 10
        assert stage.log.reads.count(0) == 1

    run_with_setup(scenario)


def test_a_slow_follower_keeps_no_one_and_little_memory(monkeypatch):
    """The window is limited: a follower that falls out of it reads on its own, and still gets all events. (L68)"""
    monkeypatch.setattr(feed_module, "FEED_WINDOW_BYTES", 5000)

    async def scenario(stage: FeedSetup) -> None:
        fast, slow = await stage.follow(), await stage.follow()
        assert slow.take_run() is None
        assert fast.take_run() is None
        for number in range(50):
            stage.publish(str(number))
            assert await stage.take_events(fast, 1) == [str(number)]
        window = fast._feed._window
        assert len(window) < 10
        assert await stage.take_events(slow, 50) == list(map(str, range(50)))

    run_with_setup(scenario)


def test_nothing_is_kept_when_everyone_has_it():
    """Once all followers have taken a chunk, the feed drops it."""

    async def scenario(stage: FeedSetup) -> None:
        follower = await stage.follow()
        stage.publish("a")
        assert await stage.take_events(follower, 1) == ["a"]
        assert follower.take_run() is None
        await stage.idle()
        assert follower._feed._window == []

    run_with_setup(scenario)


def test_a_log_that_does_not_say_where_it_ends_is_read_until_nothing_is_found():
    """After a read, more events may follow, unless the log says that no more do."""

    async def scenario(stage: FeedSetup) -> None:
        stage.log.tells_its_end = False
        stage.publish("a", "b")
        follower = await stage.follow()
        assert await stage.take_events(follower, 2) == ["a", "b"]
        assert follower.take_run() is None
        await stage.idle()
        assert stage.log.reads == [0, 2]

    run_with_setup(scenario)


def test_a_log_that_does_not_answer_is_asked_again(monkeypatch):
    """After a failure, reading continues where it stopped, and nothing is lost or repeated. (L63)"""
    monkeypatch.setattr(feed_module, "MIN_READ_RETRY_PAUSE_SECONDS", 0.001)

    async def scenario(stage: FeedSetup) -> None:
        stage.log.troubles = [Unavailable("down"), Unavailable("still down")]
        follower = await stage.follow()
        stage.publish("a")
        assert await stage.take_events(follower, 1) == ["a"]
        assert stage.log.reads[:3] == [0, 0, 0]

    run_with_setup(scenario)


def test_pauses_grow_and_shrink_again(monkeypatch, caplog):
    """A log that stays unavailable is called less and less often; once it answers, the next pause is short again."""
    monkeypatch.setattr(feed_module, "MIN_READ_RETRY_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(feed_module, "MAX_READ_RETRY_PAUSE_SECONDS", 0.003)

    async def scenario(stage: FeedSetup) -> None:
        stage.log.troubles = [Unavailable("down")] * 4
        follower = await stage.follow()
        stage.publish("a")
        assert await stage.take_events(follower, 1) == ["a"]
        stage.log.troubles = [Unavailable("down")]
        stage.publish("b")
        assert await stage.take_events(follower, 1) == ["b"]

    run_with_setup(scenario)
    assert [message.split(" in ")[1] for message in caplog.messages if "trying again" in message] == [
        f"{pause} s: down" for pause in (0.001, 0.002, 0.003, 0.003, 0.001)
    ]


def test_a_read_that_hangs_is_reported_and_shared(monkeypatch):
    """A read that does not end is reported to its followers, again and again. A follower that leaves and comes back
    waits for the same read, so that it occupies one thread, and gets its events when it ends. (L81)
    """
    monkeypatch.setattr(feed_module, "SLOW_READ_SECONDS", 0.001)

    async def scenario(stage: FeedSetup) -> None:
        stage.log.hanging_start = 0
        stage.publish("a")
        follower = await stage.follow()
        for _ in range(3):
            async with asyncio.timeout(PATIENCE):
                assert follower.take_run() is None
                while (failure := follower.take_failure()) is None:
                    stage.woken.clear()
                    await stage.woken.wait()
            assert failure.public.startswith("The log has not answered for ")
            follower.release()
            follower = await stage.follow()
        assert stage.log.reads == [0]
        stage.log.answers.set()
        assert await stage.take_events(follower, 1) == ["a"]
        assert stage.log.reads == [0]

    run_with_setup(scenario)


def test_a_read_that_hung_for_nobody_ends_its_feed(monkeypatch):
    """A log whose read hangs is watched until the read ends, even without followers, and not longer."""
    monkeypatch.setattr(feed_module, "SLOW_READ_SECONDS", 0.001)

    async def scenario(stage: FeedSetup) -> None:
        stage.log.hanging_start = 0
        follower = await stage.follow()
        async with asyncio.timeout(PATIENCE):
            assert follower.take_run() is None
            await stage.woken.wait()
        follower.release()
        assert stage.log.watchers == 1
        stage.log.answers.set()
        await wait_on_loop(lambda: stage.log.watchers == 0)

    run_with_setup(scenario)


def test_a_read_that_hangs_does_not_keep_later_followers_waiting():
    """A follower of newer events does not wait for a read of old ones, which may be in an archive out of reach."""

    async def scenario(stage: FeedSetup) -> None:
        stage.feeds.close()
        stage.feeds = Feeds(stage.log, threads=3)
        stage.publish("a", "b")
        stage.log.hanging_start = 0
        old = await stage.follow()
        assert old.take_run() is None
        newest = await stage.follow(1)
        assert await stage.take_events(newest, 1) == ["b"]
        stage.log.answers.set()

    run_with_setup(scenario)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("trouble", [OffsetUnavailable("gone"), UnknownTopic("gone")])
def test_what_cannot_be_read_any_more_is_reported(trouble, behind):
    """If the next events have been removed, the follower that needs them gets an error that says so. (L63)"""

    async def scenario(stage: FeedSetup) -> None:
        stage.publish("a", "b")
        if behind:
            ahead = await stage.follow(2)
            assert ahead.take_run() is None
            await stage.idle()
        stage.log.troubles = [trouble]
        follower = await stage.follow(0)
        with pytest.raises(type(trouble)):
            await stage.take_events(follower, 1)

    run_with_setup(scenario)


def test_trouble_with_the_tip_does_not_keep_later_ones_waiting():
    """If a follower fails because its next events are unavailable, a later follower at the same offset gets the same
    error, rather than waiting for ever.
    """

    async def scenario(stage: FeedSetup) -> None:
        staying = await stage.follow(1)
        stage.log.troubles = [OffsetUnavailable("gone"), OffsetUnavailable("gone")]
        with pytest.raises(OffsetUnavailable):
            await stage.take_events(staying, 1)
        another = await stage.follow(1)
        with pytest.raises(OffsetUnavailable):
            await stage.take_events(another, 1)

    run_with_setup(scenario)


def test_a_log_is_watched_only_while_someone_follows():
    """When the last follower leaves, the feed and the watch end; the next follower starts new ones."""

    async def scenario(stage: FeedSetup) -> None:
        first, second = await stage.follow(), await stage.follow()
        assert stage.log.watchers == 1
        first.release()
        first.release()
        assert stage.log.watchers == 1
        second.release()
        assert stage.log.watchers == 0
        stage.publish("a")
        assert await stage.take_events(await stage.follow(), 1) == ["a"]

    run_with_setup(scenario)


def test_streams_that_open_at_once_share_a_watch():
    """Each stream starts a watch in a thread, and all but one stop theirs."""

    async def scenario(stage: FeedSetup) -> None:
        followers = await asyncio.gather(*(stage.follow() for _ in range(3)))
        assert stage.log.watchers == 1
        for each in followers:
            each.release()
        assert stage.log.watchers == 0

    run_with_setup(scenario)


def test_an_abandoned_feed_is_not_tried_again(monkeypatch):
    """When the last follower leaves while the log is unavailable, the feed stops calling the log."""
    monkeypatch.setattr(feed_module, "MIN_READ_RETRY_PAUSE_SECONDS", 0.001)

    async def scenario(stage: FeedSetup) -> None:
        stage.log.troubles = [Unavailable("down")] * 1000
        follower = await stage.follow()
        assert follower.take_run() is None
        await asyncio.sleep(0.01)
        follower.release()
        await stage.idle()
        reads = len(stage.log.reads)
        await asyncio.sleep(0.02)
        assert len(stage.log.reads) == reads

    run_with_setup(scenario)


@pytest.mark.parametrize("trouble", [OffsetUnavailable("gone"), UnknownTopic("gone"), Unavailable("down")])
def test_an_error_that_nobody_waits_for_any_more_is_not_reported(trouble):
    """When the last follower leaves during a read that fails, asyncio does not log an error that was never
    retrieved."""
    reported: list[str] = []

    class HeldUp(ObservedLog):
        def __init__(self) -> None:
            super().__init__()
            self.is_reading, self.may_fail = threading.Event(), threading.Event()

        def read(self, *_place: Any, **_limits: Any) -> EventSlice:
            self.is_reading.set()
            assert self.may_fail.wait(PATIENCE)
            raise trouble

    async def scenario(stage: FeedSetup) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
        stage.log = log = HeldUp()
        log.create_topic(stage.timeline.topic, 1)
        stage.feeds.close()
        stage.feeds = Feeds(log, threads=1)
        follower = await stage.follow()
        assert follower.take_run() is None
        assert await asyncio.to_thread(log.is_reading.wait, PATIENCE)
        follower.release()
        log.may_fail.set()
        await stage.idle()
        gc.collect()

    run_with_setup(scenario)
    assert reported == []


def test_an_event_published_while_a_read_is_under_way_is_found():
    """A notification that arrives during a read causes another read. (L36)"""

    async def scenario(stage: FeedSetup) -> None:
        follower = await stage.follow()
        for number in range(200):
            assert follower.take_run() is None
            stage.publish(str(number))
            assert await stage.take_events(follower, 1) == [str(number)]

    run_with_setup(scenario)


def test_an_event_stored_behind_a_read_that_saw_the_end_is_found():
    """A read that reached the end does not hide an event that was reported before the read returned."""

    class HeldUp(ObservedLog):
        def __init__(self) -> None:
            super().__init__()
            self.has_looked, self.may_return = threading.Event(), threading.Event()

        def read(self, *place: Any, **limits: Any) -> EventSlice:
            found = super().read(*place, **limits)
            self.has_looked.set()
            assert self.may_return.wait(PATIENCE)
            return found

    async def scenario(stage: FeedSetup) -> None:
        stage.log = log = HeldUp()
        log.create_topic(stage.timeline.topic, 1)
        stage.feeds.close()
        stage.feeds = Feeds(log, threads=1)
        stage.publish("a")
        follower = await stage.follow()
        assert follower.take_run() is None
        assert await asyncio.to_thread(log.has_looked.wait, PATIENCE)
        stage.publish("b")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        log.may_return.set()
        assert await stage.take_events(follower, 2) == ["a", "b"]

    run_with_setup(scenario)


def test_news_after_the_loop_was_closed_hurts_no_one():
    """A publisher does not notice that a loop has ended before its streams."""
    log = ObservedLog()
    timeline = a_timeline()
    log.create_topic(timeline.topic, 1)
    feeds = Feeds(log)

    async def scenario() -> None:
        await feeds.follow(timeline, 0, 0, lambda: None)

    asyncio.run(scenario())
    log.publish(timeline.topic, "a")
    feeds.close()


class SilentStorages(ObservedLog):
    """Storages, one of which is not found until `answers` is set; soon afterwards, `opened` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.answers, self.opened = threading.Event(), threading.Event(), threading.Event()

    def for_storage(self, storage_id: str) -> ObservedLog:
        if storage_id == "silent":
            self.is_asked.set()
            assert self.answers.wait(PATIENCE)
        return self

    def add_change_listener(self, changed: Callable[[str, int], None]) -> Callable[[], None]:
        stop = super().add_change_listener(changed)
        self.opened.set()
        return stop


def test_who_leaves_while_a_log_is_opened_leaves_no_watch_behind():
    """The thread that opens the log for a stream continues after the stream has ended, and then leaves no watch
    behind.
    """

    async def scenario() -> None:
        stage = FeedSetup()
        stage.log = SilentStorages()
        stage.log.create_topic(stage.timeline.topic, 1)
        stage.feeds = Feeds(stage.log, threads=1)
        elsewhere = replace(stage.timeline, storage_id="silent")
        opening = asyncio.create_task(stage.feeds.follow(elsewhere, 0, 0, lambda: None))
        await wait_on_loop(stage.log.is_asked.is_set)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        stage.log.answers.set()
        await wait_on_loop(stage.log.opened.is_set)
        await wait_on_loop(lambda: stage.log.watchers == 0)
        stage.feeds.close()

    asyncio.run(scenario())


def test_a_log_that_cannot_be_opened_yet_holds_up_no_other():
    """While the registry does not tell where a storage is, the feeds of open logs continue. (L55)"""

    async def scenario() -> None:
        stage = FeedSetup()
        stage.log = SilentStorages()
        stage.log.create_topic(stage.timeline.topic, 1)
        stage.feeds = Feeds(stage.log, threads=1)
        follower = await stage.follow()
        elsewhere = replace(stage.timeline, storage_id="silent")
        waiting = [asyncio.create_task(stage.feeds.follow(elsewhere, 0, 0, lambda: None)) for _ in range(3)]
        await asyncio.sleep(0)
        stage.publish("a", "b")
        try:
            assert await stage.take_events(follower, 2) == ["a", "b"]
            assert not any(each.done() for each in waiting)
        finally:
            stage.log.answers.set()
            await asyncio.gather(*waiting)
            stage.feeds.close()

    asyncio.run(scenario())
