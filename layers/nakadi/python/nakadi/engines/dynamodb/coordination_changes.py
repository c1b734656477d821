"""Notices changes by other processes in the coordination table.

Each change is reported in an item whose key is the time, and processes with watchers query the items after the last one
that they know: one small query, however many subscriptions there are, and none without watchers.

If a subscription changes again within the same interval, that change need not be reported, because a process that sees
a report looks once more, a little later. So many commits cost no more than few.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from uuid import uuid4

from nakadi.engines.common.callbacks import ChangePoller
from nakadi.engines.dynamodb.client import CALL_ERRORS, CallRetryPolicy
from nakadi.engines.dynamodb.coordination_table import CHANGE_RETENTION_SECONDS, CHANGES_KEY, CoordinationItem
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import SubscriptionChange

_log = logging.getLogger(__name__)


CHANGE_POLL_INTERVAL_SECONDS = 0.4
"""The time between two queries for changes."""

REPORT_INTERVAL_SECONDS = 0.4
"""The length of the intervals in which several changes of a subscription are reported once."""

RECHECK_DELAY_SECONDS = REPORT_INTERVAL_SECONDS + 0.1
"""How long after a report to look again: by then, all other changes of the same interval have been written."""

MAX_REPORT_LATENESS_SECONDS = 2.0
"""How much later than changes with a later time a change may appear: clocks differ, and writes take time."""

TIME_DIGITS = 16

ChangeCallback = Callable[[str, SubscriptionChange], None]


def in_same_report_interval(first: int, second: int) -> bool:
    """Whether two changes, at these times in microseconds, are in one interval, and so share a report."""
    length = int(REPORT_INTERVAL_SECONDS * 1_000_000)
    return first // length == second // length


class TableChangeReader:
    """Reads changes by other processes; only one thread at a time may use it."""

    def __init__(self, items: type[CoordinationItem], own_name: str, now: Callable[[], float] = time.time) -> None:
        self._items = items
        self._own_name = own_name
        self._now = now
        self._start_key = ""
        self._seen_keys: frozenset[str] = frozenset()
        self._rechecks: deque[tuple[float, str]] = deque()

    def skip_to_now(self) -> None:
        """Skip all earlier changes."""
        self._start_key, self._seen_keys = _time_key(self._now() - MAX_REPORT_LATENESS_SECONDS), frozenset()

    def read_changes(self, now: float) -> Sequence[tuple[str, SubscriptionChange]]:
        """Changes by other processes since the last query. `now` is on a monotonic clock."""
        found = list(self._items.query(CHANGES_KEY, range_key_condition=CoordinationItem.sort_key > self._start_key))
        new = [each for each in found if each.sort_key not in self._seen_keys]
        self._rechecks.extend((now + RECHECK_DELAY_SECONDS, each.subscription) for each in new)
        if found:
            self._advance_start_key(found[-1].sort_key)
            self._seen_keys = frozenset(each.sort_key for each in found if each.sort_key > self._start_key)
        return [(each.subscription, SubscriptionChange(each.change)) for each in new if each.reporter != self._own_name]

    def _advance_start_key(self, newest: str) -> None:
        """Begin the next query a little before the newest change, because some changes appear late, and never later
        than this process's own time, so that a report from a clock that is ahead does not hide the changes of others.
        """
        seconds = min(int(newest[:TIME_DIGITS]) / 1_000_000, self._now())
        self._start_key = max(self._start_key, _time_key(seconds - MAX_REPORT_LATENESS_SECONDS))

    def pop_due_rechecks(self, now: float) -> Sequence[str]:
        """The subscriptions that may have changed again in the same interval as a reported change, and are due to be
        looked at again.
        """
        again: dict[str, None] = {}
        while self._rechecks and self._rechecks[0][0] <= now:
            again[self._rechecks.popleft()[1]] = None
        return list(again)

    @property
    def next_recheck_time(self) -> float:
        return self._rechecks[0][0] if self._rechecks else inf


class TableChangePoller(ChangePoller):
    """Polls the table only while this process has watchers."""

    def __init__(self, items: type[CoordinationItem], attempts: CallRetryPolicy, on_change: ChangeCallback) -> None:
        super().__init__("The coordination", thread_name="coordination-news")
        self._items = items
        self._attempts = attempts
        self._on_change = on_change
        self._own_name = uuid4().hex[:8]
        self._change_reader = TableChangeReader(items, self._own_name)
        self._is_failing = False

    def report_change(self, subscription: str, change: SubscriptionChange) -> None:
        """Write an item that reports a change to other processes.

        If that fails, they notice the change when they next read everything without a report.
        """
        now = time.time()
        item = self._items(
            CHANGES_KEY,
            f"{_time_key(now)}#{uuid4().hex[:8]}",
            subscription=subscription,
            change=change.value,
            reporter=self._own_name,
            expires=int(now) + CHANGE_RETENTION_SECONDS,
        )
        try:
            self._attempts.call_with_retries(lambda _: item.save())
        except Unavailable:
            _log.warning("Reporting a change of subscription %s to other processes failed", subscription, exc_info=True)

    def _skip_past_changes(self) -> None:
        # This makes no call. A thread that pauses skips past changes by itself when it continues, because only one
        # thread at a time may use the reader.
        if self._thread is None:
            self._change_reader.skip_to_now()

    def _poll(self) -> None:
        next_look = time.monotonic() + CHANGE_POLL_INTERVAL_SECONDS
        while not self._closed.wait(max(0.0, min(next_look, self._change_reader.next_recheck_time) - time.monotonic())):
            if not self._wanted.is_set():
                self._wanted.wait()
                self._change_reader.skip_to_now()
            if time.monotonic() >= next_look and not self._closed.is_set():
                self._report_new_changes()
                next_look = time.monotonic() + CHANGE_POLL_INTERVAL_SECONDS
            for subscription in self._change_reader.pop_due_rechecks(time.monotonic()):
                self._on_change(subscription, SubscriptionChange.OFFSETS)

    def _report_new_changes(self) -> None:
        try:
            found = self._change_reader.read_changes(time.monotonic())
        except CALL_ERRORS:
            # The next query comes soon, and finds the missed changes. Only the first of several failures in a row is
            # logged.
            if not self._is_failing:
                _log.warning(
                    "Looking for changes of other processes failed, trying again in %s s",
                    CHANGE_POLL_INTERVAL_SECONDS,
                    exc_info=True,
                )
            self._is_failing = True
            return
        except Exception:  # noqa: BLE001  # waiting streams would wait forever
            _log.exception(
                "Looking for changes of other processes failed, trying again in %s s", CHANGE_POLL_INTERVAL_SECONDS
            )
            return
        self._is_failing = False
        for subscription, changed in found:
            self._on_change(subscription, changed)


def _time_key(seconds: float) -> str:
    return f"{int(seconds * 1_000_000):0{TIME_DIGITS}d}"
