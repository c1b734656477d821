"""A reader for as long as the process lives: one that was asleep for long begins anew where the index ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from nakadi.eventlogs.kinesis.continuity import Ancestry
from nakadi.eventlogs.kinesis.fan_out import FanOut
from nakadi.eventlogs.kinesis.reading import Reader
from nakadi.eventlogs.kinesis.stream import Patience
from nakadi.eventlogs.kinesis.tails import Asleep, Ours
from nakadi.model.events import Bounds, Slice
from nakadi.model.log_index import Counted, Mark
from nakadi.model.outcomes import Unavailable

Begin = Callable[[Ours], Reader]
Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class LastingReader:
    """Asks a `Reader`. What this process stored itself is known to every new one."""

    def __init__(self, begin: Begin, ancestry: Ancestry) -> None:
        self._begin = begin
        self._ancestry = ancestry
        self._lock = threading.Lock()
        self._ours = Ours()
        self._reader = begin(self._ours)

    def acknowledged(self, mark: Mark) -> None:
        """This process knows of a record: from now on nobody is told less."""
        self._ours.note(mark)

    def advance(self, shard: str, since: float, patience: Patience) -> bool:
        return self._awake(lambda reader: reader.tails.advance(shard, since, patience))

    def follow(self, shard: str, fan_out: FanOut, ended: Callable[[], bool]) -> bool:
        """Take what is pushed, as long as this is the reader that is asked."""
        return self._awake(
            lambda reader: reader.tails.follow(shard, fan_out, lambda: ended() or self._reader is not reader)
        )

    def state(self, topic: str, partition: int, since: float | None = None) -> Counted:
        return self._awake(lambda reader: reader.state(topic, partition, since))

    def bounds(self, topic: str, partition: int, since: float) -> Bounds:
        return self._awake(lambda reader: reader.bounds(topic, partition, since))

    def look(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> Slice:
        return self._awake(lambda reader: reader.look(topic, partition, start, limit, max_bytes))

    def offset_at(self, topic: str, partition: int, stored_at: int) -> int:
        return self._awake(lambda reader: reader.offset_at(topic, partition, stored_at))

    def _awake(self, ask: Callable[[Reader], Answer]) -> Answer:
        reader = self._reader
        try:
            return ask(reader)
        except Asleep as asleep:
            log.info("Shard %s was not read for long: beginning anew where the index ends", asleep)
        try:
            return ask(self._instead_of(reader))
        except Asleep as asleep:
            raise Unavailable(f"Shard {asleep} cannot be read") from asleep

    def _instead_of(self, old: Reader) -> Reader:
        with self._lock:
            if self._reader is old:
                self._ancestry.refreshed()
                self._reader = self._begin(self._ours)
            return self._reader
