"""Subscriptions in the registry: guarantees for simultaneous writes, and what is left when a process stops."""

from __future__ import annotations

import pytest

from nakadi.common.caching import Cache
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.event_types.repository import EventTypes
from nakadi.model.outcomes import Conflict, NotFound, Unavailable
from nakadi.model.subscription import Subscription
from nakadi.ports.registry import ChangedMeanwhile, CheckRevision, PutDocument
from nakadi.subscriptions.api.repository import (
    DELETED_SUBSCRIPTIONS_KIND,
    MAX_CREATION_TIME,
    SUBSCRIPTION_KEYS_KIND,
    SUBSCRIPTIONS_BY_EVENT_TYPE_KIND,
    SubscriptionIds,
    Subscriptions,
    _batches_of_changes,
)
from tests.support.api import problem
from tests.support.builders import A_MOMENT, an_event_type
from tests.support.clock import HandMovedClock
from tests.support.subscriptions import a_request, change_request


class SubscribableEventTypes:
    """Subscriptions and event types in the same registry."""

    def __init__(self) -> None:
        self.registry = MemoryRegistry()
        self.clock = HandMovedClock()
        self.ids = SubscriptionIds()
        self.event_types = EventTypes(self.registry, Cache(self.clock, 0))
        self.subscriptions = Subscriptions(self.registry, Cache(self.clock, 60), self.clock)

    def names(self, count: int) -> list[str]:
        names = [f"type-{number:03}" for number in range(count)]
        for name in names:
            self.event_types.add(an_event_type(name=name))
        return names

    def add(self, *names: str, group: str = "default") -> Subscription:
        subscription = Subscription(
            id=self.ids.new_id(A_MOMENT),
            owning_application="shop",
            event_types=tuple(names),
            consumer_group=group,
            created_at=A_MOMENT,
            updated_at=A_MOMENT,
        )
        return self.subscriptions.add(subscription, [self.event_types.get(name) for name in names])

    def try_to_remove(self, name: str) -> bool:
        """Whether the check at this moment permits the removal of an event type."""
        event_type = self.event_types.get(name)
        mark = self.subscriptions.no_new_subscription_condition(event_type)
        if self.subscriptions.of_event_type(name) or self.subscriptions.is_being_subscribed(name):
            return False
        self.event_types.remove(event_type, mark)
        return True


@pytest.fixture
def registered():
    return SubscribableEventTypes()


@pytest.mark.parametrize("count", [1, 32, 33, 99, 250])
def test_any_number_of_event_types_can_be_subscribed_to(registered, count):
    """However many event types it has, the subscription is found by each of them, and removed without a trace. (S25,
    S72)"""
    names = registered.names(count)
    subscription = registered.add(*names)
    assert registered.subscriptions.get(subscription.id) == subscription
    assert all(registered.subscriptions.of_event_type(name) == [subscription] for name in names)
    registered.subscriptions.remove(subscription)
    assert registered.subscriptions.find(subscription.id) is None
    assert all(registered.subscriptions.of_event_type(name) == [] for name in names)
    assert not registered.registry.list(SUBSCRIPTIONS_BY_EVENT_TYPE_KIND)
    assert not registered.registry.list(SUBSCRIPTION_KEYS_KIND)
    assert [each.key for each in registered.registry.list(DELETED_SUBSCRIPTIONS_KIND)] == [subscription.id]


@pytest.mark.parametrize(
    ("count", "parts"), [(1, [1]), (98, [98]), (99, [99]), (101, [99, 2]), (197, [99, 98]), (200, [99, 99, 2])]
)
def test_changes_stay_together_as_far_as_one_write_can_hold_them(count, parts):
    """Changes that fit into one write are atomic; if there are more, the last ones are written first, and the first one
    last."""
    changes = [CheckRevision("kind", str(number), expected_revision=1) for number in range(count)]
    written = list(_batches_of_changes(changes))
    assert [len(part) for part in written] == parts
    assert [change for part in reversed(written) for change in part] == changes


@pytest.mark.parametrize("count", [1, 40])
def test_a_key_is_taken_once(registered, count):
    """A second subscription with the same key is refused, and leaves nothing behind. (S11, S34)"""
    names = registered.names(count)
    first = registered.add(*names)
    with pytest.raises(Conflict, match="Subscription with the same key properties already exists"):
        registered.add(*names)
    assert all(registered.subscriptions.of_event_type(name) == [first] for name in names)
    assert len(registered.registry.list(SUBSCRIPTIONS_BY_EVENT_TYPE_KIND)) == count


@pytest.mark.parametrize("count", [1, 40])
def test_event_types_have_to_be_as_they_were(registered, count):
    """If an event type is deleted while a subscription to it is created, the subscription is not created. (S24)"""
    names = registered.names(count)
    there = [registered.event_types.get(name) for name in names]
    assert registered.try_to_remove(names[0])
    registered.event_types.get = {each.name: each for each in there}.__getitem__
    with pytest.raises(ChangedMeanwhile):
        registered.add(*names)
    assert not registered.registry.list(SUBSCRIPTIONS_BY_EVENT_TYPE_KIND)
    assert not registered.registry.list(SUBSCRIPTION_KEYS_KIND)


def test_any_client_that_removes_an_event_type_notices_new_subscriptions(registered):
    """A subscription that is created after the check prevents the removal of its event type. (S24)"""
    [name] = registered.names(1)
    event_type = registered.event_types.get(name)
    registered.add(name, group="before")
    mark = registered.subscriptions.no_new_subscription_condition(event_type)
    registered.add(name)
    with pytest.raises(ChangedMeanwhile):
        registered.event_types.remove(event_type, mark)
    assert registered.event_types.find(name) == event_type


def test_what_has_only_begun_protects_event_types_for_a_while(registered):
    """An entry without its subscription prevents the removal as long as the subscription may still be created. (S24)"""
    names = registered.names(40)
    write, calls = registered.registry.write, []

    def write_once(*changes):
        calls.append(changes)
        if len(calls) > 1:
            raise Unavailable("cut short")
        write(*changes)

    registered.registry.write = write_once
    with pytest.raises(Unavailable):
        registered.add(*names)
    registered.registry.write = write
    assert not registered.try_to_remove(names[-1])
    registered.clock.move(MAX_CREATION_TIME.total_seconds())
    assert registered.try_to_remove(names[-1])


def test_what_began_before_the_clock_was_set_back_protects_nothing(registered):
    """If the clock was set back after an entry was written, the entry without its subscription no longer prevents the
    removal. (S24)"""
    [name] = registered.names(1)
    registered.registry.write(
        PutDocument(SUBSCRIPTIONS_BY_EVENT_TYPE_KIND, f"{name}/unfinished", {"at": registered.clock.now().isoformat()})
    )
    assert not registered.try_to_remove(name)
    registered.clock.set_back(3600)
    assert registered.try_to_remove(name)


def test_own_writes_are_seen_at_once(registered):
    """A process forgets its cached subscription when it changes or removes it. (S62)"""
    subscription = registered.add(*registered.names(1))
    assert registered.subscriptions.cached(subscription.id) == subscription
    changed = registered.subscriptions.replace(subscription, subscription)
    assert registered.subscriptions.cached(subscription.id).revision == changed.revision == 2
    with pytest.raises(ChangedMeanwhile):
        registered.subscriptions.remove(subscription)
    registered.subscriptions.remove(changed)
    with pytest.raises(NotFound):
        registered.subscriptions.cached(subscription.id)


def test_a_failed_cleanup_is_repeated_later(house):
    """If the coordination does not answer when a subscription is deleted, a later clean-up removes its state. (S72,
    S292)
    """
    subscription = house.subscription()
    forget, house.coordination.remove_subscription_state = house.coordination.remove_subscription_state, _unavailable
    assert house.api.delete(f"/subscriptions/{subscription['id']}").status_code == 204
    house.coordination.remove_subscription_state = forget
    assert house.coordination.committed_offsets(subscription["id"])
    house.subscription_services.deleted_subscription_cleanup.clean_up_all()
    assert not house.coordination.committed_offsets(subscription["id"])
    assert not house.broker.registry.list(DELETED_SUBSCRIPTIONS_KIND)


def test_running_sessions_of_a_deleted_subscription_end(house):
    """The state that sessions share is deleted with the subscription: they notice it, and end. (S74)"""
    subscription = house.subscription()
    house.session(subscription)
    take_messages = []
    house.coordination.add_change_listener(subscription["id"], take_messages.append)
    house.api.delete(f"/subscriptions/{subscription['id']}")
    assert take_messages
    assert house.assignment(subscription).sessions == ()


def _unavailable(*_):
    raise Unavailable("not now")


def test_a_registry_that_does_not_answer_is_reported(house):
    """While the registry does not answer, every request about subscriptions is answered with 503. (S37, S58, S82)"""
    name = house.event_type()
    subscription = house.subscription(name)
    house.broker.registry.close()
    url = f"/subscriptions/{subscription['id']}"
    for answer in (
        house.api.post("/subscriptions", json=a_request(name)),
        house.api.get("/subscriptions"),
        house.api.get(url),
        house.api.put(url, json=change_request(subscription)),
        house.api.delete(url),
        house.api.get(f"{url}/stats"),
    ):
        problem(answer, 503)


def test_changes_of_the_definition_disturb_no_one(house):
    """A change of a subscription does not affect the sessions that share it. (S71)"""
    subscription = house.subscription()
    house.session(subscription)
    before, take_messages = house.assignment(subscription), []
    house.coordination.add_change_listener(subscription["id"], take_messages.append)
    answer = house.api.put(f"/subscriptions/{subscription['id']}", json=change_request(subscription, labels={"a": "b"}))
    assert answer.status_code == 204
    assert (take_messages, house.assignment(subscription)) == ([], before)
