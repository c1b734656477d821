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
from nakadi.eventlogs.kinesis.stream import IteratorExpired, NoSuchPlace, Page, Patience, Stream
from nakadi.eventlogs.kinesis.tally import Arrived
from nakadi.eventlogs.kinesis.trails import Rank
from nakadi.model.log_index import Mark
from nakadi.model.outcomes import Unavailable

Receive = Callable[[list[Arrived], Rank], None]

GIVE_UP_AFTER = 10.0
"""Seconds. Then a reader is told that nothing can be known at the moment."""


class Ancestry:
    """The lineage, as fresh as it has to be."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._lineage: Lineage | None = None

    @property
    def current(self) -> Lineage:
        return self._lineage or self.refreshed()

    def knowing(self, shard: str) -> Lineage:
        lineage = self.current
        return lineage if shard in lineage else self.refreshed()

    def rank(self, mark: Mark | None) -> tuple[int, int]:
        return self.current.rank(mark)

    def refreshed(self) -> Lineage:
        with self._lock:
            self._lineage = Lineage(Patience(GIVE_UP_AFTER).calling(self._stream.shards))
            return self._lineage


class Cursor:
    """A place in a shard, from which one reads on."""

    def __init__(self, stream: Stream, shard: str, sequence: int | None) -> None:
        self._stream = stream
        self.shard = shard
        self.sequence = sequence
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
            known = self.sequence
            page = page._replace(records=[record for record in page.records if record.mark.sequence > known])
        if page.records:
            self.sequence = page.records[-1].mark.sequence
        return page

    def _new_iterator(self) -> str:
        if self.sequence is None:
            return self._stream.from_beginning(self.shard)
        try:
            return self._stream.behind(Mark(self.shard, self.sequence))
        except NoSuchPlace:
            # The stream keeps nothing so old any more: what it has lies behind it.
            return self._stream.from_beginning(self.shard)


class Tail:
    """The reader of one shard."""

    def __init__(self, cursor: Cursor, parents: list[str]) -> None:
        self.cursor = cursor
        self.parents = parents
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
                page = self.cursor.read(patience)
                receive(page.records)
                if page.at_tip:
                    self._known_at = began
                elif patience.over:
                    raise Unavailable("There is more to be read than a reader can wait for")
                if self._known_at >= since and (self.cursor.sequence or 0) < through and patience.over:
                    raise Unavailable("Kinesis does not show yet what it has taken")


class Tails:
    """The readers of all shards that anybody needed so far."""

    def __init__(
        self, stream: Stream, ancestry: Ancestry, progress: Callable[[], Mapping[str, int]], receive: Receive
    ) -> None:
        self._stream = stream
        self._ancestry = ancestry
        self._progress = progress
        self._receive = receive
        self._lock = threading.Lock()
        self._tails: dict[str, Tail] = {}
        self._acknowledged: dict[str, int] = {}

    def acknowledged(self, mark: Mark) -> None:
        """This process knows of a record: from now on nobody is told less."""
        with self._lock:
            known = self._acknowledged.get(mark.shard, mark.sequence)
            self._acknowledged[mark.shard] = max(known, mark.sequence)

    def know(self, hash_key: int, since: float) -> None:
        """See to it that everything is known that was in a partition at `since`."""
        patience = Patience(GIVE_UP_AFTER)
        lineage = self._knowing_where_ours_went()
        while self.advance(lineage.chain(hash_key)[-1], since, patience):
            if patience.over:
                raise Unavailable("Kinesis does not tell how its shards go on")
            ended = lineage.chain(hash_key)[-1]
            lineage = self._ancestry.refreshed()
            if lineage.chain(hash_key)[-1] == ended:
                patience.pause()

    def advance(self, shard: str, since: float, patience: Patience) -> bool:
        """Read a shard on to its tip. Whether it has come to its end."""
        tail = self._tail(shard)
        for parent in tail.parents:
            self.advance(parent, float("inf"), patience)
        tail.parents = []
        tail.advance(since, self._acknowledged.get(shard, 0), self._take, patience)
        return tail.ended

    def _take(self, records: list[Arrived]) -> None:
        if records:
            self._receive(records, self._ancestry.knowing(records[0].mark.shard).rank)

    def _knowing_where_ours_went(self) -> Lineage:
        lineage = self._ancestry.current
        unknown = [shard for shard in tuple(self._acknowledged) if shard not in lineage]
        if unknown:
            lineage = self._ancestry.refreshed()
            for shard in unknown:
                if shard not in lineage:
                    del self._acknowledged[shard]
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
            parents = self._ancestry.knowing(shard).parents(shard)
            followed = [parent for parent in parents if parent in self._tails]
            if followed or shard not in progress:
                for parent in parents if shard not in progress else followed:
                    self._begun(parent, progress)
                cursor = Cursor(self._stream, shard, None)
                self._tails[shard] = Tail(cursor, parents if shard not in progress else followed)
            else:
                self._tails[shard] = Tail(Cursor(self._stream, shard, progress[shard]), [])
        return self._tails[shard]
