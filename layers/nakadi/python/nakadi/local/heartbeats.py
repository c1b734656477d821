"""Decides whether a worker still answers, without side effects; the supervisor carries out what follows.

A worker sends a beat every second from its event loop, so that a stopped process and an endless loop both become
silent. The supervisor checks each worker as often. If a worker is silent, the supervisor first hands no more
connections to it, and later ends its process. A worker that starts has longer, until it says that it serves.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

BEAT_INTERVAL_SECONDS = 1.0
"""The time between two beats of a worker, and between two checks by the supervisor."""

MAX_LATENESS_SECONDS = 2.0
"""If a check comes later than this, the supervisor was itself stopped, or the machine was suspended or too busy to run
it. Then a worker's silence says nothing about the worker, and is measured again from this check."""


class SilenceLimits(Struct, frozen=True):
    """For how many seconds a worker may be silent."""

    until_noticed: float = 10.0
    """After this time, the worker gets no more connections. A worker that is merely busy is silent for only a second or
    two, because its threads and its event loop share one interpreter."""
    until_ended: float = 30.0
    """After this time, the supervisor ends the worker's process. It is longer than anything that may delay a working
    event loop: a fork, a garbage collection, the parsing of the largest batch on a busy machine. A disk does not delay
    the loop, because only threads wait for disks."""
    until_serving: float = 120.0
    """After this time, the supervisor ends a worker that has started and does not serve yet. A worker serves after a
    second or two; on a machine that swaps, or has a slow disk, it may take many times as long."""


DEFAULT_SILENCE_LIMITS = SilenceLimits()


class Pulse(Enum):
    STARTING = "starting"
    """The worker does not serve yet. Its beats show nothing: the thread that reads its files may hang."""
    ANSWERING = "answering"
    SILENT = "silent"
    """The worker gets no more connections until it answers again."""
    ENDED = "ended"
    """The worker was silent, or starting, for too long, so the supervisor ends its process. Nothing that it sends later
    changes this."""


class Heartbeat:
    """When one worker last sent a beat, and what follows from its silence. While it starts, it counts as silent since
    its start.
    """

    def __init__(self, limits: SilenceLimits, now: float) -> None:
        self.pulse = Pulse.STARTING
        self._limits = limits
        self._silent_since = self._last_look_at = now

    def silent_seconds(self, now: float) -> float:
        return now - self._silent_since

    def note_serving(self, now: float) -> None:
        """Note that the worker has started and serves."""
        if self.pulse is Pulse.STARTING:
            self.pulse, self._silent_since = Pulse.ANSWERING, now

    def note_beat(self, now: float) -> bool:
        """Note a beat of the worker, and return whether it ended the worker's silence."""
        if self.pulse in (Pulse.STARTING, Pulse.ENDED):
            return False
        was_silent = self.pulse is Pulse.SILENT
        self.pulse, self._silent_since = Pulse.ANSWERING, now
        return was_silent

    def look(self, now: float) -> bool:
        """Judge the worker's silence until `now`, and return whether its state has changed."""
        if now - self._last_look_at > BEAT_INTERVAL_SECONDS + MAX_LATENESS_SECONDS:
            self._silent_since = now
        self._last_look_at = now
        before, silent = self.pulse, self.silent_seconds(now)
        if before is Pulse.STARTING and silent >= self._limits.until_serving:
            self.pulse = Pulse.ENDED
        elif before is Pulse.ANSWERING and silent >= self._limits.until_noticed:
            self.pulse = Pulse.SILENT
        elif before is Pulse.SILENT and silent >= self._limits.until_ended:
            self.pulse = Pulse.ENDED
        return self.pulse is not before
