"""Compaction of a log whose older half is in the archive."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from math import inf

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.archive import archiver as archiver_module
from nakadi.engines.archive.archiver import Archiver
from nakadi.engines.archive.policy import ArchivePolicy
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.model.events import Record
from tests.support.patience import PATIENCE, until
from tests.support.tiered_log_fixture import TieredLogFixture, TopicNames


@pytest.fixture
def tiered_fixture() -> Iterator[TieredLogFixture]:
    tiered_fixture = TieredLogFixture()
    yield tiered_fixture
    tiered_fixture.log.close()


class TestCompaction:
    def test_covers_both_halves(self, tiered_fixture: TieredLogFixture):
        """A newer event replaces earlier ones, whichever half they are in."""
        tiered_fixture.store_hours(3, Record(b"1", "k"), Record(b"2", "other"))
        tiered_fixture.log.archive()
        tiered_fixture.store_hours(1, Record(b"3", "k"), Record(b"4"))
        tiered_fixture.log.compact(
            "t", 0, stored_before=tiered_fixture.clock.now(), tombstones_before=tiered_fixture.clock.now()
        )
        assert tiered_fixture.offsets() == [5, 6, 7]

    def test_the_cold_half_waits_until_a_good_part_is_replaceable(self):
        """The cold half is rewritten when newer events would replace a good part of it, and at least once a day."""
        tiered_fixture = TieredLogFixture(
            ArchivePolicy(archive_after=inf, hot_retention=0, unreferenced_grace=0, new_share_to_compact=0.5)
        )
        for number in range(10):
            tiered_fixture.store_hours(1, Record(b"1", f"k{number}"))
        tiered_fixture.log.archive()
        compact(tiered_fixture)
        before = tiered_fixture.segments()
        tiered_fixture.store_hours(2, Record(b"2", "k1"))
        tiered_fixture.log.archive()
        compact(tiered_fixture)
        assert tiered_fixture.segments()[0] == before[0]
        assert 1 in tiered_fixture.offsets()
        tiered_fixture.clock.move(25 * 3600)
        compact(tiered_fixture)
        assert tiered_fixture.offsets() == [0, *range(2, 10), 11]
        tiered_fixture.log.close()

    def test_that_waits_keeps_tombstones(self):
        """A deleted key does not come back: its tombstone stays as long as the cold half has events that it covers."""
        tiered_fixture = TieredLogFixture(
            ArchivePolicy(archive_after=inf, hot_retention=24 * 3600, unreferenced_grace=0, new_share_to_compact=5.0)
        )
        for number in range(10):
            tiered_fixture.store_hours(1, Record(b"1", f"k{number}"))
        tiered_fixture.log.archive()
        compact(tiered_fixture)  # the first compaction is always due
        run_blocking(tiered_fixture.log.append("t", {0: [Record(None, "k3")]}))
        run_blocking(tiered_fixture.log.append("t", {0: [Record(b"end")]}))
        tiered_fixture.clock.move(3600)
        compact(tiered_fixture)
        found = {event.record.key: event.record.value for event in tiered_fixture.log.read("t", 0, 0).events}
        assert found["k3"] is None
        assert 10 in tiered_fixture.offsets()
        tiered_fixture.log.close()

    def test_beside_the_first_archiving_covers_both_halves(self, tiered_fixture: TieredLogFixture, monkeypatch):
        """If an archiver begins just before the hot half is compacted, the removed events do not come back."""
        tiered_fixture.store_hours(1, Record(b"1", "k"), Record(None, "k"))
        compact_hot = tiered_fixture.hot.compact

        def archive_and_compact(*place, **until) -> None:
            tiered_fixture.log.archive()
            compact_hot(*place, **until)

        monkeypatch.setattr(tiered_fixture.hot, "compact", archive_and_compact)
        compact(tiered_fixture)
        tiered_fixture.store_hours(1)
        tiered_fixture.log.archive()
        assert tiered_fixture.offsets() == [1, 2]

    def test_beside_an_archiver_keeps_a_deleted_key_deleted(self, tiered_fixture: TieredLogFixture, monkeypatch):
        """If an archiver reads a key and its later events before the hot half is compacted, the key does not come back
        without its tombstone."""
        tiered_fixture.store_hours(1, Record(b"1", "k"), Record(None, "k"), Record(b"2"))
        compact_hot = tiered_fixture.hot.compact
        read_a_piece, go_on = threading.Event(), threading.Event()

        class InPieces(MemoryLog):
            def __init__(self) -> None:
                self.__dict__ |= tiered_fixture.hot.__dict__

            def read(self, topic, partition, start, **how):
                if start > 0:
                    read_a_piece.set()
                    go_on.wait(PATIENCE)
                return super().read(topic, partition, start, **how)

        def compact_between_two_pieces(*place, **moments) -> None:
            with ThreadPoolExecutor(1) as other:
                archiving = other.submit(
                    Archiver(InPieces(), tiered_fixture.index, tiered_fixture.store, TopicNames()).archive_next_object,
                    "t",
                    [0],
                )
                until(lambda: read_a_piece.is_set() or archiving.done())
                compact_hot(*place, **moments)
                go_on.set()
                archiving.result(PATIENCE)

        monkeypatch.setattr(archiver_module, "EVENTS_PER_HOT_READ", 1)
        monkeypatch.setattr(tiered_fixture.hot, "compact", compact_between_two_pieces)
        compact(tiered_fixture)
        tiered_fixture.store_hours(1)
        tiered_fixture.log.archive()
        assert tiered_fixture.offsets() == [2, 3]


def compact(tiered_fixture: TieredLogFixture) -> None:
    tiered_fixture.log.compact(
        "t",
        0,
        stored_before=tiered_fixture.clock.now(),
        tombstones_before=tiered_fixture.clock.now() + timedelta(hours=1),
    )
