"""Records that are pushed to a consumer of the process, over the service's protocol."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import boto3
import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.archive.stores import MemoryStore
from nakadi.engines.kinesis import fan_out, opening
from nakadi.engines.kinesis.call_rate import GrowingPauses
from nakadi.engines.kinesis.continuity import ShardCursor
from nakadi.engines.kinesis.event_log import KinesisLog
from nakadi.engines.kinesis.numbering import ArrivedRecord
from nakadi.engines.kinesis.stream import RecordPage, Stream
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.events import Record
from nakadi.model.log_index import RecordPosition
from nakadi.ports.clock import SystemClock
from tests.support.kinesis import REGION, create_stream, use_fast_clients, wait_until_active
from tests.support.kinesis_faults import FaultyKinesis
from tests.support.kinesis_local import kinesis_local
from tests.support.kinesis_pushed import PushingKinesis, start_pushing_kinesis
from tests.support.patience import PATIENCE, until
from tests.support.shared import keep_open

HURRIED = "lease=0.05&poll=0.02&reads_per_second=10000"


@pytest.fixture
def kinesis(faulty_kinesis: FaultyKinesis, monkeypatch) -> Iterator[PushingKinesis]:
    monkeypatch.setattr(fan_out, "STATUS_CHECK_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(fan_out, "REGISTRATION_RETRY_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(fan_out, "SUBSCRIPTION_RETRY_INTERVAL_SECONDS", 0.02)
    faulty_kinesis.index.create_topic("t", 1)
    with start_pushing_kinesis(faulty_kinesis.client) as made:
        made.replaceable_after = 0.0
        yield made


class FollowingProcess:
    """A process that watches, and the notifications that it gets."""

    def __init__(self, log: KinesisLog) -> None:
        self.log = log
        self._told = threading.Event()
        self._seen = 0
        self.end = log.add_change_listener(lambda *_: self._told.set())

    def wait_for_events(self, count: int) -> None:
        """Wait until the watcher has been notified of at least this number of events."""
        until(lambda: self._all() >= count)

    def _all(self) -> int:
        assert self._told.wait(PATIENCE)
        self._told.clear()
        found = self.log.read("t", 0, self._seen).events
        self._seen += len(found)
        if found:
            self._told.set()
        return self._seen


@contextmanager
def following_watch(faulty_kinesis: FaultyKinesis, more: str = "") -> Iterator[FollowingProcess]:
    url = f"kinesis://{faulty_kinesis.name}?region={REGION}&fan_out=mine&shared_for=60&{HURRIED}{more}"
    log = opening.open_kinesis_log(url, faulty_kinesis.clock, faulty_kinesis.index, None)
    made = FollowingProcess(log)
    try:
        yield made
    finally:
        made.end()
        log.close()


def wait_until_subscribed(kinesis: PushingKinesis, times: int = 1) -> None:
    until(lambda: kinesis.calls["SubscribeToShard"] >= times)


def publish(faulty_kinesis: FaultyKinesis, count: int = 1) -> None:
    log = faulty_kinesis.a_log()
    for _ in range(count):
        run_blocking(log.append("t", {0: [Record(b"1")]}))


def test_what_is_pushed_is_not_asked_for(faulty_kinesis, kinesis, monkeypatch):
    """While a shard's records are pushed to a watching process, the process does not read the shard."""
    asked: list[str] = []
    page = Stream.read_page

    def count_read(stream: Stream, shard: str, iterator: str, limit: int = 10_000) -> RecordPage:
        asked.append(shard)
        return page(stream, shard, iterator, limit)

    monkeypatch.setattr(Stream, "read_page", count_read)
    with following_watch(faulty_kinesis) as process:
        until(lambda: kinesis.streaming)
        asked.clear()
        for number in range(5):
            publish(faulty_kinesis)
            process.wait_for_events(number + 1)
        assert kinesis.records == 5
        assert not asked


def test_a_subscription_that_ends_is_followed_by_another(faulty_kinesis, kinesis):
    """Kinesis ends each subscription after five minutes: the next one begins where the last one ended, and no record is
    lost."""
    kinesis.lasts = 0.05
    with following_watch(faulty_kinesis) as process:
        for number in range(10):
            publish(faulty_kinesis)
            process.wait_for_events(number + 1)
        wait_until_subscribed(kinesis, 3)
        assert [event.offset for event in process.log.read("t", 0, 0).events] == list(range(10))


def test_a_refused_subscription_leaves_the_shard_to_be_asked(faulty_kinesis, kinesis):
    """Kinesis refuses another subscription within five seconds of the last one: meanwhile, events are read as without
    fan-out.
    """
    kinesis.pushes = False
    with following_watch(faulty_kinesis) as process:
        wait_until_subscribed(kinesis, 2)
        publish(faulty_kinesis, 3)
        process.wait_for_events(3)
        assert not kinesis.records
        kinesis.pushes = True
        until(lambda: kinesis.streaming)
        publish(faulty_kinesis)
        process.wait_for_events(4)


@pytest.mark.parametrize("how", ["most", "activates"])
def test_a_stream_without_room_for_a_consumer_is_asked(faulty_kinesis, kinesis, how):
    """A stream has at most twenty consumers; a further process reads as without fan-out, and tries again to register a
    consumer.
    """
    setattr(kinesis, how, 0)
    with following_watch(faulty_kinesis) as process:
        publish(faulty_kinesis, 2)
        process.wait_for_events(2)
        until(lambda: kinesis.calls["RegisterStreamConsumer"] + kinesis.calls["DescribeStreamConsumer"] > 3)
        assert not kinesis.calls["SubscribeToShard"]
        setattr(kinesis, how, 20)
        wait_until_subscribed(kinesis)


def test_a_silent_subscription_hides_nothing(faulty_kinesis, kinesis):
    """A connection that stays open without sending anything is given up, and the shard is read instead."""
    with following_watch(faulty_kinesis, "&push_silence=0.2") as process:
        until(lambda: kinesis.pages)
        kinesis.silent.set()
        publish(faulty_kinesis, 2)
        process.wait_for_events(2)


def test_the_newest_offsets_are_asked_for(faulty_kinesis, kinesis):
    """Events that were acknowledged before the call are within the bounds, whether they have been pushed yet or not.
    (C13)"""
    with following_watch(faulty_kinesis) as process:
        until(lambda: kinesis.streaming)
        publish(faulty_kinesis)
        until(lambda: kinesis.records)
        process.wait_for_events(1)
        kinesis.silent.set()
        publish(faulty_kinesis, 2)
        assert process.log.bounds("t", [0])[0].next_offset == 3


def test_a_consumer_goes_with_its_process(faulty_kinesis, kinesis):
    """When a process ends, its consumer is deregistered and causes no further costs."""
    with following_watch(faulty_kinesis):
        until(lambda: kinesis.consumers)
    assert not kinesis.consumers


def test_a_process_that_no_one_watches_has_no_consumer(faulty_kinesis, kinesis):
    """A process that nobody watches registers no consumer, although its URL names one."""
    url = f"kinesis://{faulty_kinesis.name}?region={REGION}&fan_out=mine&{HURRIED}"
    log = opening.open_kinesis_log(url, faulty_kinesis.clock, faulty_kinesis.index, None)
    publish(faulty_kinesis)
    assert log.bounds("t", [0])[0].next_offset == 1
    assert len(log.read("t", 0, 0).events) == 1
    log.close()
    assert not kinesis.calls["RegisterStreamConsumer"]


def test_a_consumer_is_replaced_before_it_is_old(faulty_kinesis, kinesis, monkeypatch):
    """After some hours, a new consumer takes over, and the old one is deregistered."""
    monkeypatch.setattr(fan_out, "CONSUMER_LIFETIME_SECONDS", 0.1)
    kinesis.lasts = 0.05
    with following_watch(faulty_kinesis) as process:
        until(lambda: kinesis.calls["RegisterStreamConsumer"] >= 3)
        publish(faulty_kinesis, 2)
        process.wait_for_events(2)
        assert len(kinesis.consumers) <= 2


def test_a_consumer_that_was_taken_away_is_registered_anew(faulty_kinesis, kinesis):
    """If someone deregisters the consumer of a live process, the process registers another, and no record is lost."""
    with following_watch(faulty_kinesis) as process:
        until(lambda: kinesis.streaming)
        [arn] = kinesis.consumers
        kinesis.answer("DeregisterStreamConsumer", {"ConsumerARN": arn})
        publish(faulty_kinesis, 2)
        process.wait_for_events(2)
        until(lambda: kinesis.consumers)
        assert arn not in kinesis.consumers


def test_orphans_are_removed_by_age(faulty_kinesis, kinesis):
    """Housekeeping removes consumers of this broker that are too old to belong to a live process, and no others."""
    for name in ("mine-killed", "mine-other", "somebody-else"):
        kinesis.answer(
            "RegisterStreamConsumer", {"StreamARN": f"arn:stream/{faulty_kinesis.name}", "ConsumerName": name}
        )
    url = f"kinesis://{faulty_kinesis.name}?region={REGION}&fan_out=mine&{HURRIED}"
    log = opening.open_kinesis_log(url, faulty_kinesis.clock, faulty_kinesis.index, None)

    def compute_remaining(age: float) -> set[str]:
        kinesis.registered_at(faulty_kinesis.clock.now() - timedelta(seconds=age))
        log.remove_orphaned_consumers()
        return {each["ConsumerName"] for each in kinesis.consumers.values()}

    assert compute_remaining(fan_out.ORPHAN_AGE_SECONDS - 60) == {"mine-killed", "mine-other", "somebody-else"}
    assert compute_remaining(fan_out.ORPHAN_AGE_SECONDS + 60) == {"somebody-else"}
    log.close()


def test_a_shard_that_ends_is_followed_by_its_children():
    """The last event of a shard that was split announces the split, and the children are pushed from their
    beginning."""
    with kinesis_local() as endpoint, use_fast_clients():
        client = boto3.client("kinesis", REGION, endpoint_url=endpoint)
        stream = create_stream(client, shards=1)
        index = keep_open(MemoryLogIndex())
        index.create_topic("t", 4)
        with start_pushing_kinesis(client) as kinesis:
            kinesis.active_at_once = True
            url = f"kinesis://{stream}?region={REGION}&endpoint={endpoint}&fan_out=mine&{HURRIED}"
            log = opening.open_kinesis_log(url, SystemClock(), index, keep_open(MemoryStore()))
            end = log.add_change_listener(lambda *_: None)
            writer = opening.open_kinesis_log(url.replace("fan_out=mine&", ""), SystemClock(), index, None)
            until(lambda: kinesis.streaming)
            client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(1 << 127))
            wait_until_active(client, stream)
            until(lambda: {shard for _, shard in kinesis.streaming} >= {f"shardId-00000000000{n}" for n in (1, 2)})
            before = kinesis.records
            for partition in range(4):
                run_blocking(writer.append("t", {partition: [Record(b"1")]}))
            until(lambda: kinesis.records >= before + 4)
            assert [log.bounds("t", [number])[number].next_offset for number in range(4)] == [1, 1, 1, 1]
            end()
            log.close()
            writer.close()
        client.delete_stream(StreamName=stream)
        client.close()


class IteratorStream:
    """A stream that only answers requests for iterators and pages."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def request_iterator_behind(self, mark: RecordPosition) -> str:
        self.asked.append(mark.sequence)
        return "iterator"

    def read_page(self, _shard: str, _iterator: str, _limit: int) -> RecordPage:
        return RecordPage([record(7), record(8)], "iterator", at_tip=True)


def record(sequence: int) -> ArrivedRecord:
    return ArrivedRecord(RecordPosition("s", sequence), "key", 0, b"")


def test_what_is_pushed_and_read_is_met_once():
    """A record that was both read and pushed is handled once; a page without a continuation ends the shard."""
    stream = IteratorStream()
    cursor = ShardCursor(stream, "s", 5)
    assert [each.position.sequence for each in cursor.read(GrowingPauses(1)).records] == [7, 8]
    assert [
        each.position.sequence for each in cursor.accept_pushed(RecordPage([record(8), record(9)], "more", at_tip=True))
    ] == [9]
    assert cursor.read(GrowingPauses(1)).records == []
    assert stream.asked == [5, 9]
    assert cursor.accept_pushed(RecordPage([], None, at_tip=True)) == []
    assert cursor.ended
