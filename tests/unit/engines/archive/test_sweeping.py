"""Removing archive objects to which no index refers."""

from datetime import UTC, datetime, timedelta

import pytest

from nakadi.engines.archive import object_keys, sweeping
from nakadi.engines.archive.stores import MemoryStore
from nakadi.engines.archive.sweeping import ArchiveSweep, SweepResult
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexingState, IndexSegment


@pytest.fixture
def index():
    index = MemoryLogIndex()
    index.create_topic("t", 1)
    return index


@pytest.fixture
def store():
    return MemoryStore()


def refer_to_object(index: MemoryLogIndex, key: str, first: int = 0) -> None:
    segment = IndexSegment(
        state_before=IndexingState(next_offset=first),
        offset_count=1,
        first_stored_at=0,
        last_stored_at=0,
        location=ArchiveLocation(key, 0, 1),
    )
    assert index.advance_head("t", 0, first, IndexHead(IndexingState(next_offset=first + 1)), segment)


def in_a_second() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=1)


def test_what_is_referred_to_stays(index, store):
    """Old objects without a segment are removed, and the number of their bytes is reported."""
    for name in ("log/mine/a", "log/mine/b", "compacted/mine/c"):
        store.put(name, b"content")
    refer_to_object(index, "log/mine/a")
    assert ArchiveSweep(index, store).run(in_a_second()) == SweepResult(
        old_object_count=3, removed_count=2, bytes_freed=14
    )
    assert store.all_keys() == ["log/mine/a"]


def test_what_is_young_stays(index, store):
    """Within the grace time, no object is removed: it may be about to be referred to, or it may still be read."""
    refer_to_object(index, "log/mine/a")
    store.put("log/mine/b", b"content")
    assert ArchiveSweep(index, store).run(datetime.now(UTC) - timedelta(hours=1)) == SweepResult()
    assert store.all_keys() == ["log/mine/b"]


def test_what_is_anothers_stays(index, store):
    """Objects of other indexes, foreign files, and objects that were set aside stay."""
    others = ["compacted/other/b", "foreign", "log/other/a", "set-aside/mine/c"]
    for name in others:
        store.put(name, b"content")
    refer_to_object(index, "log/mine/a")
    ArchiveSweep(index, store).run(in_a_second())
    assert store.all_keys() == others


def test_an_index_that_refers_to_nothing_sweeps_where_it_is_ordered(index, store):
    """If an index refers to nothing any more, a sweep that is given the namespace can clean it up."""
    store.put("log/mine/a", b"content")
    ArchiveSweep(index, store).run(in_a_second())
    assert store.all_keys() == ["log/mine/a"]
    ArchiveSweep(index, store, namespaces=("mine",)).run(in_a_second())
    assert store.all_keys() == []


def test_what_is_rewritten_stays_in_its_namespace():
    """An object that replaces another one gets an unused name in the same namespace."""
    old = object_keys.new_log_key("mine", "order.placed", "t", datetime(2026, 11, 21, tzinfo=UTC))
    new = object_keys.new_rewritten_key(old, "t", 3, 7)
    assert object_keys.namespace_of_key(new) == object_keys.namespace_of_key(old) == "mine"
    assert new.startswith("compacted/mine/t/3/000000000000000007-")
    assert new != object_keys.new_rewritten_key(old, "t", 3, 7)
    assert object_keys.new_log_key("mine", None, "t", datetime(2026, 11, 21, tzinfo=UTC)).startswith(
        "log/mine/_/2026-11-21/t-"
    )


def test_what_cannot_be_removed_does_not_keep_the_rest(index, store, monkeypatch):
    """If some objects cannot be removed, the sweep removes and counts the others."""
    monkeypatch.setattr(sweeping, "KEYS_PER_REMOVAL", 1)
    for name in ("log/mine/a", "log/mine/b", "log/mine/c"):
        store.put(name, b"content")
    refer_to_object(index, "log/mine/kept")
    remove = store.remove

    def fails_for_one(names):
        if "log/mine/b" in names:
            raise OSError("denied")
        remove(names)

    store.remove = fails_for_one
    assert ArchiveSweep(index, store).run(in_a_second()) == SweepResult(
        old_object_count=3, removed_count=2, bytes_freed=14
    )
    assert store.all_keys() == ["log/mine/b"]
