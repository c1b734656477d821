"""The client chooses the partition that the broker chooses."""

import pytest

from nakadi_client import BadEvent, Producer, key_at, partition_of


@pytest.mark.parametrize(
    ("keys", "partitions", "partition"),
    [
        (["sku=123", "price=512$"], 3, "2"),
        (["Hello"], 8, "2"),
        (["Hello"], 12, "10"),
        (["a", "b"], 12, "11"),
        (["b", "a"], 12, "11"),
        ([None], 8, "7"),
        (["A1", "Super Shirt"], 8, "7"),
        ([True], 8, "6"),
        (["\U0001f600"], 8, "3"),
        ([""], 8, "0"),
        ([r"<><%?>#<)#%(<*J%H" + "\n\n)R&#89hb678n(*njyih48p3u bn7\t843h 743h yh"], 8, "7"),
    ],
)
def test_the_examples_of_the_contract(keys, partitions, partition):
    """The client chooses the partitions that the examples of the contract name. (P95)"""
    assert partition_of(keys, partitions) == partition


def test_the_broker_chooses_the_same(nakadi):
    """The broker puts keys of every kind into the partition that the helper chooses."""
    nakadi.create_event_type("t", partitions=8, partition_strategy="hash", partition_key_fields=["a", "b"])
    keys = [("é\U0001f600", n) for n in range(20)] + [(None, True), (False, ""), (-1, "x"), ("\u2028", 0)]
    with Producer(nakadi.url, "t", key=key_at("a", "b")) as producer:
        producer.send_all({"a": a, "b": b} for a, b in keys)
    stored = nakadi.events("t")
    assert len(stored) == len(keys)
    assert all(event["metadata"]["partition"] == partition_of([event["a"], event["b"]], 8) for event in stored)


def test_names_of_partitions_are_sorted_as_texts():
    """The helper sorts the names of partitions as texts, so the caller may pass them in any order."""
    assert partition_of(["Hello"], [str(number) for number in reversed(range(12))]) == "10"


def test_a_key_is_made_of_the_values_at_paths():
    """The helper reads the values at paths of mappings and attributes, and names a missing one."""
    assert key_at("a.b", "c")({"a": {"b": 1}, "c": "x"}) == "1\0x"
    with pytest.raises(BadEvent, match=r"a\.b"):
        key_at("a.b")({"a": {}})
