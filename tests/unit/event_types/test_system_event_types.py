"""The event types that the broker itself creates."""

import logging
import threading
from contextlib import closing

import orjson
import pytest
from msgspec.structs import replace

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.event_types.system_event_type_definitions import (
    AUDIT_LOG,
    BATCH_PUBLISHED,
    DEAD_LETTER_SCHEMA,
    EVENT_TYPE_LOG,
    KPI_EVENT_TYPES,
)
from nakadi.model.authorization import UNAUTHENTICATED, WILDCARD, Attribute, Authorization, Feature, Subject
from nakadi.model.event_type import Category, EventTypeDraft, SchemaDraft, SchemaType
from nakadi.model.outcomes import NotPermitted, Unavailable
from nakadi.publishing.batch import BatchStatus
from nakadi.publishing.system_events import BROKER_SUBJECT
from tests.support.clock import HandMovedClock

QUEUE = "nakadi.dead.letter.queue"
REDRIVE = "nakadi.dead.letter.redrive"
OPS = Attribute("service", "ops")
OPEN = Authorization(admins=(WILDCARD,), readers=(WILDCARD,), writers=(WILDCARD,))


@pytest.fixture
def own_event_types_broker():
    brokers = []

    def open_one(**settings):
        brokers.append(open_broker(Settings(**settings), HandMovedClock()))
        return brokers[-1]

    yield open_one
    for each in brokers:
        each.close()


@pytest.fixture
def broker_with_tokens(own_event_types_broker):
    """A broker that requires tokens, and whose administrator is `ops`."""

    def open_one(**settings):
        return own_event_types_broker(**{"auth": "gateway", "default_admin": (("service", "ops"),), **settings})

    return open_one


def names(broker):
    return [each.name for each in broker.event_types.all()]


def test_the_dead_letter_queue_is_created_at_start(own_event_types_broker):
    """Clients can subscribe to the dead-letter queue before there are any dead letters. (R250, S266, S267)"""
    broker = own_event_types_broker()

    broker.prepare_for_requests()

    store = broker.event_types.get(QUEUE)
    assert names(broker) == [QUEUE]
    assert (store.owning_application, store.category, store.retention_time) == ("stups_nakadi", "business", 86_400_000)
    assert (store.partition_strategy, store.cleanup_policy, store.compatibility_mode) == ("random", "delete", "forward")
    assert (store.audience, store.partitions) == ("component-internal", ("0",))
    assert store.authorization == OPEN
    assert orjson.loads(store.schema.text) == DEAD_LETTER_SCHEMA
    assert set(DEAD_LETTER_SCHEMA["required"]) == set(DEAD_LETTER_SCHEMA["properties"])


@pytest.mark.parametrize(
    ("feature", "added"), [(Feature.AUDIT_LOG_COLLECTION, {AUDIT_LOG}), (Feature.KPI_COLLECTION, set(KPI_EVENT_TYPES))]
)
def test_others_are_created_while_their_feature_is_on(own_event_types_broker, feature, added):
    """The broker creates the audit log, or the event types for statistics, with the first round of housekeeping after
    the feature is switched on. (R250)
    """
    broker = own_event_types_broker()
    broker.prepare_for_requests()
    broker.features.switch(feature, on=True)

    broker.housekeeping.run()

    assert set(names(broker)) == {QUEUE, *added}
    assert {each.owning_application for each in broker.event_types.all()} == {"stups_nakadi"}


def test_existing_event_types_are_not_changed(own_event_types_broker):
    """An operator may have created or changed an event type, and the broker does not create it again. (R250)"""
    broker = own_event_types_broker()
    broker.prepare_for_requests()
    old = broker.event_types.get(QUEUE)
    changed = broker.event_types.replace(old, replace(old, retention_time=1, updated_at=broker.clock.now()))

    broker.system_event_types.prepared_names.clear()
    broker.prepare_for_requests()

    assert broker.event_types.get(QUEUE) == changed


def test_several_processes_may_create_them_at_once(tmp_path):
    """If several processes find no event type, one of them creates it, and none leaves anything behind."""
    url = f"sqlite:///{tmp_path / 'nakadi.db'}"
    brokers = [open_broker(Settings(registry=url, event_log=url)) for _ in range(6)]
    together = threading.Barrier(len(brokers))
    topics = []

    def begin(broker):
        together.wait()
        broker.prepare_for_requests()
        topics.append(broker.event_types.get(QUEUE).timeline.topic)

    threads = [threading.Thread(target=begin, args=(broker,)) for broker in brokers]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert len(topics) == len(brokers)
    assert len(set(topics)) == 1
    for each in brokers:
        each.close()


@pytest.mark.parametrize(
    "feature",
    [Feature.DISABLE_EVENT_TYPE_CREATION, Feature.FORCE_EVENT_TYPE_AUTHZ, Feature.FORCE_DATA_LAKE_ANNOTATIONS],
)
def test_rules_for_clients_do_not_apply_to_the_broker(own_event_types_broker, feature):
    """Switches and limits for clients do not change the broker's own event types. (R250)"""
    broker = own_event_types_broker(retention_min_ms=2 * 86_400_000)
    broker.features.switch(feature, on=True)

    broker.prepare_for_requests()

    assert names(broker) == [QUEUE]


def test_a_read_only_registry_is_not_written(own_event_types_broker):
    """While the registry is read-only, nothing is created; afterwards, the event types are. (R231)"""
    broker = own_event_types_broker()
    broker.features.switch(Feature.DISABLE_DB_WRITE_OPERATIONS, on=True)
    broker.prepare_for_requests()
    assert names(broker) == []

    broker.features.switch(Feature.DISABLE_DB_WRITE_OPERATIONS, on=False)
    broker.housekeeping.run()

    assert names(broker) == [QUEUE]


def test_a_broker_starts_without_them(own_event_types_broker, caplog):
    """A registry that does not answer delays the creation of the broker's own event types, but not the start."""
    broker = own_event_types_broker()
    get = broker.registry.get

    def out_of_order(*_):
        raise Unavailable("not now")

    broker.registry.get = out_of_order
    broker.prepare_for_requests()
    broker.registry.get = get
    assert "Looking up the broker's own event types failed" in caplog.text

    broker.housekeeping.run()

    assert names(broker) == [QUEUE]


# Permissions


def test_with_authentication_they_are_open_to_administrators_only(broker_with_tokens):
    """With authentication, only the broker's administrators may read its own event types."""
    broker = broker_with_tokens()
    for feature in (Feature.AUDIT_LOG_COLLECTION, Feature.KPI_COLLECTION):
        broker.features.switch(feature, on=True)

    broker.prepare_for_requests()

    lists = Authorization(admins=(OPS,), readers=(OPS,), writers=(OPS,))
    assert {each.name: each.authorization for each in broker.event_types.all()} == dict.fromkeys(
        [QUEUE, AUDIT_LOG, *KPI_EVENT_TYPES], lists
    )


@pytest.mark.parametrize(
    ("setting", "name", "feature"),
    [
        ("dead_letter_authorization", QUEUE, None),
        ("audit_authorization", AUDIT_LOG, Feature.AUDIT_LOG_COLLECTION),
        ("kpi_authorization", BATCH_PUBLISHED, Feature.KPI_COLLECTION),
    ],
)
@pytest.mark.parametrize("members", [(("team", "a"), ("user", "b")), (("*", "*"),)])
def test_settings_give_access_to_others(broker_with_tokens, setting, name, feature, members):
    """An operator names the subjects that may administer, read and write, for each kind of the broker's event types.
    (S266)"""
    broker = broker_with_tokens(**{setting: members})
    if feature:
        broker.features.switch(feature, on=True)

    broker.prepare_for_requests()

    listed = tuple(Attribute(*each) for each in members)
    assert broker.event_types.get(name).authorization == Authorization(admins=listed, readers=listed, writers=listed)


def test_without_administrators_their_lists_are_empty(broker_with_tokens):
    """Without an administrator, the lists are empty, and only the broker itself has access. (P154)"""
    broker = broker_with_tokens(default_admin=())
    broker.features.switch(Feature.AUDIT_LOG_COLLECTION, on=True)
    broker.prepare_for_requests()

    assert broker.event_types.get(QUEUE).authorization == Authorization(admins=(), readers=(), writers=())
    metadata = {"eid": "70779f46-950d-4e48-9fca-10c413845e7f", "occurred_at": "2026-11-21T12:00:00Z"}
    told = {"resource_type": "feature", "resource_id": "x", "user": "ann"}
    body = orjson.dumps([{"data_type": "feature", "data_op": "C", "data": told, "metadata": metadata}])
    with pytest.raises(NotPermitted):
        broker.publisher.publish(AUDIT_LOG, body, Subject(name="ann"), "")
    assert broker.publisher.publish(AUDIT_LOG, body, BROKER_SUBJECT, "").status is BatchStatus.STORED


# Earlier versions


@pytest.mark.parametrize("lists", [None, OPEN])
def test_open_event_types_are_closed_when_authentication_is_on(broker_with_tokens, lists, caplog):
    """An event type that an earlier version, or a broker without tokens, left open is closed at the next start."""
    broker = broker_with_tokens()
    caplog.set_level(logging.INFO)
    broker.prepare_for_requests()
    old = broker.event_types.get(QUEUE)
    broker.event_types.replace(old, replace(old, authorization=lists))

    broker.system_event_types.prepared_names.clear()
    broker.prepare_for_requests()

    assert broker.event_types.get(QUEUE).authorization == Authorization(admins=(OPS,), readers=(OPS,), writers=(OPS,))
    assert "Authorization of system event type" in caplog.text


def test_empty_lists_get_the_administrators_of_later_settings(broker_with_tokens, caplog):
    """An event type that was created while no administrator was named gets the administrators that are named at a later
    start."""
    broker = broker_with_tokens()
    caplog.set_level(logging.INFO)
    broker.prepare_for_requests()
    old = broker.event_types.get(QUEUE)
    broker.event_types.replace(old, replace(old, authorization=Authorization(admins=(), readers=(), writers=())))

    broker.system_event_types.prepared_names.clear()
    broker.prepare_for_requests()

    assert broker.event_types.get(QUEUE).authorization == Authorization(admins=(OPS,), readers=(OPS,), writers=(OPS,))
    assert "Authorization of system event type" in caplog.text


def test_without_administrators_the_event_types_of_the_broker_are_closed_to_all(own_event_types_broker):
    """With authentication and without a named administrator, the lists of the broker's own event types are empty, and
    stay empty.
    """
    broker = own_event_types_broker(auth="gateway")
    broker.prepare_for_requests()
    first = broker.event_types.get(QUEUE)
    broker.system_event_types.prepared_names.clear()
    broker.prepare_for_requests()

    assert first.authorization == Authorization(admins=(), readers=(), writers=())
    assert broker.event_types.get(QUEUE) == first


def test_an_event_type_changed_by_an_operator_stays_open(broker_with_tokens, caplog):
    """An event type that an operator has changed after its creation stays unchanged, and a warning is logged."""
    broker = broker_with_tokens()
    broker.prepare_for_requests()
    old = broker.event_types.get(QUEUE)
    changed = replace(old, authorization=OPEN, updated_at=old.updated_at.replace(year=2100))
    broker.event_types.replace(old, changed)

    broker.system_event_types.prepared_names.clear()
    broker.prepare_for_requests()

    assert broker.event_types.get(QUEUE).authorization == OPEN
    assert f"{QUEUE} stays open to everyone" in caplog.text


def test_an_event_type_that_settings_open_stays_open(broker_with_tokens):
    """A setting may open an event type to everyone."""
    broker = broker_with_tokens(dead_letter_authorization=(("*", "*"),))
    broker.prepare_for_requests()
    broker.system_event_types.prepared_names.clear()
    broker.prepare_for_requests()

    assert broker.event_types.get(QUEUE).authorization == OPEN


def test_without_authentication_nothing_is_closed(own_event_types_broker):
    """While authentication is off, authorization has no effect and is not changed."""
    broker = own_event_types_broker()
    broker.prepare_for_requests()
    broker.system_event_types.prepared_names.clear()
    broker.prepare_for_requests()

    assert broker.event_types.get(QUEUE).authorization == OPEN


# Names


def a_draft(name):
    return EventTypeDraft(
        name=name,
        owning_application="shop",
        category=Category.UNDEFINED,
        schema=SchemaDraft(type=SchemaType.JSON, text="{}"),
    )


@pytest.mark.parametrize("name", [QUEUE, REDRIVE, AUDIT_LOG, *sorted(KPI_EVENT_TYPES)])
def test_their_names_are_reserved(broker_with_tokens, name):
    """The names of the broker's own event types are reserved; otherwise, a client that creates them first could read
    what the broker writes to them.
    """
    broker = broker_with_tokens()
    administrator = Subject(name="ops", attributes=frozenset({Attribute("user", "ops")}))

    with pytest.raises(NotPermitted, match=f"Access on ADMIN event-type:{name} denied"):
        broker.registration.creation.create(a_draft(name), administrator)

    assert names(broker) == []


@pytest.mark.parametrize("name", [REDRIVE, EVENT_TYPE_LOG])
def test_administrators_may_use_reserved_names(broker_with_tokens, own_event_types_broker, name):
    """An administrator can create the redrive event type; while authentication is off, every client can. (S273)"""
    guarded_broker, open_to_all = broker_with_tokens(), own_event_types_broker()

    guarded_broker.registration.creation.create(a_draft(name), Subject(name="ops", attributes=frozenset({OPS})))
    open_to_all.registration.creation.create(a_draft(name), UNAUTHENTICATED)

    assert names(guarded_broker) == names(open_to_all) == [name]


@pytest.mark.parametrize(("lists", "attached"), [(None, False), (OPEN, False), (replace(OPEN, writers=(OPS,)), True)])
def test_a_redrive_event_type_has_writers(broker_with_tokens, lists, attached, caplog):
    """A redrive event type that anyone may publish to is not attached to subscriptions. (S273)"""
    broker = broker_with_tokens()
    broker.registration.creation.create(a_draft(REDRIVE), Subject(name="ops", attributes=frozenset({OPS})))
    old = broker.event_types.get(REDRIVE)
    broker.event_types.replace(old, replace(old, authorization=lists))

    broker.subscription_services.redrive_attachment.run()

    assert ("is not attached" in caplog.text) != attached


def test_missing_administrators_are_logged(caplog):
    """A warning is logged when authentication is on and no administrator is named."""
    with closing(open_broker(Settings(auth="gateway"))) as broker:
        broker.prepare_for_requests()

    assert "NAKADI_DEFAULT_ADMIN is not set" in caplog.text
