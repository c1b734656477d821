import collections
import random
from types import MappingProxyType

import pytest

from nakadi.common.work import LongWorkQueue, client_never_gone
from nakadi.model.event_type import Category, PartitionStrategy
from nakadi.publishing.batch import MAX_BATCH_STEPS, BatchPiece, BatchRejected, PublishingStep, WorkBudget
from nakadi.publishing.enrichment import choose_partitions
from tests.support.builders import an_event_type


def draw_nothing() -> float:
    raise AssertionError("nothing was to be drawn")


def partitions_of(events, draw=draw_nothing, hash_orders=MappingProxyType({}), **event_type):
    budget = WorkBudget(MAX_BATCH_STEPS, LongWorkQueue(), client_never_gone)
    return choose_partitions(an_event_type(**event_type), BatchPiece(events, b"", b""), draw, budget, hash_orders)[0]


def by_hash(*fields, partitions, **more):
    return {
        "partition_strategy": PartitionStrategy.HASH,
        "partition_key_fields": fields,
        "partitions": partitions,
    } | more


def refusal(events, **event_type) -> BatchRejected:
    with pytest.raises(BatchRejected) as caught:
        partitions_of(events, **event_type)
    assert caught.value.step is PublishingStep.PARTITIONING
    assert caught.value.prior_step is PublishingStep.VALIDATING
    return caught.value


@pytest.mark.parametrize(
    ("event", "partitions", "expected"),
    [
        ({"sku": "123", "price": "512$"}, 3, 2),
        ({"k": "Hello"}, 8, 2),
        ({"k": "Hello"}, 12, 10),
        ({"x": "a", "y": "b"}, 12, 11),
        ({"x": "b", "y": "a"}, 12, 11),
        ({"k": None}, 8, 7),
        ({"x": "A1", "y": "Super Shirt"}, 8, 7),
        ({"k": True}, 8, 6),
        ({"k": 1.0}, 8, 3),
        ({"k": "\U0001f600"}, 8, 3),
        ({"k": ""}, 8, 0),
        ({"k": "<><%?>#<)#%(<*J%H\n\n)R&#89hb678n(*njyih48p3u bn7\t843h 743h yh"}, 8, 7),
    ],
)
def test_known_hashes(event, partitions, expected):
    """The reference's test vectors: the sum of hashes, its remainder, and an index into the names, sorted as strings.

    (P81, P83, P84, P90, P91, P95)
    """
    assert partitions_of([event], **by_hash(*event, partitions=partitions)) == [expected]


def test_sums_wrap_around():
    """The sum of hashes has 32 bits; it overflows before the remainder is taken. (P81, P83)"""
    lowest = "polygenelubricants"
    event = {"a": lowest, "b": lowest, "c": "a"}
    assert partitions_of([event], **by_hash("a", "b", "c", partitions=10)) == [97 % 10]
    assert partitions_of([{"a": lowest}], **by_hash("a", partitions=7)) == [2**31 % 7]


def test_the_order_of_key_fields_does_not_matter():
    """The hashes of keys are added, so their order does not change the partition. (P86)"""
    events = [{"a": str(number), "b": "x"} for number in range(50)]
    there = partitions_of(events, **by_hash("a", "b", partitions=7))
    assert there == partitions_of(events, **by_hash("b", "a", partitions=7))
    assert set(there) == set(range(7))


def test_partitions_are_counted_in_the_order_of_texts():
    """Of twelve partitions, the third name is 10. (P84)"""
    names = partitions_of([{"k": chr(96 + number)} for number in range(12)], **by_hash("k", partitions=12))
    assert names == [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]


def test_indexes_of_a_number_of_partitions_may_be_remapped():
    """If an order is configured for this number of partitions, the hash selects an index in that order. (P85)"""
    events = [{"k": chr(96 + number)} for number in range(12)]
    turned = {12: tuple(reversed(range(12)))}
    assert partitions_of(events, hash_orders=turned, **by_hash("k", partitions=12)) == [
        9,
        8,
        7,
        6,
        5,
        4,
        3,
        2,
        11,
        10,
        1,
        0,
    ]
    assert partitions_of(events[:3], hash_orders=turned, **by_hash("k", partitions=3)) == [0, 1, 2]


def test_key_fields_of_data_events_are_within_their_data():
    """Paths are relative to `data` in data change events, and to the event in all other events. (P87)"""
    event = {"k": "a", "data": {"k": "Hello"}}
    hello = by_hash("k", partitions=8)
    assert partitions_of([event], **hello, category=Category.DATA) == [2]
    assert partitions_of([event], **hello, category=Category.BUSINESS) == [97 % 8]
    assert partitions_of([event], **hello, category=Category.UNDEFINED) == [97 % 8]
    assert partitions_of([event], **by_hash("data.k", partitions=8)) == [2]


def test_a_missing_key_field():
    """An event without a key field fails with the name of the missing segment, and events before it keep their
    partitions.

    (P89)
    """
    rejection = refusal([{"a": {"b": "Hello"}}, {"a": {}}, {"a": {"b": 1}}], **by_hash("a.b", partitions=8))
    assert (rejection.index, rejection.detail) == (1, "field b doesn't exist.")
    assert rejection.partitions == [2]


def test_structured_key_fields():
    """Objects as keys are equal if their members are equal, in any order; the order that the reference uses is not
    portable.

    (P92)
    """
    first, second = partitions_of([{"k": {"a": 1, "b": 2}}, {"k": {"b": 2, "a": 1}}], **by_hash("k", partitions=100))
    assert first == second


def test_a_key_field_without_a_name():
    """A null among the key fields counts as a field that no event has. (R111, P89)"""
    rejection = refusal([{"null": 1, "": 2, "a": 3}], **by_hash("a", None, partitions=8))
    assert (rejection.index, rejection.detail) == (0, "field null doesn't exist.")
    assert partitions_of([], **by_hash(None, partitions=8)) == []


def test_hash_without_key_fields():
    """Without key fields, the whole batch is rejected, and no event is at fault. (P93)"""
    assert refusal([{}], **by_hash(partitions=8)).index is None


def test_random_is_drawn_for_each_event():
    """With the strategy `random`, each event gets its own random partition, whatever its metadata. (P78, P79)"""
    drawn = iter([0.5, 0.0, 0.999])
    events = [{"metadata": {"partition": "1"}}] * 3
    assert partitions_of(events, lambda: next(drawn), partitions=4) == [2, 0, 3]


def test_random_is_uniform():
    """Every partition gets about as many events as any other partition. (P79)"""
    counts = collections.Counter(partitions_of([{}] * 8000, random.Random(1).random, partitions=8))
    assert set(counts) == set(range(8))
    assert all(880 < count < 1120 for count in counts.values())


def test_random_of_one():
    """With a single partition, nothing is drawn. (P79)"""
    assert partitions_of([{}, {}], draw_nothing, partitions=1) == [0, 0]


USER_DEFINED = {"partition_strategy": PartitionStrategy.USER_DEFINED, "partitions": 12}


def test_user_defined_partitions_come_from_the_metadata():
    """With the strategy `user_defined`, the partition in the metadata is used. (P78, P80)"""
    assert partitions_of([{"metadata": {"partition": "11"}}, {"metadata": {"partition": "0"}}], **USER_DEFINED) == [
        11,
        0,
    ]


@pytest.mark.parametrize("event", [{}, {"metadata": 1}, {"metadata": {}}, {"metadata": {"partition": 1}}])
def test_user_defined_without_a_partition(event):
    """With the strategy `user_defined`, an event must name its partition with a string. (P80)"""
    assert (
        refusal([event], **USER_DEFINED).detail
        == "Failed to resolve partition. Failed to get partition from event metadata"
    )


@pytest.mark.parametrize("wanted", ["12", "-1", "00", "", "a"])
def test_user_defined_with_a_partition_that_is_not_there(wanted):
    """The message names the partition that does not exist. (P80)"""
    assert (
        refusal([{"metadata": {"partition": wanted}}], **USER_DEFINED).detail
        == f"Failed to resolve partition. Invalid partition specified when publishing event: {wanted}"
    )
