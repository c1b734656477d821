"""Logs on a Kinesis whose calls sometimes fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import ClientError

from nakadi.engines.archive.stores import MemoryStore
from nakadi.engines.kinesis import opening
from nakadi.engines.kinesis.continuity import ShardTreeCache
from nakadi.engines.kinesis.event_log import KinesisLog, KinesisOptions
from nakadi.engines.kinesis.indexing import Indexer
from nakadi.engines.kinesis.partition_keys import hash_key
from nakadi.engines.kinesis.stream import OutgoingRecord, Stream
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.log_index import LogIndex
from tests.support.aws import EmulatedAws, aws
from tests.support.clock import HandMovedClock
from tests.support.kinesis import REGION, create_stream, use_fast_clients
from tests.support.shared import keep_open

FAST_OPTIONS = KinesisOptions(lease=0.05, shared_for=0.0, poll=0.02, give_up_after=20.0)
"""The log gives up only after a time in which even a busy machine can repeat a failed call."""

IMPATIENT_OPTIONS = KinesisOptions(lease=0.05, shared_for=0.0, poll=0.02, give_up_after=1.0)
"""Options for tests in which the log gives up."""


class FaultyClient:
    """A client whose PutRecords may refuse some records of a call, and which forgets records; the emulations do
    neither.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._refusals: deque[dict[int, str]] = deque()
        self._forgotten = 0
        self._strict = False
        self.put: list[list[dict[str, Any]]] = []

    def refuses(self, *refusals: dict[int, str]) -> None:
        """Refuse the records at these places in the next calls, with these error codes."""
        self._refusals.extend(refusals)

    def forgets(self, sequence: int, *, strict: bool = False) -> None:
        """Treat the records before this one as too old: a reader that begins there is refused if `strict`, or begins
        after them.
        """
        self._forgotten, self._strict = sequence, strict

    def get_shard_iterator(self, **asked: Any) -> dict[str, Any]:
        if self._strict and int(asked.get("StartingSequenceNumber", self._forgotten + 1)) <= self._forgotten:
            error = {"Error": {"Code": "InvalidArgumentException", "Message": "too old"}}
            raise ClientError({**error, "ResponseMetadata": {"HTTPStatusCode": 400}}, "GetShardIterator")
        answer: dict[str, Any] = self._client.get_shard_iterator(**asked)
        return answer

    def get_records(self, **asked: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.get_records(**asked)
        if "Records" not in answer:
            return answer
        kept = [each for each in answer["Records"] if int(each["SequenceNumber"]) > self._forgotten]
        return {**answer, "Records": kept}

    def put_records(self, **asked: Any) -> dict[str, Any]:
        self.put.append(asked["Records"])
        refused = self._refusals.popleft() if self._refusals else {}
        taken = [record for at, record in enumerate(asked["Records"]) if at not in refused]
        answer = self._client.put_records(**{**asked, "Records": taken}) if taken else {"Records": []}
        if "Records" not in answer:
            return dict(answer)
        answers = iter(answer["Records"])
        records = [
            {"ErrorCode": refused[at], "ErrorMessage": "no"} if at in refused else next(answers)
            for at in range(len(asked["Records"]))
        ]
        return {"FailedRecordCount": len(refused), "Records": records}

    def close(self) -> None:
        """Do nothing, because several logs share the client."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class FaultyKinesis:
    """A stream on moto, with an index and an archive that outlive the logs; each log represents a process."""

    def __init__(self, faults: EmulatedAws) -> None:
        self.faults = faults
        self.client = FaultyClient(opening.new_kinesis_client({"region": REGION}))
        self.name = create_stream(self.client, shards=1)
        self.index = keep_open(MemoryLogIndex())
        self.archive = keep_open(MemoryStore())
        self.clock = HandMovedClock()
        self._logs: list[KinesisLog] = []

    def a_log(
        self,
        options: KinesisOptions = FAST_OPTIONS,
        *,
        index: LogIndex | None = None,
        archive: ArchiveStore | None = None,
        archived: bool = True,
        client: Any = None,
    ) -> KinesisLog:
        kept = (archive or self.archive) if archived else None
        log = KinesisLog(self.a_stream(client), index or self.index, kept, self.clock, options)
        self._logs.append(log)
        return log

    def a_stream(self, client: Any = None) -> Stream:
        return Stream(client or self.client, self.name, reads_per_second=10_000)

    def an_indexer(self, *, archived: bool = True) -> Indexer:
        stream = self.a_stream()
        return Indexer(stream, ShardTreeCache(stream), self.index, self.archive if archived else None)

    def index_all(self, *, archived: bool = True) -> None:
        """Index the stream's records, as a new process of the indexer would."""
        indexer = self.an_indexer(archived=archived)
        for shard in self.a_stream().list_shards():
            indexer.catch_up(shard.id)

    def put(self, key: str, data: bytes) -> None:
        """Put a record with this partition key into the stream without any log."""
        self.a_stream().put_records([OutgoingRecord(key, hash_key(key), data)])

    def counting(self, operation: str) -> Callable[[], int]:
        """Return a function that says how often the operation has been called since this call."""
        before = self.faults.calls[operation]
        return lambda: self.faults.calls[operation] - before

    def close(self) -> None:
        for log in self._logs:
            log.close()


@contextmanager
def a_faulty_kinesis() -> Iterator[FaultyKinesis]:
    with aws() as faults, use_fast_clients():
        emulated = FaultyKinesis(faults)
        try:
            yield emulated
        finally:
            emulated.close()
