"""A thread that does the housekeeping once a minute."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Housekeeper:
    def __init__(self, chores: Callable[[], None], *, every_seconds: float = 60.0) -> None:
        self._chores = chores
        self._every_seconds = every_seconds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="nakadi-housekeeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish what is being done, and do no more."""
        self._closing.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closing.wait(self._every_seconds):
            try:
                self._chores()
            except Exception:  # the next minute may be a better one, and nobody else would tell
                log.exception("The housekeeping failed")
