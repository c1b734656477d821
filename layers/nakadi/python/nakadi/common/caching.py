"""Caches of documents, which hold a value for as long as its document is unchanged."""

from __future__ import annotations

import mmap
import struct
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from itertools import islice
from typing import Generic, TypeVar

from msgspec import Struct

from nakadi.common.work import check_may_block, is_blocking_forbidden
from nakadi.ports.clock import Clock
from nakadi.ports.registry import CACHED_KINDS, ChangeCounters, DocumentChange, Registry, change_bucket

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

# Names come from requests: a client that asks for many of them must not fill the memory.
MAX_CACHE_ENTRIES = 10_000

# The longest time that a value is used, even if the number of changes is the same: a process of an older version, or an
# operator with a console, may have changed a document without counting the change.
MAX_CACHE_ENTRY_AGE_SECONDS = 3600.0

# The factor by which a wait is longer, because one clock may run a little faster than another.
CLOCK_DRIFT_FACTOR = 1.05

CHANGE_COUNT_FORMAT = struct.Struct("<Q")


def wait_until_caches_expire(clock: Clock, cache_seconds: float) -> None:
    """Return when no process uses a cached document as it was before this call.

    A process uses numbers of changes for less than `cache_seconds` after it began to request them. A lookup after this
    call therefore uses numbers that were read after this call began.
    """
    clock.sleep(CLOCK_DRIFT_FACTOR * cache_seconds)


class ChangeCountersSnapshot(Struct, frozen=True):
    """The numbers of changes, and when the request for them began: by the clock of the caches, and by the machine's two
    clocks. One of the machine's clocks may be set back; the other stops while the machine is suspended.
    `began_at_time_of_day` is the same moment as `began_at`. `broker_change_counts` are the counts of this broker's
    processes at that time.
    """

    changes: ChangeCounters
    began_at: float
    began_at_time_of_day: float
    machine_uptime: float
    wall_clock_time: float
    broker_change_counts: bytes = b""


class ChangeWatch:
    """Requests the numbers of changes, once for all caches of a process.

    The result of `read_own_counts` differs after every change by a process of this broker; the default is for brokers
    of one process, which know their own changes without a number.
    """

    def __init__(
        self,
        read_change_counters: Callable[[], ChangeCounters],
        clock: Clock,
        read_own_counts: Callable[[], bytes] = bytes,
    ) -> None:
        self._read_change_counters = read_change_counters
        self._clock = clock
        self._read_own_counts = read_own_counts
        self._lock = threading.Lock()
        self._asking: tuple[float, bytes, Future[ChangeCountersSnapshot]] | None = None
        self.valid_snapshot: ChangeCountersSnapshot | None = None
        # Set while some thread should read the numbers again, although the latest snapshot is still valid.
        self.is_early_reading_wanted = False

    def claim_early_reading(self) -> bool:
        """Whether the caller should read the numbers early: only the first caller should, until there is a new
        snapshot.
        """
        with self._lock:
            first, self.is_early_reading_wanted = not self.is_early_reading_wanted, True
        return first

    def read_counters(self, max_age_seconds: float) -> ChangeCountersSnapshot:
        """A snapshot whose reading began less than `max_age_seconds` ago. Threads that need a new one share it."""
        now, time_of_day = self._clock.monotonic(), self._clock.now().timestamp()
        counted = self._read_own_counts()
        # `self.valid_snapshot` is read once, so that the following lines use one snapshot, even if another thread
        # replaces it.
        latest = self.valid_snapshot
        if latest is not None and now - latest.began_at < max_age_seconds:
            return latest
        answer: Future[ChangeCountersSnapshot] = Future()
        with self._lock:
            # This thread can use the result of a read in progress if that read began recently, and after every change
            # that this thread may rely on.
            asking = self._asking
            if asking is None or now - asking[0] >= max_age_seconds or asking[1] != counted:
                self._asking = mine = (now, counted, answer)
            else:
                mine = None
        if mine is None:
            assert asking is not None
            return asking[2].result()
        try:
            look = ChangeCountersSnapshot(
                began_at=now,
                began_at_time_of_day=time_of_day,
                machine_uptime=time.monotonic(),
                wall_clock_time=time.time(),
                changes=self._read_change_counters(),
                broker_change_counts=counted,
            )
        except BaseException as error:
            self._finish_reading(mine, None)
            answer.set_exception(error)
            raise
        self._finish_reading(mine, look)
        answer.set_result(look)
        return look

    def forget_snapshot_from_before_pause(self, max_age_seconds: float) -> None:
        """Forget a snapshot that is older by the time of day than by the steady clock.

        Call this at the start of each invocation of a function: between two invocations, the process may have been
        suspended for hours, and the steady clock with it. If the time of day was set back, the age of a snapshot is
        unknown.
        """
        look = self.valid_snapshot
        if look is not None and not 0 <= self._clock.now().timestamp() - look.began_at_time_of_day < max_age_seconds:
            with self._lock:
                # No other thread reads at this time, because an invocation begins after the previous one has ended.
                self.valid_snapshot = None

    def _finish_reading(
        self, own_reading: tuple[float, bytes, Future[ChangeCountersSnapshot]], snapshot: ChangeCountersSnapshot | None
    ) -> None:
        with self._lock:
            if self._asking is own_reading:
                self._asking = None
            self.is_early_reading_wanted = False
            # A snapshot whose reading began earlier may arrive later; then the newer one stays.
            if snapshot is not None and (
                self.valid_snapshot is None or self.valid_snapshot.began_at <= snapshot.began_at
            ):
                self.valid_snapshot = snapshot


class ChangeWatchOfSeveralProcesses(ChangeWatch):
    """A watch for one of several processes: a snapshot is valid only until another process has changed something."""

    _latest_snapshot: ChangeCountersSnapshot | None = None

    @property
    def valid_snapshot(self) -> ChangeCountersSnapshot | None:
        look = self._latest_snapshot
        return look if look is None or look.broker_change_counts == self._read_own_counts() else None

    @valid_snapshot.setter
    def valid_snapshot(self, snapshot: ChangeCountersSnapshot | None) -> None:
        self._latest_snapshot = snapshot


class ChangeCounter:
    """Counts the changes of several processes, in memory that they share.

    Each process has its own number there, so no two processes write to the same number. After every change, the numbers
    as a whole differ.
    """

    def __init__(self, file: int, own_number: int) -> None:
        self._memory = mmap.mmap(file, 0)
        self._own = own_number * CHANGE_COUNT_FORMAT.size
        self._lock = threading.Lock()

    def count_change(self) -> None:
        # The lock is for the threads of this process. Other processes write to other places in the memory, and only
        # read this one.
        with self._lock:
            (number,) = CHANGE_COUNT_FORMAT.unpack_from(self._memory, self._own)
            CHANGE_COUNT_FORMAT.pack_into(self._memory, self._own, number + 1)

    def counts_of_all_processes(self) -> bytes:
        # A copy that is made while another process counts may have the number before or after. Both are right, because
        # a change is acknowledged only after it was counted.
        return self._memory[:]


class ChangeCountingRegistry:
    """A registry that counts changes after they are stored and before the call returns."""

    def __init__(self, registry: Registry, counter: ChangeCounter) -> None:
        self.get, self.list = registry.get, registry.list
        self.change_counters, self.close = registry.change_counters, registry.close
        self._write = registry.write
        self._counter = counter

    def write(self, *changes: DocumentChange) -> None:
        try:
            self._write(*changes)
        # A change is counted even after a failure, because it may be stored nevertheless.
        finally:
            self._counter.count_change()


class _CachedValue(Struct, Generic[Value], frozen=True):
    """A cached value. `bucket_change_count` is the number of changes in the bucket of its key before the value was
    read.
    """

    value: Value
    bucket: int
    bucket_change_count: int | None
    expires_at: float


class Cache(Generic[Key, Value]):
    """Values of documents of one kind, at most `seconds` old.

    With a watch, a value is read again only when its document may have changed, regardless of its age. The number
    stored with a value was read before the value, so while the number is the same, the document is too. Without a
    watch, a value is read again when it is older than `seconds`.
    """

    def __init__(self, clock: Clock, seconds: float, watch: ChangeWatch | None = None, kind: str = "") -> None:
        assert watch is None or kind in CACHED_KINDS
        self._clock = clock
        self._seconds = seconds
        self._watch = watch
        self._kind = kind
        self._lock = threading.Lock()
        self._entries: dict[Key, _CachedValue[Value]] = {}
        self._forgotten = 0
        # Counted without the lock, which readers do not take: two simultaneous threads may count as one.
        self.hits = 0
        self.misses = 0

    def get(self, key: Key, read_value: Callable[[Key], Value]) -> Value:
        """The value of a key; calls `read_value` with the key if no cached value is fresh enough."""
        # No lock is needed: a lookup in a dictionary is one step, and entries are never changed, only replaced.
        entry = self._entries.get(key)
        now = self._clock.monotonic()
        look = None
        if self._watch is not None:
            # Every request comes here several times, so the usual case is decided without another call.
            watch, look = self._watch, self._watch.valid_snapshot
            age = self._seconds if look is None else now - look.began_at
            # Quick work never reads the numbers itself. One caller is moved to a thread to read them early; otherwise
            # all callers would need a thread at the same moment.
            if age >= self._seconds / 2 and (
                age >= self._seconds
                or (watch.claim_early_reading() if is_blocking_forbidden.get() else watch.is_early_reading_wanted)
            ):
                check_may_block()
                look = watch.read_counters(self._seconds / 2 if watch.is_early_reading_wanted else self._seconds)
                now = self._clock.monotonic()
        if (
            entry is not None
            and now < entry.expires_at
            and (look is None or look.changes.count_by_bucket.get(entry.bucket, 0) == entry.bucket_change_count)
        ):
            self.hits += 1
            return entry.value
        check_may_block()
        self.misses += 1
        forgotten = self._forgotten
        value = read_value(key)
        with self._lock:
            # If another thread has changed the document since `read_value` began, the value is already outdated.
            if forgotten == self._forgotten:
                self._store(key, value, now, look)
        return value

    def _store(self, key: Key, value: Value, now: float, snapshot: ChangeCountersSnapshot | None) -> None:
        self._drop_expired_entries(key, now)
        if len(self._entries) >= MAX_CACHE_ENTRIES:
            self._entries.clear()
        if snapshot is None:
            self._entries[key] = _CachedValue(value, 0, None, self._clock.monotonic() + self._seconds)
        else:
            bucket = change_bucket(self._kind, str(key))
            self._entries[key] = _CachedValue(
                value, bucket, snapshot.changes.count_of_bucket(bucket), now + MAX_CACHE_ENTRY_AGE_SECONDS
            )

    def _drop_expired_entries(self, replaced: Key, now: float) -> None:
        """Drop at most two expired entries for each new one, so that expired entries become fewer.

        Entries are in the order in which they expire: a replaced entry moves to the end.
        """
        self._entries.pop(replaced, None)
        for oldest in tuple(islice(self._entries, 2)):
            if self._entries[oldest].expires_at <= now:
                del self._entries[oldest]

    def invalidate(self, key: Key) -> None:
        with self._lock:
            # Counted in the same step: a thread that reads the document before this, and caches it afterwards, sees by
            # the number that its value may be outdated.
            self._forgotten += 1
            self._entries.pop(key, None)
