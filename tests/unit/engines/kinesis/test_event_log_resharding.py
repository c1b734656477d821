"""Shards split and merge while events are stored and read; only a local service can do that in a test."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise

import boto3
import pytest

from nakadi.common.caching import ChangeWatch
from nakadi.common.waiting import run_blocking
from nakadi.engines.archive.segment_cache import SegmentCache
from nakadi.engines.archive.stores import MemoryStore
from nakadi.engines.kinesis.call_rate import GrowingPauses
from nakadi.engines.kinesis.continuity import ShardTreeCache
from nakadi.engines.kinesis.event_log import KinesisLog, KinesisOptions
from nakadi.engines.kinesis.failures import ShardBusy
from nakadi.engines.kinesis.indexing import Indexer
from nakadi.engines.kinesis.reading import StreamReader
from nakadi.engines.kinesis.shards import ShardTree
from nakadi.engines.kinesis.stream import Stream
from nakadi.engines.kinesis.tails import LastWrittenRecords
from nakadi.engines.kinesis.topics import TopicCache
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.events import AppendStored, EventSlice, Record
from nakadi.model.log_index import ShardProgress
from nakadi.ports.clock import SystemClock
from tests.support.kinesis import create_stream, wait_until_active
from tests.support.kinesis_local import kinesalite_there, kinesis_local
from tests.support.other_engines import OTHER_ENGINES_WANTED
from tests.support.patience import PATIENCE
from tests.support.shared import keep_open

PARTITIONS = 6
TOPIC = "orders"
RESHARDINGS = ("split", "split", "merge", "split", "merge", "merge")

Seen = Mapping[int, list[bytes | None]]


class ReshardedStream:
    """One stream with its index and its archive; each log on them represents another process."""

    def __init__(self, client, stream: str) -> None:
        self.client = client
        self.stream = stream
        self.index = keep_open(MemoryLogIndex())
        self.archive = keep_open(MemoryStore())

    @contextmanager
    def a_log(self, index: MemoryLogIndex | None = None, **options: int) -> Iterator[KinesisLog]:
        hurried = KinesisOptions(lease=0.2, shared_for=0.05, poll=0.05, **options)
        log = KinesisLog(self.a_stream(), index or self.index, self.archive, SystemClock(), hurried)
        try:
            yield log
        finally:
            log.close()

    def an_indexer(self, index: MemoryLogIndex | None = None) -> Indexer:
        stream = self.a_stream()
        return Indexer(stream, ShardTreeCache(stream), index or self.index, self.archive)

    def shard_tree(self) -> ShardTree:
        return ShardTree(self.a_stream().list_shards())

    def reshard(self, how: str) -> None:
        """Split any shard in the middle, or merge two neighbours."""
        shards = self._open_shards()
        if how == "split":
            widest = max(shards, key=lambda shard: shard.last_hash_key - shard.first_hash_key)
            middle = str((widest.first_hash_key + widest.last_hash_key) // 2)
            self.client.split_shard(StreamName=self.stream, ShardToSplit=widest.id, NewStartingHashKey=middle)
        else:
            first, second = random.choice(list(pairwise(shards)))
            self.client.merge_shards(StreamName=self.stream, ShardToMerge=first.id, AdjacentShardToMerge=second.id)
        wait_until_active(self.client, self.stream)

    def _open_shards(self):
        return sorted(
            (each for each in self.a_stream().list_shards() if not each.is_closed), key=lambda each: each.first_hash_key
        )

    def a_stream(self) -> Stream:
        return Stream(self.client, self.stream, reads_per_second=200)


@pytest.fixture(
    params=[kinesis_local, *([kinesalite_there] if OTHER_ENGINES_WANTED else [])], ids=lambda service: service.__name__
)
def kinesis_world(request):
    with request.param() as endpoint:
        client = boto3.client("kinesis", endpoint_url=endpoint)
        client.close = lambda: None  # every log closes its client, and this client is shared
        stream = create_stream(client)
        yield ReshardedStream(client, stream)
        client.delete_stream(StreamName=stream)


def seen_from_the_beginning(log: KinesisLog) -> Seen:
    return {partition: list(follow(log, partition)) for partition in range(PARTITIONS)}


def follow(log: KinesisLog, partition: int, published: threading.Event | None = None) -> Iterator[bytes | None]:
    """Read the values of a partition in order, up to the last published one; each offset is one more than the one
    before."""
    place = 0
    while True:
        is_all = published is None or published.is_set()
        found = read_when_there_is_room(log, partition, place, wait=0.0 if is_all else 0.1)
        for event in found.events:
            assert event.offset == place
            place += 1
            yield event.record.value
        if is_all and not found.events:
            return


def read_when_there_is_room(log: KinesisLog, partition: int, place: int, *, wait: float) -> EventSlice:
    """Read, and repeat a read that is refused because too many readers wait, as may happen on a busy machine."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return log.read(TOPIC, partition, place, limit=50, wait=wait)
        except ShardBusy:
            assert time.monotonic() < end, "there is never room"
            time.sleep(0.05)


def publish_until(over: threading.Event, log: KinesisLog, writer: int) -> list[tuple[int, bytes]]:
    """Publish until `over` is set, and return the acknowledged events in order."""
    stored = []
    number = 0
    while not over.is_set():
        partitions = random.sample(range(PARTITIONS), 3)
        values = {partition: b"%d" % (writer * 1_000_000 + number + at) for at, partition in enumerate(partitions)}
        fates = run_blocking(log.append(TOPIC, {partition: [Record(value)] for partition, value in values.items()}))
        stored += [(partition, value) for partition, value in values.items() if fates[partition] == AppendStored()]
        number += 3
    return stored


def repeat_until(over: threading.Event, work: Callable[[], None]) -> None:
    while not over.is_set():
        work()
        time.sleep(0.02)


class TestWhileShardsSplitAndMerge:
    def test_no_event_is_lost_or_there_twice_and_every_reader_counts_the_same(self, kinesis_world: ReshardedStream):
        """Events keep their order and offsets while shards split and merge, for readers that follow and for readers
        that come later.

        The reader that follows has next to no memory, so it also reads events that are no longer cached.
        """
        index_by_shard = kinesis_world.an_indexer()
        over, published = threading.Event(), threading.Event()

        def index_something() -> None:
            index_by_shard.catch_up(random.choice(kinesis_world.shard_tree().leaves()))

        with (
            kinesis_world.a_log() as first,
            kinesis_world.a_log(window_bytes=20_000) as second,
            ThreadPoolExecutor(12) as threads,
        ):
            first.create_topic(TOPIC, PARTITIONS)
            logs = (first, second, first)
            writing = [threads.submit(publish_until, over, log, writer) for writer, log in enumerate(logs)]
            following = [
                threads.submit(lambda p=partition: list(follow(second, p, published)))
                for partition in range(PARTITIONS)
            ]
            indexing = threads.submit(repeat_until, over, index_something)
            for how in RESHARDINGS:
                time.sleep(0.25)
                kinesis_world.reshard(how)
            time.sleep(0.25)
            over.set()
            acknowledged = [each.result(PATIENCE) for each in writing]
            time.sleep(0.1)  # an earlier result is no longer shared
            published.set()
            indexing.result(PATIENCE)
            followed = {partition: each.result(PATIENCE) for partition, each in enumerate(following)}

        for partition in range(PARTITIONS):
            values = followed[partition]
            assert sorted(values) == sorted(v for stored in acknowledged for p, v in stored if p == partition)
            for stored in acknowledged:
                mine = [value for p, value in stored if p == partition]
                assert [value for value in values if value in set(mine)] == mine
        with kinesis_world.a_log() as later:
            assert seen_from_the_beginning(later) == followed
        fresh = MemoryLogIndex()
        fresh.create_topic(TOPIC, PARTITIONS)
        with kinesis_world.a_log(fresh) as counting_anew:
            assert seen_from_the_beginning(counting_anew) == followed
        assert sum(map(len, followed.values())) > 60

    def test_an_index_made_afterwards_is_the_same(self, kinesis_world: ReshardedStream):
        """Indexing the last shards also indexes all their ancestors, parents before children."""
        with kinesis_world.a_log() as log:
            log.create_topic(TOPIC, PARTITIONS)
            expected = dict.fromkeys(range(PARTITIONS), 0)
            for how in ("split", "merge", "split", "merge"):
                for partition in range(PARTITIONS):
                    run_blocking(log.append(TOPIC, {partition: [Record(b"1"), Record(b"2")]}))
                    expected[partition] += 2
                kinesis_world.reshard(how)
            for leaf in kinesis_world.shard_tree().leaves():
                kinesis_world.an_indexer().catch_up(leaf)
            heads = kinesis_world.index.index_heads([(TOPIC, partition) for partition in range(PARTITIONS)])
            assert {partition: heads[TOPIC, partition].state.next_offset for partition in range(PARTITIONS)} == expected
        with kinesis_world.a_log() as later:
            bounds = later.bounds(TOPIC, range(PARTITIONS))
            assert {partition: each.next_offset for partition, each in bounds.items()} == expected

    def test_a_sealed_topic_stays_sealed(self, kinesis_world: ReshardedStream):
        """A reader that only sees later records knows of a seal that was written before a shard split."""
        with kinesis_world.a_log() as log:
            log.create_topic(TOPIC, PARTITIONS)
            run_blocking(log.append(TOPIC, {partition: [Record(b"1")] for partition in range(PARTITIONS)}))
            log.seal_topic(TOPIC)
            ends = log.bounds(TOPIC, range(PARTITIONS))
            kinesis_world.reshard("split")
            kinesis_world.reshard("merge")
            for leaf in kinesis_world.shard_tree().leaves():
                kinesis_world.an_indexer().catch_up(leaf)
        with kinesis_world.a_log() as later:
            assert later.bounds(TOPIC, range(PARTITIONS)) == ends


class OlderIndex:
    """An index that reports an older state when it is asked up to which record the shards are indexed."""

    def __init__(self, index: MemoryLogIndex, stream: str) -> None:
        self._index = index
        self._progress = dict(index.shard_progresses(stream))

    def shard_progresses(self, _stream: str) -> Mapping[str, ShardProgress]:
        return self._progress

    def __getattr__(self, name: str):
        return getattr(self._index, name)


class TestProcessesThatAreBehind:
    def test_counts_nothing_twice(self, kinesis_world: ReshardedStream):
        """An indexer that reads an old shard again, and does not know its children yet, changes nothing in the
        index."""
        with kinesis_world.a_log() as log:
            log.create_topic(TOPIC, PARTITIONS)
            for partition in range(PARTITIONS):
                run_blocking(log.append(TOPIC, {partition: [Record(b"1")]}))
            shard_trees = ShardTreeCache(kinesis_world.a_stream())
            old = shard_trees.current.leaves()
            index = OlderIndex(kinesis_world.index, kinesis_world.stream)
            behind = Indexer(shard_trees.stream, shard_trees, index, kinesis_world.archive)
            kinesis_world.reshard("split")
            kinesis_world.reshard("merge")
            for partition in range(PARTITIONS):
                run_blocking(log.append(TOPIC, {partition: [Record(b"2")]}))
            for leaf in kinesis_world.shard_tree().leaves():
                kinesis_world.an_indexer().catch_up(leaf)
            places = [(TOPIC, partition) for partition in range(PARTITIONS)]
            indexed = kinesis_world.index.index_heads(places)
            assert {head.state.next_offset for head in indexed.values()} == {2}
            for shard in old:
                behind.catch_up(shard)
            assert kinesis_world.index.index_heads(places) == indexed

    def test_begins_with_what_others_have_counted(self, kinesis_world: ReshardedStream):
        """If the index has counted events of a partition in a shard that the reader does not know, the reader continues
        from that count.
        """
        shard_trees = ShardTreeCache(kinesis_world.a_stream())
        topics = TopicCache(kinesis_world.index, 60.0, ChangeWatch(kinesis_world.index.change_counters, SystemClock()))
        segment_cache = SegmentCache(kinesis_world.archive)
        with kinesis_world.a_log() as log, closing(segment_cache):
            log.create_topic(TOPIC, PARTITIONS)
            for partition in range(PARTITIONS):
                run_blocking(log.append(TOPIC, {partition: [Record(b"1")]}))
            reader = StreamReader(
                shard_trees,
                kinesis_world.index,
                topics,
                segment_cache,
                lambda *_: None,
                LastWrittenRecords(),
                shared_for=0.05,
                window_bytes=1_000_000,
            )
            before = time.monotonic()
            for shard in shard_trees.current.leaves():
                reader.tails.read_to_tip(shard, before, GrowingPauses(PATIENCE))
            kinesis_world.reshard("split")
            kinesis_world.reshard("merge")
            for partition in range(PARTITIONS):
                run_blocking(log.append(TOPIC, {partition: [Record(b"2")]}))
            for leaf in kinesis_world.shard_tree().leaves():
                kinesis_world.an_indexer().catch_up(leaf)
            for partition in range(PARTITIONS):
                assert reader.partition_state(TOPIC, partition, before).next_offset == 2
                events = [reader.read_now(TOPIC, partition, start, 1, 1000).events for start in range(2)]
                assert [[each.record.value for each in found] for found in events] == [[b"1"], [b"2"]]
