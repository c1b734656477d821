"""Reading a partition from a known place in the stream, for those who are behind what the process remembers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from nakadi.eventlogs.kinesis.envelopes import opened
from nakadi.eventlogs.kinesis.places import hash_key
from nakadi.eventlogs.kinesis.stream import Patience, Stream
from nakadi.eventlogs.kinesis.tails import GIVE_UP_AFTER, Ancestry, Cursor
from nakadi.eventlogs.kinesis.tally import Arrived
from nakadi.eventlogs.kinesis.trails import Counter, Frame
from nakadi.model.log_index import Counted, Mark
from nakadi.model.outcomes import Unavailable

MOST_REMEMBERED = 1000


@dataclass(slots=True)
class Remembered:
    """Where scans ended, so that the next one goes on there."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _states: OrderedDict[tuple[str, int], Counted] = field(default_factory=OrderedDict)

    def at(self, key: str, offset: int) -> Counted | None:
        with self._lock:
            return self._states.get((key, offset))

    def note(self, key: str, state: Counted) -> None:
        with self._lock:
            self._states[key, state.next] = state
            self._states.move_to_end((key, state.next))
            if len(self._states) > MOST_REMEMBERED:
                self._states.popitem(last=False)


class Scanner:
    def __init__(self, stream: Stream, ancestry: Ancestry) -> None:
        self._stream = stream
        self._ancestry = ancestry
        self._remembered = Remembered()

    def parts(self, state: Counted) -> Mapping[Mark, bytes]:
        """The records of appends that were not complete at this state: the bytes of their frames' parts."""
        return {part.mark: self._fetch(part.mark) for part in state.parts}

    def nearest(self, key: str, offset: int, known: Counted) -> Counted:
        """Where to begin, so that as little as possible is read before an offset."""
        return self._remembered.at(key, offset) or known

    def frames(self, key: str, start: Counted, offset: int, end: int, most_bytes: int) -> Sequence[Frame]:
        """Frames from the one with `offset` on, up to `end` or about so many bytes; at least one with events."""
        found: list[Frame] = []
        size = 0
        counter = Counter(start, self.parts(start))
        for record in self._records(key, start):
            frame = counter.met(record)
            if frame.end > offset:
                found.append(frame)
                size += len(frame.content)
            if found and (size >= most_bytes or frame.end >= end):
                self._remembered.note(key, counter.state)
                return found
        raise Unavailable(f"The stream ends before offset {end} of {key}")

    def state_behind(self, key: str, start: Counted, last: Mark) -> Counted:
        """The partition counted on up to a record that is known to be there."""
        counter = Counter(start, self.parts(start))
        goal = self._ancestry.rank(last)
        for record in self._records(key, start):
            if self._ancestry.rank(record.mark) > goal:
                return counter.state
            counter.met(record)
            if record.mark == last:
                return counter.state
        return counter.state

    def _records(self, key: str, start: Counted) -> Iterator[Arrived]:
        """The partition's records behind a state, to the end of what is there now."""
        patience = Patience(GIVE_UP_AFTER)
        began_in = start.mark.shard if start.mark else None
        lineage = self._ancestry.refreshed() if began_in else self._ancestry.current
        chain = lineage.chain(hash_key(key))
        chain = chain[chain.index(began_in) :] if began_in in chain else chain
        for shard in chain:
            behind = start.mark.sequence if start.mark and shard == start.mark.shard else None
            cursor = Cursor(self._stream, shard, behind)
            while not cursor.ended:
                page = cursor.read(patience)
                yield from (record for record in page.records if record.key == key)
                if page.at_tip and shard == chain[-1]:
                    break

    def _fetch(self, mark: Mark) -> bytes:
        """One record's part of a frame."""
        patience = Patience(GIVE_UP_AFTER)
        iterator = patience.calling(lambda: self._stream.at(mark))
        while not patience.over:
            page = patience.calling(partial(self._stream.page, mark.shard, iterator, 1))
            for record in page.records:
                envelope = opened(record.data)
                if record.mark == mark and envelope is not None:
                    return envelope.frame
            if page.following is None:
                break
            iterator = page.following
        raise Unavailable(f"The stream does not show record {mark.sequence} of {mark.shard}")
