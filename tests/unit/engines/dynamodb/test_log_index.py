"""The log index in DynamoDB when its calls fail."""

import pytest

from nakadi.engines.dynamodb import log_index
from nakadi.engines.dynamodb.client import RETRY_PAUSES_SECONDS, CallRetryPolicy
from nakadi.engines.dynamodb.log_index import DynamoDbLogIndex
from nakadi.engines.dynamodb.table_address import TableAddress
from nakadi.model.log_index import (
    ArchiveLocation,
    IndexHead,
    IndexingState,
    IndexSegment,
    RecordPosition,
    ShardProgress,
    Topic,
)
from nakadi.model.outcomes import Unavailable
from tests.support.aws import (
    PASSING_FAULTS,
    REGION,
    refusal_fault,
    timeout_before_effect,
)

SOME = {
    name: PASSING_FAULTS[name] for name in ("throttled", "cancelled by a conflict", "broken after", "no answer after")
}
EXPIRED = refusal_fault("ExpiredTokenException")
ATTEMPTS = len(RETRY_PAUSES_SECONDS) + 1


@pytest.fixture
def index(aws):
    index = DynamoDbLogIndex(TableAddress("test", REGION), CallRetryPolicy(lambda _: None))
    index.create_topic("t", 2)
    assert index.advance_head("t", 0, 0, IndexHead(count_reads(10)), a_segment(0, 10))
    index.advance_shard_progress("stream", "shard", ShardProgress(7))
    aws.calls.clear()
    return index


@pytest.mark.usefixtures("aws")
def test_the_index_connects_at_its_first_call(monkeypatch):
    """An index that is opened and never used creates no client, because creating a client takes long."""
    made = []
    connect = log_index.connect
    monkeypatch.setattr(log_index, "connect", lambda items: made.append(items) or connect(items))
    unasked, asked = (DynamoDbLogIndex(TableAddress("test", REGION)) for _ in range(2))

    assert made == []
    asked.create_topic("t", 1)
    asked.index_heads([("t", 0)])
    assert len(made) == 1
    for each in (unasked, asked):
        each.close()
    with pytest.raises(Unavailable):
        unasked.index_heads([("t", 0)])
    assert len(made) == 1


def count_reads(following: int) -> IndexingState:
    return IndexingState(last_position=RecordPosition("shard", following), next_offset=following)


def a_segment(first: int, count: int) -> IndexSegment:
    return IndexSegment(
        state_before=count_reads(first),
        offset_count=count,
        first_stored_at=0,
        last_stored_at=1,
        location=ArchiveLocation("object", first, count),
    )


def extend_index(index):
    assert index.advance_head("t", 0, 1, IndexHead(count_reads(15)), a_segment(10, 5))
    return index.index_heads([("t", 0)])["t", 0].state.next_offset, [
        each.first_offset for each in index.segments_from("t", 0, 0, 9)
    ]


def index_grown_topic(index):
    index.grow_topic("t", 5)
    return index.topic("t")


def seal_and_read_topic(index):
    index.seal_topic("t")
    return index.topic("t")


def store_progress(index):
    index.advance_shard_progress("stream", "shard", ShardProgress(9))
    return index.shard_progresses("stream")


def drop_before(index):
    return index.drop_segments_before("t", 0, 10), index.topic("t").oldest, index.segments_from("t", 0, 0, 9)


def claims_of_two_owners(index):
    return index.claim("name", "me", 60), index.claim("name", "other", 60)


def replace_and_list_segments(index):
    index.replace_segments("t", 0, [a_segment(0, 10)], 10)
    return [each.first_offset for each in index.segments_from("t", 0, 0, 9)]


DOING = {
    "extending": (extend_index, "TransactWriteItems", (15, [0, 10])),
    "growing": (index_grown_topic, "PutItem", Topic(partitions=5)),
    "sealing": (seal_and_read_topic, "TransactWriteItems", Topic(partitions=2, sealed=True)),
    "noting progress": (store_progress, "PutItem", {"shard": ShardProgress(9)}),
    "letting go": (drop_before, "BatchWriteItem", ([ArchiveLocation("object", 0, 10)], {0: 10}, [])),
    "claiming": (claims_of_two_owners, "PutItem", (True, False)),
    "replacing": (replace_and_list_segments, "PutItem", [0]),
    "looking at heads": (lambda index: index.index_heads([("t", 0)])["t", 0].state.next_offset, "BatchGetItem", 10),
    "looking at a topic": (lambda index: index.topic("t"), "GetItem", Topic(partitions=2)),
    "looking at segments": (lambda index: index.segment_at_or_before("t", 0, 3).first_offset, "Query", 0),
}


@pytest.mark.parametrize("fault", SOME.values(), ids=SOME)
@pytest.mark.parametrize("doing", DOING.values(), ids=DOING)
def test_faults_that_pass_change_nothing(aws, index, doing, fault):
    """Despite faults before or after its effect, every operation is done once and reported correctly."""
    act, operation, expected = doing
    aws.goes_wrong(operation, *[fault] * (ATTEMPTS - 1))
    assert act(index) == expected


@pytest.mark.parametrize("doing", DOING.values(), ids=DOING)
def test_expired_credentials_are_reported(aws, index, doing):
    """Expired credentials are reported at once, and the same call succeeds once they are renewed."""
    act, operation, expected = doing
    aws.goes_wrong(operation, EXPIRED)
    with pytest.raises(Unavailable):
        act(index)
    assert not aws.awaits_fault(operation)
    assert act(index) == expected or operation == "BatchWriteItem"


@pytest.mark.parametrize("fault", PASSING_FAULTS.values(), ids=PASSING_FAULTS)
def test_an_extension_is_made_once_or_not_at_all(aws, index, fault):
    """When no attempt is answered, either both the head and the segment exist or neither does; a later read shows
    which."""
    aws.goes_wrong("TransactWriteItems", *[fault] * ATTEMPTS)
    with pytest.raises(Unavailable):
        index.advance_head("t", 0, 1, IndexHead(count_reads(15)), a_segment(10, 5))
    head = index.index_heads([("t", 0)])["t", 0]
    firsts = [each.first_offset for each in index.segments_from("t", 0, 0, 9)]
    assert (head.state.next_offset, head.revision, firsts) in [(10, 1, [0]), (15, 2, [0, 10])]


def test_anothers_extension_is_no_fault(aws, index):
    """If two processes extend the same head, the second one learns of the first, even if its first attempt got no
    answer."""
    other = DynamoDbLogIndex(TableAddress("test", REGION), CallRetryPolicy(lambda _: None))
    assert other.advance_head("t", 0, 1, IndexHead(count_reads(12)), a_segment(10, 2))
    aws.goes_wrong("TransactWriteItems", timeout_before_effect)
    assert not index.advance_head("t", 0, 1, IndexHead(count_reads(15)), a_segment(10, 5))
    assert index.index_heads([("t", 0)])["t", 0].state.next_offset == 12
