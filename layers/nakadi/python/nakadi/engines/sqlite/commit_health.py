"""Reports the state of an event log's commits to operators: that commits are slow, and that they succeed again."""

from __future__ import annotations

import logging
from collections import deque

from nakadi.common.counting import MetricRows
from nakadi.common.metrics import Metrics
from nakadi.ports.clock import Clock

log = logging.getLogger(__name__)

SLOW_COMMIT_SECONDS = 1.0
SLOW_COMMIT_LOG_INTERVAL_SECONDS = 60.0
"""A commit that takes longer than the first of these times is logged, unless another slow commit was logged within the
second.
"""

RECENT_COMMITS, RECENT_SECONDS = 100, 60.0


class CommitHealth:
    """The durations and failures of commits. Only the thread that commits uses this object, except for `_recent_mean`,
    which other threads call.
    """

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._slow_commit_logged_at: float | None = None
        self._failing_since: float | None = None
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_COMMITS)
        metrics.log_commit_recent_seconds.add_source(self._recent_mean)

    def note_success(self, began: float) -> None:
        ended = self._note_duration(began)
        if self._failing_since is not None:
            log.info("Storing events works again, after %.0f s", ended - self._failing_since)
            self._metrics.log_commits_recovered_at.set(self._clock.now().timestamp())
            self._failing_since = None

    def note_failure(self, began: float) -> None:
        ended = self._note_duration(began)
        self._metrics.log_commit_failures.add()
        if self._failing_since is None:
            self._failing_since = ended

    def _note_duration(self, began: float) -> float:
        """Count how long a commit took, and return when it ended. If it was slow, log where operators should look,
        because no caller gets an error.
        """
        ended = self._clock.monotonic()
        self._metrics.log_commit_seconds.observe(ended - began)
        self._recent.append((ended, ended - began))
        logged_at = self._slow_commit_logged_at
        if ended - began > SLOW_COMMIT_SECONDS and (
            logged_at is None or ended - logged_at >= SLOW_COMMIT_LOG_INTERVAL_SECONDS
        ):
            self._slow_commit_logged_at = ended
            log.warning(
                "A commit to the event log took %.1f s: another program may hold the data file, or its disk is busy;"
                " see NakadiRegistryIsSlow in docs/operations.md",
                ended - began,
            )
        return ended

    def _recent_mean(self) -> MetricRows:
        # The copy is one step for Python's threads, so the committing thread adds nothing meanwhile.
        since = self._clock.monotonic() - RECENT_SECONDS
        durations = [seconds for ended, seconds in tuple(self._recent) if ended >= since]
        return {(): sum(durations) / len(durations) if durations else 0}
