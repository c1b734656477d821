"""What SIGTERM and Ctrl-C do to a program, from its first line to its last."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPED = 0
INTERRUPTED = 130


class Signals:
    """Ends the process at once while it starts, and in good order while it serves.

    Nothing has been answered yet while it starts, and what is stored survives a kill at any moment. So the process
    ends there and then: an exception would be raised at any line, in the middle of an import or a clean-up as well,
    and threads that have begun to work would hold up the end.

    While it serves, the first signal asks for an end in good order. Asking again changes nothing, but a second Ctrl-C
    does not wait.
    """

    def __init__(self, before_a_sudden_end: Callable[[], None] = lambda: None) -> None:
        self._before_a_sudden_end = before_a_sudden_end
        self._stop: Callable[[], object] | None = None
        self._stopping = False

    def install(self) -> None:
        """Handle both signals from now on: before the imports that take long, and before anything is opened.

        One handler stays for the life of the process. The handlers of an event loop would go with it, and between
        theirs and others there would be moments without any.
        """
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._handle_signal)

    @contextmanager
    def serving(self, stop: Callable[[], object]) -> Iterator[None]:
        """Within the block the first signal calls `stop`, in the main thread and between any two of its steps."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def _handle_signal(self, number: int, _: FrameType | None) -> None:
        interrupted = number == signal.SIGINT
        if self._stopping:
            if interrupted:
                self._end_at_once(INTERRUPTED)
        elif self._stop is None:
            self._end_at_once(INTERRUPTED if interrupted else STOPPED)
        else:
            self._stopping = True
            self._stop()

    def _end_at_once(self, code: int) -> None:
        self._before_a_sudden_end()
        os._exit(code)
