"""An event source mapping: a function is invoked with the records of a stream, shard by shard and in their order."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from botocore.exceptions import BotoCoreError, ClientError

from infra.laptop.batches import Arrived, Batch, Next, Rules, answered, failed, too_old
from infra.laptop.functions import Failed, Function
from infra.laptop.templates import REGION, Properties

log = logging.getLogger(__name__)

# As often as Lambda asks a shard, and the stream for new shards.
POLL_SECONDS = 1.0
SHARDS_SECONDS = 5.0

# The event is a third longer, for it is base64.
MOST_BYTES = 4 * 1024 * 1024

LONGEST_PAUSE = 30.0

# Tells a destination of a batch.
Tell = Callable[[str, Mapping[str, Any]], None]


class EventSource:
    """Works in threads of its own until it is closed: one for each shard, children after their parents."""

    def __init__(self, properties: Properties, kinesis: Any, function: Function, tell: Tell) -> None:
        self._arn: str = properties["EventSourceArn"]
        self._position: str = properties["StartingPosition"]
        self._rules = Rules.of(properties)
        self._kinesis = kinesis
        self._function = function
        self._tell = tell
        self._closing = threading.Event()
        self._shards: dict[str, _Shard] = {}
        self._thread = threading.Thread(target=self._look_for_shards, name="shards", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for shard in self._shards.values():
            shard.thread.join()

    def _look_for_shards(self) -> None:
        while not self._closing.is_set():
            try:
                self._begin(self._kinesis.list_shards(StreamName=_name(self._arn))["Shards"])
            except (BotoCoreError, ClientError):
                log.warning("The shards of %s cannot be listed", self._arn, exc_info=True)
            self._closing.wait(SHARDS_SECONDS)

    def _begin(self, listed: Sequence[Mapping[str, Any]]) -> None:
        there: set[str] = {each["ShardId"] for each in listed}
        for each in listed:
            parents = there & {each.get("ParentShardId", ""), each.get("AdjacentParentShardId", "")}
            if each["ShardId"] not in self._shards and all(self._is_done(parent) for parent in parents):
                shard = _Shard(each["ShardId"])
                shard.thread = threading.Thread(target=self._follow, args=(shard,), name=shard.id, daemon=True)
                self._shards[shard.id] = shard
                shard.thread.start()

    def _is_done(self, shard_id: str) -> bool:
        return shard_id in self._shards and self._shards[shard_id].done

    def _follow(self, shard: _Shard) -> None:
        poller = Poller(self._kinesis, self._arn, shard.id, self._position, self._rules, self._closing)
        for records in poller.batches():
            self._work(shard.id, Batch(records))
            if self._closing.is_set():
                return
        shard.done = not self._closing.is_set()

    def _work(self, shard_id: str, batch: Batch) -> None:
        """Until all of its records are done, or set aside: what comes behind them waits."""
        waiting = deque([batch])
        while waiting and not self._closing.is_set():
            for each in self._turn(shard_id, waiting.popleft()):
                waiting.appendleft(each)

    def _turn(self, shard_id: str, batch: Batch) -> Iterator[Batch]:
        """What has to be done instead, the last first."""
        due = too_old(batch, self._rules, time.time())
        self._set_aside(shard_id, due.set_aside, "RecordAgeExceeded")
        for each in due.batches:
            if each.failures:
                self._closing.wait(min(LONGEST_PAUSE, 0.5 * 2 ** (each.failures - 1)))
            then = self._invoked(shard_id, each)
            self._set_aside(shard_id, then.set_aside, "RetryAttemptsExhausted")
            yield from reversed(then.batches)

    def _invoked(self, shard_id: str, batch: Batch) -> Next:
        event = {"Records": [self._record(shard_id, each) for each in batch.records]}
        try:
            return answered(batch, self._function.invoke(event), self._rules)
        except Failed as error:
            if self._closing.is_set():
                return Next()
            log.warning("%s cannot do with %d records of %s: %s", self._name, len(batch.records), shard_id, error)
            return failed(batch, self._rules)

    @property
    def _name(self) -> str:
        return self._function.described.name

    def _record(self, shard_id: str, record: Arrived) -> dict[str, Any]:
        return {
            "kinesis": {
                "kinesisSchemaVersion": "1.0",
                "partitionKey": record.partition_key,
                "sequenceNumber": record.sequence,
                "data": base64.b64encode(record.data).decode(),
                "approximateArrivalTimestamp": record.at,
            },
            "eventSource": "aws:kinesis",
            "eventVersion": "1.0",
            "eventID": f"{shard_id}:{record.sequence}",
            "eventName": "aws:kinesis:record",
            "invokeIdentityArn": f"arn:aws:iam::000000000000:role/{self._name}",
            "awsRegion": REGION,
            "eventSourceARN": self._arn,
        }

    def _set_aside(self, shard_id: str, batch: Batch | None, condition: str) -> None:
        if batch is not None and self._rules.destination:
            self._tell(self._rules.destination, self._obituary(shard_id, batch, condition))

    def _obituary(self, shard_id: str, batch: Batch, condition: str) -> dict[str, Any]:
        first, last = batch.records[0], batch.records[-1]
        return {
            "requestContext": {
                "requestId": str(uuid4()),
                "functionArn": self._function.described.arn,
                "condition": condition,
                "approximateInvokeCount": batch.failures,
            },
            "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
            "version": "1.0",
            "timestamp": _iso(time.time()),
            "KinesisBatchInfo": {
                "shardId": shard_id,
                "startSequenceNumber": first.sequence,
                "endSequenceNumber": last.sequence,
                "approximateArrivalOfFirstRecord": _iso(first.at),
                "approximateArrivalOfLastRecord": _iso(last.at),
                "batchSize": len(batch.records),
                "streamArn": self._arn,
            },
        }


@dataclass(slots=True)
class _Shard:
    id: str
    done: bool = False
    thread: threading.Thread = field(default_factory=threading.Thread)


class Poller:
    """The records of a shard, in batches: as many as there may be, or as the window brings."""

    def __init__(
        self, kinesis: Any, arn: str, shard_id: str, position: str, rules: Rules, closing: threading.Event
    ) -> None:
        self._kinesis = kinesis
        self._stream = _name(arn)
        self._shard_id = shard_id
        self._begin = {"ShardIteratorType": position}
        self._rules = rules
        self._closing = closing
        self._pending: list[Arrived] = []

    def batches(self) -> Iterator[tuple[Arrived, ...]]:
        """Until the shard has ended and all of it was given out."""
        iterator: str | None = self._iterator()
        since = time.monotonic()
        while iterator and not self._closing.is_set():
            came, iterator = self._asked(iterator)
            if came and not self._pending:
                since = time.monotonic()
            self._pending += came
            if iterator is None or time.monotonic() - since >= self._rules.window_seconds:
                yield from self._whole(least=1)
            else:
                yield from self._whole(least=self._rules.size)
            if not came:
                self._closing.wait(POLL_SECONDS)

    def _whole(self, *, least: int) -> Iterator[tuple[Arrived, ...]]:
        while len(self._pending) >= least:
            yield self._taken()

    def _taken(self) -> tuple[Arrived, ...]:
        size = count = 0
        for record in self._pending[: self._rules.size]:
            size += len(record.data)
            if count and size > MOST_BYTES:
                break
            count += 1
        taken, self._pending = tuple(self._pending[:count]), self._pending[count:]
        return taken

    def _asked(self, iterator: str) -> tuple[list[Arrived], str | None]:
        try:
            answer = self._kinesis.get_records(ShardIterator=iterator, Limit=self._rules.size)
        except (BotoCoreError, ClientError):
            if not self._closing.is_set():
                log.warning("%s cannot be read", self._shard_id, exc_info=True)
            self._closing.wait(POLL_SECONDS)
            return [], self._iterator()
        came = [_arrived(each) for each in answer["Records"]]
        if came:
            self._begin = {
                "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                "StartingSequenceNumber": came[-1].sequence,
            }
        return came, answer.get("NextShardIterator")

    def _iterator(self) -> str:
        asked = {"StreamName": self._stream, "ShardId": self._shard_id, **self._begin}
        while True:
            try:
                return str(self._kinesis.get_shard_iterator(**asked)["ShardIterator"])
            except (BotoCoreError, ClientError):
                if self._closing.wait(POLL_SECONDS):
                    return ""


def _arrived(record: Mapping[str, Any]) -> Arrived:
    at = record["ApproximateArrivalTimestamp"].timestamp()
    return Arrived(record["SequenceNumber"], record["PartitionKey"], record["Data"], at)


def _name(arn: str) -> str:
    return arn.rpartition("/")[2]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sending(sqs: Any) -> Tell:
    """A queue is configured by its ARN, in JSON."""

    def tell(destination: str, what: Mapping[str, Any]) -> None:
        name = destination.rpartition(":")[2]
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody=json.dumps(what))

    return tell
