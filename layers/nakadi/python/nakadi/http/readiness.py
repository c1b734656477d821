"""Readiness: whether the registry answers. One thread at a time checks this, however many requests ask for
readiness.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from nakadi.model.outcomes import TryLater
from nakadi.ports.clock import Clock

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)


READINESS_MAX_AGE_SECONDS = 1.0
READINESS_TIMEOUT_SECONDS = 2.0


class ReadinessCheck:
    """Checks whether the registry answers. `probe` sends a request to the registry and raises if there is no answer; it
    may also never return.

    The result of a probe is valid for a moment. While a probe runs, no other probe begins, so a registry that does not
    answer blocks one thread, not one for each request of a load balancer.
    """

    def __init__(
        self,
        probe: Callable[[], object],
        clock: Clock,
        *,
        max_age_seconds: float = READINESS_MAX_AGE_SECONDS,
        timeout_seconds: float = READINESS_TIMEOUT_SECONDS,
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._max_age_seconds = max_age_seconds
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._probe_run: _ReadinessProbeRun | None = None

    def check(self) -> None:
        """Return if the registry answers; raise `TryLater` if it does not, or not in time."""
        with self._lock:
            now = self._clock.monotonic()
            probe_run = self._probe_run
            if probe_run is None or now >= probe_run.good_until:
                probe_run = self._probe_run = _ReadinessProbeRun(now)
                threading.Thread(
                    target=self._run_probe, args=(probe_run,), name="nakadi-readiness", daemon=True
                ).start()
        if not probe_run.answered.wait(max(0.0, probe_run.began + self._timeout_seconds - now)):
            raise TryLater("The registry does not answer")
        if probe_run.failed:
            raise TryLater("The registry cannot be reached")

    def _run_probe(self, probe_run: _ReadinessProbeRun) -> None:
        try:
            self._probe()
        except Exception:
            log.warning("The registry cannot be reached", exc_info=True)
            probe_run.failed = True
        probe_run.good_until = self._clock.monotonic() + self._max_age_seconds
        probe_run.answered.set()


class _ReadinessProbeRun:
    """A run of the probe, which may be in progress."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.good_until = float("inf")
        self.failed = False
        self.answered = threading.Event()
