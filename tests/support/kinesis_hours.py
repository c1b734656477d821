"""A broker on a Kinesis that forgets: a test lets hours pass in no time, and each log stands for a task."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from nakadi.app.authentication import make_authentication
from nakadi.app.broker import BrokerServices
from nakadi.app.settings import Settings
from nakadi.common.caching import ChangeWatch
from nakadi.common.metrics import Metrics
from nakadi.engines.archive.stores import MemoryStore
from nakadi.engines.kinesis.continuity import ShardTreeCache
from nakadi.engines.kinesis.event_log import KinesisLog, KinesisOptions
from nakadi.engines.kinesis.indexing import Indexer
from nakadi.engines.kinesis.stream import Stream
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.ports.log_index import LogIndex
from tests.storms.faults import ReplacedTime
from tests.support.builders import a_timeline, an_event_type
from tests.support.kinesis_forgetful import ForgetfulKinesis
from tests.support.shared import keep_open

HOUR = 3600.0
OPTIONS = KinesisOptions(lease=2.0, shared_for=0.0, give_up_after=1.0)


class ReplacedClock:
    """Replaces the time of day with a test's own."""

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time(), UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class HoursOfKinesis:
    """One stream with its index and its archive, a registry, and a broker that does housekeeping."""

    def __init__(self, clock: ReplacedTime, *, strict: bool = False, window_bytes: int = OPTIONS.window_bytes) -> None:
        self.clock = clock
        self.kinesis = ForgetfulKinesis(clock.time, strict=strict)
        self.index: LogIndex = keep_open(MemoryLogIndex())
        self.archive = keep_open(MemoryStore())
        self.window_bytes = window_bytes
        self._registry = MemoryRegistry()
        self.broker = self.a_broker()

    def a_broker(self, index: LogIndex | None = None) -> BrokerServices:
        settings = Settings()
        log = self.a_log(index=index)
        watch = ChangeWatch(self._registry.change_counters, ReplacedClock())
        return BrokerServices(
            settings=settings,
            clock=ReplacedClock(),
            registry=self._registry,
            watch=watch,
            event_log=log,
            wrap_log=lambda log: log,
            authenticate=make_authentication(settings, ReplacedClock()),
            metrics=Metrics(),
        )

    def pass_by(self, hours: float) -> None:
        self.clock.sleep(hours * HOUR)

    def a_log(self, window_bytes: int | None = None, *, index: LogIndex | None = None) -> KinesisLog:
        options = KinesisOptions(
            lease=OPTIONS.lease,
            shared_for=0.0,
            give_up_after=OPTIONS.give_up_after,
            window_bytes=window_bytes or self.window_bytes,
        )
        return KinesisLog(self._stream(), index or self.index, self.archive, ReplacedClock(), options)

    def an_indexer(self, index: LogIndex | None = None) -> Indexer:
        stream = self._stream()
        return Indexer(stream, ShardTreeCache(stream), index or self.index, self.archive)

    def index_all(self, index: LogIndex | None = None) -> None:
        """Index the existing records, shard by shard, like an indexer that gets its batches in order."""
        indexer = self.an_indexer(index)
        for shard in self.kinesis.listed():
            indexer.catch_up(shard.id)

    def an_event_type(self, name: str, partitions: int = 1) -> str:
        """Register an event type with its topic, and return its name."""
        timeline = a_timeline(topic=f"topic-of-{name}", partitions=partitions)
        event_type = an_event_type(name=name, timelines=(timeline,), retention_time=3650 * 86_400_000)
        self.broker.logs.for_storage("default").create_topic(event_type.timeline.topic, partitions)
        self.broker.event_types.add(event_type)
        return name

    def _stream(self) -> Stream:
        return Stream(self.kinesis, "live", reads_per_second=1_000_000)


@contextmanager
def run_in_hours(*, strict: bool = False, window_bytes: int = OPTIONS.window_bytes) -> Iterator[HoursOfKinesis]:
    clock = ReplacedTime()
    with clock.replace_clocks():
        yield HoursOfKinesis(clock, strict=strict, window_bytes=window_bytes)
