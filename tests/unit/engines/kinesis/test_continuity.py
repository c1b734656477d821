"""How fresh the lineage of shards is that a reader goes by."""

import pytest

from nakadi.engines.kinesis.continuity import ShardTreeCache
from nakadi.engines.kinesis.shards import Shard
from nakadi.model.log_index import RecordPosition


class ShardListingStream:
    """A stream whose shards are listed; `times` counts how often."""

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
    """A record of a shard that is not known yet has the shards listed again, and those after it have not."""
    assert "old" in shard_trees.current
    stream.listed = [Shard("new", 0, 99, ("old",)), Shard("old", 0, 99, is_closed=True)]
    for sequence in range(5):
        assert "new" in shard_trees.tree_for_ranking(RecordPosition("new", sequence))
    assert stream.times == 2


def test_a_forgotten_shard_is_looked_for_once(stream, shard_trees):
    """A record of a shard that the stream has forgotten has the shards listed once, however many there are of it."""
    for sequence in range(5):
        shard_tree = shard_trees.tree_for_ranking(RecordPosition("forgotten", sequence))
        assert "forgotten" not in shard_tree
        assert shard_tree is shard_trees.current
    assert stream.times == 2


def test_each_forgotten_shard_is_looked_for(stream, shard_trees):
    """One forgotten shard says nothing about another."""
    for shard in ("one", "two", "one", "two"):
        shard_trees.tree_for_ranking(RecordPosition(shard, 1))
    assert stream.times == 3
