"""Creates each engine for its contract suite. A new engine adds a line to a table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from nakadi.app.engines import (
    NO_DEPENDENCIES,
    LogDependencies,
    open_coordination,
    open_event_log,
    open_log_index,
    open_registry,
)
from nakadi.common.waiting import CallThreads, begin_task, run_blocking
from nakadi.engines.memory.eid_claims import MemoryEidClaims
from nakadi.model.events import Record, StoredEvent
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import Coordination
from nakadi.ports.deduplication import DeduplicatingLog
from nakadi.ports.eid_claims import EidClaims
from nakadi.ports.event_log import AppendResultByPartition, EventLog
from nakadi.ports.log_index import LogIndex
from nakadi.ports.registry import Registry
from nakadi.publishing.claimed_append import ClaimingLog, KnownPositions
from tests.support import kafka
from tests.support.clock import HandMovedClock
from tests.support.other_engines import OTHER_ENGINES_WANTED
from tests.support.sharing import open_sharing_log

SQLITE = "sqlite:///{folder}/nakadi.db"

DYNAMODB = "dynamodb://contract?region=eu-central-1"

# These URLs have no options, because each test gets its own tables or stream.
DYNAMODB_LOCAL: Mapping[str, str] = {"dynamodb-local": "dynamodb:local"} if OTHER_ENGINES_WANTED else {}
KINESALITE: Mapping[str, str] = {"kinesalite": "kinesis:kinesalite"} if OTHER_ENGINES_WANTED else {}
KAFKA: Mapping[str, str] = {"kafka": "kafka:", **({"kafka-tiered": "tiered:kafka"} if kafka.ALL else {})}

STORES: Mapping[str, str] = {"memory": "memory:", "sqlite": SQLITE, "dynamodb": DYNAMODB, **DYNAMODB_LOCAL}
"""Engines that implement all of the next four ports. An engine that implements only some of them has a line in their
tables.
"""

REGISTRIES: Mapping[str, str] = {
    **STORES,
}
LOG_INDEXES: Mapping[str, str] = {
    **STORES,
}
COORDINATIONS: Mapping[str, str] = {
    **STORES,
}
EID_CLAIMS: Mapping[str, str] = {
    **STORES,
}
EVENT_LOGS: Mapping[str, str] = {
    "memory": "memory:",
    "sqlite": SQLITE,
    "sqlite-shared": "shared:sqlite",
    "tiered": "tiered:sqlite",
    "tiered-cold": "tiered:memory",
    "kinesis": "kinesis:moto",
    "kinesis-pushed": "kinesis:pushed",
    "kinesis-local": "kinesis:local",
    **KINESALITE,
    **KAFKA,
}
COMPACT_LATER = frozenset(KAFKA)
"""Event logs whose store compacts them at a time of its own choice."""
LONG = frozenset({"kinesis-local", "kinesis-pushed"})
"""Event logs that `make test` leaves out, because it tests their engine on another emulation, or without fan-out."""

DEDUPLICATING_LOGS = {**{name: url for name, url in EVENT_LOGS.items() if name not in LONG}, "claims": "memory:"}
"""The event logs of `make test`, and a memory log that has the ids of its events claimed, as logs do that cannot
remember ids themselves.
"""


def event_log_params(*left_out: str) -> Sequence[object]:
    """The event logs without those left out, as parameters of a fixture."""
    names = [name for name in EVENT_LOGS if name not in left_out]
    return [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in names]


@contextmanager
def a_coordination(url: str, folder: Path) -> Iterator[Coordination]:
    with prepare_engine(url, folder) as address:
        coordination = open_coordination(address)
        try:
            yield coordination
        finally:
            coordination.close()


@contextmanager
def a_registry(url: str, folder: Path) -> Iterator[Registry]:
    with prepare_engine(url, folder) as address:
        registry = open_registry(address)
        try:
            yield registry
        finally:
            registry.close()


@contextmanager
def prepare_engine(url: str, folder: Path) -> Iterator[str]:
    """Create the resources of an engine, such as the tables that a deployment creates, and yield its complete URL."""
    if not url.startswith("dynamodb:"):
        yield url.format(folder=folder)
        return
    if url == "dynamodb:local":
        from tests.support.dynamodb_service import start_dynamodb_local  # noqa: PLC0415  # it takes seconds to load

        with start_dynamodb_local() as address:
            yield address
        return
    from tests.support.aws import aws  # noqa: PLC0415  # it takes seconds to load

    with aws() as emulated:
        emulated.create_tables("contract")
        yield url


def claiming_log(log: EventLog, claims: EidClaims, clock: Clock) -> ClaimingLog:
    """A store that deduplicates the events of a log by claims on their ids."""
    return ClaimingLog(
        logs=OneStorage(log),
        claims=claims,
        positions=KnownPositions(clock),
        clock=clock,
        storage_id="default",
        threads=CallThreads("claims", 2),
    )


class OneStorage:
    """Uses one log for every storage."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def for_storage(self, _storage_id: str) -> EventLog:
        return self._log


class LogUnderTest:
    """An event log with a clock that the test moves, and with topics that no other test uses."""

    def __init__(self, log: EventLog, clock: HandMovedClock) -> None:
        self.log = log
        self._clock = clock
        self._topics = 0
        self._claims = MemoryEidClaims()
        self.has_claims = False

    def now(self) -> datetime:
        return self._clock.now()

    def an_hour_passes(self) -> None:
        self._clock.move(3600)

    @property
    def deduplicating(self) -> DeduplicatingLog:
        """The store that deduplicates events: the log itself, or one that claims their ids."""
        if isinstance(self.log, DeduplicatingLog) and not self.has_claims:
            return self.log
        return claiming_log(self.log, self._claims, self._clock)

    def passes(self, time: timedelta) -> None:
        self._clock.move(time.total_seconds())

    def an_hour_is_lost(self) -> None:
        """Set the clock back by an hour."""
        self._clock.move(-3600)

    def a_topic(self, partitions: int = 1) -> str:
        self._topics += 1
        name = f"topic-{self._topics}"
        self.log.create_topic(name, partitions)
        return name

    def store(self, topic: str, *values: str | Record, partition: int = 0) -> None:
        records = [value if isinstance(value, Record) else a_record(value) for value in values]
        run_blocking(self.log.append(topic, {partition: records}))

    def values(self, topic: str, partition: int = 0) -> list[str | None]:
        return [text for _, text in self.events(topic, partition)]

    def found(self, topic: str, start: int) -> tuple[list[StoredEvent], int]:
        """The events of one read, and the offset at which the next read begins."""
        piece = self.log.read(topic, 0, start)
        return list(piece.events), piece.next_offset

    def events(self, topic: str, partition: int = 0, **how: int) -> list[tuple[int, str | None]]:
        """The offset and text of every event."""
        oldest = self.log.bounds(topic, [partition])[partition].oldest
        return [
            (event.offset, record_text(event.record))
            for event in read_everything(self.log, topic, partition, oldest, **how)
        ]


def read_everything(log: EventLog, topic: str, partition: int, start: int, **how: int) -> list[StoredEvent]:
    """Read all events from an offset on. One read may return fewer events than there are, so repeat it slice by
    slice.
    """
    found: list[StoredEvent] = []
    end = log.bounds(topic, [partition])[partition].next_offset
    while start < end:
        piece = log.read(topic, partition, start, **how)
        assert piece.next_offset > start
        found += piece.events
        start = piece.next_offset
    return found


def append_and_wait(log: EventLog, topic: str, batches: Mapping[int, Sequence[Record]]) -> AppendResultByPartition:
    return run_blocking(log.append(topic, batches))


def append_async(log: EventLog, topic: str, batches: Mapping[int, Sequence[Record]]) -> Future[AppendResultByPartition]:
    """Begin an append, and return a future of its result; a second result would be an error."""
    outcome: Future[AppendResultByPartition] = Future()

    def done(found: AppendResultByPartition | Exception) -> None:
        if isinstance(found, Exception):
            outcome.set_exception(found)
        else:
            outcome.set_result(found)

    begin_task(log.append(topic, batches), done)
    return outcome


@contextmanager
def a_log(url: str, folder: Path) -> Iterator[LogUnderTest]:
    clock = HandMovedClock()
    if url.startswith("tiered:"):
        with a_tiered_log(url.removeprefix("tiered:"), folder, clock) as log:
            yield LogUnderTest(log, clock)
        return
    if url == "shared:sqlite":
        with open_sharing_log(folder / "nakadi.db", clock) as log:
            yield LogUnderTest(log, clock)
        return
    with make_log_dependencies(url.format(folder=folder), folder) as (address, others):
        log = open_event_log(address, clock, others)
        try:
            yield LogUnderTest(log, clock)
        finally:
            log.close()


@contextmanager
def a_tiered_log(hot: str, folder: Path, clock: HandMovedClock) -> Iterator[EventLog]:
    """A log that archives continuously, and whose hot half keeps as little as possible."""
    from tests.support.tiers import ColdLog, open_tiered_log  # noqa: PLC0415  # not everybody asks for it

    log = open_tiered_log(hot, folder, clock)
    try:
        yield ColdLog(log) if hot == "memory" else log
    finally:
        log.close()


@contextmanager
def make_log_dependencies(url: str, folder: Path) -> Iterator[tuple[str, LogDependencies]]:
    """Yield the complete URL of a log, and the resources that it needs."""
    if url.startswith("kafka:"):
        yield kafka.url(), NO_DEPENDENCIES
        return
    if not url.startswith("kinesis:"):
        yield url, NO_DEPENDENCIES
        return
    from tests.support.kinesis import SERVICES, open_on_moto, open_on_moto_with_push, open_on_service  # noqa: PLC0415  # seconds to load

    name = url.removeprefix("kinesis:")
    on_others = {"moto": open_on_moto, "pushed": open_on_moto_with_push}
    with on_others[name]() if name in on_others else open_on_service(folder, SERVICES[name]) as found:
        yield found


@contextmanager
def a_log_index(url: str, folder: Path) -> Iterator[LogIndex]:
    with prepare_engine(url, folder) as address:
        index = open_log_index(address)
        try:
            yield index
        finally:
            index.close()


def a_record(text: str, key: str | None = None) -> Record:
    return Record(f'"{text}"'.encode(), key)


def record_text(record: Record) -> str | None:
    return None if record.value is None else record.value.decode().strip('"')


HOUR = timedelta(hours=1)

Opener = Callable[[], EventLog]
