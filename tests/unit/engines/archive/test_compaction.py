"""Compaction of a log whose older half is in the archive."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from math import inf

import pytest

from nakadi.engines.archive import archiver as archiver_module
from nakadi.engines.archive.archiver import ArchivePolicy, Archiver
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.model.events import Record
from tests.support.patience import PATIENCE, until
from tests.support.tiered_world import Names, World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.log.close()


class TestCompaction:
    def test_covers_both_halves(self, world: World):
        """A newer event replaces earlier ones wherever they are."""
        world.store_hours(3, Record(b"1", "k"), Record(b"2", "other"))
        world.log.archive()
        world.store_hours(1, Record(b"3", "k"), Record(b"4"))
        world.log.compact("t", 0, stored_before=world.clock.now(), tombstones_before=world.clock.now())
        assert world.offsets() == [5, 6, 7]

    def test_of_the_cold_half_waits_for_a_good_part(self):
        """The cold half is written anew when what came since is a good part of it, and at least once a day."""
        world = World(ArchivePolicy(archive_after=inf, hot_retention=0, unreferenced_grace=0, new_share_to_compact=0.5))
        for number in range(10):
            world.store_hours(1, Record(b"1", f"k{number}"))
        world.log.archive()
        compact(world)
        before = world.segments()
        world.store_hours(2, Record(b"2", "k1"))
        world.log.archive()
        compact(world)
        assert world.segments()[0] == before[0]
        assert 1 in world.offsets()
        world.clock.move(25 * 3600)
        compact(world)
        assert world.offsets() == [0, *range(2, 10), 11]
        world.log.close()

    def test_that_waits_keeps_tombstones(self):
        """A deleted key does not come back: its tombstone stays as long as the cold half has what it covers."""
        world = World(
            ArchivePolicy(archive_after=inf, hot_retention=24 * 3600, unreferenced_grace=0, new_share_to_compact=5.0)
        )
        for number in range(10):
            world.store_hours(1, Record(b"1", f"k{number}"))
        world.log.archive()
        compact(world)  # the first time is always due
        world.log.append("t", {0: [Record(None, "k3")]})
        world.log.append("t", {0: [Record(b"end")]})
        world.clock.move(3600)
        compact(world)
        found = {event.record.key: event.record.value for event in world.log.read("t", 0, 0).events}
        assert found["k3"] is None
        assert 10 in world.offsets()
        world.log.close()

    def test_beside_the_first_archiving_covers_both_halves(self, world: World, monkeypatch):
        """What an archiver writes that begins just before the hot half is compacted does not come back."""
        world.store_hours(1, Record(b"1", "k"), Record(None, "k"))
        compact_hot = world.hot.compact

        def archive_and_compact(*place, **until) -> None:
            world.log.archive()
            compact_hot(*place, **until)

        monkeypatch.setattr(world.hot, "compact", archive_and_compact)
        compact(world)
        world.store_hours(1)
        world.log.archive()
        assert world.offsets() == [1, 2]

    def test_beside_an_archiver_keeps_a_deleted_key_deleted(self, world: World, monkeypatch):
        """An archiver that reads a key before the hot half is compacted, and what follows afterwards, brings no key
        back without its tombstone.
        """
        world.store_hours(1, Record(b"1", "k"), Record(None, "k"), Record(b"2"))
        compact_hot = world.hot.compact
        read_a_piece, go_on = threading.Event(), threading.Event()

        class InPieces(MemoryLog):
            def __init__(self) -> None:
                self.__dict__ |= world.hot.__dict__

            def read(self, topic, partition, start, **how):
                if start > 0:
                    read_a_piece.set()
                    go_on.wait(PATIENCE)
                return super().read(topic, partition, start, **how)

        def compact_between_two_pieces(*place, **moments) -> None:
            with ThreadPoolExecutor(1) as other:
                archiving = other.submit(
                    Archiver(InPieces(), world.index, world.store, Names()).archive_next_object, "t", [0]
                )
                until(lambda: read_a_piece.is_set() or archiving.done())
                compact_hot(*place, **moments)
                go_on.set()
                archiving.result(PATIENCE)

        monkeypatch.setattr(archiver_module, "EVENTS_PER_HOT_READ", 1)
        monkeypatch.setattr(world.hot, "compact", compact_between_two_pieces)
        compact(world)
        world.store_hours(1)
        world.log.archive()
        assert world.offsets() == [2, 3]


def compact(world: World) -> None:
    world.log.compact("t", 0, stored_before=world.clock.now(), tombstones_before=world.clock.now() + timedelta(hours=1))
