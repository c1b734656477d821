"""The shards that cover a hash key, in order."""

import pytest

from nakadi.engines.kinesis.shards import Shard, ShardTree
from nakadi.model.log_index import RecordPosition

# The shards a and b existed from the beginning; a was split, its second half was merged with b, and the result was
# split.
SHARDS = [
    Shard("g", 75, 99, ("e",)),
    Shard("f", 25, 74, ("e",)),
    Shard("e", 25, 99, ("d", "b"), is_closed=True),
    Shard("d", 25, 49, ("a",), is_closed=True),
    Shard("c", 0, 24, ("a",)),
    Shard("b", 50, 99, is_closed=True),
    Shard("a", 0, 49, is_closed=True),
]
LINEAGE = ShardTree(SHARDS)


@pytest.mark.parametrize(
    ("hash_key", "chain"),
    [(0, "ac"), (24, "ac"), (25, "adef"), (49, "adef"), (50, "bef"), (74, "bef"), (75, "beg"), (99, "beg")],
)
def test_a_chain_begins_with_the_oldest(hash_key, chain):
    """The shards of a hash key follow each other in time; both ends of a range belong to its shard."""
    assert LINEAGE.shards_covering(hash_key) == list(chain)


def test_parents_and_children_are_those_that_are_listed():
    """A merged shard has two parents, and shards that the stream has forgotten are not listed as parents or
    children."""
    assert LINEAGE.listed_parents("e") == ["d", "b"]
    assert sorted(LINEAGE.children("e")) == ["f", "g"]
    younger = ShardTree([shard for shard in SHARDS if shard.id not in "ab"])
    assert younger.listed_parents("e") == ["d"]
    assert younger.listed_parents("d") == []
    assert "a" not in younger


def test_leaves_cover_everything_once():
    """Every chain ends with a leaf."""
    assert sorted(LINEAGE.leaves()) == ["c", "f", "g"]


def test_marks_are_in_the_order_of_their_shards():
    """The lineage orders marks of different shards, and the sequence number those of one; the mark of nothing comes
    first."""
    marks = [
        None,
        RecordPosition("long gone", 99),
        RecordPosition("a", 8),
        RecordPosition("a", 12),
        RecordPosition("d", 3),
        RecordPosition("e", 1),
        RecordPosition("f", 0),
    ]
    backwards = marks[::-1]
    assert sorted(backwards, key=LINEAGE.rank) == marks


def test_a_part_of_a_lineage_keeps_the_order():
    """When old shards are forgotten, the remaining ones are still in their order."""
    for gone in ("a", "ab", "abd", "abde"):
        left = ShardTree([shard for shard in SHARDS if shard.id not in gone])
        assert left.shards_covering(30) == [each for each in "adef" if each not in gone]


def test_shards_that_descend_from_each_other_are_refused():
    """Shards that descend from each other, in a cycle, are refused."""
    with pytest.raises(ValueError, match="descend"):
        ShardTree([Shard("a", 0, 9, ("b",)), Shard("b", 0, 9, ("a",))]).shards_covering(1)
