"""The index over runs of ids: it never misses an existing id, and its size is bounded."""

import random

import pytest

from nakadi.engines.sqlite import eid_index
from nakadi.engines.sqlite.eid_index import EidIndex

MIN_SLOTS = 1 << 16


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch):
    monkeypatch.setattr(eid_index, "MIN_SLOTS", MIN_SLOTS)


@pytest.fixture(autouse=True)
def _same_keys_each_time():
    drawn.seed(27)


class StableKey(bytes):
    """A key whose hash is the same in each process, so the same keys collide in every test run."""

    def __hash__(self) -> int:
        return int.from_bytes(self[:8], "big") >> 4


drawn = random.Random()


def keys(number: int) -> list[bytes]:
    return [StableKey(drawn.randbytes(32)) for _ in range(number)]


def test_finds_every_key_in_its_runs():
    """The index finds each key in each of its runs, across many tables."""
    index = EidIndex()
    runs = {run: keys(4_000) for run in range(1, 31)}
    shared = keys(10)
    for run, own in runs.items():
        index.add_to_run(run, [*own, *shared])
    for run, own in runs.items():
        found = dict(index.find_candidates(own))
        assert all(run in found[key] for key in own)
    assert all(set(found) == set(runs) for _, found in index.find_candidates(shared))


def test_finds_hardly_anything_else():
    """Of the keys that are in no run, fewer than one in a thousand seems to be in one."""
    index = EidIndex()
    for run in range(1, 31):
        index.add_to_run(run, keys(4_000))
    assert len(list(index.find_candidates(keys(20_000)))) < 20


def test_forgets_runs_that_are_gone():
    """A table is dropped with the last of its runs, and the remaining keys are still found."""
    index = EidIndex()
    runs = {run: keys(4_000) for run in range(1, 31)}
    for run, own in runs.items():
        index.add_to_run(run, own)
    before = len(index._tables)
    index.keep_runs(range(25, 31))
    assert len(index._tables) < before
    assert all(run in found for run in range(25, 31) for _, found in index.find_candidates(runs[run]))
    assert all(len(list(index.find_candidates(runs[run]))) == len(runs[run]) for run in range(25, 31))


def test_is_bounded():
    """When all slots are in use, further runs have no table: any key may be in any of them, and none is missed."""
    index = EidIndex(max_slots=2 * MIN_SLOTS)
    runs = {run: keys(9_000) for run in range(1, 16)}
    for run, own in runs.items():
        index.add_to_run(run, own)
    assert sum(len(table.slots) for table in index._tables) <= 2 * MIN_SLOTS
    for run, own in runs.items():
        key = drawn.choice(own)
        assert run in dict(index.find_candidates([key]))[key]
    index.keep_runs([1, 15])
    [(_, found)] = index.find_candidates([runs[1][0]])
    assert set(found) <= {1, 15}


def test_takes_in_new_keys_alone():
    """Keys that are in no run are added; a key that is in a run of any table, or that occurs twice, is reported."""
    index = EidIndex()
    runs = {run: keys(4_000) for run in range(1, 31)}
    for run, own in runs.items():
        assert index.add_if_all_new(run, own)
    assert len(index._tables) > 1
    for run, own in runs.items():
        found = dict(index.find_candidates(own))
        assert all(run in found[key] for key in own)
        assert not index.add_if_all_new(31, [*keys(3), own[0]])
    assert not index.add_if_all_new(31, keys(1) * 2)
    assert EidIndex(max_slots=MIN_SLOTS).add_if_all_new(1, keys(1))


def test_beyond_its_slots_nothing_is_new_for_certain():
    """Once all slots are in use, no key is certainly new, because runs without a table may contain any key."""
    index = EidIndex(max_slots=MIN_SLOTS)
    for run in range(1, 11):
        index.add_to_run(run, keys(9_000))
    assert not index.add_if_all_new(11, keys(1))
