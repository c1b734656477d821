"""Chores: maintenance that runs on a schedule, for one object after the other.

If a chore fails for one object, it continues with the others. No caller waits for a result, so a chore logs each
failure with the operation, the object and the cause, and counts it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping

from nakadi.model.outcomes import Fault

log = logging.getLogger(__name__)


_failures_lock = threading.Lock()
_failures_by_operation: Counter[str] = Counter()


class ChoreStopped(BaseException):
    """Raised in a chore when the process is about to end. It ends the whole chore, and does not count as a failure."""


def run_and_log_failure(operation: str, thing: str, work: Callable[[], object]) -> bool:
    """Call `work`, which is one part of a chore, and return whether it succeeded. The log says "The {operation} of
    {thing} failed".

    `operation` is also the label under which failures are counted, so there must be few of them. Anything that is not
    an `Exception`, such as `ChoreStopped`, passes through and ends the whole chore.
    """
    try:
        work()
    except Exception as error:
        with _failures_lock:
            _failures_by_operation[operation] += 1
        # A service that did not answer needs one line; an unexpected error needs its traceback.
        trace = None if isinstance(error, Fault) else error
        log.warning("The %s of %s failed, trying again later: %r", operation, thing, error, exc_info=trace)
        return False
    return True


def failed_chore_counts() -> Mapping[str, int]:
    """The number of parts that have failed in this process, by operation."""
    with _failures_lock:
        return dict(_failures_by_operation)
