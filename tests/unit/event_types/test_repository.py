import threading

import pytest
from msgspec.structs import replace

from nakadi.common.caching import Cache
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.event_types import repository
from nakadi.event_types.repository import MAX_EVENT_TYPE_WRITE_ATTEMPTS, EventTypes
from nakadi.model.event_type import Version
from nakadi.model.outcomes import Conflict, NotFound, TryLater
from nakadi.ports.registry import ChangedMeanwhile, PutDocument
from tests.support.builders import a_schema, an_event_type
from tests.support.clock import HandMovedClock


@pytest.fixture
def clock():
    return HandMovedClock()


@pytest.fixture
def registry():
    return MemoryRegistry()


@pytest.fixture
def event_types(registry, clock):
    return EventTypes(registry, Cache(clock, 1.0))


def test_a_name_is_registered_once(event_types):
    """A second event type with the same name is a conflict. (R97)"""
    event_types.add(an_event_type(name="a.b"))

    with pytest.raises(Conflict, match=r"EventType a\.b already exists\."):
        event_types.add(an_event_type(name="a.b"))


def test_only_one_of_many_creators_gets_a_name(event_types):
    """If many processes create the same name at once, exactly one of them succeeds. (R97)"""
    outcomes = []

    def create(number):
        try:
            event_types.add(an_event_type(name="a.b", id=str(number)))
            outcomes.append("created")
        except Conflict:
            outcomes.append("conflict")

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert sorted(outcomes) == ["conflict"] * 15 + ["created"]


def test_a_change_requires_the_stored_revision(event_types):
    """A change that started from an older state does not overwrite a newer one."""
    event_types.add(an_event_type(name="a.b"))
    stale = event_types.get("a.b")
    event_types.replace(stale, replace(stale, owning_application="first"))

    with pytest.raises(ChangedMeanwhile):
        event_types.replace(stale, replace(stale, owning_application="second"))

    assert event_types.get("a.b").owning_application == "first"


def test_a_replaced_event_type_is_returned_as_stored(event_types):
    """A change returns the event type as the next reader will find it."""
    event_types.add(an_event_type(name="a.b"))
    old = event_types.get("a.b")

    assert event_types.replace(old, replace(old, owning_application="x")) == event_types.get("a.b")


def test_a_change_is_retried_when_another_process_was_faster(event_types):
    """A change that collides with another is repeated from the new state; after several attempts, the client is told to
    retry later. (R129)"""
    met = []

    def attempt():
        met.append(1)
        if len(met) < MAX_EVENT_TYPE_WRITE_ATTEMPTS:
            raise ChangedMeanwhile(PutDocument("event-types", "a.b", {}))
        return "done"

    assert event_types.retry_if_changed(attempt) == "done"
    met.clear()
    with pytest.raises(TryLater, match="Event type is currently in maintenance, please repeat request"):
        event_types.retry_if_changed(lambda: event_types.replace(an_event_type(revision=7), an_event_type()))


def test_schema_versions_are_listed_newest_first(event_types):
    """All schema versions are stored, and listed newest first. (R136)"""
    event_types.add(an_event_type(name="a.b"))
    for version in (Version(1, 0, 1), Version(1, 0, 10), Version(1, 2, 0), Version(10, 0, 0)):
        old = event_types.get("a.b")
        event_types.replace(old, replace(old, schema=a_schema(version=version)))

    found = [str(each.version) for each in event_types.schemas(event_types.get("a.b"))]

    assert found == ["10.0.0", "1.2.0", "1.0.10", "1.0.1", "1.0.0"]


def test_event_types_are_cached_for_a_while(registry, clock):
    """A change by another process is seen when the cache is too old, and a process's own change at once. (R108)"""
    here, there = (EventTypes(registry, Cache(clock, 1.0)) for _ in range(2))
    here.add(an_event_type(name="a.b"))
    assert here.cached("a.b").owning_application == "shop"

    old = there.get("a.b")
    there.replace(old, replace(old, owning_application="x"))

    assert there.cached("a.b").owning_application == "x"
    assert here.cached("a.b").owning_application == "shop"
    clock.move(1.0)
    assert here.cached("a.b").owning_application == "x"


def test_missing_event_types_are_not_cached(event_types):
    """An event type can be used as soon as it is created, even by a process that looked it up too early. (R105)"""
    with pytest.raises(NotFound):
        event_types.cached("a.b")
    event_types.add(an_event_type(name="a.b"))

    assert event_types.cached("a.b").name == "a.b"


def test_listeners_are_called_after_changes(event_types):
    """Listeners get the name of the event type that was added, changed or removed."""
    heard = []
    event_types.add_change_listener(heard.append)
    event_types.add(an_event_type(name="a.b"))
    old = event_types.get("a.b")
    event_types.remove(event_types.replace(old, replace(old, owning_application="x")))

    assert heard == ["a.b"] * 3


def test_all_event_types_are_listed_beyond_one_page(event_types):
    """The list is complete beyond one page of the registry, and sorted by name. (R87)"""
    names = sorted(f"n{number}" for number in range(2100))
    for name in reversed(names):
        event_types.add(an_event_type(name=name))

    assert [each.name for each in event_types.all()] == names


def test_who_reads_an_event_type_shares_it(event_types):
    """A thousand streams that read an event type share one copy as long as it does not change."""
    event_types.add(an_event_type(name="a.b"))
    first = event_types.find("a.b")

    assert event_types.find("a.b") is first
    event_types.replace(first, replace(first, owning_application="other"))
    assert event_types.find("a.b").owning_application == "other"


def test_a_deleted_event_type_leaves_nothing_behind(event_types):
    """Deleted event types take up no memory."""
    for number in range(10):
        event_types.add(an_event_type(name=f"a.{number}", id=str(number)))
        event_types.remove(event_types.get(f"a.{number}"))

    assert event_types._latest == {}


def test_a_successor_with_the_same_name_is_not_shared_with_its_predecessor(event_types):
    """An event type and a later one with the same name are different objects, although their documents have the same
    revision.
    """
    event_types.add(an_event_type(name="a.b", id="first"))
    event_types.remove(event_types.find("a.b"))
    event_types.add(an_event_type(name="a.b", id="second"))

    assert event_types.find("a.b").id == "second"


def test_few_event_types_are_kept_for_sharing(event_types, monkeypatch):
    """However many event types are read in sequence, few are kept."""
    monkeypatch.setattr(repository, "MAX_SHARED_EVENT_TYPES", 2)
    for name in ("a", "b", "c"):
        event_types.add(an_event_type(name=name))
    first = event_types.find("a")
    event_types.find("b")
    event_types.find("c")

    assert event_types.find("a") is not first
