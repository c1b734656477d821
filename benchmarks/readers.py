"""How late readers of one shard are, by how many they are: those that ask, and those that are pushed.

    python benchmarks/readers.py --readers 1 2 3 5 10 --seconds 20

The shard is one of this process. It answers five reads a second and gives two megabytes a second, to all who ask
together, and refuses what is more; the indexer asks once a second. What it pushes comes 70 ms after it was stored, as
AWS says that it does.
"""

from __future__ import annotations

import argparse
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from statistics import mean, quantiles
from typing import Any

from botocore.exceptions import ClientError

from nakadi.common.waiting import run_blocking
from nakadi.engines.kinesis.event_log import KinesisLog
from nakadi.engines.kinesis.fan_out import FanOut, StreamConsumer, StreamConsumerApi
from nakadi.engines.kinesis.stream import RecordPage, Stream, parse_record
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.events import Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import SystemClock

READS, BYTES = 5, 2 << 20
PUSHED_AFTER = 0.07
EVENTS_A_SECOND = 10
SHARD = "shardId-000000000000"


class Shard:
    """As a client of boto3 shows it."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._records: list[dict[str, Any]] = []
        self._reads: deque[tuple[float, int]] = deque()
        self.refused = 0

    def list_shards(self, **_: Any) -> dict[str, Any]:
        hashes = {"StartingHashKey": "0", "EndingHashKey": str((1 << 128) - 1)}
        return {"Shards": [{"ShardId": SHARD, "HashKeyRange": hashes, "SequenceNumberRange": {}}]}

    def get_shard_iterator(self, **asked: Any) -> dict[str, str]:
        return {"ShardIterator": asked.get("StartingSequenceNumber", "0")}

    def get_records(self, **asked: Any) -> dict[str, Any]:
        with self._lock:
            now = time.monotonic()
            while self._reads and self._reads[0][0] <= now - 1:
                self._reads.popleft()
            if len(self._reads) >= READS or sum(size for _, size in self._reads) >= BYTES:
                self.refused += 1
                error = {"Error": {"Code": "ProvisionedThroughputExceededException", "Message": "too often"}}
                raise ClientError({**error, "ResponseMetadata": {"HTTPStatusCode": 400}}, "GetRecords")
            found = self._records[int(asked["ShardIterator"]) :]
            self._reads.append((now, sum(len(each["Data"]) for each in found)))
            following = str(len(self._records))
        return {"Records": found, "NextShardIterator": following, "MillisBehindLatest": 0}

    def put_records(self, **asked: Any) -> dict[str, Any]:
        with self._lock:
            answers = []
            for each in asked["Records"]:
                number = str(len(self._records) + 1)
                moment = {"SequenceNumber": number, "ApproximateArrivalTimestamp": datetime.now(UTC)}
                self._records.append({**each, **moment})
                answers.append({"SequenceNumber": number, "ShardId": SHARD})
            self._lock.notify_all()
        return {"FailedRecordCount": 0, "Records": answers}

    def behind(self, place: int, wait: float) -> list[dict[str, Any]]:
        with self._lock:
            self._lock.wait_for(lambda: len(self._records) > place, wait)
            return self._records[place:]

    def close(self) -> None:
        """Several share it."""


class Pushing(StreamConsumerApi):
    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, "events")
        self._shard = shard

    def register(self, name: str) -> StreamConsumer:
        return StreamConsumer(name, name, is_active=True, created_at=datetime.now(UTC))

    def deregister(self, arn: str) -> None:
        """Nothing is kept of it."""

    def subscribe(self, _arn: str, shard: str, sequence: int | None) -> Iterator[RecordPage]:
        place = sequence or 0
        while True:
            found = self._shard.behind(place, 1.0)
            if found:
                time.sleep(PUSHED_AFTER)
            place += len(found)
            yield RecordPage([parse_record(shard, each) for each in found], "more", at_tip=True)


class Follower:
    """A task: it watches, and notes how late it learns of each event."""

    def __init__(self, log: KinesisLog, stored: dict[int, float]) -> None:
        self._log = log
        self._stored = stored
        self._told = threading.Event()
        self._ended = False
        self.late: list[float] = []
        self._end = log.add_change_listener(lambda *_: self._told.set())
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        place = 0
        while not self._ended:
            self._told.wait()
            self._told.clear()
            try:
                found = self._log.read("t", 0, place)
            except Unavailable:
                self._told.set()
                continue
            place = found.next_offset
            now = time.monotonic()
            self.late += [now - self._stored[each.offset] for each in found.events]

    def end(self) -> None:
        self._end()
        self._ended = True
        self._told.set()
        self._thread.join()


def measured(readers: int, seconds: float, *, pushed: bool) -> tuple[list[float], float]:
    """How late each reader was with each event, and how many reads were refused in a second."""
    shard, index, clock = Shard(), MemoryLogIndex(), SystemClock()
    index.create_topic("t", 1)

    def a_log() -> KinesisLog:
        fan_out = FanOut(Pushing(shard), "bench") if pushed else None
        return KinesisLog(Stream(shard, "events"), index, None, clock, fan_out=fan_out)

    stored: dict[int, float] = {}
    writer = KinesisLog(Stream(shard, "events"), index, None, clock)
    logs = [a_log() for _ in range(readers)]
    followers = [Follower(log, stored) for log in logs]
    ended = threading.Event()
    indexer = threading.Thread(target=_index, args=(shard, ended))
    indexer.start()
    time.sleep(10)
    shard.refused = 0
    began = time.monotonic()
    for number in range(round(seconds * EVENTS_A_SECOND)):
        time.sleep(max(0.0, began + number / EVENTS_A_SECOND - time.monotonic()))
        stored[number] = time.monotonic()
        run_blocking(writer.append("t", {0: [Record(b"1")]}))
    refused = shard.refused / (time.monotonic() - began)
    time.sleep(5)
    ended.set()
    indexer.join()
    for each in followers:
        each.end()
    for log in (*logs, writer):
        log.close()
    return [late for each in followers for late in each.late], refused


def _index(shard: Shard, ended: threading.Event) -> None:
    while not ended.wait(1.0):
        try:
            shard.get_records(ShardIterator="0")
        except ClientError:
            continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 2, 3, 5, 10])
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    # Refusals are counted, not told one by one.
    logging.disable()
    for readers in asked.readers:
        for pushed in (False, True):
            late, refused = measured(readers, asked.seconds, pushed=pushed)
            p99 = quantiles(late, n=100)[98]
            print(
                f"{readers:3} readers, {'pushed' if pushed else 'asking'}: mean {mean(late):5.2f} s, p99 {p99:5.2f} s, "
                f"max {max(late):5.2f} s, {refused:4.1f} reads refused a second, {len(late):,} deliveries"
            )


if __name__ == "__main__":
    main()
