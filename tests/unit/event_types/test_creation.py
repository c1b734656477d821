import pytest

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.common.waiting import run_blocking
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.event_type import Category, CleanupPolicy, EventTypeDraft, SchemaDraft, SchemaType
from nakadi.model.events import Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import UnknownTopic
from tests.support.clock import HandMovedClock
from tests.support.registry import WriteFate, let_next_writes_fail
from tests.support.storages import recorded_topics


@pytest.fixture
def broker():
    broker = open_broker(Settings(), HandMovedClock())
    yield broker
    broker.close()


DRAFT = EventTypeDraft(
    name="created",
    owning_application="shop",
    category=Category.UNDEFINED,
    cleanup_policy=CleanupPolicy.DELETE,
    schema=SchemaDraft(type=SchemaType.JSON, text="{}"),
    enrichment_strategies=(),
)


def create(broker):
    broker.registration.creation.create(DRAFT, UNAUTHENTICATED)


def test_a_registration_without_an_answer_keeps_its_topic(broker):
    """If the registry stores an event type, but its answer gets lost, the event type is created: an event type
    without a topic would accept no events, and could not be read. (R92)
    """
    let_next_writes_fail(broker.registry, WriteFate.WRITTEN_WITHOUT_ANSWER)

    create(broker)

    timeline = broker.event_types.get("created").timeline
    run_blocking(broker.logs.for_storage("default").append(timeline.topic, {0: [Record(b"1")]}))


def test_a_registration_that_was_not_stored_leaves_no_topic(broker):
    """If the registry does not store an event type, its topic is deleted, and the creation can be repeated. (R92)"""
    let_next_writes_fail(broker.registry, WriteFate.NOT_WRITTEN)

    with recorded_topics(broker.logs.for_storage("default")) as topics, pytest.raises(Unavailable):
        create(broker)

    [topic] = topics
    with pytest.raises(UnknownTopic):
        broker.logs.for_storage("default").bounds(topic, [0])
    create(broker)


def test_the_topic_stays_while_nobody_knows_whether_it_is_in_use(broker):
    """If the registry answers neither the write nor a read, the topic stays: the event type may be registered. (R92)"""
    let_next_writes_fail(broker.registry, WriteFate.WRITTEN_WITHOUT_ANSWER)
    find = broker.event_types.find
    answers = [None]

    def find_once(_):
        if not answers:
            raise Unavailable("The registry does not answer.")
        return answers.pop()

    broker.event_types.find = find_once
    with pytest.raises(Unavailable):
        create(broker)
    broker.event_types.find = find

    topic = broker.event_types.get("created").timeline.topic
    assert broker.logs.for_storage("default").bounds(topic, [0])
