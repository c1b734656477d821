"""Counts the events that the streams of this process consume, for the objectives of their subscriptions.

Counting happens on the event loop, whenever a client commits, and costs a few additions. Threads add the counts to the
stored reports at intervals, and when the last stream of a subscription ends. A report without consumed events writes
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from nakadi.common.counting import MetricRows
from nakadi.common.metrics import Metrics
from nakadi.model.objective import ConsumedBatch, MinuteCounts, Objective, count_batches, merge_counts
from nakadi.model.outcomes import NotFound
from nakadi.model.subscription import Subscription
from nakadi.ports.clock import Clock
from nakadi.subscriptions.api.objectives import FreshnessReports
from nakadi.subscriptions.api.repository import Subscriptions

REPORT_INTERVAL_SECONDS = 15.0


class _FollowedSubscription(Struct):
    """A subscription with open streams in this process, its last known objective, and the counts to report."""

    objective: Objective | None
    streams: int = 0
    counts: list[MinuteCounts] = []


class FreshnessRecorder:
    def __init__(self, subscriptions: Subscriptions, reports: FreshnessReports, clock: Clock, metrics: Metrics) -> None:
        self._subscriptions = subscriptions
        self._reports = reports
        self._clock = clock
        self._metrics = metrics
        # The event loop counts while threads report, and neither may overwrite what the other has changed.
        self._lock = threading.Lock()
        self._followed: dict[str, _FollowedSubscription] = {}

    def follow(self, subscription: Subscription) -> Callable[[], None]:
        """Follow the objective of a subscription for one of its streams, which calls the returned function when it
        ends.
        """
        with self._lock:
            followed = self._followed.setdefault(subscription.id, _FollowedSubscription(subscription.objective))
            followed.streams += 1
        return partial(self._stop_following, followed)

    def _stop_following(self, followed: _FollowedSubscription) -> None:
        with self._lock:
            followed.streams -= 1

    def has_objective(self, subscription_id: str) -> bool:
        return self._followed[subscription_id].objective is not None

    def objective_ratios(self) -> MetricRows:
        with self._lock:
            objectives = {each: followed.objective for each, followed in self._followed.items()}
        return {(each,): objective.percent / 100 for each, objective in objectives.items() if objective is not None}

    def count(self, subscription_id: str, batches: Sequence[ConsumedBatch]) -> None:
        with self._lock:
            followed = self._followed[subscription_id]
            if followed.objective is None:
                return
            counts = count_batches(followed.objective, batches, self._clock.now())
            if followed.counts and followed.counts[-1].minute == counts.minute:
                followed.counts[-1] += counts
            else:
                followed.counts.append(counts)
        self._metrics.subscription_events_in_time.add(counts.in_time, subscription_id)
        self._metrics.subscription_events_late.add(counts.late, subscription_id)

    def report(self) -> None:
        """Report the counts, and reread the objectives. Raises `Unavailable`, without losing counts."""
        with self._lock:
            subscriptions = tuple(self._followed.items())
        for subscription_id, followed in subscriptions:
            self._report_subscription(subscription_id, followed)

    def report_subscription(self, subscription_id: str) -> None:
        """Report the counts of one subscription."""
        with self._lock:
            followed = self._followed.get(subscription_id)
        if followed is not None:
            self._report_subscription(subscription_id, followed)

    def has_unreported_end(self, subscription_id: str) -> bool:
        """Whether the last stream has ended, and some counts are not reported yet."""
        with self._lock:
            followed = self._followed.get(subscription_id)
            return followed is not None and not followed.streams and bool(followed.counts)

    @property
    def is_following(self) -> bool:
        return bool(self._followed)

    def _report_subscription(self, subscription_id: str, followed: _FollowedSubscription) -> None:
        with self._lock:
            objective, counts = followed.objective, followed.counts
            followed.counts = []
        try:
            if objective is not None and any(each.in_time or each.late for each in counts):
                self._reports.add(subscription_id, objective, counts)
            current = self._subscriptions.cached(subscription_id).objective
        except NotFound:
            current = None
        except BaseException:
            with self._lock:
                followed.counts = list(merge_counts(counts + followed.counts, self._clock.now()))
            raise
        with self._lock:
            followed.objective = current
            # Another thread may have reported at the same time, and a new stream may have begun since.
            is_current = self._followed.get(subscription_id) is followed
            if is_current and not followed.streams and not followed.counts:
                del self._followed[subscription_id]
