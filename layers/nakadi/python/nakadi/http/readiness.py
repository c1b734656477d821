"""Readiness: whether the registry answers, checked by one thread at a time, however many requests there are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from nakadi.model.outcomes import TryLater
from nakadi.ports.clock import Clock

log = logging.getLogger(__name__)

FRESH_SECONDS = 1.0
PATIENCE_SECONDS = 2.0


class Readiness:
    """`probe` asks for something and raises if there is no answer. It may also take for ever.

    What it found is good for a moment. While it runs no other is begun, so that a registry that does not answer holds
    one thread and not one for each time that a load balancer asks.
    """

    def __init__(
        self,
        probe: Callable[[], object],
        clock: Clock,
        *,
        fresh: float = FRESH_SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._fresh = fresh
        self._patience = patience
        self._lock = threading.Lock()
        self._asking: _Asking | None = None

    def check(self) -> None:
        """Return if the registry answers; raise `TryLater` if it does not, or not in time."""
        with self._lock:
            now = self._clock.monotonic()
            asking = self._asking
            if asking is None or now >= asking.good_until:
                asking = self._asking = _Asking(now)
                threading.Thread(target=self._ask, args=(asking,), name="nakadi-readiness", daemon=True).start()
        if not asking.answered.wait(max(0.0, asking.began + self._patience - now)):
            raise TryLater("The registry does not answer")
        if asking.failed:
            raise TryLater("The registry cannot be reached")

    def _ask(self, asking: _Asking) -> None:
        try:
            self._probe()
        except Exception:
            log.warning("The registry cannot be reached", exc_info=True)
            asking.failed = True
        asking.good_until = self._clock.monotonic() + self._fresh
        asking.answered.set()


class _Asking:
    """A question that may still be open; until it is answered it stays the only one."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.good_until = float("inf")
        self.failed = False
        self.answered = threading.Event()
