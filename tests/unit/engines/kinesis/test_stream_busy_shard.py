"""A shard with more readers than it can answer: reads are shared, and a caller that would wait too long is refused at
once."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nakadi.common.waiting import run_blocking
from nakadi.engines.kinesis import call_rate as call_rate_module
from nakadi.engines.kinesis import event_log as event_log_module
from nakadi.engines.kinesis import stream as stream_module
from nakadi.engines.kinesis import tails as tails_module
from nakadi.engines.kinesis.call_rate import CallRate
from nakadi.engines.kinesis.continuity import ShardTreeCache
from nakadi.engines.kinesis.event_log import KinesisLog
from nakadi.engines.kinesis.failures import ShardBusy
from nakadi.engines.kinesis.shard_watch import ShardWatch
from nakadi.engines.kinesis.stream import MAX_WAIT_TO_BEGIN_READING_SECONDS, MAX_WAIT_TO_READ_ON_SECONDS, Stream
from nakadi.event_types.snapshot import event_log_errors_as_unavailable
from nakadi.http.problem import problem_of_error
from nakadi.model.events import Record
from nakadi.model.outcomes import Unavailable
from tests.support.kinesis_faults import FaultyKinesis
from tests.support.patience import until

MANY = 40
READS_PER_SECOND = 5.0


class Clock:
    """A clock that the test moves, and so do callers that sleep, unless `sleep_for_nothing` is set; the time of day is
    real.
    """

    time = staticmethod(time.time)

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleep_for_nothing = False

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if not self.sleep_for_nothing:
            self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    # Replace the time only in these modules, because threads of other tests' brokers pause, too.
    for module in (call_rate_module, event_log_module, stream_module, tails_module):
        monkeypatch.setattr(module, "time", clock)
    return clock


class HeldClient:
    """A client that holds back its first read until the test releases it; afterwards it answers, or refuses all
    reads."""

    def __init__(self, client: Any, *, refuses: bool = False) -> None:
        self._client = client
        self._refuses = refuses
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()
        self.reads = 0

    def get_records(self, **asked: Any) -> Any:
        self.reads += 1
        self.is_asked.set()
        self.may_answer.wait()
        if self._refuses:
            raise throttle("GetRecords")
        return self._client.get_records(**asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def throttle(operation: str) -> ClientError:
    error = {"Error": {"Code": "ProvisionedThroughputExceededException", "Message": "too much"}}
    return ClientError({**error, "ResponseMetadata": {"HTTPStatusCode": 400}}, operation)


class CountedLock:
    """A lock that counts the callers that have asked for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self.came = 0

    def acquire(self, timeout: float = -1) -> bool:
        with self._counting:
            self.came += 1
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def a_log(faulty_kinesis: FaultyKinesis, client: Any = None) -> KinesisLog:
    log = faulty_kinesis.a_log(client=client)
    log.create_topic("t", 1)
    run_blocking(log.append("t", {0: [Record(b"1")]}))
    return log


def ask_at_once(log: KinesisLog, client: HeldClient, lock: CountedLock) -> list[Any]:
    """The results of many callers that ask for the bounds while the first caller's read is in progress."""

    def ask(_: int) -> Any:
        try:
            return log.bounds("t", [0])[0].next_offset
        except Unavailable as refusal:
            return refusal

    with ThreadPoolExecutor(MANY) as threads:
        try:
            answers = [threads.submit(ask, 0)]
            until(client.is_asked.is_set)
            answers += [threads.submit(ask, number) for number in range(1, MANY)]
            until(lambda: lock.came == MANY)
        finally:
            client.may_answer.set()
        return [each.result() for each in answers]


def count_lock_uses(log: KinesisLog) -> CountedLock:
    """Replace the lock in the reader of the log's only shard with a counting one."""
    tails = log._reader._reader.tails
    [shard] = log._shard_trees.current.leaves()
    tail = tails._find_or_begin_tail(shard)
    tail._lock = lock = CountedLock()
    return lock


def test_many_who_ask_at_once_share_the_reads(faulty_kinesis):
    """However many callers ask for the tip while it is read, one read that begins afterwards serves all of them."""
    client = HeldClient(faulty_kinesis.client)
    log = a_log(faulty_kinesis, client)

    assert ask_at_once(log, client, count_lock_uses(log)) == [1] * MANY
    assert client.reads == 2


def test_a_read_serves_who_came_while_it_waited_for_its_turn(faulty_kinesis, clock):
    """A read that had to wait for its turn covers all events that were stored until then, and is not repeated for
    them."""
    log = a_log(faulty_kinesis)
    log._stream._pace = CallRate(1 / READS_PER_SECOND)
    log.bounds("t", [0])
    came = clock.now
    reads = faulty_kinesis.counting("GetRecords")

    log._reader.partition_state("t", 0, came + 0.01)
    log._reader.partition_state("t", 0, came + 0.1)

    assert reads() == 1


def test_who_waits_for_a_read_that_is_refused_is_refused_with_it(faulty_kinesis, clock):
    """While Kinesis refuses a shard's reads, many waiting callers cause no more calls than a single caller
    would, and are refused at once, with the time after which to retry. A caller that comes before that time is refused
    without a call."""
    client = HeldClient(faulty_kinesis.client, refuses=True)
    log = a_log(faulty_kinesis, client)

    refusals = ask_at_once(log, client, count_lock_uses(log))

    assert all(isinstance(each, Unavailable) for each in refusals)
    assert sum(isinstance(each, ShardBusy) for each in refusals) == MANY - 1
    assert client.reads < 15  # the calls of a reader that tries for ten seconds

    reads = client.reads
    client._refuses = False
    with pytest.raises(ShardBusy) as early:
        log.bounds("t", [0])
    assert client.reads == reads
    clock.now += early.value.retry_after_seconds
    assert log.bounds("t", [0])[0].next_offset == 1


def begin_reading(stream: Stream, shard: str) -> ShardBusy | None:
    try:
        stream.read_page(shard, stream.request_iterator_from_start(shard))
    except ShardBusy as refusal:
        return refusal
    return None


def test_a_shard_lets_begin_only_so_many(faulty_kinesis, clock):
    """Only callers that get a turn soon begin to read a shard; the others are refused without a call, with the time
    after which to retry. After as many retries as the shard's rate of calls requires, all of them have begun."""
    stream = Stream(faulty_kinesis.client, faulty_kinesis.name, READS_PER_SECOND)
    [shard] = [each.id for each in stream.list_shards()]
    clock.sleep_for_nothing = True  # all of them come at the same moment
    iterators, reads = faulty_kinesis.counting("GetShardIterator"), faulty_kinesis.counting("GetRecords")
    waiting, rounds = MANY, 0

    while waiting:
        refusals = [each for each in (begin_reading(stream, shard) for _ in range(waiting)) if each is not None]
        began = waiting - len(refusals)
        assert 0 < began <= MAX_WAIT_TO_BEGIN_READING_SECONDS * READS_PER_SECOND + 1
        waiting, rounds = len(refusals), rounds + 1
        clock.now += max((each.retry_after_seconds for each in refusals), default=0)

    assert rounds == 2
    assert iterators() == reads() == MANY


def test_who_has_begun_may_wait_longer_than_who_begins(faulty_kinesis, clock):
    """A reader that has begun and needs a second page is not refused in favour of readers that begin."""
    stream = Stream(faulty_kinesis.client, faulty_kinesis.name, READS_PER_SECOND)
    [shard] = [each.id for each in stream.list_shards()]
    iterator = stream.request_iterator_from_start(shard)
    clock.sleep_for_nothing = True
    for _ in range(math.ceil(MAX_WAIT_TO_BEGIN_READING_SECONDS * READS_PER_SECOND) + 1):
        stream.read_page(shard, iterator)

    assert begin_reading(stream, shard) is not None
    stream.read_page(shard, iterator)


def test_iterators_that_are_refused_are_asked_for_less_often(faulty_kinesis, clock):
    """A refusal delays the next calls for iterators of this shard, as it does for reads."""
    refusing = FirstIteratorRefused(faulty_kinesis.client)
    stream = Stream(refusing, faulty_kinesis.name, READS_PER_SECOND)
    [shard] = [each.id for each in stream.list_shards()]
    with pytest.raises(Unavailable):
        stream.request_iterator_from_start(shard)
    before = clock.now
    stream.request_iterator_from_start(shard)
    stream.request_iterator_from_start(shard)

    assert clock.now - before > 1.5 / READS_PER_SECOND


class FirstIteratorRefused:
    """A client that refuses the first iterator."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._next: Callable[..., Any] = self._refuse_iterator

    def get_shard_iterator(self, **asked: Any) -> Any:
        ask, self._next = self._next, self._client.get_shard_iterator
        return ask(**asked)

    def _refuse_iterator(self, **_: Any) -> Any:
        raise throttle("GetShardIterator")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_a_refusal_tells_clients_when_to_come_back():
    """The answer to a request that a busy shard does not accept is 503, with the time after which to retry. (L76)"""
    answers = [problem_of_error(ShardBusy("shard", 6.2))]
    with pytest.raises(Unavailable) as refused, event_log_errors_as_unavailable():
        raise ShardBusy("shard", MAX_WAIT_TO_READ_ON_SECONDS)
    answers.append(problem_of_error(refused.value))

    assert [(each.status, each.headers["retry-after"]) for each in answers] == [(503, "7"), (503, "10")]


class Reader:
    """Records the time up to which it is asked to read."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []

    def read_to_tip(self, _shard: str, as_of: float, _patience: object) -> bool:
        self.asked.append((as_of, time.monotonic()))
        return False


def test_a_watch_does_not_read_again_what_was_read_just_now(faulty_kinesis):
    """A shard that was read within half an interval is not read again for callers that only wait for events."""
    reader = Reader()
    watch = ShardWatch(reader, ShardTreeCache(faulty_kinesis.a_stream()), 2.0)
    until(lambda: reader.asked)
    watch.stop()
    watch.join_threads()

    [(as_of, now), *_] = reader.asked
    assert 1.0 <= now - as_of < 2.0
