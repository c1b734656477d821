"""Points in time as event types carry them."""

from datetime import datetime

from nakadi.ports.clock import Clock


def now_in_milliseconds(clock: Clock) -> datetime:
    """Now, as precisely as it is shown: what is stored and what clients read are the same instant."""
    now = clock.now()
    return now.replace(microsecond=now.microsecond // 1000 * 1000)
