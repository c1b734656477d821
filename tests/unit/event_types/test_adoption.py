import pytest
from msgspec.structs import replace

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.common.waiting import run_blocking
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.event_types.adoption import TimelineToAdopt
from nakadi.event_types.timelines import next_timeline
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.event_type import CleanupPolicy
from nakadi.model.events import Record
from nakadi.model.outcomes import Conflict, Invalid, NotFound
from nakadi.ports.event_log import SealedTopic, UnknownTopic
from tests.support.builders import an_event_type
from tests.support.clock import HandMovedClock
from tests.support.registry import WriteFate, let_next_writes_fail


class SharedLog(MemoryLog):
    """A log in which other programs have topics as well."""

    def adopt_topic(self, topic: str) -> int:
        if topic == "sealed":
            raise SealedTopic(topic)
        return 1 if self.bounds(topic, [0]) else 0


@pytest.fixture
def broker():
    clock = HandMovedClock()
    broker = open_broker(Settings(), clock, wrap_log=lambda _: SharedLog(clock))
    log = broker.logs.for_storage("default")
    for topic in ("first", "second", "avro", "sealed"):
        log.create_topic(topic, 1)
    run_blocking(log.append("first", {0: [Record(b'{"n":1}'), Record(b'{"n":2}')]}))
    run_blocking(log.append("second", {0: [Record(b'{"n":3}')]}))
    run_blocking(log.append("avro", {0: [Record(b'{"n":4}'), Record(b"\x00\x01")]}))
    yield broker
    broker.close()


@pytest.fixture
def name(broker):
    """An event type without events, in two partitions."""
    return register(broker, an_event_type(partitions=2)).name


def register(broker, event_type):
    broker.logs.for_storage("default").create_topic(event_type.timeline.topic, event_type.timeline.partitions)
    broker.event_types.add(event_type)
    return event_type


def an_old(topic="first", order=3, ends=(1,)):
    return TimelineToAdopt(order=order, topic=topic, latest_offsets=ends)


def open_timeline(topic="second", order=4):
    return TimelineToAdopt(order=order, topic=topic)


def adopt(broker, name, *drafts, storage="default"):
    broker.registration.topic_adoption.adopt(name, storage, drafts, UNAUTHENTICATED)


def test_timelines_of_another_broker_take_the_place_of_an_empty_one(broker, name):
    """The event type gets the order, the topic and the end offsets of each of the other broker's timelines, and loses
    its own. (R281)
    """
    own = broker.event_types.get(name).timeline.topic

    adopt(broker, name, an_old(), open_timeline())

    event_type = broker.event_types.get(name)
    assert [(each.order, each.topic, each.latest_positions) for each in event_type.timelines] == [
        (3, "first", {0: 1}),
        (4, "second", None),
    ]
    assert event_type.switching_to is None
    assert [each.cleaned_up_at is None for each in event_type.timelines] == [False, True]
    with pytest.raises(UnknownTopic):
        broker.logs.for_storage("default").bounds(own, [0])


def test_a_topic_that_was_deleted_meanwhile_is_a_deleted_timeline(broker, name):
    """A topic that the other broker has deleted becomes a deleted timeline, in which cursors stay valid. (R281)"""
    adopt(broker, name, an_old("gone", 1, (7,)), open_timeline())

    assert broker.event_types.get(name).timelines[0].deleted


def test_an_adopted_topic_is_never_deleted(broker, name):
    """An adopted topic belongs to the other broker, so it stays even if its event type is deleted here or switches
    its timeline. (R281)
    """
    adopt(broker, name, an_old(), open_timeline())
    broker.timelines.move_to_new_timeline(name, "default", UNAUTHENTICATED)
    broker.clock.move(1_000_000_000)
    broker.housekeeping.run()
    assert [each.deleted for each in broker.event_types.get(name).timelines] == [True, True, False]
    broker.registration.deletion.delete(name, UNAUTHENTICATED)

    assert set(broker.logs.for_storage("default").bounds("first", [0])) == {0}
    assert set(broker.logs.for_storage("default").bounds("second", [0])) == {0}


def test_a_compacted_event_type_can_adopt(broker):
    """A compacted event type can adopt topics: it has no events of its own yet, so no key can be in two timelines.
    (R281)
    """
    compacted = register(broker, an_event_type(partitions=1, cleanup_policy=CleanupPolicy.COMPACT))

    adopt(broker, compacted.name, open_timeline())

    assert broker.event_types.get(compacted.name).timeline.topic == "second"


@pytest.mark.parametrize(
    ("drafts", "message"),
    [
        ((), "Between 1 and 100 timelines can be adopted"),
        ((open_timeline(order=None),), "The orders of adopted timelines must ascend, from 1 to 65535 at most"),
        ((open_timeline(order=0),), "The orders of adopted timelines must ascend, from 1 to 65535 at most"),
        ((an_old(order=4), open_timeline()), "The orders of adopted timelines must ascend, from 1 to 65535 at most"),
        ((open_timeline(order=65536),), "The orders of adopted timelines must ascend, from 1 to 65535 at most"),
        ((open_timeline(topic=None),), "The timeline 4 needs the name of a topic"),
        ((open_timeline(topic="__consumer_offsets"),), "The timeline 4 needs the name of a topic"),
        ((open_timeline(topic="a/b"),), "The timeline 4 needs the name of a topic"),
        ((open_timeline(order=3), open_timeline()), "Each adopted timeline but the last one needs its latest_position"),
        ((an_old(),), "Each adopted timeline but the last one needs its latest_position"),
        ((an_old("second"), open_timeline()), "Each adopted timeline needs a topic of its own"),
        ((open_timeline("none"),), "There is no topic none"),
        ((open_timeline("sealed"),), "The topic sealed was closed, no event can go there"),
        ((an_old(ends=(2,)), open_timeline()), "Partition 0 of the topic first ends before 2"),
        ((open_timeline("avro"),), "Event 1 in partition 0 of the topic avro is no JSON"),
    ],
)
def test_what_cannot_be_adopted_is_refused(broker, name, drafts, message):
    """If a request to adopt is refused, the event type stays unchanged, and clients can publish to it. (R281)"""
    with pytest.raises(Invalid, match=message):
        adopt(broker, name, *drafts)

    assert_unchanged(broker, name)


def assert_unchanged(broker, name):
    event_type = broker.event_types.get(name)
    assert not any(each.adopted for each in event_type.timelines)
    assert event_type.switching_to is None
    run_blocking(broker.logs.for_storage("default").append(event_type.timeline.topic, {0: [Record(b"{}")]}))


def test_another_storage_has_no_topics_of_others(broker, name):
    """Topics can be adopted only from a storage to which other programs write. (R281)"""
    clock = HandMovedClock()
    embedded = open_broker(Settings(), clock)
    own = register(embedded, an_event_type())

    with pytest.raises(Invalid, match="Topics of others cannot be adopted in the storage default"):
        adopt(embedded, own.name, open_timeline())
    with pytest.raises(Invalid, match="No storage with id: none"):
        adopt(broker, name, open_timeline(), storage="none")
    with pytest.raises(NotFound):
        adopt(broker, "none", open_timeline())
    embedded.close()


def test_an_event_type_with_events_cannot_adopt(broker, name):
    """An event type with events cannot adopt topics, because its own events would be lost. (R281)"""
    run_blocking(
        broker.logs.for_storage("default").append(broker.event_types.get(name).timeline.topic, {1: [Record(b"{}")]})
    )

    with pytest.raises(Conflict, match=f"The event type {name} has events of its own"):
        adopt(broker, name, open_timeline())
    assert_unchanged(broker, name)


def test_a_topic_is_adopted_once(broker, name):
    """Two event types cannot have the same topic, and one event type cannot adopt a second time. (R281)"""
    adopt(broker, name, open_timeline())
    other = register(broker, an_event_type(name="another", partitions=1))

    with pytest.raises(Conflict, match=f"The topic second is in use by the event type {name}"):
        adopt(broker, other.name, open_timeline())
    with pytest.raises(Conflict, match=f"The event type {name} has events of its own"):
        adopt(broker, name, open_timeline("first"))


def test_an_event_that_comes_meanwhile_is_kept(broker, name):
    """An event published between the check and the seal stays, and publishers continue. (R281)"""
    log = broker.logs.for_storage("default")
    own, seal = broker.event_types.get(name).timeline.topic, log.seal_topic

    def seal_late(topic):
        if topic == own and not log.bounds(own, [0])[0].next_offset:
            run_blocking(log.append(own, {0: [Record(b'{"late":1}')]}))
        seal(topic)

    log.seal_topic = seal_late
    with pytest.raises(Conflict, match="has events of its own"):
        adopt(broker, name, open_timeline())

    assert_unchanged(broker, name)
    [event] = log.read(own, 0, 0).events
    assert event.record.value == b'{"late":1}'


def test_another_switch_is_a_conflict(broker, name):
    """While a timeline is being created, nothing can be adopted. (R281)"""
    event_type = broker.event_types.get(name)
    following = next_timeline(event_type, "default", broker.clock.now())
    broker.event_types.replace(event_type, replace(event_type, switching_to=following))

    with pytest.raises(Conflict, match=f"Timeline is already being created for: {name}"):
        adopt(broker, name, open_timeline())


@pytest.mark.parametrize("fate", [WriteFate.NOT_WRITTEN, WriteFate.WRITTEN_WITHOUT_ANSWER])
def test_an_adoption_whose_topic_is_sealed_is_completed_by_its_own_request(broker, name, fate):
    """If the registry does not answer once the event type accepts no more events, the request tries again, until the
    adopted timelines are stored. (R281)
    """
    let_next_writes_fail(broker.registry, WriteFate.ANSWERED, fate)
    adoption = broker.registration.topic_adoption
    patient = replace(adoption, timelines=replace(adoption.timelines, sleep=broker.clock.move))

    patient.adopt(name, "default", [an_old(), open_timeline()], UNAUTHENTICATED)

    assert [each.topic for each in broker.event_types.get(name).timelines] == ["first", "second"]
    assert broker.event_types.get(name).switching_to is None


def test_an_adoption_is_done_although_old_topics_are_not_deleted_yet(broker, name):
    """Once the timelines are stored, a failed removal of the replaced topic does not make the request fail:
    housekeeping removes it. (R281)
    """
    own = broker.event_types.get(name).timeline.topic
    let_next_writes_fail(broker.registry, WriteFate.ANSWERED, WriteFate.ANSWERED, WriteFate.NOT_WRITTEN)

    adopt(broker, name, an_old(), open_timeline())

    assert broker.registry.list("leftovers")
    broker.housekeeping.run()
    assert not broker.registry.list("leftovers")
    with pytest.raises(UnknownTopic):
        broker.logs.for_storage("default").bounds(own, [0])
