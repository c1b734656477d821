"""An event source mapping: it invokes a function with the records of a stream, in order within each shard."""

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

from infra.laptop.batches import Batch, MappingRules, Plan, Record, drop_expired, plan_after_answer, plan_after_failure
from infra.laptop.functions import Function, InvocationFailed
from infra.laptop.templates import REGION, Properties

log = logging.getLogger(__name__)

# Lambda polls a shard and looks for new shards this often.
POLL_SECONDS = 1.0
SHARDS_SECONDS = 5.0

# Base64 makes records a third longer, and Lambda allows 6 MB for an event.
MAX_BATCH_BYTES = 4 * 1024 * 1024

MAX_PAUSE_SECONDS = 30.0

# Sends the report of an abandoned batch to a destination.
Notify = Callable[[str, Mapping[str, Any]], None]


class EventSource:
    """A running mapping with a thread for each shard. Child shards start after their parents are done."""

    def __init__(self, properties: Properties, kinesis: Any, function: Function, notify: Notify) -> None:
        self._arn: str = properties["EventSourceArn"]
        self._position: str = properties["StartingPosition"]
        self._rules = MappingRules.of(properties)
        self._kinesis = kinesis
        self._function = function
        self._notify = notify
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
                self._start_shards(self._kinesis.list_shards(StreamName=_stream_name(self._arn))["Shards"])
            except (BotoCoreError, ClientError):
                log.warning("The shards of %s cannot be listed", self._arn, exc_info=True)
            self._closing.wait(SHARDS_SECONDS)

    def _start_shards(self, listed: Sequence[Mapping[str, Any]]) -> None:
        listed_ids: set[str] = {each["ShardId"] for each in listed}
        for each in listed:
            parents = listed_ids & {each.get("ParentShardId", ""), each.get("AdjacentParentShardId", "")}
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
            self._process(shard.id, Batch(records))
            if self._closing.is_set():
                return
        shard.done = not self._closing.is_set()

    def _process(self, shard_id: str, batch: Batch) -> None:
        """Process a batch until all its records are done or abandoned. Later records wait."""
        waiting = deque([batch])
        while waiting and not self._closing.is_set():
            for each in self._process_once(shard_id, waiting.popleft()):
                waiting.appendleft(each)

    def _process_once(self, shard_id: str, batch: Batch) -> Iterator[Batch]:
        """Invoke the function once, and yield the remaining batches in reverse order."""
        unexpired = drop_expired(batch, self._rules, time.time())
        self._report_abandoned(shard_id, unexpired.abandoned, "RecordAgeExceeded")
        for each in unexpired.batches:
            if each.failures:
                self._closing.wait(min(MAX_PAUSE_SECONDS, 0.5 * 2 ** (each.failures - 1)))
            plan = self._invoke(shard_id, each)
            self._report_abandoned(shard_id, plan.abandoned, "RetryAttemptsExhausted")
            yield from reversed(plan.batches)

    def _invoke(self, shard_id: str, batch: Batch) -> Plan:
        event = {"Records": [self._record(shard_id, each) for each in batch.records]}
        try:
            return plan_after_answer(batch, self._function.invoke(event), self._rules)
        except InvocationFailed as error:
            if self._closing.is_set():
                return Plan()
            log.warning(
                "%s cannot process %d records of %s: %s", self._function_name, len(batch.records), shard_id, error
            )
            return plan_after_failure(batch, self._rules)

    @property
    def _function_name(self) -> str:
        return self._function.definition.name

    def _record(self, shard_id: str, record: Record) -> dict[str, Any]:
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
            "invokeIdentityArn": f"arn:aws:iam::000000000000:role/{self._function_name}",
            "awsRegion": REGION,
            "eventSourceARN": self._arn,
        }

    def _report_abandoned(self, shard_id: str, batch: Batch | None, condition: str) -> None:
        if batch is not None and self._rules.destination:
            self._notify(self._rules.destination, self._abandoned_report(shard_id, batch, condition))

    def _abandoned_report(self, shard_id: str, batch: Batch, condition: str) -> dict[str, Any]:
        first, last = batch.records[0], batch.records[-1]
        return {
            "requestContext": {
                "requestId": str(uuid4()),
                "functionArn": self._function.definition.arn,
                "condition": condition,
                "approximateInvokeCount": batch.failures,
            },
            "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
            "version": "1.0",
            "timestamp": _isoformat(time.time()),
            "KinesisBatchInfo": {
                "shardId": shard_id,
                "startSequenceNumber": first.sequence,
                "endSequenceNumber": last.sequence,
                "approximateArrivalOfFirstRecord": _isoformat(first.at),
                "approximateArrivalOfLastRecord": _isoformat(last.at),
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
    """Reads the records of a shard in batches, limited by their size and the batching window."""

    def __init__(
        self, kinesis: Any, arn: str, shard_id: str, position: str, rules: MappingRules, closing: threading.Event
    ) -> None:
        self._kinesis = kinesis
        self._stream = _stream_name(arn)
        self._shard_id = shard_id
        self._next_position = {"ShardIteratorType": position}
        self._rules = rules
        self._closing = closing
        self._pending: list[Record] = []

    def batches(self) -> Iterator[tuple[Record, ...]]:
        """Yield batches until the end of a closed shard."""
        iterator: str | None = self._request_iterator()
        since = time.monotonic()
        while iterator and not self._closing.is_set():
            records, iterator = self._read_records(iterator)
            if records and not self._pending:
                since = time.monotonic()
            self._pending += records
            if iterator is None or time.monotonic() - since >= self._rules.window_seconds:
                yield from self._full_batches(minimum=1)
            else:
                yield from self._full_batches(minimum=self._rules.size)
            if not records:
                self._closing.wait(POLL_SECONDS)

    def _full_batches(self, *, minimum: int) -> Iterator[tuple[Record, ...]]:
        while len(self._pending) >= minimum:
            yield self._take_batch()

    def _take_batch(self) -> tuple[Record, ...]:
        size = count = 0
        for record in self._pending[: self._rules.size]:
            size += len(record.data)
            if count and size > MAX_BATCH_BYTES:
                break
            count += 1
        batch, self._pending = tuple(self._pending[:count]), self._pending[count:]
        return batch

    def _read_records(self, iterator: str) -> tuple[list[Record], str | None]:
        try:
            answer = self._kinesis.get_records(ShardIterator=iterator, Limit=self._rules.size)
        except (BotoCoreError, ClientError):
            if not self._closing.is_set():
                log.warning("%s cannot be read", self._shard_id, exc_info=True)
            self._closing.wait(POLL_SECONDS)
            return [], self._request_iterator()
        records = [_read_record(each) for each in answer["Records"]]
        if records:
            self._next_position = {
                "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                "StartingSequenceNumber": records[-1].sequence,
            }
        return records, answer.get("NextShardIterator")

    def _request_iterator(self) -> str:
        request = {"StreamName": self._stream, "ShardId": self._shard_id, **self._next_position}
        while True:
            try:
                return str(self._kinesis.get_shard_iterator(**request)["ShardIterator"])
            except (BotoCoreError, ClientError):
                if self._closing.wait(POLL_SECONDS):
                    return ""


def _read_record(record: Mapping[str, Any]) -> Record:
    at = record["ApproximateArrivalTimestamp"].timestamp()
    return Record(record["SequenceNumber"], record["PartitionKey"], record["Data"], at)


def _stream_name(arn: str) -> str:
    return arn.rpartition("/")[2]


def _isoformat(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def make_notifier(sqs: Any) -> Notify:
    """A function that sends reports to a queue, given its ARN."""

    def notify(destination: str, report: Mapping[str, Any]) -> None:
        name = destination.rpartition(":")[2]
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody=json.dumps(report))

    return notify
