"""Every event is read as it was published, with any engine."""

import json
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from nakadi.app.engines import open_event_log
from nakadi.model.event_type import PartitionStrategy
from nakadi.ports.clock import SystemClock
from nakadi.publishing.batch import BatchStatus
from tests.support.builders import a_timeline, an_event_type
from tests.support.publishing import PublisherInMemory, a_business_type, metadata

PARTITIONS = 3

TEXTS = some.text(some.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-(2**63), 2**63 - 1)
    | some.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda within: some.lists(within, max_size=3) | some.dictionaries(TEXTS, within, max_size=3),
    max_leaves=8,
)
EVENTS = some.dictionaries(TEXTS.filter(lambda name: name not in ("metadata", "k")), VALUES, max_size=4)
BATCHES = some.lists(some.lists(some.tuples(some.sampled_from("abcdefg"), EVENTS), max_size=5), min_size=1, max_size=4)
SPELLINGS = some.sampled_from(
    [
        lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False),
        json.dumps,
        lambda value: json.dumps(value, indent=1),
    ]
)


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def house(request, tmp_path_factory):
    """A publisher with an event log of this engine."""
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path_factory.mktemp('log') / 'events.db'}"
    log = open_event_log(url, SystemClock())
    yield PublisherInMemory(log)
    log.close()


def read_back(house, event_type):
    """The stored texts by partition, whose offsets count up from 0."""
    found = {}
    for partition in range(PARTITIONS):
        events = house.log.read(event_type.timeline.topic, partition, 0).events
        assert [event.offset for event in events] == list(range(len(events)))
        found[partition] = [event.record.value.decode() for event in events]
    return found


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(batches=BATCHES, spelled=SPELLINGS)
def test_batches_come_back_as_they_were(house, batches, spelled):
    """Every event of all batches is stored once, in its order and in its partition, with its values. (P105, P107,
    P108)"""
    by_key = {"partition_strategy": PartitionStrategy.HASH, "partition_key_fields": ("k",)}
    event_type = house.add(an_event_type(timelines=(a_timeline(partitions=PARTITIONS),), **by_key))
    expected = defaultdict(list)
    for batch in batches:
        events = [{"k": key, **event} for key, event in batch]
        assert house.publish(event_type, spelled(events).encode()).status is BatchStatus.STORED
        for event in events:
            expected[ord(event["k"]) % PARTITIONS].append(event)
    found = read_back(house, event_type)
    assert {partition: [json.loads(text) for text in texts] for partition, texts in found.items()} == {
        partition: expected[partition] for partition in range(PARTITIONS)
    }
    assert not any("\n" in text or "\r" in text for texts in found.values() for text in texts)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(events=some.lists(EVENTS, min_size=1, max_size=5), spelled=SPELLINGS, at_the_end=some.booleans())
def test_enriched_events_keep_everything_else(house, events, spelled, at_the_end):
    """Enrichment changes the metadata and nothing else, wherever in the event the metadata is. (P101, P105, P106)"""
    event_type = house.add(a_business_type(timelines=(a_timeline(partitions=1),)))
    about = {"metadata": metadata()}
    sent = [event | about if at_the_end else about | event for event in events]
    assert house.publish(event_type, spelled(sent).encode()).status is BatchStatus.STORED
    for stored, event in zip(house.stored(event_type), sent, strict=True):
        assert list(stored) == list(event)
        assert stored | about == event
        assert stored["metadata"] | metadata() == stored["metadata"]
