"""A Kinesis in memory that forgets records, and splits and merges shards, like the service, by a test's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

from botocore.exceptions import ClientError

LAST_HASH = (1 << 128) - 1
RETENTION = 24 * 3600.0


@dataclass
class StoredRecord:
    sequence: int
    key: str
    data: bytes
    at: float


@dataclass
class Shard:
    id: str
    first_hash_key: int
    last_hash_key: int
    began_with: int
    parent_ids: tuple[str, ...] = ()
    closed_at: float | None = None
    records: list[StoredRecord] = field(default_factory=list)


class ForgetfulKinesis:
    """One stream, as a client sees it. If a reader begins at a forgotten place, a `strict` stream refuses, and any
    other stream returns the records after that place.
    """

    def __init__(self, now: Callable[[], float], *, strict: bool = False, retention: float = RETENTION) -> None:
        self._now = now
        self._strict = strict
        self.retention = retention
        self.forgotten: Callable[[str, StoredRecord], None] = lambda _shard, _record: None
        self._sequences = count(1)
        self._numbers = count()
        self._shards: dict[str, Shard] = {}
        self._add(0, LAST_HASH)

    # Calls of the engine

    def list_shards(self, **_: Any) -> dict[str, Any]:
        return {"Shards": [_describe_shard(each) for each in self.listed()]}

    def get_shard_iterator(self, **asked: Any) -> dict[str, Any]:
        shard = self._find_shard(asked["ShardId"], "GetShardIterator")
        place = int(asked.get("StartingSequenceNumber", 0))
        if asked["ShardIteratorType"] == "AFTER_SEQUENCE_NUMBER":
            place += 1
        elif asked["ShardIteratorType"] == "TRIM_HORIZON":
            return {"ShardIterator": f"{shard.id}/0"}
        there = [each.sequence for each in shard.records]
        if self._strict and int(asked["StartingSequenceNumber"]) not in there:
            raise _make_error("InvalidArgumentException", "GetShardIterator")
        return {"ShardIterator": f"{shard.id}/{place}"}

    def get_records(self, **asked: Any) -> dict[str, Any]:
        name, _, place = asked["ShardIterator"].partition("/")
        shard = self._find_shard(name, "GetRecords")
        behind = [each for each in shard.records if each.sequence >= int(place)]
        found = behind[: asked["Limit"]]
        answer: dict[str, Any] = {
            "Records": [
                {
                    "SequenceNumber": str(each.sequence),
                    "PartitionKey": each.key,
                    "Data": each.data,
                    "ApproximateArrivalTimestamp": datetime.fromtimestamp(each.at, UTC),
                }
                for each in found
            ],
            "MillisBehindLatest": 1000 if len(found) < len(behind) else 0,
        }
        if shard.closed_at is None or len(found) < len(behind):
            following = found[-1].sequence + 1 if found else int(place)
            answer["NextShardIterator"] = f"{shard.id}/{following}"
        return answer

    def put_records(self, **asked: Any) -> dict[str, Any]:
        answers = []
        for record in asked["Records"]:
            shard = self._open_for(int(record["ExplicitHashKey"]))
            kept = StoredRecord(next(self._sequences), record["PartitionKey"], record["Data"], self._now())
            shard.records.append(kept)
            answers.append({"SequenceNumber": str(kept.sequence), "ShardId": shard.id})
        return {"FailedRecordCount": 0, "Records": answers}

    def close(self) -> None:
        """Do nothing, because several logs share the client."""

    # Controls for tests

    def listed(self) -> list[Shard]:
        """The shards that still exist, with the records that they still have."""
        oldest = self._now() - self.retention
        for shard in self._shards.values():
            while shard.records and shard.records[0].at < oldest:
                self.forgotten(shard.id, shard.records.pop(0))
        self._shards = {
            each.id: each for each in self._shards.values() if each.closed_at is None or each.closed_at >= oldest
        }
        return list(self._shards.values())

    def values(self) -> set[bytes]:
        """The bytes of all records that are still there."""
        return {each.data for shard in self.listed() for each in shard.records}

    def open(self) -> list[Shard]:
        return sorted((each for each in self.listed() if each.closed_at is None), key=lambda each: each.first_hash_key)

    def split(self, shard: Shard) -> None:
        middle = (shard.first_hash_key + shard.last_hash_key) // 2
        shard.closed_at = self._now()
        self._add(shard.first_hash_key, middle, shard.id)
        self._add(middle + 1, shard.last_hash_key, shard.id)

    def merge(self, first: Shard, second: Shard) -> None:
        first.closed_at = second.closed_at = self._now()
        self._add(first.first_hash_key, second.last_hash_key, first.id, second.id)

    def _add(self, first: int, last: int, *parents: str) -> None:
        name = f"shardId-{next(self._numbers):012d}"
        self._shards[name] = Shard(name, first, last, next(self._sequences), parents)

    def _find_shard(self, name: str, operation: str) -> Shard:
        self.listed()
        if name not in self._shards:
            raise _make_error("ResourceNotFoundException", operation)
        return self._shards[name]

    def _open_for(self, hash_key: int) -> Shard:
        return next(each for each in self.open() if each.first_hash_key <= hash_key <= each.last_hash_key)


def _describe_shard(shard: Shard) -> dict[str, Any]:
    parents = dict(zip(("ParentShardId", "AdjacentParentShardId"), shard.parent_ids, strict=False))
    ended = {} if shard.closed_at is None else {"EndingSequenceNumber": "9" * 56}
    return {
        "ShardId": shard.id,
        "HashKeyRange": {"StartingHashKey": str(shard.first_hash_key), "EndingHashKey": str(shard.last_hash_key)},
        "SequenceNumberRange": {"StartingSequenceNumber": str(shard.began_with), **ended},
        **parents,
    }


def _make_error(code: str, operation: str) -> ClientError:
    error = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    return ClientError(error, operation)
