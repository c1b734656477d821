"""How a program ends: what SIGTERM and Ctrl-C do, and after which time the process ends even if it is busy."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

EXIT_CODE_STOPPED = 0
EXIT_CODE_INTERRUPTED = 130


class SignalHandler:
    """Ends the process at once while it starts, and in an orderly way while it serves.

    While it starts, the process has answered nothing yet, and a kill at any moment loses no stored data. So the process
    ends at once. Raising an exception instead could interrupt any line, even in the middle of an import or a clean-up,
    and threads that have begun to work would delay the end.

    While it serves, the first signal asks for an orderly end. Another SIGTERM changes nothing, but a second Ctrl-C does
    not wait.
    """

    def __init__(self, before_a_sudden_end: Callable[[], None] = lambda: None) -> None:
        self._before_a_sudden_end = before_a_sudden_end
        self._stop: Callable[[], object] | None = None
        self._stopping = False

    def install(self) -> None:
        """Handle SIGTERM and Ctrl-C from now on. Call this before the imports that take long, and before anything is
        opened.

        This handler stays for the life of the process. An event loop's handlers would end with the loop, and the
        process would have no handler until others were installed.
        """
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._handle_signal)

    @contextmanager
    def stopping_on_signal(self, stop: Callable[[], object]) -> Iterator[None]:
        """Within the block, the first signal calls `stop` in the main thread, between any two of its steps."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def _handle_signal(self, number: int, _: FrameType | None) -> None:
        interrupted = number == signal.SIGINT
        if self._stopping:
            if interrupted:
                self._exit_at_once(EXIT_CODE_INTERRUPTED)
        elif self._stop is None:
            self._exit_at_once(EXIT_CODE_INTERRUPTED if interrupted else EXIT_CODE_STOPPED)
        else:
            self._stopping = True
            self._stop()

    def _exit_at_once(self, code: int) -> None:
        self._before_a_sudden_end()
        os._exit(code)


async def serve_until_signalled(
    serve: Callable[[asyncio.Event], Coroutine[None, None, None]],
    signals: SignalHandler,
    deadline: ShutdownDeadline,
    greet: Callable[[], object],
) -> None:
    """Print the greeting and serve. The first signal sets the event that ends serving, and starts the countdown."""
    from asyncio import Event, get_running_loop  # imported late, so that signals are handled before long imports

    stopping = Event()
    loop = get_running_loop()

    def stop() -> None:
        deadline.begin_countdown()
        loop.call_soon_threadsafe(stopping.set)

    with signals.stopping_on_signal(stop):
        # The socket is listening already. From here on, signals end the process in an orderly way, and a reader of the
        # greeting may send them.
        greet()
        await serve(stopping)


# How long to wait until the last messages are written to the log, which may be a pipe that nobody reads.
LAST_LOG_TIMEOUT_SECONDS = 1.0
# How long to wait for threads that are still busy when everything is closed. No client waits for them any more.
BUSY_THREADS_TIMEOUT_SECONDS = 1.0

EXIT_CODE_TIMED_OUT = 1
"""The exit code of a process that did not end by itself in time."""

MAX_LOGGED_THREADS = 20
_PACKAGE = Path(__file__).parents[1]


class ShutdownDeadline:
    """Within the block, the process ends at most this number of seconds after `begin_countdown`.

    A thread that waits for a store, a lock or another process cannot be ended, and the interpreter would wait for it.
    Ending without this thread loses nothing: every acknowledged event is stored, and the process sends no further
    answers.
    """

    def __init__(
        self, seconds: float, *, code: int = EXIT_CODE_TIMED_OUT, end: Callable[[int], object] = os._exit
    ) -> None:
        self._seconds = seconds
        self._code = code
        self._end = end
        self._begun = threading.Event()
        self._over = threading.Event()
        # The thread runs from the beginning, because a signal handler cannot start a thread safely.
        self._thread = threading.Thread(target=self._exit_when_due, name="nakadi-grace", daemon=True)

    def start_watching(self) -> Self:
        self._thread.start()
        return self

    def __enter__(self) -> Self:
        return self.start_watching()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._begun.set()
        self._thread.join()

    def begin_countdown(self) -> None:
        """Start the countdown. May be called in a signal handler."""
        self._begun.set()

    def _exit_when_due(self) -> None:
        self._begun.wait()
        if not self._over.wait(self._seconds):
            try:
                _log_with_timeout(f"The process is cut off after {self._seconds:g} seconds. {describe_busy_threads()}")
            finally:
                self._end(self._code)


def exit_process(code: int) -> NoReturn:
    """End a process that has closed everything, even if threads still wait for something."""
    # `sys.exit` waits for all threads except daemons such as the thread of this deadline.
    ShutdownDeadline(BUSY_THREADS_TIMEOUT_SECONDS, code=code).start_watching().begin_countdown()
    sys.exit(code)


def describe_busy_threads() -> str:
    """The threads that are busy at the moment, and their places in this package."""
    frames = sys._current_frames()  # noqa: SLF001  # it is documented, for debuggers
    places = [
        f"{each.name.rstrip('0123456789').rstrip('_-')} in {_innermost_line(frames[each.ident])}"
        for each in threading.enumerate()
        if each.ident in frames and not each.daemon and not _is_idle(frames[each.ident])
    ]
    busy = [f"{count} x {place}" for place, count in Counter(places).most_common(MAX_LOGGED_THREADS)]
    return f"Still at work: {'; '.join(busy)}" if busy else "No thread is at work"


def _is_idle(frame: FrameType) -> bool:
    """Whether this frame belongs to a thread of a pool that waits for work."""
    return Path(frame.f_code.co_filename).parts[-3:] == ("concurrent", "futures", "thread.py")


def _innermost_line(frame: FrameType) -> str:
    """The innermost line of this package on a thread's stack; without one, the innermost line of the stack.

    As in other tools, functions with a local variable `__tracebackhide__` are skipped.
    """
    inside: FrameType | None = frame
    while inside is not None and not _is_worth_showing(inside):
        inside = inside.f_back
    found = inside or frame
    return f"{found.f_code.co_qualname} ({Path(found.f_code.co_filename).name}:{found.f_lineno})"


def _is_worth_showing(frame: FrameType) -> bool:
    code = frame.f_code
    return Path(code.co_filename).is_relative_to(_PACKAGE) and "__tracebackhide__" not in code.co_varnames


def _log_with_timeout(message: str) -> None:
    saying = threading.Thread(target=log.warning, args=(message,), name="nakadi-last-words", daemon=True)
    saying.start()
    saying.join(LAST_LOG_TIMEOUT_SECONDS)
