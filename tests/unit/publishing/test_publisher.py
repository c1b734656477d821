import itertools

import pytest
from msgspec.structs import replace

from nakadi.common.waiting import LEAVE_LOOP
from nakadi.model.authorization import Attribute, Authorization, Feature, Subject
from nakadi.model.event_type import CleanupPolicy, PartitionStrategy, Version
from nakadi.model.events import Record
from nakadi.model.outcomes import Malformed, NotFound, NotPermitted, TryLater, Unavailable
from nakadi.ports.event_log import SealedTopic, UnknownTopic
from nakadi.publishing.batch import BatchOutcome, BatchStatus
from nakadi.publishing.publisher import BatchSender
from tests.support.builders import a_schema, a_timeline, an_event_type
from tests.support.publishing import ANN, EID, a_business_type, metadata, statuses_and_steps, the_failure

BY_KEY = {"partition_strategy": PartitionStrategy.HASH, "partition_key_fields": ("k",)}
STRICT = {"schema": a_schema('{"required": ["ok"]}')}


def a_compacted_type(**changes):
    return an_event_type(cleanup_policy=CleanupPolicy.COMPACT, **changes)


def tombstone(key: str = "one", **more):
    return {"metadata": metadata(partition_compaction_key=key), **more}


def test_what_is_published_is_in_the_log(house):
    """A batch is stored, and its outcome has no items. (P1, P110)"""
    event_type = house.add(a_business_type())
    outcome = house.publish(event_type, [{"metadata": metadata(), "a": 1}], ANN)
    assert outcome == BatchOutcome(BatchStatus.STORED, stored_count=1)
    [stored] = house.stored(event_type)
    assert stored["a"] == 1
    assert stored["metadata"]["published_by"] == "ann"
    assert stored["metadata"]["received_at"] == "2026-11-21T12:00:00.000Z"
    assert stored["metadata"]["flow_id"] == "the-flow"


def test_without_authentication_the_publisher_has_a_fixed_name(house):
    """Without authentication, the publisher of events is `unauthenticated`. (P100)"""
    event_type = house.add(a_business_type())
    house.publish(event_type, [{"metadata": metadata()}])
    assert house.stored(event_type)[0]["metadata"]["published_by"] == "unauthenticated"


def test_events_of_a_partition_keep_their_order(house):
    """The events of one request for one partition are stored in the order of the array. (P108)"""
    event_type = house.add(an_event_type(partitions=3, **BY_KEY))
    house.publish(event_type, [{"k": f"{number % 7}", "n": number} for number in range(100)])
    found = [[event["n"] for event in house.stored(event_type, partition)] for partition in range(3)]
    assert [sorted(numbers) for numbers in found] == found
    assert sorted(itertools.chain(*found)) == list(range(100))


def test_refused_events_are_counted(house):
    """The events of a batch are counted as stored or refused by the log; no others count as refused."""
    event_type = house.add(an_event_type(partitions=2))
    refused = house.publisher.metrics.events_refused
    house.publish(event_type, [{}])
    assert not refused.rows()
    house.log.refusing = {1: "timed out"}
    house.draws = [0.0, 0.9, 0.9]
    house.publish(event_type, [{}, {}, {}])
    assert list(refused.rows().values()) == [2]
    assert sum(house.publisher.metrics.events_published.rows().values()) == 2


def test_events_of_a_refused_batch_are_counted(house):
    """If a batch is aborted because of one event, all its events count as refused at the step that refused this
    event.
    """
    event_type = house.add(an_event_type(**STRICT, **BY_KEY))
    refused = house.publisher.metrics.events_refused
    house.publish(event_type, [{"ok": 1, "k": "a"}, {}, {"ok": 1, "k": "b"}])
    house.publish(event_type, [{"ok": 1, "k": "a"}, {"ok": 1}])
    assert {labels[-1]: count for labels, count in refused.rows().items()} == {"validating": 3, "partitioning": 2}
    assert not house.publisher.metrics.events_published.rows()


def test_one_append_for_each_request(house):
    """The log is called once with all partitions, so that the events of each partition are stored together. (P115)"""
    event_type = house.add(an_event_type(partitions=2))
    house.draws = [0.1, 0.6, 0.4]
    house.publish(event_type, [{"n": 1}, {"n": 2}, {"n": 3}])
    [(topic, batches)] = house.log.appends
    assert topic == event_type.timeline.topic
    found = {partition: list(records) for partition, records in batches.items()}
    assert found == {0: [Record(b'{"n":1}'), Record(b'{"n":3}')], 1: [Record(b'{"n":2}')]}


def test_an_empty_batch_is_fine(house):
    """If the event type exists and may be written, an empty array succeeds without a call to the log. (P23, P24)"""
    event_type = house.add(a_business_type(authorization=lists(writer="bob")))
    assert (
        house.publish(event_type, [], Subject("bob", frozenset({Attribute("user", "bob")}))).status
        is BatchStatus.STORED
    )
    assert house.log.appends == []
    with pytest.raises(NotPermitted):
        house.publish(event_type, [], ANN)
    with pytest.raises(NotFound):
        house.publish(an_event_type(name="not.there"), [])


def lists(writer: str) -> Authorization:
    everybody = (Attribute("*", "*"),)
    return Authorization(admins=everybody, readers=everybody, writers=(Attribute("user", writer),))


def test_an_unknown_event_type(house):
    """Publishing to a missing event type is answered as not found, unless the body cannot be parsed. (P15, P18)"""
    missing = an_event_type(name="not.there")
    with pytest.raises(NotFound) as caught:
        house.publish(missing, [{}])
    assert caught.value.detail == 'EventType "not.there" does not exist.'
    with pytest.raises(Malformed):
        house.publish(missing, b"[{")


def test_permission_to_write(house):
    """A subject that is not a writer is refused before any event is checked; without lists, everyone may write. (P50,
    P51)"""
    closed = house.add(an_event_type(authorization=lists(writer="bob"), **STRICT))
    with pytest.raises(NotPermitted) as caught:
        house.publish(closed, [{}], ANN)
    assert caught.value.detail == f"Access on WRITE event-type:{closed.name} denied"
    assert house.publish(house.add(an_event_type()), [{}], ANN).status is BatchStatus.STORED


def test_all_are_validated_before_any_is_placed(house):
    """Each step processes the whole batch before the next one: an invalid event is reported before an earlier one
    without a key. (P17, P14)"""
    event_type = house.add(an_event_type(**STRICT, **BY_KEY))
    outcome = house.publish(event_type, [{"ok": 1}, {"k": 1}])
    assert statuses_and_steps(outcome) == [("aborted", "validating"), ("failed", "validating")]


def test_only_the_first_invalid_event_is_reported(house):
    """The publisher stops at the first invalid event of a batch. (P124, P122)"""
    event_type = house.add(an_event_type(**STRICT))
    outcome = house.publish(event_type, [{"ok": 1}, {}, {"ok": 1}, {}])
    assert statuses_and_steps(outcome) == [
        ("aborted", "validating"),
        ("failed", "validating"),
        ("aborted", "none"),
        ("aborted", "none"),
    ]
    assert house.log.appends == []


def test_a_missing_key_gives_the_batch_up(house):
    """An event that gets no partition fails at the partitioning step; events before it have their partition. (P89,
    P120, P122)"""
    event_type = house.add(an_event_type(partitions=8, **BY_KEY))
    outcome = house.publish(event_type, [{"k": "Hello"}, {}, {"k": 1}])
    assert statuses_and_steps(outcome) == [
        ("aborted", "partitioning"),
        ("failed", "partitioning"),
        ("aborted", "validating"),
    ]
    assert [item.partition for item in outcome.items] == ["2", None, None]
    assert the_failure(outcome)[1] == "field k doesn't exist."


def test_hash_without_key_fields_gives_the_batch_up(house):
    """An event type that should have key fields, but has none, rejects every batch, and no event is at fault. (P93)"""
    event_type = house.add(an_event_type(partition_strategy=PartitionStrategy.HASH))
    outcome = house.publish(event_type, [{}, {}])
    assert statuses_and_steps(outcome) == [("aborted", "validating")] * 2
    assert [item.detail for item in outcome.items] == ["", ""]


def test_a_hash_key_becomes_the_record_key(house):
    """With the hash strategy, the record key consists of the key fields' values; otherwise there is none. (P98)"""
    by_two = {"partition_strategy": PartitionStrategy.HASH, "partition_key_fields": ("a", "b")}
    hashed, drawn = house.add(an_event_type(**by_two)), house.add(an_event_type())
    house.publish(hashed, [{"a": "x", "b": 1.50}])
    house.publish(drawn, [{}])
    assert [record.key for record in house.records(hashed) + house.records(drawn)] == ["x,1.5", None]


def test_a_compaction_key_does_not_choose_the_partition(house):
    """The partitions of compacted events follow from their strategy, and their record keys are the compaction keys.
    (P96, P97)"""
    compacted = a_business_type(cleanup_policy=CleanupPolicy.COMPACT, partitions=8, **BY_KEY)
    house.add(compacted)
    house.publish(compacted, [tombstone("one", k="Hello"), tombstone("one", k="a")])
    assert [record.key for record in house.records(compacted, 2) + house.records(compacted, 97 % 8)] == ["one", "one"]


def test_repartitioning_takes_effect_at_once(house):
    """With more partitions, the same hash may select another partition. (P94)"""
    event_type = house.add(an_event_type(partitions=8, **BY_KEY))
    house.publish(event_type, [{"k": "Hello"}])
    house.log.add_partitions(event_type.timeline.topic, 12)
    wider = replace(event_type, timelines=(replace(event_type.timeline, partitions=12),))
    house.event_types.replace(event_type, wider)
    house.publish(event_type, [{"k": "Hello"}])
    assert (len(house.records(event_type, 2)), len(house.records(event_type, 10))) == (1, 1)


def test_directed_events(house):
    """In a batch for one subscription, every record has the subscription's id. (P127)"""
    event_type = house.add(an_event_type())
    house.publish(event_type, [{}, {}], directed_to="the-subscription")
    assert [record.directed_to for record in house.records(event_type)] == ["the-subscription"] * 2


def test_partitions_succeed_and_fail_one_by_one(house):
    """If one partition refuses its events, the others still store theirs; every item has its own outcome.

    (P3, P111, P115, P116)
    """
    event_type = house.add(an_event_type(partitions=2))
    house.log.refusing = {1: "timed out"}
    house.draws = [0.1, 0.6, 0.4]
    outcome = house.publish(event_type, [{"n": 1}, {"n": 2}, {"n": 3}])
    assert outcome.status is BatchStatus.NOT_ALL_STORED
    assert statuses_and_steps(outcome) == [
        ("submitted", "publishing"),
        ("failed", "publishing"),
        ("submitted", "publishing"),
    ]
    assert the_failure(outcome)[1] == "timed out"
    assert house.texts(event_type, 0) == ['{"n":1}', '{"n":3}']


def test_all_may_fail(house):
    """If no event could be stored, the response has the same form as if some were. (P112, P113)"""
    event_type = house.add(an_event_type())
    house.log.refusing = {0: "timed out"}
    outcome = house.publish(event_type, [{}, {}])
    assert outcome.status is BatchStatus.NOT_ALL_STORED
    assert statuses_and_steps(outcome) == [("failed", "publishing")] * 2


def test_a_log_that_does_not_answer(house):
    """If the log is unreachable, all items failed; none is left between two steps. (P111, P112, P114)"""
    event_type = house.add(an_event_type())
    house.log.troubles = [Unavailable("no route to the log")]
    outcome = house.publish(event_type, [{}, {}])
    assert statuses_and_steps(outcome) == [("failed", "publishing")] * 2
    assert {item.detail for item in outcome.items} == {"internal error"}


def switch_timeline(house, event_type):
    """The event type after a switch of timelines, with an open topic, as another process would make it."""
    following = a_timeline(order=2, partitions=event_type.timeline.partitions)
    house.log.create_topic(following.topic, following.partitions)
    return replace(event_type, timelines=(*event_type.timelines, following))


@pytest.mark.parametrize("signal", [SealedTopic, UnknownTopic])
def test_events_follow_a_switch_of_timelines(house, signal):
    """A batch that meets a closed timeline waits for the next one, and is stored there as a whole. (P53)"""
    event_type = house.add(a_business_type(partitions=2))
    house.log.troubles = [signal()]
    following = switch_timeline(house, event_type)

    def finish() -> None:
        if len(house.pauses) == 3:
            house.event_types.replace(event_type, following)

    house.while_waiting = finish
    assert house.publish(event_type, [{"metadata": metadata()}]).status is BatchStatus.STORED
    assert len(house.pauses) == 3
    assert house.stored(following)[0]["metadata"]["eid"] == EID
    assert house.records(event_type) == []


def test_maintenance_that_takes_too_long(house):
    """After waiting for forty seconds, the broker tells the client to retry. (P53)"""
    event_type = house.add(an_event_type())
    house.log.seal_topic(event_type.timeline.topic)
    with pytest.raises(TryLater) as caught:
        house.publish(event_type, [{}])
    assert caught.value.detail == "Event type is currently in maintenance, please repeat request"
    assert sum(house.pauses) == pytest.approx(40, abs=0.1)


def test_an_event_type_deleted_meanwhile(house):
    """An event type that was deleted while it was cached is not found. (P18)"""
    event_type = house.add(an_event_type())
    house.publish(event_type, [{}])
    house.log.troubles = [UnknownTopic()]
    house.event_types.remove(event_type)
    with pytest.raises(NotFound):
        house.publish(event_type, [{}])


def test_tombstones(house):
    """Deleting stores the key without a value, and the steps of validation and enrichment are skipped. (P2, P136, P137,
    P144)"""
    event_type = house.add(a_compacted_type(**STRICT))
    assert house.delete(event_type, [tombstone("one"), tombstone("")]).status is BatchStatus.STORED
    assert house.records(event_type) == [Record(None, "one"), Record(None, "")]


def test_tombstones_go_where_events_would(house):
    """The event type's strategy determines a tombstone's partition; a tombstone without one fails like an event.
    (P140)"""
    hashed = house.add(a_compacted_type(partitions=8, **BY_KEY))
    assert house.delete(hashed, [tombstone(k="Hello")]).status is BatchStatus.STORED
    assert len(house.records(hashed, 2)) == 1
    assert the_failure(house.delete(hashed, [tombstone()])) == ("partitioning", "field k doesn't exist.")

    told = house.add(a_compacted_type(partitions=2, partition_strategy=PartitionStrategy.USER_DEFINED))
    assert the_failure(house.delete(told, [tombstone()]))[0] == "partitioning"
    body = {"metadata": {"partition": "1", "partition_compaction_key": "k"}}
    assert house.delete(told, [body]).status is BatchStatus.STORED
    assert len(house.records(told, 1)) == 1


def test_tombstones_without_a_key(house):
    """A tombstone without a key makes the whole request malformed. (P140, P141)"""
    event_type = house.add(a_compacted_type())
    with pytest.raises(Malformed, match=r"partition_compaction_key.* not found"):
        house.delete(event_type, [tombstone(), {"metadata": metadata()}])
    assert house.log.appends == []


@pytest.mark.parametrize("events", [[], [{}], [{}, {}, {}]])
def test_deleting_from_what_is_not_compacted(house, events):
    """Without compaction, nothing can be deleted: every item is aborted without a reason; without tombstones, the list
    is empty.

    (P138, P139)
    """
    outcome = house.delete(house.add(an_event_type()), events)
    assert outcome.status is BatchStatus.REJECTED
    assert statuses_and_steps(outcome) == [("aborted", "none")] * len(events)
    assert all(item.detail == "" and item.partition is None for item in outcome.items)


def test_tombstones_have_a_size_too(house):
    """The size limit applies to tombstones. (P136)"""
    event_type = house.add(a_compacted_type())
    outcome = house.delete(event_type, [tombstone(), tombstone(much="x" * 999_000)])
    assert statuses_and_steps(outcome) == [("aborted", "validating"), ("failed", "validating")]
    assert the_failure(outcome)[1].startswith("Event too large: ")


def test_deleting_meets_the_same_refusals(house):
    """Unknown event types, permissions, malformed bodies, maintenance, failing writes: all are handled as in
    publishing. (P135)"""
    event_type = house.add(a_compacted_type(authorization=lists(writer="ann")))
    with pytest.raises(NotFound):
        house.delete(an_event_type(name="not.there"), [])
    with pytest.raises(NotPermitted):
        house.delete(event_type, [], Subject("bob"))
    with pytest.raises(Malformed):
        house.delete(event_type, b"[1]", ANN)
    house.log.refusing = {0: "timed out"}
    assert house.delete(event_type, [tombstone()], ANN).status is BatchStatus.NOT_ALL_STORED
    house.log.seal_topic(event_type.timeline.topic)
    with pytest.raises(TryLater):
        house.delete(event_type, [tombstone()], ANN)


def test_features_are_only_asked_for_where_they_matter(house):
    """Publishing to an event type without an owner selector does not depend on any feature. (P129)"""
    house.features.switch(Feature.EVENT_OWNER_SELECTOR_AUTHZ, on=True)
    assert house.publish(house.add(an_event_type()), [{}], Subject("bob")).status is BatchStatus.STORED


def recreate(house, event_type, **changes):
    """Another process has deleted an event type that this process caches, and created another one with the same
    name."""
    house.event_types.cached(event_type.name)
    house.elsewhere.remove(event_type)
    house.log.delete_topic(event_type.timeline.topic)
    another = replace(
        event_type, **{"id": f"after {event_type.id}", "timelines": (a_timeline(),), "revision": 1} | changes
    )
    house.log.create_topic(another.timeline.topic, 1)
    house.elsewhere.add(another)
    return another


def test_the_schema_of_a_deleted_event_type_is_not_used(house):
    """Right after another process has deleted and recreated an event type, its current schema decides: events that only
    the old one refused are stored, and events that only the new one refuses are not."""
    strict, lenient = STRICT["schema"], a_schema("{}")
    another = recreate(house, house.add(an_event_type(schema=strict)), schema=lenient)
    assert house.publish(another, [{"n": 1}]).status is BatchStatus.STORED
    assert house.stored(another) == [{"n": 1}]
    another = recreate(house, house.add(an_event_type(schema=lenient)), schema=strict)
    assert house.publish(another, [{"n": 1}]).status is BatchStatus.REJECTED
    assert house.stored(another) == []


def test_a_refusal_is_by_the_schema_that_there_is(house):
    """An event that the cached schema refuses is checked against the current one."""
    event_type = house.add(an_event_type(**STRICT))
    house.event_types.cached(event_type.name)
    house.elsewhere.replace(event_type, replace(event_type, schema=a_schema("{}", version=Version(1, 1, 0))))
    assert house.publish(event_type, [{"n": 1}]).status is BatchStatus.STORED


def test_permission_for_a_deleted_event_type_is_none_for_its_successor(house):
    """A writer of a deleted event type needs permission for the one that now has its name; a writer of only the new one
    is permitted. (P50)"""
    bob = Subject("bob", frozenset({Attribute("user", "bob")}))
    event_type = house.add(an_event_type(authorization=lists(writer="ann")))
    another = recreate(house, event_type, authorization=lists(writer="bob"))
    with pytest.raises(NotPermitted):
        house.publish(another, [{"n": 1}], ANN)
    assert house.publish(another, [{"n": 2}], bob).status is BatchStatus.STORED
    third = recreate(house, house.elsewhere.get(another.name), authorization=lists(writer="ann"))
    assert house.publish(third, [{"n": 3}], ANN).status is BatchStatus.STORED
    assert house.stored(third) == [{"n": 3}]


def test_tombstones_do_not_come_to_the_successor_of_a_compacted_event_type(house):
    """An event type that is not compacted refuses deletions, even if its predecessor with the same name was
    compacted.
    """
    event_type = house.add(a_compacted_type())
    another = recreate(house, event_type, cleanup_policy=CleanupPolicy.DELETE)
    assert house.delete(another, [tombstone()]).status is BatchStatus.REJECTED


def test_what_follows_a_refused_append_leaves_the_event_loop(house):
    """After a refused append, a thread reports each event's outcome, which may require parsing the whole batch
    again.
    """
    event_type = house.add(an_event_type())
    house.log.refusing = {0: "timed out"}
    task = house.publisher.publishing_task(event_type.name, b'[{"a":1}]', BatchSender(subject=ANN, flow_id="the-flow"))
    assert task.send(None) is LEAVE_LOOP
    task.close()
