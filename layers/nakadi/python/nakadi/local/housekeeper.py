"""A thread that does the housekeeping once a minute."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

CLOSING_SECONDS = 30.0


class Housekeeper:
    def __init__(
        self, chores: Callable[[], object], *, stop: Callable[[], None] = lambda: None, every_seconds: float = 60.0
    ) -> None:
        """`stop` has chores that are under way come to their end soon."""
        self._chores = chores
        self._stop = stop
        self._every_seconds = every_seconds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="nakadi-housekeeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish what is being done, and do no more. A chore that waits for something for too long is left behind."""
        self._closing.set()
        self._stop()
        self._thread.join(CLOSING_SECONDS)
        if self._thread.is_alive():
            log.warning("The housekeeping is left behind, for it does not end")

    def _work(self) -> None:
        while not self._closing.wait(self._every_seconds):
            try:
                self._chores()
            except Exception:  # the next minute may be a better one, and nobody else would tell
                log.exception("The housekeeping failed")
