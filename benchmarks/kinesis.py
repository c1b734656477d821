"""What do events cost in a Kinesis stream, and how fast is the log indexer?

    python benchmarks/kinesis.py [--json FILE]

* Records, bytes and put units for 1,000 events of 0.7 KB, against one uncompressed record for each event. The aim for
batches of a hundred events is a fifth of the bytes and a fiftieth of the records.
* Calls for a publish: to Kinesis, and to the index.
* The indexer's throughput on one core: counting, archiving and checkpoints, for records as Lambda hands them over. The
  aim is 10 MB of events a second; the floor is unpacking the records, and packing their lines for the archive, alone.

Nothing leaves the process: the stream is a list, index and archive are in memory. The script takes about ten seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nakadi.common.waiting import run_blocking
from nakadi.engines.archive.gzip_format import new_compressor
from nakadi.engines.archive.stores import MemoryStore
from nakadi.engines.common import frames
from nakadi.engines.kinesis.continuity import ShardTreeCache
from nakadi.engines.kinesis.envelopes import parse_envelope
from nakadi.engines.kinesis.event_log import KinesisLog
from nakadi.engines.kinesis.indexing import Indexer
from nakadi.engines.kinesis.numbering import ArrivedRecord
from nakadi.engines.kinesis.stream import Stream
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.events import Record
from nakadi.model.log_index import RecordPosition
from nakadi.ports.clock import SystemClock

PUT_UNIT = 25 * 1024
EVENTS = 1000
BATCHES = ((1, 1), (10, 1), (100, 1), (1000, 1), (100, 8))
INDEXED_BYTES = 60_000_000
LAMBDA_BATCH_BYTES = 4_000_000
PARTITIONS = 1000
ANSWER_SECONDS = 0.005

SHARD = {
    "ShardId": "shardId-000000000000",
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str((1 << 128) - 1)},
    "SequenceNumberRange": {"StartingSequenceNumber": "1"},
}


class ListStream:
    """A Kinesis client with one shard, and only the calls that the engine makes."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.calls: Counter[str] = Counter()

    def list_shards(self, **_: Any) -> dict[str, Any]:
        return {"Shards": [SHARD]}

    def get_shard_iterator(self, **asked: Any) -> dict[str, Any]:
        return {"ShardIterator": asked.get("StartingSequenceNumber", "0")}

    def get_records(self, **asked: Any) -> dict[str, Any]:
        self.calls["GetRecords"] += 1
        start = int(asked["ShardIterator"])
        found = self.records[start : start + asked["Limit"]]
        return {"Records": found, "NextShardIterator": str(start + len(found)), "MillisBehindLatest": 0}

    def put_records(self, **asked: Any) -> dict[str, Any]:
        self.calls["PutRecords"] += 1
        first = len(self.records)
        for entry in asked["Records"]:
            arrived = {"SequenceNumber": str(len(self.records) + 1), "ApproximateArrivalTimestamp": datetime.now(UTC)}
            self.records.append({**entry, **arrived})
        numbers = [each["SequenceNumber"] for each in self.records[first:]]
        return {"Records": [{"SequenceNumber": number, "ShardId": SHARD["ShardId"]} for number in numbers]}

    def close(self) -> None:
        pass


class CountedIndex(MemoryLogIndex):
    def __init__(self) -> None:
        super().__init__()
        self.topics_asked = 0

    def topic(self, topic: str) -> Any:
        self.topics_asked += 1
        return super().topic(topic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    random.seed(17)
    figures = {
        "stored": [measure_storage(batch, partitions) for batch, partitions in BATCHES],
        "indexer": measure_indexer(),
        "many": scattered_batch(),
    }
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure_storage(batch: int, partitions: int) -> dict[str, float]:
    """The storage of events that are published in batches over partitions."""
    client, index = ListStream(), CountedIndex()
    log = KinesisLog(Stream(client, "events"), index, None, SystemClock())
    log.create_topic("t", partitions)
    records = [an_event() for _ in range(EVENTS)]
    began = time.process_time()
    for start in range(0, EVENTS, batch):
        batches: dict[int, list[Record]] = {}
        for at, record in enumerate(records[start : start + batch]):
            batches.setdefault(at % partitions, []).append(record)
        run_blocking(log.append("t", batches))
    cpu = time.process_time() - began
    sizes = [len(each["Data"]) + len(each["PartitionKey"]) for each in client.records]
    plain = sum(len(record.value or b"") for record in records)
    figures = {
        "batch": batch,
        "partitions": partitions,
        "records": len(sizes),
        "bytes": sum(sizes),
        "of_plain_bytes": sum(sizes) / plain,
        "put_units": sum(-(-size // PUT_UNIT) for size in sizes),
        "put_calls": client.calls["PutRecords"],
        "index_reads": index.topics_asked,
        "cpu_us_per_event": cpu / EVENTS * 1e6,
    }
    print(
        f"{EVENTS} events of {plain / EVENTS:.0f} bytes, {batch} a batch over {partitions}: "
        f"{figures['records']} records, {figures['bytes']:,} bytes ({figures['of_plain_bytes']:.0%} of {plain:,}), "
        f"{figures['put_units']} put units instead of {EVENTS}, {figures['put_calls']} calls, "
        f"{figures['index_reads']} reads of the index, "
        f"{figures['cpu_us_per_event']:.1f} µs CPU per event"
    )
    return figures


def measure_indexer() -> dict[str, float]:
    """The throughput for batches of the size that Lambda delivers, published in hundreds to ten partitions."""
    client, index = ListStream(), MemoryLogIndex()
    stream = Stream(client, "events", reads_per_second=1e9)
    log = KinesisLog(stream, index, None, SystemClock())
    log.create_topic("t", 10)
    plain = 0
    while plain < INDEXED_BYTES:
        records = [an_event() for _ in range(100)]
        plain += sum(len(record.value or b"") for record in records)
        run_blocking(log.append("t", {random.randrange(10): records}))
    archive = MemoryStore()
    floor = plain / floor_of(client.records) / 1e6
    working = Indexer(stream, ShardTreeCache(stream), index, archive)
    packed = sum(len(each["Data"]) for each in client.records)
    began, wall = time.process_time(), time.perf_counter()
    events = sum(working.index(str(SHARD["ShardId"]), batch).event_count for batch in batches(client.records))
    cpu, elapsed = time.process_time() - began, time.perf_counter() - wall
    kept = sum(len(archive.content(key)) for key in archive.all_keys())
    figures = {
        "plain_mb_per_cpu_second": plain / cpu / 1e6,
        "plain_mb_per_second": plain / elapsed / 1e6,
        "record_mb_per_cpu_second": packed / cpu / 1e6,
        "events_per_cpu_second": events / cpu,
        "archive_of_plain": kept / plain,
        "floor_mb_per_cpu_second": floor,
    }
    print(
        f"indexer: {figures['plain_mb_per_cpu_second']:.1f} MB of events per second of CPU "
        f"({figures['record_mb_per_cpu_second']:.1f} MB of records), {figures['events_per_cpu_second']:,.0f} events; "
        f"the archive takes {figures['archive_of_plain']:.0%} of their bytes. Aim: 10 MB; unpacking and packing alone: "
        f"{floor:.1f} MB"
    )
    return figures


class DelayedIndex(MemoryLogIndex):
    """An index that answers as slowly as a table in the same region."""

    def topic(self, topic: str) -> Any:
        time.sleep(ANSWER_SECONDS)
        return super().topic(topic)

    def advance_head(self, *change: Any) -> bool:
        time.sleep(ANSWER_SECONDS)
        return super().advance_head(*change)


def scattered_batch() -> dict[str, float]:
    """A batch in which each record has its own partition of its own event type."""
    client, index = ListStream(), DelayedIndex()
    stream = Stream(client, "events", reads_per_second=1e9)
    log = KinesisLog(stream, index, None, SystemClock())
    for number in range(PARTITIONS):
        log.create_topic(f"t{number}", 1)
        log._writer.append(f"t{number}", {0: [an_event()]}, 0)  # noqa: SLF001  # without asking the slow index
    working = Indexer(stream, ShardTreeCache(stream), index, MemoryStore())
    began = time.perf_counter()
    working.index(str(SHARD["ShardId"]), next(batches(client.records)))
    elapsed = time.perf_counter() - began
    asked_in_turn = 2 * PARTITIONS * ANSWER_SECONDS
    print(
        f"indexer: {PARTITIONS} partitions in a batch, with an index that answers in {ANSWER_SECONDS * 1000:.0f} ms: "
        f"{elapsed:.2f} s, {PARTITIONS / elapsed:,.0f} a second (asked one after the other, {asked_in_turn:.0f} s)"
    )
    return {"partitions_per_second": PARTITIONS / elapsed, "seconds": elapsed}


def floor_of(records: Sequence[dict[str, Any]]) -> float:
    """The CPU seconds of the unavoidable work: decompressing every record, and compressing the lines."""
    began = time.process_time()
    for batch in batches(records):
        frames_of_all = [parse_envelope(record.data) for record in batch]
        lines = [record.value for each in frames_of_all if each for record in frames.decode(each.frame) if record]
        packer = new_compressor()
        packer.compress(b"\n".join([line or b"" for line in lines]))
        packer.flush()
    return time.process_time() - began


def batches(records: Sequence[dict[str, Any]]) -> Iterator[list[ArrivedRecord]]:
    batch: list[ArrivedRecord] = []
    for record in records:
        mark = RecordPosition(str(SHARD["ShardId"]), int(record["SequenceNumber"]))
        batch.append(ArrivedRecord(mark, record["PartitionKey"], 0, record["Data"]))
        if sum(len(each.data) for each in batch) > LAMBDA_BATCH_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch


def a_moment() -> str:
    return f"2026-11-21T12:{random.randrange(60):02d}:{random.randrange(60):02d}.{random.randrange(1000):03d}Z"


def an_event() -> Record:
    """A change of an order, 0.7 KB, with realistic randomness."""
    event = {
        "metadata": {
            "eid": f"{random.getrandbits(128):032x}",
            "occurred_at": a_moment(),
            "event_type": "sales.order.changed",
            "flow_id": f"{random.getrandbits(96):024x}",
            "received_at": a_moment(),
            "partition": str(random.randrange(8)),
            "version": "2.1.0",
            "published_by": "sales-service",
        },
        "order_number": f"{random.randrange(10**11)}",
        "customer_number": f"{random.randrange(10**9)}",
        "status": random.choice(["OPEN", "PAID", "SHIPPED", "RETURNED"]),
        "currency": "EUR",
        "items": [
            {
                "sku": f"{random.getrandbits(40):010X}",
                "quantity": random.randrange(1, 4),
                "price": random.randrange(100, 20_000) / 100,
                "warehouse": random.choice(["BER", "ERF", "LOD"]),
            }
            for _ in range(5)
        ],
    }
    return Record(json.dumps(event, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
