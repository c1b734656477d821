"""How up to date a reader's lineage of shards is."""

import pytest

from nakadi.engines.kinesis.continuity import ShardTreeCache
from nakadi.engines.kinesis.shards import Shard
from nakadi.model.log_index import RecordPosition


class ShardListingStream:
    """A stream whose shards are listed; `times` counts the calls."""

    def __init__(self):
        self.listed = [Shard("old", 0, 99)]
        self.times = 0

    def list_shards(self):
        self.times += 1
        return self.listed


@pytest.fixture
def stream():
    return ShardListingStream()


@pytest.fixture
def shard_trees(stream):
    return ShardTreeCache(stream)


def test_a_new_shard_is_looked_for_once(stream, shard_trees):
    """A record of an unknown shard causes the shards to be listed again; further records of that shard do not."""
    assert "old" in shard_trees.current
    stream.listed = [Shard("new", 0, 99, ("old",)), Shard("old", 0, 99, is_closed=True)]
    for sequence in range(5):
        assert "new" in shard_trees.tree_for_ranking(RecordPosition("new", sequence))
    assert stream.times == 2


def test_a_forgotten_shard_is_looked_for_once(stream, shard_trees):
    """A record of a shard that the stream has forgotten causes the shards to be listed once, however many such records
    there are."""
    for sequence in range(5):
        shard_tree = shard_trees.tree_for_ranking(RecordPosition("forgotten", sequence))
        assert "forgotten" not in shard_tree
        assert shard_tree is shard_trees.current
    assert stream.times == 2


def test_each_forgotten_shard_is_looked_for(stream, shard_trees):
    """Each forgotten shard causes a listing of its own."""
    for shard in ("one", "two", "one", "two"):
        shard_trees.tree_for_ranking(RecordPosition(shard, 1))
    assert stream.times == 3
