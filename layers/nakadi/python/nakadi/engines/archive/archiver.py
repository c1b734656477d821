"""Archiving: writes events of the hot half into objects, and advances the index.

An object belongs to the archive once the index refers to it. If a process dies before that, it leaves an unreferenced
object, and the next process starts from the index. If two processes archive the same events, the index accepts the
segments of only one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property

from msgspec import Struct

from nakadi.common.metrics import Metrics
from nakadi.engines.archive import object_keys
from nakadi.engines.archive.member_format import MemberPacker
from nakadi.engines.archive.policy import TopicCatalog
from nakadi.engines.archive.presence import check_mounted
from nakadi.model.events import OffsetBounds, datetime_from_microseconds, microseconds_since_epoch
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexingState, IndexSegment
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.event_log import EventLog, OffsetUnavailable, UnknownTopic
from nakadi.ports.log_index import LogIndex

TARGET_OBJECT_BYTES = 24_000_000
TARGET_MEMBER_BYTES = 1_500_000
BYTES_PER_HOT_READ = 400_000
"""The bytes of events in one read of the hot half. The archiver packs the events of one read without a pause."""

EVENTS_PER_HOT_READ = 2_000


def _no_pause() -> None:
    pass


class PackedMember(Struct, frozen=True):
    """A member, and the values of its entry in the index; `head_revision` is the revision of the partition's head
    before this entry.
    """

    partition: int
    head_revision: int
    content: bytes
    state_before: IndexingState
    end_offset: int
    event_count: int
    first_stored_at: int
    last_stored_at: int

    @property
    def new_head(self) -> IndexHead:
        return IndexHead(IndexingState(next_offset=self.end_offset, latest_stored_at=self.last_stored_at))

    def index_segment(self, key: str, start: int) -> IndexSegment:
        return IndexSegment(
            state_before=self.state_before,
            offset_count=self.end_offset - self.state_before.next_offset,
            first_stored_at=self.first_stored_at,
            last_stored_at=self.last_stored_at,
            location=ArchiveLocation(key, start, len(self.content)),
            event_count=self.event_count,
        )


class Archiver:
    def __init__(
        self,
        hot: EventLog,
        index: LogIndex,
        store: ArchiveStore,
        directory: TopicCatalog,
        metrics: Metrics | None = None,
    ) -> None:
        self._hot = hot
        self._index = index
        self._store = store
        self._directory = directory
        self._metrics = metrics or Metrics()

    @cached_property
    def namespace(self) -> str:
        """The namespace of this log index. It is read only for the first object, because the index may have to create
        and store it, and only the archiving process may write.
        """
        return self._index.identity()

    def archive_next_object(
        self, topic: str, partitions: Collection[int], pause: Callable[[], None] = _no_pause
    ) -> bool:
        """Archive waiting events of these partitions, as many as fit into one object, and return whether more may wait.

        `pause` is called between parts of the work. Raises `UnknownTopic`.
        """
        # Read the hot half first: it removes nothing that is missing in the index, which is read later.
        bounds = self._hot.bounds(topic, sorted(partitions))
        heads = self._index.index_heads([(topic, partition) for partition in bounds])
        behind = {
            each: heads[topic, each]
            for each in bounds
            if heads[topic, each].state.next_offset < bounds[each].next_offset
        }
        if not behind:
            return False
        self._ensure_indexed_topic(topic, max(bounds) + 1)
        packed = self._read_and_pack(
            topic, {partition: (head, bounds[partition]) for partition, head in behind.items()}, pause
        )
        if packed:
            self._store_and_index(topic, packed)
        self._check_not_deleted(topic)
        done = {each.partition: each.end_offset for each in packed}
        return any(
            done.get(partition, bounds[partition].next_offset) < bounds[partition].next_offset for partition in behind
        )

    def _ensure_indexed_topic(self, topic: str, partitions: int) -> None:
        known = self._index.topic(topic)
        if known is None:
            self._index.create_topic(topic, partitions)
        elif known.partitions < partitions:
            self._index.grow_topic(topic, partitions)

    def _check_not_deleted(self, topic: str) -> None:
        """If the topic was deleted while it was created in the index, remove it from the index, and raise
        `UnknownTopic`.
        """
        try:
            self._hot.bounds(topic, [])
        except UnknownTopic:
            self._index.delete_topic(topic)
            raise

    def _read_and_pack(
        self, topic: str, heads_and_bounds: dict[int, tuple[IndexHead, OffsetBounds]], pause: Callable[[], None]
    ) -> Sequence[PackedMember]:
        found: list[PackedMember] = []
        size = 0
        for partition, (head, bounds) in heads_and_bounds.items():
            counted, revision = self._skip_removed_events(topic, partition, head, bounds), head.revision
            while counted.next_offset < bounds.next_offset and size < TARGET_OBJECT_BYTES:
                packed, bytes_packed = self._pack_member(topic, partition, revision, counted, bounds.next_offset, pause)
                if packed is None:
                    break
                found.append(packed)
                counted, revision, size = packed.new_head.state, revision + 1, size + bytes_packed
        return found

    def _skip_removed_events(self, topic: str, partition: int, head: IndexHead, bounds: OffsetBounds) -> IndexingState:
        """The state from which to continue. If the hot half removed events before they were archived, they had passed
        their retention time, and so have all earlier, archived events, which are dropped.
        """
        if bounds.oldest <= head.state.next_offset:
            return head.state
        self._index.drop_segments_before(topic, partition, bounds.oldest)
        return IndexingState(next_offset=bounds.oldest, latest_stored_at=head.state.latest_stored_at)

    def _pack_member(
        self,
        topic: str,
        partition: int,
        revision: int,
        start_state: IndexingState,
        end_offset: int,
        pause: Callable[[], None],
    ) -> tuple[PackedMember | None, int]:
        packer = MemberPacker(topic, partition, self._directory.event_type_name_of(topic))
        offset, events, size = start_state.next_offset, 0, 0
        first_stored_at = last_stored_at = start_state.latest_stored_at
        while offset < end_offset and size < TARGET_MEMBER_BYTES:
            try:
                piece = self._hot.read(
                    topic, partition, offset, limit=EVENTS_PER_HOT_READ, max_bytes=BYTES_PER_HOT_READ
                )
            except OffsetUnavailable:
                return None, 0  # retention has removed the event: the next member begins after it
            if not piece.events:
                break
            packer.add_events(piece.events)
            last_stored_at = microseconds_since_epoch(piece.events[-1].stored_at)
            first_stored_at = first_stored_at if events else microseconds_since_epoch(piece.events[0].stored_at)
            events += len(piece.events)
            size += sum([len(event.record.value or b"") for event in piece.events])
            offset = piece.next_offset
            pause()
        if not events:
            return None, 0
        return PackedMember(
            partition, revision, packer.finish(), start_state, offset, events, first_stored_at, last_stored_at
        ), size

    def _store_and_index(self, topic: str, packed: Sequence[PackedMember]) -> None:
        check_mounted(self._index, self._store)
        key = object_keys.new_log_key(
            self.namespace,
            self._directory.event_type_name_of(topic),
            topic,
            datetime_from_microseconds(min(each.first_stored_at for each in packed)),
        )
        self._store.put(key, b"".join([each.content for each in packed]))
        start = 0
        lost: set[int] = set()
        for each in packed:
            segment = each.index_segment(key, start)
            start += len(each.content)
            if each.partition in lost:
                continue
            if not self._index.advance_head(topic, each.partition, each.head_revision, each.new_head, segment):
                lost.add(each.partition)  # another process was faster; the next archiver continues from there
                continue
            self._metrics.archive_segments.add()
            self._metrics.archive_events.add(each.event_count)
            self._metrics.archive_bytes.add(len(each.content))
