import pytest

from nakadi.model.event_type import CleanupPolicy, PartitionStrategy
from nakadi.model.outcomes import Malformed
from nakadi.publishing.batch import BatchPiece, BatchStatus
from nakadi.publishing.enrichment import compaction_keys
from tests.support.builders import an_event_type

EVENTS = [{"metadata": {"partition_compaction_key": "one"}}, {"metadata": {"partition_compaction_key": ""}}]


@pytest.mark.parametrize("policy", [CleanupPolicy.COMPACT, CleanupPolicy.COMPACT_AND_DELETE])
def test_compacted_events_have_their_own_key(house, policy):
    """With a compacting policy, the record key is the compaction key, even if it is empty. (P96, P142)"""
    event_type = house.add(an_event_type(cleanup_policy=policy, partitions=2))
    house.draws = [0.0, 0.9]
    assert house.publish(event_type, EVENTS).status is BatchStatus.STORED
    assert [house.records(event_type, partition)[0].key for partition in (0, 1)] == ["one", ""]


def test_other_events_have_the_key_that_their_partition_was_chosen_by(house):
    """Without a compacting policy, the record key is the partition key, if a key chose the partition. (P98)"""
    by_key = {"partition_strategy": PartitionStrategy.HASH, "partition_key_fields": ("k",)}
    event_type = house.add(an_event_type(**by_key))
    house.publish(event_type, [{"k": "placed"}])
    assert [record.key for record in house.records(event_type)] == ["placed"]

    at_random = house.add(an_event_type(name="random"))
    house.publish(at_random, EVENTS)
    assert [record.key for record in house.records(at_random)] == [None, None]


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ({}, 'JSONObject["metadata"] not found.'),
        ({"metadata": None}, 'JSONObject["metadata"] is not a JSONObject.'),
        ({"metadata": "text"}, 'JSONObject["metadata"] is not a JSONObject.'),
        ({"metadata": {}}, 'JSONObject["partition_compaction_key"] not found.'),
        ({"metadata": {"partition_compaction_key": 1}}, 'JSONObject["partition_compaction_key"] not a string.'),
        ({"metadata": {"partition_compaction_key": None}}, 'JSONObject["partition_compaction_key"] not a string.'),
    ],
)
def test_an_event_without_its_compaction_key(event, problem):
    """If an event has no compaction key, the whole request is malformed. (P141)"""
    with pytest.raises(Malformed) as caught:
        compaction_keys(BatchPiece([EVENTS[0], event], b"", b""))
    assert caught.value.detail == f"Error occurred when parsing event(s). {problem}"
