"""Following the shards: one reader for each of them in a process, whoever wants to know.

A shard is read on only when somebody needs to know more than is known, or while somebody watches. A shard that came
from others is begun when those are read to their end, so that each partition's records are met in their order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from nakadi.eventlogs.kinesis.lineage import Lineage
from nakadi.eventlogs.kinesis.stream import IteratorExpired, NoSuchPlace, NoSuchShard, Page, Patience, Stream
from nakadi.eventlogs.kinesis.tally import Arrived
from nakadi.eventlogs.kinesis.trails import Rank
from nakadi.model.log_index import Mark
from nakadi.model.outcomes import Unavailable

Receive = Callable[[list[Arrived], Rank], None]


class Asleep(Exception):
    """Raised when a shard was not read for so long that the stream may have forgotten what came next."""


GIVE_UP_AFTER = 10.0
"""Seconds. Then a reader is told that nothing can be known at the moment."""

ASLEEP_AFTER = 3600.0
"""Seconds. A stream keeps records for a day at least, and what was read last may have been hours behind."""


class Ancestry:
    """The lineage, as fresh as it has to be."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._lock = threading.Lock()
        self._lineage: Lineage | None = None
        self._forgotten: set[str] = set()

    @property
    def current(self) -> Lineage:
        return self._lineage or self.refreshed()

    def knowing(self, shard: str) -> Lineage:
        lineage = self.current
        return lineage if shard in lineage else self.refreshed()

    def placing(self, mark: Mark | None) -> Lineage:
        """A lineage that tells where a record is among others, though it came from a shard that is new."""
        lineage = self.current
        if mark is None or mark.shard in lineage or mark.shard in self._forgotten:
            return lineage
        lineage = self.refreshed()
        if mark.shard not in lineage:
            # A shard is listed before anybody has records from it, so this one is older than all that are listed.
            self._forgotten.add(mark.shard)
        return lineage

    def rank(self, mark: Mark | None) -> tuple[int, int]:
        return self.placing(mark).rank(mark)

    def refreshed(self) -> Lineage:
        with self._lock:
            self._lineage = Lineage(Patience(GIVE_UP_AFTER).calling(self.stream.shards))
            return self._lineage


class Cursor:
    """A place in a shard, from which one reads on."""

    def __init__(self, stream: Stream, shard: str, sequence: int | None, *, including: bool = False) -> None:
        self._stream = stream
        self.shard = shard
        self.sequence = sequence
        self._including = including
        self._iterator: str | None = None
        self.ended = False

    def read(self, patience: Patience, limit: int = 10_000) -> Page:
        """The next records. What this shard does not want to answer now is asked again."""
        while True:
            iterator = self._iterator or patience.calling(self._new_iterator)
            try:
                page: Page = patience.calling(partial(self._stream.page, self.shard, iterator, limit))
            except IteratorExpired as expired:
                self._iterator = None
                if patience.over:
                    raise Unavailable("Kinesis lets no iterator live") from expired
                continue
            return self._moved_behind(page)

    def _moved_behind(self, page: Page) -> Page:
        self._iterator = page.following
        self.ended = page.following is None
        if self.sequence is not None:
            first = self.sequence + (0 if self._including else 1)
            page = page._replace(records=[record for record in page.records if record.mark.sequence >= first])
        if page.records:
            self._including = False
            self.sequence = page.records[-1].mark.sequence
        return page

    def _new_iterator(self) -> str:
        if self.sequence is None:
            return self._stream.from_beginning(self.shard)
        try:
            mark = Mark(self.shard, self.sequence)
            return self._stream.at(mark) if self._including else self._stream.behind(mark)
        except NoSuchPlace:
            # The stream keeps nothing so old any more: what it has lies behind it.
            return self._stream.from_beginning(self.shard)


class Tail:
    """The reader of one shard."""

    def __init__(self, cursor: Cursor, parents: list[str], read_at: float) -> None:
        self.cursor = cursor
        self.parents = parents
        # By the clock on the wall: a machine may stand still, and its other clock with it.
        self.read_at = read_at
        self._lock = threading.Lock()
        self._known_at = float("-inf")

    @property
    def ended(self) -> bool:
        return self.cursor.ended

    def advance(self, since: float, through: int, receive: Callable[[list[Arrived]], None], patience: Patience) -> None:
        """Read on until all is known that was there at `since`, and the record with that sequence number."""
        with self._lock:
            while not self.ended and not (self._known_at >= since and (self.cursor.sequence or 0) >= through):
                began = time.monotonic()
                page = self._page(patience)
                receive(page.records)
                if page.at_tip:
                    self._known_at = began
                elif patience.over:
                    raise Unavailable("There is more to be read than a reader can wait for")
                if self._known_at >= since and (self.cursor.sequence or 0) < through and patience.over:
                    raise Unavailable("Kinesis does not show yet what it has taken")

    def _page(self, patience: Patience) -> Page:
        began = time.time()
        if abs(began - self.read_at) > ASLEEP_AFTER:
            raise Asleep(self.cursor.shard)
        try:
            page = self.cursor.read(patience)
        except NoSuchShard as error:
            raise Asleep(self.cursor.shard) from error
        self.read_at = began
        return page


class Ours:
    """What this process stored itself, of every shard the last record: nobody here is told less."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, int] = {}

    def note(self, mark: Mark) -> None:
        with self._lock:
            self._last[mark.shard] = max(self._last.get(mark.shard, mark.sequence), mark.sequence)

    def last(self, shard: str) -> int:
        return self._last.get(shard, 0)

    def not_in(self, lineage: Lineage) -> list[str]:
        with self._lock:
            return [shard for shard in self._last if shard not in lineage]

    def forget(self, shard: str) -> None:
        with self._lock:
            self._last.pop(shard, None)


class Tails:
    """The readers of all shards that anybody needed so far."""

    def __init__(
        self,
        stream: Stream,
        ancestry: Ancestry,
        progress: Callable[[], Mapping[str, int]],
        receive: Receive,
        ours: Ours,
    ) -> None:
        self._stream = stream
        self._ancestry = ancestry
        self._progress = progress
        self._receive = receive
        self._lock = threading.Lock()
        self._tails: dict[str, Tail] = {}
        self._ours = ours

    def know(self, hash_key: int, since: float) -> None:
        """See to it that everything is known that was in a partition at `since`."""
        patience = Patience(GIVE_UP_AFTER)
        lineage = self._knowing_where_ours_went()
        while self.advance(lineage.chain(hash_key)[-1], since, patience):
            ended = lineage.chain(hash_key)[-1]
            lineage = self._ancestry.refreshed()
            if lineage.chain(hash_key)[-1] != ended:
                patience = Patience(GIVE_UP_AFTER)
            elif patience.over:
                raise Unavailable("Kinesis does not tell how its shards go on")
            else:
                patience.pause()

    def advance(self, shard: str, since: float, patience: Patience) -> bool:
        """Read a shard on to its tip. Whether it has come to its end."""
        tail = self._tail(shard)
        for parent in tail.parents:
            self.advance(parent, float("inf"), patience)
        tail.parents = []
        tail.advance(since, self._ours.last(shard), self._take, patience)
        return tail.ended

    def _take(self, records: list[Arrived]) -> None:
        if records:
            self._receive(records, self._ancestry.knowing(records[0].mark.shard).rank)

    def _knowing_where_ours_went(self) -> Lineage:
        lineage = self._ancestry.current
        unknown = self._ours.not_in(lineage)
        if unknown:
            lineage = self._ancestry.refreshed()
            for shard in unknown:
                if shard not in lineage:
                    self._ours.forget(shard)
        return lineage

    def _tail(self, shard: str) -> Tail:
        found = self._tails.get(shard)
        if found is None:
            progress = self._progress()
            with self._lock:
                found = self._begun(shard, progress)
        return found

    def _begun(self, shard: str, progress: Mapping[str, int]) -> Tail:
        """A reader that begins where its parents' readers end, or else where the index ends."""
        if shard not in self._tails:
            now = time.time()
            lineage = self._ancestry.knowing(shard)
            if shard not in lineage:
                raise Asleep(shard)
            parents = lineage.parents(shard)
            followed = [parent for parent in parents if parent in self._tails]
            if followed or shard not in progress:
                for parent in parents if shard not in progress else followed:
                    self._begun(parent, progress)
                cursor = Cursor(self._stream, shard, None)
                # What came first in this shard may be as old as the last look at those before it.
                known_at = min(
                    [self._tails[parent].read_at for parent in parents if parent in self._tails], default=now
                )
                self._tails[shard] = Tail(cursor, parents if shard not in progress else followed, known_at)
            else:
                self._tails[shard] = Tail(Cursor(self._stream, shard, progress[shard]), [], now)
        return self._tails[shard]
