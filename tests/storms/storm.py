"""Simulates publishers, readers, an indexer and a writer of documents while calls fail, and checks what is stored
afterwards.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from nakadi.common.waiting import run_blocking
from nakadi.engines.archive import member_format
from nakadi.engines.archive.stores import open_archive
from nakadi.engines.dynamodb.log_index import DynamoDbLogIndex
from nakadi.engines.dynamodb.registry import DynamoDbRegistry
from nakadi.engines.dynamodb.table_address import parse_table_address
from nakadi.engines.kinesis import opening
from nakadi.engines.kinesis.continuity import ShardTreeCache
from nakadi.engines.kinesis.event_log import KinesisLog
from nakadi.engines.kinesis.indexing import Indexer
from nakadi.engines.kinesis.numbering import ArrivedRecord
from nakadi.engines.kinesis.stream import Stream
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.events import AppendStored, Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.clock import SystemClock
from nakadi.ports.registry import ABSENT_REVISION, ChangedMeanwhile, PutDocument
from tests.storms.faults import AwsFaults, ReplacedTime
from tests.support.aws import REGION, aws
from tests.support.kinesis import create_stream, session, use_fast_clients

TOPIC = "orders"
PARTITIONS = 4
TABLES = f"dynamodb://sea?region={REGION}"
ARCHIVE = f"s3://archive/events?region={REGION}"
READERS = 2
KIND = "thing"
KEYS = ("a", "b", "c")

Place = tuple[int, int]


@dataclass
class Figures:
    """The counts of a run. `lost`, `doubled`, `changed`, `torn`, `misled` and `unclear` must stay empty."""

    steps: int = 0
    faults: int = 0
    acknowledged: int = 0
    doubtful: int = 0
    found: int = 0
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    changed: int = 0
    offsets_seen: int = 0
    documents_acknowledged: int = 0
    documents_doubtful: int = 0
    misled: int = 0
    unavailable: int = 0
    unclear: list[str] = field(default_factory=list)
    faults_by_kind: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.steps} steps, {self.faults} faults, {self.unavailable} times unavailable: "
            f"events acknowledged {self.acknowledged}, doubtful {self.doubtful}, found {self.found}, lost {self.lost}, "
            f"doubled {self.doubled}, appends torn {self.torn}; offsets seen {self.offsets_seen}, "
            f"changed {self.changed}; "
            f"documents acknowledged {self.documents_acknowledged}, doubtful {self.documents_doubtful}, "
            f"misled {self.misled}; unclear {len(self.unclear)}"
        )


class RefusingClient:
    """A Kinesis client that refuses those records of a call for which `AwsFaults` draws a refusal."""

    def __init__(self, client: Any, faults: AwsFaults) -> None:
        self._client = client
        self._faults = faults

    def put_records(self, **asked: Any) -> dict[str, Any]:
        refused = self._faults.refuse_some_records(range(len(asked["Records"])))
        taken = [record for at, record in enumerate(asked["Records"]) if at not in refused]
        answers = iter(self._client.put_records(**{**asked, "Records": taken})["Records"]) if taken else iter(())
        return {
            "Records": [
                {"ErrorCode": refused[at], "ErrorMessage": "no"} if at in refused else next(answers)
                for at in range(len(asked["Records"]))
            ]
        }

    def close(self) -> None:
        """Do nothing, because several logs share the client."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class StormSimulation:
    def __init__(self, seed: int, faults: AwsFaults, client: Any, stream: str) -> None:
        self.chance = random.Random(seed)
        self.faults = faults
        self.figures = Figures()
        self._client = client
        self._stream = stream
        self._index = DynamoDbLogIndex(parse_table_address(TABLES))
        self._index.create_topic(TOPIC, PARTITIONS)
        self._archive = open_archive(ARCHIVE)
        self._registry = DynamoDbRegistry(parse_table_address(TABLES))
        self._logs = [self._a_log() for _ in range(READERS + 1)]
        self._indexer = self._an_indexer()
        self._number = 0
        self._acknowledged: dict[int, list[list[bytes]]] = defaultdict(list)
        self._doubtful: dict[int, list[list[bytes]]] = defaultdict(list)
        self._seen: dict[Place, bytes | None] = {}
        self._documents: dict[str, tuple[int, list[int]]] = dict.fromkeys(KEYS, (ABSENT_REVISION, [ABSENT_REVISION]))

    # Steps of the storm

    def step(self) -> None:
        self.figures.steps += 1
        self.faults.badness = self.chance.choice((0.0, 0.05, 0.3, 0.7))
        steps = (self.publish, self.publish, self.read, self.read, self.index, self.write, self.restart)
        act = self.chance.choices(steps, (4, 4, 3, 3, 3, 4, 1))[0]
        try:
            act()
        except Unavailable:
            self.figures.unavailable += 1
        except Exception as error:  # noqa: BLE001  # any unclear outcome is counted
            self.figures.unclear.append(f"{act.__name__}: {error!r}")

    def publish(self) -> None:
        places = self.chance.sample(range(PARTITIONS), self.chance.randint(1, 3))
        batches = {place: [self._a_record() for _ in range(self.chance.randint(1, 3))] for place in places}
        fates = dict.fromkeys(places, None)
        try:
            fates = run_blocking(self._logs[0].append(TOPIC, batches))
        finally:
            for place, fate in fates.items():
                values = [record.value or b"" for record in batches[place]]
                (self._acknowledged if fate == AppendStored() else self._doubtful)[place].append(values)

    def read(self) -> None:
        log, place = self.chance.choice(self._logs), self.chance.randrange(PARTITIONS)
        ends = log.bounds(TOPIC, [place])[place]
        start = self.chance.randint(0, ends.next_offset)
        for event in log.read(TOPIC, place, start, limit=self.chance.choice((1, 5, 1000))).events:
            self._check_unchanged(place, event.offset, event.record.value)

    def index(self) -> None:
        """Give the indexer some of the shard's records, as Lambda may deliver them: again, too early, or cut in two."""
        records = self._calm_records()
        first = self.chance.randint(0, len(records))
        self._indexer.index(self._shard, records[first : first + self.chance.randint(1, 20)])

    def write(self) -> None:
        key = self.chance.choice(KEYS)
        revision, possible = self._documents[key]
        if len(possible) > 1:
            revision = self._registry_revision(key)
        self._documents[key] = (revision, [revision])
        self._number += 1
        body = {"n": self._number}
        puts = [PutDocument(KIND, key, body, revision)]
        if self.chance.random() < 0.3:
            puts.append(PutDocument(KIND, "beside", body))
        try:
            self._registry.write(*puts)
        except ChangedMeanwhile:
            # Nobody else writes, so a reported conflict can only be with this client's own write.
            self.figures.misled += 1
            self._documents[key] = (revision, [revision, revision + 1])
        except Unavailable:
            self.figures.documents_doubtful += 1
            self._documents[key] = (revision, [revision, revision + 1])
            raise
        else:
            self.figures.documents_acknowledged += 1
            self._documents[key] = (revision + 1, [revision + 1])

    def restart(self) -> None:
        """End a process, and begin another one."""
        self._logs[self.chance.randrange(len(self._logs))] = self._a_log()
        self._indexer = self._an_indexer()

    # Checks after the storm

    def check_after_storm(self) -> Figures:
        """Let all calls succeed again, and count what is wrong in the stores."""
        self.faults.badness = 0.0
        self._indexer.catch_up(self._shard)
        for key, (_, possible) in self._documents.items():
            self.figures.misled += self._registry_revision(key) not in possible
        anew = MemoryLogIndex()
        anew.create_topic(TOPIC, PARTITIONS)
        logs = [self._a_log(), KinesisLog(self._a_stream(), anew, None, SystemClock()), *self._logs]
        for place in range(PARTITIONS):
            values = self._archived_values(place)
            for log in logs:
                for offset, value in enumerate(_read_all(log, place)):
                    self._check_unchanged(place, offset, value)
                    values += [value] if offset >= len(values) else []
                    self.figures.changed += values[offset] != value
            self._compare(place, values)
        self.figures.offsets_seen = len(self._seen)
        self.figures.faults = sum(self.faults.met.values())
        self.figures.faults_by_kind = self.faults.met
        return self.figures

    def _compare(self, place: int, values: Sequence[bytes]) -> None:
        where = {value: offset for offset, value in enumerate(values)}
        self.figures.found += len(values)
        self.figures.doubled += len(values) - len(where)
        for batch in self._acknowledged[place]:
            self.figures.acknowledged += len(batch)
            self.figures.lost += sum(value not in where for value in batch)
            self.figures.torn += not _are_consecutive([where[value] for value in batch if value in where])
        for batch in self._doubtful[place]:
            self.figures.doubtful += len(batch)
            there = [where[value] for value in batch if value in where]
            self.figures.torn += len(there) not in {0, len(batch)} or not _are_consecutive(there)
        firsts = [where[batch[0]] for batch in self._acknowledged[place] if batch[0] in where]
        self.figures.changed += firsts != sorted(firsts)

    def _archived_values(self, place: int) -> list[bytes]:
        """The values of the archived events to which the index refers; by then, the log has no other events."""
        values: list[bytes] = []
        for segment in self._index.segments_from(TOPIC, place, 0, 10_000):
            assert segment.location
            for event in member_format.parse_member(self._archive.read_range(segment.location)):
                self.figures.changed += event.offset != len(values)
                values.append(event.record.value or b"")
        return values

    # Helpers of the steps and checks

    def _check_unchanged(self, place: int, offset: int, value: bytes | None) -> None:
        self.figures.changed += self._seen.setdefault((place, offset), value) != value

    def _a_record(self) -> Record:
        self._number += 1
        return Record(b'{"n":%d}' % self._number)

    def _registry_revision(self, key: str) -> int:
        found = self._registry.get(KIND, key)
        return found.revision if found else ABSENT_REVISION

    def _calm_records(self) -> list[ArrivedRecord]:
        badness, self.faults.badness = self.faults.badness, 0.0
        try:
            stream = self._a_stream()
            [shard] = stream.list_shards()
            self._shard = shard.id
            return stream.read_page(shard.id, stream.request_iterator_from_start(shard.id)).records
        finally:
            self.faults.badness = badness

    def _a_log(self) -> KinesisLog:
        index = DynamoDbLogIndex(parse_table_address(TABLES))
        archive: ArchiveStore = open_archive(ARCHIVE)
        return KinesisLog(self._a_stream(), index, archive, SystemClock())

    def _an_indexer(self) -> Indexer:
        self._calm_records()
        stream = self._a_stream()
        return Indexer(stream, ShardTreeCache(stream), self._index, self._archive)

    def _a_stream(self) -> Stream:
        return Stream(self._client, self._stream)


def _read_all(log: KinesisLog, place: int) -> Iterator[bytes]:
    offset = 0
    while (found := log.read(TOPIC, place, offset)).events:
        for event in found.events:
            assert event.offset == offset
            offset += 1
            yield event.record.value or b""


def _are_consecutive(offsets: Sequence[int]) -> bool:
    return all(offset == offsets[0] + at for at, offset in enumerate(offsets))


@contextmanager
def start_storm(seed: int) -> Iterator[StormSimulation]:
    clock = ReplacedTime()
    with clock.replace_clocks(), aws() as emulated, use_fast_clients():
        random.seed(seed)
        faults = AwsFaults(random.Random(seed), clock)
        with faults.inject_into(emulated):
            emulated.create_tables("sea")
            s3 = session().create_client("s3", REGION)
            s3.create_bucket(Bucket="archive", CreateBucketConfiguration={"LocationConstraint": REGION})
            client = RefusingClient(opening.new_kinesis_client({"region": REGION}), faults)
            yield StormSimulation(seed, faults, client, create_stream(client, shards=1))


def run_storm(seed: int, steps: int) -> Figures:
    with start_storm(seed) as storm:
        for _ in range(steps):
            storm.step()
        return storm.check_after_storm()
