"""The boundary between the hot half of a log and its archive, and failures on either side."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from math import inf

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.archive import archive_worker
from nakadi.engines.archive.archiver import Archiver
from nakadi.engines.archive.policy import ArchivePolicy
from nakadi.engines.archive.segments import archived_segments_from
from nakadi.engines.archive.stores import MemoryStore
from nakadi.engines.archive.tiered_log import TieredLog
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.events import OffsetBounds, Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import OffsetUnavailable, UnknownTopic
from tests.support.clock import HandMovedClock
from tests.support.engines import HOUR
from tests.support.patience import PATIENCE, until
from tests.support.tiered_log_fixture import TieredLogFixture, TopicNames


@pytest.fixture
def tiered_fixture() -> Iterator[TieredLogFixture]:
    tiered_fixture = TieredLogFixture()
    yield tiered_fixture
    tiered_fixture.log.close()


class TestSeam:
    def test_is_crossed_without_gap_and_repeat(self, tiered_fixture: TieredLogFixture):
        """A cursor leads from the archive into the hot half without a gap or a repeated event."""
        tiered_fixture.store_hours(10)
        tiered_fixture.log.archive()
        tiered_fixture.store_hours(5)
        assert tiered_fixture.hot.bounds("t", [0])[0].oldest == 9
        assert tiered_fixture.log.bounds("t", [0]) == {0: OffsetBounds(0, 15)}
        assert tiered_fixture.offsets() == list(range(15))

    def test_may_move_while_someone_reads(self, tiered_fixture: TieredLogFixture):
        """A reader misses no event and sees none twice while events are stored, archived and removed."""
        done = threading.Event()

        def archive_again_and_again() -> None:
            while not done.is_set():
                tiered_fixture.log.archive()

        with ThreadPoolExecutor(2) as others:
            archiving = others.submit(archive_again_and_again)
            storing = others.submit(tiered_fixture.store_hours, 500)
            found: list[int] = []
            while len(found) < 500:
                found += [
                    event.offset for event in tiered_fixture.log.read("t", 0, len(found), limit=7, wait=30).events
                ]
            done.set()
            archiving.result(PATIENCE)
            storing.result(PATIENCE)
        assert found == list(range(500))

    def test_is_where_the_hot_retention_says(self, tiered_fixture: TieredLogFixture):
        """The hot half keeps archived events for its own retention time, however long the archive keeps them."""
        tiered_fixture.log.close()
        tiered_fixture = TieredLogFixture(
            ArchivePolicy(archive_after=inf, hot_retention=3 * 3600, unreferenced_grace=0, new_share_to_compact=0)
        )
        tiered_fixture.store_hours(10)
        tiered_fixture.log.archive()
        assert tiered_fixture.hot.bounds("t", [0]) == {0: OffsetBounds(7, 10)}
        assert tiered_fixture.log.bounds("t", [0]) == {0: OffsetBounds(0, 10)}
        tiered_fixture.log.close()

    def test_never_leaves_out_what_is_not_archived(self, tiered_fixture: TieredLogFixture):
        """The hot half keeps every event until it is archived, however long that takes."""
        tiered_fixture.store_hours(3)
        tiered_fixture.log.archive()
        tiered_fixture.store_hours(3)
        tiered_fixture.store.out_of_reach = True
        with pytest.raises(Unavailable):
            tiered_fixture.log.archive()
        tiered_fixture.log._worker.trim_hot_partitions()
        assert tiered_fixture.hot.bounds("t", [0]) == {0: OffsetBounds(2, 6)}
        tiered_fixture.store.out_of_reach = False
        tiered_fixture.log.archive()
        assert tiered_fixture.hot.bounds("t", [0]) == {0: OffsetBounds(5, 6)}
        assert tiered_fixture.offsets() == list(range(6))

    def test_needs_an_index_that_it_may_write_to_only_where_it_archives(
        self, tiered_fixture: TieredLogFixture, monkeypatch
    ):
        """A process that may read the index but not write to it, such as a function on AWS, stores and reads events."""
        tiered_fixture.store_hours(3)
        tiered_fixture.log.archive()

        def refuse(*_: object):
            raise Unavailable("It may not be written to.")

        for name in ("identity", "create_topic", "advance_head", "replace_segments", "claim"):
            monkeypatch.setattr(tiered_fixture.index, name, refuse)
        tiers = ArchivePolicy(archive_after=0, another_process_archives=True)
        log = TieredLog(
            tiered_fixture.hot, tiered_fixture.index, tiered_fixture.store, tiered_fixture.clock, TopicNames(), tiers
        )
        run_blocking(log.append("t", {0: [Record(b"3")]}))
        archived = log.read("t", 0, 0)
        assert [event.offset for event in archived.events] == [0, 1, 2]
        assert [event.offset for event in log.read("t", 0, archived.next_offset).events] == [3]

    def test_is_found_by_time(self, tiered_fixture: TieredLogFixture):
        """The search for a time finds the event in the half that has it."""
        began = tiered_fixture.clock.now()
        tiered_fixture.store_hours(8)
        tiered_fixture.log.archive()
        tiered_fixture.store_hours(4)
        for hours in range(14):
            assert tiered_fixture.log.first_offset_since("t", 0, began + hours * HOUR) == min(hours, 12)
        assert tiered_fixture.log.first_offset_since("t", 0, began + HOUR / 2) == 1

    def test_has_nothing_in_front_of_a_gap(self, tiered_fixture: TieredLogFixture):
        """If the hot half removed events while there was no archive, the log begins after these events."""
        tiered_fixture.store_hours(4)
        tiered_fixture.log.archive()
        tiered_fixture.store_hours(4)
        tiered_fixture.hot.trim("t", 0, tiered_fixture.clock.now() - 2 * HOUR)
        assert tiered_fixture.log.bounds("t", [0]) == {0: OffsetBounds(6, 8)}
        tiered_fixture.log.archive()
        assert tiered_fixture.log.bounds("t", [0]) == {0: OffsetBounds(6, 8)}
        assert tiered_fixture.offsets() == [6, 7]
        with pytest.raises(OffsetUnavailable):
            tiered_fixture.log.read("t", 0, 3)


class TestRetention:
    def test_retention_of_an_event_type_reaches_into_the_archive(self, tiered_fixture: TieredLogFixture):
        """Events that the retention of an event type removes are removed from both halves, and their objects are
        removed after the grace time."""
        tiered_fixture.store_hours(4)
        tiered_fixture.log.archive()
        tiered_fixture.store_hours(4)
        tiered_fixture.log.archive()
        assert len(tiered_fixture.objects()) == 2
        tiered_fixture.log.trim("t", 0, tiered_fixture.clock.now() - 3 * HOUR)
        assert tiered_fixture.log.bounds("t", [0]) == {0: OffsetBounds(5, 8)}
        assert tiered_fixture.offsets() == [5, 6, 7]
        assert len(tiered_fixture.objects()) == 2
        tiered_fixture.log.sweep()
        assert tiered_fixture.objects() == [each.location.key for each in tiered_fixture.segments()]
        assert tiered_fixture.offsets() == [5, 6, 7]

    def test_may_be_shorter_than_what_waits_to_be_archived(self, tiered_fixture: TieredLogFixture):
        """Events that are removed before they are archived are in no object."""
        tiered_fixture.store_hours(4)
        tiered_fixture.log.trim("t", 0, tiered_fixture.clock.now() - 2 * HOUR)
        tiered_fixture.log.archive()
        assert [(each.first_offset, each.end_offset) for each in tiered_fixture.segments()] == [(2, 4)]
        assert tiered_fixture.offsets() == [2, 3]

    def test_beside_the_first_archiving_removes_what_is_old_from_both_halves(
        self, tiered_fixture: TieredLogFixture, monkeypatch
    ):
        """An archiver that begins between the trims of the two halves does not bring removed events back."""
        tiered_fixture.store_hours(4)
        trim = tiered_fixture.hot.trim

        def archive_and_trim(topic: str, partition: int, before: datetime) -> None:
            monkeypatch.undo()
            tiered_fixture.log.archive()
            trim(topic, partition, before)

        monkeypatch.setattr(tiered_fixture.hot, "trim", archive_and_trim)
        tiered_fixture.log.trim("t", 0, tiered_fixture.clock.now() - 2 * HOUR)
        assert tiered_fixture.offsets() == [2, 3]

    def test_leaves_objects_to_those_who_read_them(self, tiered_fixture: TieredLogFixture):
        """Within the grace time, an object without references stays."""
        tiered_fixture.log.close()
        tiered_fixture = TieredLogFixture(
            ArchivePolicy(archive_after=inf, hot_retention=0, unreferenced_grace=3600, new_share_to_compact=0)
        )
        tiered_fixture.store_hours(2)
        tiered_fixture.log.archive()
        tiered_fixture.log.delete_topic("t")
        tiered_fixture.log.sweep()
        assert len(tiered_fixture.objects()) == 1
        tiered_fixture.log.close()

    def test_ends_with_the_topic(self, tiered_fixture: TieredLogFixture):
        """The objects of a topic are removed with it, and none of its events can be read."""
        tiered_fixture.store_hours(3)
        tiered_fixture.log.archive()
        tiered_fixture.log.read("t", 0, 0)
        tiered_fixture.log.delete_topic("t")
        tiered_fixture.log.sweep()
        assert tiered_fixture.objects() == []
        with pytest.raises(UnknownTopic):
            tiered_fixture.log.read("t", 0, 0)

    def test_a_topic_deleted_while_it_is_archived_leaves_nothing(self, tiered_fixture: TieredLogFixture, monkeypatch):
        """If a topic is deleted while it is archived, its archived events are removed, too."""
        tiered_fixture.store_hours(3)
        put = tiered_fixture.store.put

        def delete_and_put(key: str, content: bytes) -> None:
            tiered_fixture.log.delete_topic("t")
            put(key, content)

        monkeypatch.setattr(tiered_fixture.store, "put", delete_and_put)
        tiered_fixture.log.archive()
        assert tiered_fixture.segments() == []
        assert tiered_fixture.index.topic_names() == []
        tiered_fixture.log.sweep()
        assert tiered_fixture.objects() == []


class TestDamage:
    def test_is_reported_with_the_offsets(self, tiered_fixture: TieredLogFixture, caplog):
        """A changed object is reported with its offsets, and events around it can be read."""
        for _ in range(3):
            tiered_fixture.store_hours(4)
            tiered_fixture.log.archive()
        _, segment, _ = tiered_fixture.segments()
        content = bytearray(tiered_fixture.store.content(segment.location.key))
        content[len(content) // 2] ^= 0x10
        tiered_fixture.store.put(segment.location.key, bytes(content))
        assert [event.offset for event in tiered_fixture.log.read("t", 0, 0).events] == [0, 1, 2, 3]
        with pytest.raises(Unavailable, match="Offsets 4 to 7 of t/0 cannot be read"):
            tiered_fixture.log.read("t", 0, 5)
        assert "Offsets 4 to 7 of partition 0 of order.placed (topic t) cannot be read" in caplog.text
        assert [event.offset for event in tiered_fixture.log.read("t", 0, 8).events] == [8, 9, 10, 11]

    @pytest.mark.parametrize("what", ["cut", "gone", "longer", "another's", "foreign", "empty"])
    def test_damage_of_any_kind_is_never_skipped(self, tiered_fixture: TieredLogFixture, what):
        """An object that is cut off, missing, too long or foreign, or has other events, counts as damaged."""
        tiered_fixture.store_hours(4)
        tiered_fixture.store_hours(4, partition=1)
        tiered_fixture.log.archive()
        [segment] = tiered_fixture.segments()
        [other] = tiered_fixture.segments(partition=1)
        content = tiered_fixture.store.content(segment.location.key)
        mine = content[segment.location.start : segment.location.start + segment.location.length]
        others = content[other.location.start : other.location.start + other.location.length]
        changed = {
            "cut": mine[:-3],
            "longer": mine + b"x",
            "another's": others,
            "foreign": b"what is this?",
            "empty": b"",
        }
        if what == "gone":
            tiered_fixture.store.remove([segment.location.key])
        else:
            name = "log/of-somebody/else"
            tiered_fixture.store.put(name, changed[what])
            location = segment.location._replace(key=name, start=0, length=max(len(changed[what]), 1))
            tiered_fixture.index.replace_segments(
                "t", 0, [segment.__class__(**to_dict(segment) | {"location": location})], segment.end_offset
            )
        with pytest.raises(Unavailable, match="Offsets 0 to 3 of t/0"):
            tiered_fixture.log.read("t", 0, 0)
        with pytest.raises(Unavailable, match="Offsets 0 to 3 of t/0"):
            tiered_fixture.log.first_offset_since("t", 0, tiered_fixture.clock.now() - 7 * HOUR)

    def test_readers_wait_while_the_whole_archive_is_gone(self, tiered_fixture: TieredLogFixture):
        """While the archive is unreachable, the hot half is read as usual, and the log does not claim that old events
        do not exist."""
        tiered_fixture.store_hours(4)
        tiered_fixture.log.archive()
        tiered_fixture.store.out_of_reach = True
        tiered_fixture.store_hours(2)
        assert [event.offset for event in tiered_fixture.log.read("t", 0, 4).events] == [4, 5]
        assert tiered_fixture.log.bounds("t", [0]) == {0: OffsetBounds(0, 6)}
        with pytest.raises(Unavailable, match="on purpose"):
            tiered_fixture.log.read("t", 0, 0)
        tiered_fixture.store.out_of_reach = False
        assert tiered_fixture.offsets() == list(range(6))


class TestChores:
    """A failing topic does not keep other topics from being processed."""

    @pytest.fixture
    def broken_topic(self, tiered_fixture: TieredLogFixture, monkeypatch):
        """Another topic, for which archiving, the removal from the hot half, and merging fail; it is processed
        first.
        """
        tiered_fixture.log.create_topic("a.broken", 1)
        run_blocking(tiered_fixture.log.append("a.broken", {0: [Record(b"1")]}))
        bounds, topic = tiered_fixture.hot.bounds, tiered_fixture.index.topic

        def call_unless_broken(call):
            def call_or_fail(name, *rest):
                if name == "a.broken":
                    raise OSError("disk")
                return call(name, *rest)

            return call_or_fail

        monkeypatch.setattr(tiered_fixture.hot, "bounds", call_unless_broken(bounds))
        monkeypatch.setattr(tiered_fixture.index, "topic", call_unless_broken(topic))

    @pytest.mark.usefixtures("broken_topic")
    def test_archiving(self, tiered_fixture: TieredLogFixture, caplog):
        """The events of the other topics are archived, and the caller learns how many topics could not be archived."""
        tiered_fixture.store_hours(3)
        with pytest.raises(Unavailable, match="1 topics could not be archived"):
            tiered_fixture.log.archive()
        assert [segment.offset_count for segment in tiered_fixture.segments()] == [3]
        assert "The archiving of the topic a.broken failed" in caplog.text


class TestArchiving:
    def test_counts_with_the_index(self, tiered_fixture: TieredLogFixture):
        """An object to which the index does not refer does not count: its events are written again under another name,
        and the object is removed.
        """
        tiered_fixture.store_hours(4)
        extend = tiered_fixture.index.advance_head
        tiered_fixture.index.advance_head = lambda *_: False
        Archiver(tiered_fixture.hot, tiered_fixture.index, tiered_fixture.store, TopicNames()).archive_next_object(
            "t", [0]
        )
        tiered_fixture.index.advance_head = extend
        assert tiered_fixture.segments() == []
        [orphan] = tiered_fixture.objects()
        tiered_fixture.log.archive()
        [segment] = tiered_fixture.segments()
        assert segment.location.key != orphan
        assert tiered_fixture.offsets() == [0, 1, 2, 3]
        tiered_fixture.log.sweep()
        assert tiered_fixture.objects() == [segment.location.key]

    def test_several_processes_archive_each_event_once(self, tiered_fixture: TieredLogFixture):
        """However many processes archive the same events, each event is archived once."""
        archivers = [
            Archiver(tiered_fixture.hot, tiered_fixture.index, tiered_fixture.store, TopicNames()) for _ in range(4)
        ]
        for _ in range(5):
            tiered_fixture.store_hours(20)
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(lambda archiver: archiver.archive_next_object("t", [0, 1]), archivers))
        segments = tiered_fixture.segments()
        assert [each.first_offset for each in segments[1:]] == [each.end_offset for each in segments[:-1]]
        assert (segments[0].first_offset, segments[-1].end_offset) == (0, 100)

    def test_names_the_event_type(self, tiered_fixture: TieredLogFixture):
        """The name of the event type and the day are in the object's name, and the event type is in every line of the
        object."""
        tiered_fixture.store_hours(2)
        tiered_fixture.log.archive()
        [key] = tiered_fixture.objects()
        assert key.startswith(f"log/{tiered_fixture.index.identity()}/order.placed/2026-11-21/t-")
        [segment] = tiered_fixture.segments()
        assert (segment.offset_count, segment.event_count) == (2, 2)

    def test_archiving_many_events_makes_several_members(self, tiered_fixture: TieredLogFixture, monkeypatch):
        """A long partition is archived in members that are small enough to read at once, across as many objects as
        needed."""
        monkeypatch.setattr("nakadi.engines.archive.archiver.TARGET_MEMBER_BYTES", 1000)
        monkeypatch.setattr("nakadi.engines.archive.archiver.BYTES_PER_HOT_READ", 500)
        monkeypatch.setattr("nakadi.engines.archive.archiver.TARGET_OBJECT_BYTES", 3500)
        run_blocking(tiered_fixture.log.append("t", {0: [Record(b'"%s"' % (b"x" * 98)) for _ in range(100)]}))
        tiered_fixture.log.archive()
        assert len(tiered_fixture.segments()) == 10
        assert len(tiered_fixture.objects()) == 3
        assert tiered_fixture.offsets() == list(range(100))

    def test_small_pieces_are_merged(self, tiered_fixture: TieredLogFixture):
        """Many small neighbours become one object with the same offsets, and the old objects are removed after the
        grace time."""
        for _ in range(40):
            tiered_fixture.store_hours(1)
            tiered_fixture.log.archive()
        tiered_fixture.log._worker.merge_segments(lambda: None)
        assert [(each.first_offset, each.end_offset, each.event_count) for each in tiered_fixture.segments()] == [
            (0, 40, 40)
        ]
        assert tiered_fixture.offsets() == list(range(40))
        tiered_fixture.log.sweep()
        assert len(tiered_fixture.objects()) == 1

    def test_happens_by_itself(self):
        """Events are archived, and are removed from the hot half, without a request."""
        tiered_fixture = TieredLogFixture(
            ArchivePolicy(archive_after=0, hot_retention=0, unreferenced_grace=0, new_share_to_compact=0)
        )
        tiered_fixture.store_hours(3)
        until(lambda: tiered_fixture.hot.bounds("t", [0])[0].oldest == 2)
        assert tiered_fixture.offsets() == [0, 1, 2]
        tiered_fixture.log.close()

    def test_pieces_left_by_short_lived_processes_are_merged(self, tiered_fixture: TieredLogFixture, monkeypatch):
        """A process merges minutes after its start, so objects do not pile up even if no process lives for an hour."""
        monkeypatch.setattr(archive_worker, "FIRST_RUN_DELAY_SECONDS", 0)
        for _ in range(20):
            tiered_fixture.store_hours(1)
            tiered_fixture.log.archive()
        assert len(tiered_fixture.segments()) == 20
        later = TieredLog(
            tiered_fixture.hot,
            tiered_fixture.index,
            tiered_fixture.store,
            tiered_fixture.clock,
            TopicNames(),
            ArchivePolicy(archive_after=0, hot_retention=3600, unreferenced_grace=3600),
        )
        until(lambda: len(tiered_fixture.segments()) == 1)
        later.close()

    def test_takes_up_what_was_there_before(self):
        """A process archives events that an earlier process stored, but did not archive."""
        clock, index, store = HandMovedClock(), MemoryLogIndex(), MemoryStore()
        hot = MemoryLog(clock)
        hot.create_topic("t", 2)
        run_blocking(hot.append("t", {1: [Record(b"1"), Record(b"2")]}))
        log = TieredLog(
            hot,
            index,
            store,
            clock,
            TopicNames(),
            ArchivePolicy(archive_after=0, hot_retention=3600, unreferenced_grace=0),
        )
        until(lambda: list(archived_segments_from(index, "t", 1)))
        assert [(each.first_offset, each.end_offset) for each in archived_segments_from(index, "t", 1)] == [(0, 2)]
        log.close()


def to_dict(segment) -> dict[str, object]:
    return {
        name: getattr(segment, name)
        for name in ("state_before", "offset_count", "first_stored_at", "last_stored_at", "location", "event_count")
    }
