"""Whether a worker still answers: decisions without side effects, which the supervisor carries out.

A worker sends a beat every second from its event loop, so that a stopped process and an endless loop both become
silent. The supervisor looks at each worker as often. It first hands no more connections to a silent worker, and later
ends it.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

BEAT_INTERVAL_SECONDS = 1.0
"""The time between two beats of a worker, and between two looks of the supervisor."""

MAX_LATENESS_SECONDS = 2.0
"""If a look comes later than this, the supervisor was itself stopped, or the machine slept or was too busy to run it.
Then the silence of a worker says nothing, and its time begins again."""


class SilenceLimits(Struct, frozen=True):
    """How many seconds a worker may be silent."""

    until_noticed: float = 10.0
    """A worker that is merely busy becomes silent for a second or two, because its threads and its event loop share
    one interpreter."""
    until_ended: float = 30.0
    """Longer than all that may delay an event loop which still works: a fork, a garbage collection, the parsing of the
    largest batch on a busy machine. Waiting for a disk does not delay it, because threads do that."""


DEFAULT_SILENCE_LIMITS = SilenceLimits()


class Pulse(Enum):
    ANSWERING = "answering"
    SILENT = "silent"
    """It gets no more connections until it answers again."""
    ENDED = "ended"
    """It was silent for too long, so the supervisor ends its process. A late beat changes nothing."""


class Heartbeat:
    """The beats of one worker."""

    def __init__(self, limits: SilenceLimits, now: float) -> None:
        self.pulse = Pulse.ANSWERING
        self._limits = limits
        self._silent_since = self._last_look_at = now

    def silent_seconds(self, now: float) -> float:
        return now - self._silent_since

    def note_beat(self, now: float) -> bool:
        """Note that the worker has answered; returns whether that ended its silence."""
        if self.pulse is Pulse.ENDED:
            return False
        was_silent = self.pulse is Pulse.SILENT
        self.pulse, self._silent_since = Pulse.ANSWERING, now
        return was_silent

    def look(self, now: float) -> bool:
        """Judge the silence until now; returns whether the pulse has changed."""
        if now - self._last_look_at > BEAT_INTERVAL_SECONDS + MAX_LATENESS_SECONDS:
            self._silent_since = now
        self._last_look_at = now
        before, silent = self.pulse, self.silent_seconds(now)
        if before is Pulse.ANSWERING and silent >= self._limits.until_noticed:
            self.pulse = Pulse.SILENT
        elif before is Pulse.SILENT and silent >= self._limits.until_ended:
            self.pulse = Pulse.ENDED
        return self.pulse is not before
