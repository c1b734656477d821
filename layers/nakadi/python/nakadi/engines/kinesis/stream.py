"""The stream as Kinesis presents it: a few calls, which raise the exceptions in `failures`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
)
from botocore.parsers import ResponseParserError
from msgspec import Struct

from nakadi.engines.kinesis.call_rate import CallRate
from nakadi.engines.kinesis.failures import IteratorExpired, NoSuchShard, SequenceUnavailable, StreamCallFailed
from nakadi.engines.kinesis.numbering import ArrivedRecord
from nakadi.engines.kinesis.shards import Shard
from nakadi.model.log_index import RecordPosition

THROTTLING_ERRORS = {
    "KMSThrottlingException",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
}

MAX_WAIT_TO_BEGIN_READING_SECONDS = 5.0
"""How long a reader waits for a turn to begin reading a shard; a reader that would wait longer is refused at once. At
five calls a second, and with no other process, 25 readers have room."""

MAX_WAIT_TO_READ_ON_SECONDS = 10.0
"""How long a reader that has begun waits for a turn: longer than one that begins, because a refusal would waste the
records that it has read."""

IDLE_CONNECTION_MAX_AGE_SECONDS = 10.0
"""The other end may have closed a connection that was unused for this long, above all while a function was frozen. A
write on it would fail without showing whether Kinesis stored the record; a new connection costs little."""

CONSUMER_OPERATIONS = {"DescribeStreamConsumer", "DeregisterStreamConsumer", "SubscribeToShard"}
READ_OPERATIONS = {"GetRecords", "GetShardIterator"} | CONSUMER_OPERATIONS
NOTHING_SENT_ERRORS = (ConnectTimeoutError, CredentialRetrievalError, EndpointConnectionError, NoCredentialsError)


class OutgoingRecord(NamedTuple):
    partition_key: str
    hash_key: int
    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data) + len(self.partition_key.encode())


class RecordPage(NamedTuple):
    """`continuation` is None at the end of a closed shard; `at_tip` says that the shard has no more records at the
    moment. The records include all records stored before `asked_at`, by the steady clock; a push does not guarantee
    that.
    """

    records: list[ArrivedRecord]
    continuation: str | None
    at_tip: bool
    asked_at: float = float("-inf")


class RecordFailure(Struct, frozen=True):
    """The reason why Kinesis refused one record of a call."""

    reason: str
    had_no_effect: bool


class Stream:
    """One Kinesis stream, through a boto3 client without retries."""

    def __init__(self, client: Any, name: str, reads_per_second: float = 5.0) -> None:
        self._client = client
        self.name = name
        # Kinesis limits reads and requests for iterators separately for each shard, over all processes.
        self._pace = CallRate(1 / reads_per_second)
        self._iterator_pace = CallRate(1 / reads_per_second)
        self._lock = threading.Lock()
        self._under_way = 0
        self._used_at = float("-inf")

    def list_shards(self) -> list[Shard]:
        found: list[Shard] = []
        asked: dict[str, Any] = {"StreamName": self.name}
        while True:
            with self._connection_for_call():
                answer = self._client.list_shards(**asked)
            found += [_parse_shard(each) for each in _require_field(answer, "Shards")]
            if not answer.get("NextToken"):
                return found
            asked = {"NextToken": answer["NextToken"]}

    def check_reachable(self) -> None:
        with translate_errors():
            self._client.list_shards(StreamName=self.name, MaxResults=1)

    def request_iterator_from_start(self, shard: str) -> str:
        return self._request_iterator(shard, ShardIteratorType="TRIM_HORIZON")

    def request_iterator_behind(self, position: RecordPosition) -> str:
        return self._request_iterator(
            position.shard, ShardIteratorType="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=str(position.sequence)
        )

    def request_iterator_at(self, position: RecordPosition) -> str:
        return self._request_iterator(
            position.shard, ShardIteratorType="AT_SEQUENCE_NUMBER", StartingSequenceNumber=str(position.sequence)
        )

    def read_page(self, shard: str, iterator: str, limit: int = 10_000) -> RecordPage:
        """The next records of a shard; waits until another read is due. Raises `ShardBusy`."""
        self._pace.wait_for_turn(shard, MAX_WAIT_TO_READ_ON_SECONDS)
        # The time is taken only when the read has its turn, because the read includes records stored until then, and so
        # serves threads that arrived while it waited.
        asked_at = time.monotonic()
        with self._pace.observe_outcome(shard), self._connection_for_call():
            answer = self._client.get_records(ShardIterator=iterator, Limit=limit)
        following = answer.get("NextShardIterator")
        records = [parse_record(shard, each) for each in _require_field(answer, "Records")]
        at_tip = following is None or answer.get("MillisBehindLatest", 0) == 0
        return RecordPage(records, following, at_tip, asked_at)

    def put_records(self, records: Sequence[OutgoingRecord]) -> list[RecordPosition | RecordFailure]:
        entries = [
            {"Data": record.data, "PartitionKey": record.partition_key, "ExplicitHashKey": str(record.hash_key)}
            for record in records
        ]
        with self._connection_for_call():
            answer = self._client.put_records(StreamName=self.name, Records=entries)
        return [_parse_put_result(each) for each in _require_field(answer, "Records")]

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _connection_for_call(self) -> Iterator[None]:
        """A context around a call. If the connections were unused for too long, the call gets a new one."""
        with self._lock:
            # The age is measured by the time of day, because the steady clock may stop while a function is frozen.
            # Connections are not closed during another call, which may be about to use one.
            if not self._under_way and not 0 <= time.time() - self._used_at < IDLE_CONNECTION_MAX_AGE_SECONDS:
                self._client.close()
            self._under_way += 1
        try:
            with translate_errors():
                yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._used_at = time.time()

    def _request_iterator(self, shard: str, **position: str) -> str:
        """Request an iterator, after waiting for a turn. Raises `ShardBusy`, also if there would be no turn to use the
        iterator.
        """
        self._pace.check_has_room(shard, MAX_WAIT_TO_BEGIN_READING_SECONDS)
        self._iterator_pace.wait_for_turn(shard, MAX_WAIT_TO_BEGIN_READING_SECONDS)
        with self._iterator_pace.observe_outcome(shard), self._connection_for_call():
            answer = self._client.get_shard_iterator(StreamName=self.name, ShardId=shard, **position)
        return str(_require_field(answer, "ShardIterator"))


@contextmanager
def translate_errors() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        raise _as_stream_error(error) from error
    except (BotoCoreError, ResponseParserError) as error:
        raise StreamCallFailed(
            f"Kinesis: {error}", is_temporary=True, had_no_effect=isinstance(error, NOTHING_SENT_ERRORS)
        ) from error


def _require_field(answer: Mapping[str, Any], name: str) -> Any:
    """A field of an answer. Raises if it is missing: a proxy may have answered instead of Kinesis, so it is unknown
    whether the call had an effect.
    """
    if name not in answer:
        raise StreamCallFailed(
            f"Kinesis: the answer cannot be read, it has no {name}", is_temporary=True, had_no_effect=False
        )
    return answer[name]


def _as_stream_error(error: ClientError) -> Exception:
    code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    if code == "ExpiredIteratorException":
        return IteratorExpired(str(error))
    if code == "InvalidArgumentException" and error.operation_name in {"GetShardIterator", "SubscribeToShard"}:
        return SequenceUnavailable(str(error))
    if code == "ResourceNotFoundException" and error.operation_name in READ_OPERATIONS:
        return NoSuchShard(f"Kinesis: {error}", is_temporary=False, had_no_effect=True)
    if code in THROTTLING_ERRORS:
        return StreamCallFailed(f"Kinesis: {error}", is_temporary=True, had_no_effect=True)
    failed_within = status >= 500
    return StreamCallFailed(f"Kinesis: {error}", is_temporary=failed_within, had_no_effect=not failed_within)


def _parse_shard(described: dict[str, Any]) -> Shard:
    parents = (described.get("ParentShardId"), described.get("AdjacentParentShardId"))
    hashes = described["HashKeyRange"]
    return Shard(
        described["ShardId"],
        int(hashes["StartingHashKey"]),
        int(hashes["EndingHashKey"]),
        tuple(parent for parent in parents if parent),
        is_closed="EndingSequenceNumber" in described["SequenceNumberRange"],
    )


def parse_record(shard: str, record: dict[str, Any]) -> ArrivedRecord:
    mark = RecordPosition(shard, int(record["SequenceNumber"]))
    return ArrivedRecord(
        mark, record["PartitionKey"], to_milliseconds(record["ApproximateArrivalTimestamp"]), record["Data"]
    )


def to_milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _parse_put_result(entry: dict[str, Any]) -> RecordPosition | RecordFailure:
    if "SequenceNumber" in entry and not entry.get("ErrorCode"):
        return RecordPosition(entry["ShardId"], int(entry["SequenceNumber"]))
    code = entry.get("ErrorCode", "")
    return RecordFailure(f"{code}: {entry.get('ErrorMessage', '')}", had_no_effect=code in THROTTLING_ERRORS)
