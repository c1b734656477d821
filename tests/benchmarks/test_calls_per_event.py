"""Counts the function calls and the memory that each event takes, and shows where an event takes no call."""

import gc
import sys
from datetime import UTC, datetime

import orjson
import pytest

from nakadi.common.waiting import LEAVE_LOOP, run_blocking
from nakadi.engines.archive.member_format import pack_member, parse_partition_member
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.event_type import Position
from nakadi.model.events import EventSlice, Record, StoredEvent
from nakadi.model.subscription import EventTypePartition, PartitionAssignment
from nakadi.ports.clock import SystemClock
from nakadi.publishing.publisher import BatchSender
from nakadi.streaming.chunks import EventChunk
from nakadi.streaming.formats import batch_line
from nakadi.streaming.session import LowLevelSession, StreamLimits
from nakadi.subscriptions.stream.partition_progress import PartitionProgress, SessionTotals
from tests.support.publishing import PublisherInMemory, a_business_type, metadata
from tests.support.traced_memory import trace_memory


class CallCounter:
    """Counts the calls of Python functions in this thread inside the block."""

    def __enter__(self):
        self.calls = 0
        gc.disable()  # finalizers of earlier tests' objects would be counted, too
        sys.setprofile(self._count_call)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        gc.enable()

    def _count_call(self, _frame, event, _argument):
        self.calls += event == "call"


@pytest.mark.parametrize("size", [10, 600])
def test_a_stream_of_old_events_takes_no_call_for_each(tmp_path, size):
    """Reading a thousand events from the data file and putting them into ten lines takes a few calls for each line."""
    log = SqliteLog(tmp_path / "nakadi.db", SystemClock())
    log.create_topic("t", 1)
    run_blocking(log.append("t", {0: [Record(b'"%d"' % number + b" " * size) for number in range(1000)]}))
    session = LowLevelSession(StreamLimits(batch_limit=100), {"0": Position(1, -1)}, 0.0)

    with CallCounter() as counted:
        run = EventChunk(1, 0, log.read("t", 0, 0)).run_from_offset(0)
        lines = [batch_line(batch) for batch in session.handle_events("0", run, 1.0)]
    log.close()

    assert [line.count(b'"') for line in lines] == [212] * 10
    assert counted.calls < 500, counted.calls


def test_old_events_from_the_archive_take_no_call_for_each():
    """Reading a thousand events of an archive object into ten lines takes a few calls for each batch."""
    moments = [datetime(2026, 11, 22, 12, 0, second, tzinfo=UTC) for second in range(10)]
    events = [StoredEvent(number, Record(b'"%d"' % number), moments[number // 100]) for number in range(1000)]
    session = LowLevelSession(StreamLimits(batch_limit=100), {"0": Position(1, -1)}, 0.0)
    content = pack_member("t", 0, events)
    parse_partition_member(content, "t", 0)  # compile the pattern for lines before counting

    with CallCounter() as counted:
        run = EventChunk(1, 0, EventSlice(parse_partition_member(content, "t", 0), 1000)).run_from_offset(0)
        lines = [batch_line(batch) for batch in session.handle_events("0", run, 1.0)]

    assert [line.count(b'"') for line in lines] == [212] * 10
    assert counted.calls < 500, counted.calls


def test_a_partition_of_a_stream_in_which_nothing_happens_takes_little_memory():
    """A partition without events takes memory only for its position, and none for empty queues and sets."""
    entry, stored = PartitionAssignment(EventTypePartition("a", "0"), "s"), Position(1, -1)
    PartitionProgress(entry, stored, 0.0, counts=False, totals=SessionTotals())
    totals = SessionTotals()

    def make_hundred():
        kept = []
        for _ in range(100):
            kept.append(PartitionProgress(entry, stored, 0.0, counts=False, totals=totals))
            kept[-1].set_parked_keys(frozenset(iter(())))
        return kept

    assert trace_memory(make_hundred).kept < 100 * 500


def an_order(number):
    lines = [{"sku": f"sku-{number}-{line}", "price": 19.95 + line, "tags": ["a", "b"]} for line in range(8)]
    return {"metadata": metadata(), "order": f"order-{number}", "lines": lines}


def test_a_batch_takes_no_call_and_little_memory_for_each_event():
    """From the body to the records, a hundred events take as many calls as one event, and little more memory than their
    dicts.
    """
    house, text = PublisherInMemory(), {"type": "string"}

    appended = []

    async def append(_topic, batches):
        appended.append(len(batches[0]))
        await LEAVE_LOOP

    line = {"sku": text, "price": {"type": "number"}, "tags": {"type": "array", "items": text}}
    lines = {"type": "array", "items": {"type": "object", "properties": line}}
    orders = house.add(a_business_type(schema={"type": "object", "properties": {"order": text, "lines": lines}}))
    house.publish(orders, [an_order(0)])
    house.log.append = append

    def run_to_append(body):
        task = house.publisher.publishing_task(
            orders.name, body, BatchSender(subject=UNAUTHENTICATED, flow_id="the-flow")
        )
        task.send(None)
        return task

    calls, bodies = {}, {count: orjson.dumps([an_order(number) for number in range(count)]) for count in (1, 2, 100)}
    for count, body in bodies.items():
        with CallCounter() as counted:
            run_to_append(body).close()
        assert appended == [count]
        appended.clear()
        calls[count] = counted.calls
    assert calls[1] == calls[2] == calls[100]

    dicts = trace_memory(lambda: orjson.loads(bodies[100])).peak
    records = trace_memory(lambda: run_to_append(bodies[100])).peak
    assert records < 1.25 * dicts
