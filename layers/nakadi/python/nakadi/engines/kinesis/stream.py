"""The stream as Kinesis presents it: shards and their parents, a few calls, and three kinds of failures."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
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

from nakadi.engines.kinesis.recent_records import ArrivedRecord
from nakadi.model.log_index import RecordPosition
from nakadi.model.outcomes import Unavailable

# Shards ---------------------------------------------------------------------------------------------------------------


UNLISTED_SHARD_DEPTH = -1


class Shard(Struct, frozen=True):
    id: str
    first_hash_key: int
    last_hash_key: int
    parent_ids: tuple[str, ...] = ()
    is_closed: bool = False


class ShardTree:
    """What one listing of the shards says. Shards that the stream has forgotten are older than all it lists."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards: Mapping[str, Shard] = {shard.id: shard for shard in shards}

    def __contains__(self, shard: str) -> bool:
        return shard in self._shards

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def shards_covering(self, hash_key: int) -> list[str]:
        """The shards that cover a hash key, one after the other in time."""
        covering = [each for each in self._shards.values() if each.first_hash_key <= hash_key <= each.last_hash_key]
        return [each.id for each in sorted(covering, key=lambda each: self._depths[each.id])]

    def listed_parents(self, shard: str) -> list[str]:
        """Those that are still listed."""
        return [parent for parent in self._shards[shard].parent_ids if parent in self._shards]

    def all_parents(self, shard: str) -> tuple[str, ...]:
        """Those it came from, whether or not they are still listed."""
        return self._shards[shard].parent_ids if shard in self._shards else ()

    def first_hash_key(self, shard: str) -> int:
        return self._shards[shard].first_hash_key

    def children(self, shard: str) -> list[str]:
        return [each.id for each in self._shards.values() if shard in each.parent_ids]

    def leaves(self) -> list[str]:
        """Those without children: at any moment they share all hash keys among them."""
        parents = {parent for shard in self._shards.values() for parent in shard.parent_ids}
        return [shard for shard in self._shards if shard not in parents]

    def rank(self, position: RecordPosition | None) -> tuple[int, int]:
        """By this, two records of one partition are in their order. Nothing at all comes before every record."""
        return (
            (UNLISTED_SHARD_DEPTH, -1)
            if position is None
            else (self._depths.get(position.shard, UNLISTED_SHARD_DEPTH), position.sequence)
        )

    @cached_property
    def _depths(self) -> Mapping[str, int]:
        depths: dict[str, int] = {}
        for shard in self._shards_parents_first():
            depths[shard] = 1 + max(
                (depths[parent] for parent in self.listed_parents(shard)), default=UNLISTED_SHARD_DEPTH
            )
        return depths

    def _shards_parents_first(self) -> Iterator[str]:
        waiting = dict.fromkeys(self._shards)
        while waiting:
            ready = [each for each in waiting if not any(parent in waiting for parent in self.listed_parents(each))]
            if not ready:
                raise ValueError("shards that descend from each other")
            for each in ready:
                del waiting[each]
                yield each


# Calls ----------------------------------------------------------------------------------------------------------------


THROTTLING_ERRORS = {
    "KMSThrottlingException",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
}
MAX_READ_INTERVAL_SECONDS = 3.0
"""Seconds between two reads of a shard that many processes read."""

MAX_WAIT_TO_BEGIN_READING_SECONDS = 5.0
"""Seconds that who begins to read a shard at some place waits for a turn; who would wait longer is refused at once. At
five calls a second, and with no other process, that is room for 25."""

MAX_WAIT_TO_READ_ON_SECONDS = 10.0
"""Seconds that who has begun waits for a turn. Longer than above: refusing them would waste what they have read."""

IDLE_CONNECTION_MAX_AGE_SECONDS = 10.0
"""A connection that was not used for so long may be gone at its other end without our knowledge, above all after a
function was frozen. A write on it would fail, and nothing would tell whether it was stored; a new one costs little."""

CONSUMER_OPERATIONS = {"DescribeStreamConsumer", "DeregisterStreamConsumer", "SubscribeToShard"}
READ_OPERATIONS = {"GetRecords", "GetShardIterator"} | CONSUMER_OPERATIONS
NOTHING_SENT_ERRORS = (ConnectTimeoutError, CredentialRetrievalError, EndpointConnectionError, NoCredentialsError)


class StreamCallFailed(Unavailable):
    """Raised when a call did not work. `is_temporary`: it may work soon. `had_no_effect`: it certainly had no
    effect."""

    def __init__(self, message: str, *, is_temporary: bool, had_no_effect: bool) -> None:
        super().__init__(message)
        self.is_temporary = is_temporary
        self.had_no_effect = had_no_effect


class NoSuchShard(StreamCallFailed):
    """Raised when a shard, or a consumer, is not there: the stream has forgotten it, or there is no such stream."""


class IteratorExpired(Exception):
    """Raised when a shard iterator is too old. Reading goes on with a new one."""


class SequenceUnavailable(Exception):
    """Raised when a shard has nothing at the position that was asked for: it is too old, or of another stream."""


class ShardBusy(Unavailable):
    """Raised at once in the place of a call that would wait too long for its turn: a shard answers only so many."""

    def __init__(self, shard: str, seconds: float) -> None:
        message = f"Shard {shard} has more to answer than it can; there is room in {seconds:.1f} s"
        super().__init__(message, retry_after_seconds=max(math.ceil(seconds), 1))


class OutgoingRecord(NamedTuple):
    partition_key: str
    hash_key: int
    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data) + len(self.partition_key.encode())


class RecordPage(NamedTuple):
    """`continuation` is None at the end of a closed shard; `at_tip` says that nothing more is there at the moment.
    What was stored before `asked_at`, by the steady clock, is among the records; a push proves nothing of this kind.
    """

    records: list[ArrivedRecord]
    continuation: str | None
    at_tip: bool
    asked_at: float = float("-inf")


class RecordFailure(Struct, frozen=True):
    """Why one record of a call was not taken."""

    reason: str
    had_no_effect: bool


class Stream:
    """One Kinesis stream, through a boto3 client that tries nothing again by itself."""

    def __init__(self, client: Any, name: str, reads_per_second: float = 5.0) -> None:
        self._client = client
        self.name = name
        # Kinesis counts both for each shard, each by itself, and over all processes.
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
        # Not before the turn: this read has what was stored meanwhile, and serves those who came meanwhile.
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
        """Around a call: it meets a new connection, unless there was one a moment ago."""
        with self._lock:
            # By the clock on the wall: the other one may stand still while a function is frozen. Never while another
            # call is under way: it may have just chosen the connection that would be closed under it.
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
        """Waits until another iterator is due. Raises `ShardBusy`, also when there would be no turn to use it."""
        self._pace.check_has_room(shard, MAX_WAIT_TO_BEGIN_READING_SECONDS)
        self._iterator_pace.wait_for_turn(shard, MAX_WAIT_TO_BEGIN_READING_SECONDS)
        with self._iterator_pace.observe_outcome(shard), self._connection_for_call():
            answer = self._client.get_shard_iterator(StreamName=self.name, ShardId=shard, **position)
        return str(_require_field(answer, "ShardIterator"))


class CallRate:
    """Lets calls for one name through at most so often, and less often where others call, too."""

    def __init__(self, interval: float, longest: float = MAX_READ_INTERVAL_SECONDS) -> None:
        self._shortest = interval
        self._longest = max(longest, interval)
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}
        self._intervals: dict[str, float] = {}

    def slow_down(self, name: str) -> None:
        """A call was refused: there are too many."""
        with self._lock:
            self._intervals[name] = min(2 * self._interval_of(name), self._longest)

    def speed_up(self, name: str) -> None:
        """A call was answered: perhaps there is room for more."""
        with self._lock:
            self._intervals[name] = max(0.95 * self._interval_of(name), self._shortest)

    @contextmanager
    def observe_outcome(self, name: str) -> Iterator[None]:
        """Around a call: whether it is refused decides when the next one is due."""
        try:
            yield
        except StreamCallFailed as trouble:
            if trouble.is_temporary and trouble.had_no_effect:
                self.slow_down(name)
            raise
        self.speed_up(name)

    def _interval_of(self, name: str) -> float:
        return self._intervals.get(name, self._shortest)

    def check_has_room(self, name: str, longest_wait: float) -> None:
        """Raise `ShardBusy` if the next turn is further away than that."""
        with self._lock:
            self._find_turn(name, time.monotonic(), longest_wait)

    def _find_turn(self, name: str, now: float, longest_wait: float) -> float:
        turn = max(now, self._next.get(name, now))
        if turn - now > longest_wait:
            raise ShardBusy(name, turn - now)
        return turn

    def wait_for_turn(self, name: str, longest_wait: float = math.inf) -> None:
        """Wait for the next turn, and take it. Raises `ShardBusy` at once if it is further away than that."""
        with self._lock:
            now = time.monotonic()
            turn = self._find_turn(name, now, longest_wait)
            # Spread, so that those who were refused together do not come back together.
            spread = random.uniform(0.5, 1.5) if self._interval_of(name) > self._shortest else 1.0  # noqa: S311  # nothing to guess
            self._next[name] = turn + spread * self._interval_of(name)
        if turn > now:
            time.sleep(turn - now)


class GrowingPauses:
    """Tries again with growing pauses, until so many seconds have passed."""

    def __init__(self, seconds: float, shortest: float = 0.05, longest: float = 1.0) -> None:
        self._end = time.monotonic() + seconds
        self._pause = shortest
        self._longest = longest

    @property
    def seconds_left(self) -> float:
        return max(self._end - time.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        return time.monotonic() + self._pause >= self._end

    def pause(self) -> None:
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, self._longest)

    def retry(self, call: Callable[[], Any]) -> Any:
        """Call something that can be repeated without harm, until it works or this is over."""
        while True:
            try:
                return call()
            except StreamCallFailed as trouble:
                if not trouble.is_temporary or self.is_over:
                    raise
            self.pause()


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
    """Something in between may have answered in the place of Kinesis; what Kinesis did, if it was asked, is unknown."""
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
