"""Chores: maintenance that runs on a schedule, for one thing after the other.

One thing that fails does not keep the others from their turn. There is no answer that could tell, so each failure is
logged with what was to be done, for which thing, and why it was not; and counted.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping

from nakadi.model.outcomes import Fault

log = logging.getLogger(__name__)

_lock = threading.Lock()
_failed: Counter[str] = Counter()


class Stopped(BaseException):
    """Raised in the midst of a chore when the process is about to end: it ends the whole, and is no failure of the part
    that it was at."""


def attempted(operation: str, thing: str, work: Callable[[], object]) -> bool:
    """Do a part of a chore, whatever comes of it; whether it succeeded. `operation` is one of few, and goes before "of"
    and the thing. What is no `Exception` is raised: it ends the whole."""
    try:
        work()
    except Exception as error:
        with _lock:
            _failed[operation] += 1
        # A service that did not answer needs one line; an unexpected error needs its traceback.
        trace = None if isinstance(error, Fault) else error
        log.warning("The %s of %s failed, it is tried again later: %r", operation, thing, error, exc_info=trace)
        return False
    return True


def failures() -> Mapping[str, int]:
    """How many parts of chores have failed in this process, by operation."""
    with _lock:
        return dict(_failed)
