"""The rates that AWS permits."""

import base64

import pytest

from infra.laptop.limits import HashKeyRanges, Shard, TokenBucket, record_size

KB = 1024


def test_a_bucket_fills_as_time_goes_by():
    """A bucket holds one second's inflow, or its capacity; taking more makes later requests wait."""
    bucket = TokenBucket(10, 20)
    assert bucket.has(20, 5.0)
    assert not bucket.has(21, 5.0)
    bucket.take(25)
    assert not bucket.has(1, 5.5)
    assert bucket.has(1, 5.75)
    assert not bucket.has(21, 99.0)


@pytest.mark.parametrize(("size", "taken"), [(100, 1000), (100 * KB, 10), (600 * KB, 1), (3 * KB * KB, 1)])
def test_what_a_shard_takes_in_a_moment(size, taken):
    """A shard takes a megabyte or a thousand records at once, whichever comes first; a larger record is taken if it is
    alone.
    """
    shard = Shard()
    assert [shard.accept(size, 7.0) for _ in range(1100)].count(True) == taken


def test_a_shard_takes_more_a_second_later():
    """A shard takes one megabyte a second, so after a record of three megabytes it takes the next one only two seconds
    later.
    """
    shard = Shard()
    assert shard.accept(3 * KB * KB, 1.0)
    assert not shard.accept(1, 2.9)
    assert shard.accept(1, 3.1)


def test_a_shard_is_read_five_times_a_second():
    """The limit on reads of a shard applies to all readers together; requests for iterators are counted separately."""
    shard = Shard()
    assert [shard.allow_read(1.0) for _ in range(7)].count(True) == 5
    assert [shard.allow_iterator(1.0) for _ in range(7)].count(True) == 5
    assert shard.allow_read(1.3)
    assert not shard.allow_read(1.3)


def test_a_large_answer_closes_a_shard_for_seconds():
    """Ten megabytes are the output of a shard for five seconds."""
    shard = Shard()
    assert shard.allow_read(1.0)
    shard.record_read(10 * KB * KB)
    assert not shard.allow_read(4.9)
    assert shard.allow_read(5.1)


LISTED = [
    {"ShardId": "parent", "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}}
    | {"SequenceNumberRange": {"StartingSequenceNumber": "1", "EndingSequenceNumber": "2"}},
    {"ShardId": "low", "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**127 - 1)}}
    | {"SequenceNumberRange": {"StartingSequenceNumber": "3"}},
    {"ShardId": "high", "HashKeyRange": {"StartingHashKey": str(2**127), "EndingHashKey": str(2**128 - 1)}}
    | {"SequenceNumberRange": {"StartingSequenceNumber": "3"}},
]


@pytest.mark.parametrize(
    ("record", "shard"),
    [
        ({"PartitionKey": "a"}, "low"),  # its MD5 begins with 0c
        ({"PartitionKey": "b"}, "high"),  # and this one's with 92
        ({"PartitionKey": "a", "ExplicitHashKey": str(2**127)}, "high"),
    ],
)
def test_records_go_to_the_open_shard_that_takes_their_hash(record, shard):
    """A record goes to the open shard that takes the hash of its key, or the hash that it names; shards that were split
    accept nothing more.
    """
    assert HashKeyRanges.of(LISTED).find_shard(record) == shard


@pytest.mark.parametrize("data", [b"", b"a", b"ab", b"abc", b"abcd"])
def test_the_size_of_a_record_is_its_data_and_its_key(data):
    """The size of a record is the number of bytes of its data and its key, not of the data in base64."""
    assert record_size({"Data": base64.b64encode(data).decode(), "PartitionKey": "é"}) == len(data) + 2
