import pytest

from nakadi.model.event_type import CleanupPolicy
from nakadi.model.outcomes import Malformed
from nakadi.publishing.enrich import keys_of
from tests.support.builders import an_event_type

PLACES = [(0, "placed"), (1, None)]
EVENTS = [{"metadata": {"partition_compaction_key": "one"}}, {"metadata": {"partition_compaction_key": ""}}]


@pytest.mark.parametrize("policy", [CleanupPolicy.COMPACT, CleanupPolicy.COMPACT_AND_DELETE])
def test_compacted_events_have_their_own_key(policy):
    """With a compacting policy the record key is the compaction key, empty or not. (P96, P142)"""
    assert keys_of(an_event_type(cleanup_policy=policy), EVENTS, PLACES) == ["one", ""]


def test_other_events_have_the_key_they_were_placed_by():
    """Otherwise the key is what the partition was chosen by, if it was chosen by a key. (P98)"""
    assert keys_of(an_event_type(), EVENTS, PLACES) == ["placed", None]


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
    """A missing key makes the request one that cannot be read. (P141)"""
    with pytest.raises(Malformed) as caught:
        keys_of(an_event_type(cleanup_policy=CleanupPolicy.COMPACT), [EVENTS[0], event], PLACES)
    assert caught.value.detail == f"Error occurred when parsing event(s). {problem}"
