"""SIGTERM ends a process when its consumers and producers have finished.

If there are consumers, they stop: the current batch is finished and committed, the loop ends, and the program continues
after the loop. Otherwise the producers flush, and the signal then has its usual effect. A second SIGTERM ends the
process at once.

The application's own handler is never replaced: such a program calls `consumer.stop()` itself. Handlers can be set only
in the main thread; a program whose consumers and producers live in other threads calls `listen()` in the main thread.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType

Stop = Callable[[], object]

_lock = threading.Lock()
_stops: dict[int, tuple[Stop, bool]] = {}
_numbers = iter(range(2**62))
# A handler runs between any two steps of the main thread, which may hold any lock. Only `SimpleQueue.put` is safe
# there: it notifies a thread, which does the rest.
_signals: queue.SimpleQueue[int] = queue.SimpleQueue()
_watcher: threading.Thread | None = None


def register(stop: Stop, *, is_consumer: bool = False) -> Callable[[], None]:
    """Let SIGTERM call `stop`. Returns a function that removes this registration."""
    listen()
    with _lock:
        number = next(_numbers)
        _stops[number] = (stop, is_consumer)

    def withdraw() -> None:
        with _lock:
            _stops.pop(number, None)
            last = not _stops
        if last and _is_main() and signal.getsignal(signal.SIGTERM) is _on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    return withdraw


def listen() -> bool:
    """Handle SIGTERM, unless the application does. Returns whether this module handles it. Call this in the main
    thread.
    """
    if _is_main() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _start_watcher()
        signal.signal(signal.SIGTERM, _on_signal)
    return signal.getsignal(signal.SIGTERM) is _on_signal


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _on_signal(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    _signals.put(number)


def _start_watcher() -> None:
    global _watcher  # noqa: PLW0603  # a process has one
    # A fork inherits the variable, but not the thread.
    if _watcher is None or not _watcher.is_alive():
        _watcher = threading.Thread(target=_watch, name="nakadi-signals", daemon=True)
        _watcher.start()


def _watch() -> None:
    while True:
        number = _signals.get()
        with _lock:
            stops = list(_stops.values())
        consumers = [stop for stop, is_consumer in stops if is_consumer]
        for stop in consumers or [stop for stop, _ in stops]:
            stop()
        if not consumers:
            os.kill(os.getpid(), number)
