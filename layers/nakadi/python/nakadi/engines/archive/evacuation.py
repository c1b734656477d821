"""Partly dead objects of the archive, and how their living members are moved out.

An object has members of several partitions, and on AWS of all event types that were published to within ten seconds. A
member is dead once it was erased, compacted, merged, removed by age or deleted with its event type; but its bytes stay
in the object for as long as a segment refers to any other member. So the other, living members are copied to a new
object, byte for byte, and no segment refers to the old object any longer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from nakadi.engines.archive import member_format, object_keys
from nakadi.engines.archive.gzip_format import BadArchive
from nakadi.engines.archive.merging import CLAIM_DURATION_SECONDS, PartitionBusy, claim_partition, wait_for_partition
from nakadi.engines.archive.segments import archived_segments_from
from nakadi.engines.archive.sweeping import ArchiveSweep, SweepResult, list_objects_of_index
from nakadi.model.events import TopicPartition
from nakadi.model.log_index import ArchiveLocation, IndexSegment
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone, ArchiveStore, StoredObject
from nakadi.ports.log_index import LogIndex

CLAIM = "evacuation"
"""Only one process at a time may move members: each of two processes would take the other's new object for a dead
one.
"""

SETTLED_AGE = timedelta(hours=1)
"""The age from which an object without references is surely dead: the process that writes an object refers to it within
minutes, or never.
"""


class EvacuationBusy(Exception):
    """Raised when another process moves members of this archive."""


class PartlyDeadObject(NamedTuple):
    """An object, and the number of its bytes to which segments refer: fewer than all, perhaps none."""

    stored: StoredObject
    live_bytes: int


class EvacuationResult(NamedTuple):
    """How many objects were emptied of living members, how many of their bytes were dead, and why the members of others
    could not be moved.
    """

    moved_count: int
    dead_bytes: int
    problem_by_key: Mapping[str, str]


class LiveMember(NamedTuple):
    topic: str
    partition: int
    segment: IndexSegment


class Evacuation(Struct, frozen=True):
    """Moves living members of one log index's archive. `namespaces` has the same meaning as in `ArchiveSweep`."""

    index: LogIndex
    store: ArchiveStore
    namespaces: Collection[str] | None = None

    @contextmanager
    def claimed(self) -> Iterator[Callable[[], None]]:
        """Claim the right to move members, which only one process has at a time. The yielded function renews the claim.

        Entering the context and every renewal raise `EvacuationBusy` if another process has the claim.
        """
        owner = uuid4().hex

        def renew_claim() -> None:
            if not self.index.claim(CLAIM, owner, CLAIM_DURATION_SECONDS):
                raise EvacuationBusy

        renew_claim()
        try:
            yield renew_claim
        finally:
            self.index.release_claim(CLAIM, owner)

    def vacate_partly_dead_objects(self, now: datetime, pause: Callable[[], None] = lambda: None) -> EvacuationResult:
        """Move the living members out of every object that is partly dead. What cannot be moved now is left for the
        next time.

        Raises `EvacuationBusy`.
        """
        moved = freed = 0
        problems: dict[str, str] = {}
        with self.claimed() as renew_claim:
            partly_dead = {each.stored.key: each for each in self.partly_dead_objects() if each.live_bytes}
            for key, members in self.members_of(partly_dead).items():
                renew_claim()
                found = partly_dead[key]
                try:
                    if self.is_settled(found.stored, now):
                        self.vacate_object(key, members)
                        moved, freed = moved + 1, freed + found.stored.size - found.live_bytes
                except PartitionBusy:
                    pass
                except (ArchiveObjectGone, BadArchive, Unavailable) as problem:
                    problems[key] = str(problem)
                pause()
        return EvacuationResult(moved, freed, problems)

    def sweep(self, older_than: datetime, now: datetime) -> SweepResult:
        """Remove every unreferenced object that was written before `older_than`. Of objects younger than `SETTLED_AGE`,
        remove only settled ones.
        """
        if older_than <= now - SETTLED_AGE:
            return self._sweep().run(older_than)
        try:
            # A process that moves members refers to their new object only when the object is complete, and holds the
            # claim until then.
            with self.claimed() as renew_claim:

                def is_settled(stored: StoredObject) -> bool:
                    renew_claim()
                    try:
                        return self.is_settled(stored, now)
                    except BadArchive:
                        return False  # the object may still be incomplete

                return self._sweep(is_settled).run(older_than)
        except EvacuationBusy:
            return self._sweep().run(now - SETTLED_AGE)

    def _sweep(self, is_settled: Callable[[StoredObject], bool] | None = None) -> ArchiveSweep:
        return ArchiveSweep(self.index, self.store, self.namespaces, is_settled)

    def partly_dead_objects(self) -> Sequence[PartlyDeadObject]:
        # References are read after the objects, so that references which are added meanwhile are seen.
        found = list(list_objects_of_index(self.index, self.store, self.namespaces))
        live: Counter[str] = Counter()
        for _, _, segment in self._live_members():
            assert segment.location is not None
            live[segment.location.key] += segment.location.length
        return [PartlyDeadObject(each, live[each.key]) for each in found if live[each.key] < each.size]

    def is_settled(self, stored: StoredObject, now: datetime) -> bool:
        """Whether no process is about to refer to those parts of an object to which no segment refers.

        A process may not have stored its references to a young object yet. An archiver or indexer adds a segment only
        at the end of a partition's index, so unreferenced events before that end are dead for good. A process that
        rewrites events holds the claim to their partition until the segment is replaced: once another process can claim
        it, the first claim is lost.
        """
        if stored.written_at < now - SETTLED_AGE:
            return True
        try:
            ends = member_format.end_offsets(self._read(ArchiveLocation(stored.key, 0, stored.size)))
        except ArchiveObjectGone:
            return True
        if stored.key.startswith(object_keys.LOG_FOLDER):
            heads = self.index.index_heads(list(ends))
            return all(end <= heads[place].state.next_offset or self._is_deleted(place) for place, end in ends.items())
        return all(map(self._can_be_claimed, ends))

    def members_of(self, keys: Collection[str]) -> Mapping[str, Sequence[LiveMember]]:
        """The living members of these objects."""
        found: defaultdict[str, list[LiveMember]] = defaultdict(list)
        for member in self._live_members():
            assert member.segment.location is not None
            if member.segment.location.key in keys:
                found[member.segment.location.key].append(member)
        return found

    def vacate_object(self, key: str, members: Sequence[LiveMember], patience_seconds: float = 0.0) -> None:
        """Move the living members of an object to a new one. Call this only while `claimed` is held.

        Raises `PartitionBusy` if another process keeps rewriting one of the partitions beyond this call's patience;
        events moved until then stay moved. Raises `ArchiveObjectGone` or `BadArchive` for an object that cannot be
        read.
        """
        new_key, content, locations = object_keys.new_key_beside(key), bytearray(), []
        for member in members:
            assert member.segment.location is not None
            locations.append(ArchiveLocation(new_key, len(content), member.segment.location.length))
            content += self._read(member.segment.location)
        self.store.put(new_key, bytes(content))
        for member, location in zip(members, locations, strict=True):
            with wait_for_partition(self.index, member.topic, member.partition, patience_seconds) as renew_claim:
                self._refer_to(member, location, renew_claim)

    def _refer_to(self, member: LiveMember, location: ArchiveLocation, renew_claim: Callable[[], None]) -> None:
        topic, partition, segment = member
        # If another process has compacted, merged or erased the member meanwhile, it has also moved it; a deleted topic
        # has no members left.
        current = self.index.segment_at_or_before(topic, partition, segment.first_offset)
        if current != segment or self.index.topic(topic) is None:
            return
        renew_claim()
        self.index.replace_segments(topic, partition, [replace(segment, location=location)], segment.end_offset)

    def _read(self, location: ArchiveLocation) -> bytes:
        content = self.store.read_range(location)
        if len(content) != location.length:
            raise BadArchive(f"{location.key} has {len(content)} of {location.length} bytes from {location.start} on")
        return content

    def _can_be_claimed(self, place: TopicPartition) -> bool:
        try:
            with claim_partition(self.index, *place):
                return True
        except PartitionBusy:
            return False

    def _is_deleted(self, place: TopicPartition) -> bool:
        known = self.index.topic(place[0])
        return known is None or known.partitions <= place[1]

    def _live_members(self) -> Iterator[LiveMember]:
        for topic in self.index.topic_names():
            known = self.index.topic(topic)
            for partition in range(known.partitions if known else 0):
                for segment in archived_segments_from(self.index, topic, partition):
                    if segment.location is not None:
                        yield LiveMember(topic, partition, segment)
