"""Changes of permissions to read, and how streams learn of them."""

import pytest
from msgspec.structs import replace

from nakadi.auth.admins import Admins
from nakadi.auth.blacklist import Blacklist
from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.common.caching import Cache
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.event_types.repository import EventTypes
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import TryLater
from nakadi.streaming.access import ReadAccess
from tests.support.builders import an_event_type
from tests.support.clock import HandMovedClock
from tests.support.registry import settings_document


class AccessSetup:
    """An event type, a judge that caches it for a second, and another writer."""

    def __init__(self) -> None:
        registry = MemoryRegistry()
        self.clock = HandMovedClock()
        event_types = EventTypes(registry, Cache(self.clock, 1.0))
        self.elsewhere = EventTypes(registry, Cache(self.clock, 1.0))
        features = Features(settings_document("features"))
        permissions = Permissions(
            Admins(settings_document("admins"), features, ()), Blacklist(settings_document("blacklist")), ()
        )
        self.access = ReadAccess(event_types, permissions, features)
        self.elsewhere.add(an_event_type(name="a"))
        self.known = self.access.authorize("a", UNAUTHENTICATED)

    def verdict(self, known=None):
        return self.access.access_change_for(UNAUTHENTICATED, known or self.known)


@pytest.fixture
def setup():
    return AccessSetup()


def test_as_long_as_nothing_changes_there_is_nothing_to_say(setup):
    """An unchanged event type needs no verdict."""
    assert setup.verdict() is None


def test_a_change_is_reported_until_it_is_known(setup):
    """A changed event type is returned; once the stream knows it, there is no further report. (L60)"""
    setup.elsewhere.replace(setup.known, replace(setup.known, owning_application="other"))
    found = setup.verdict()
    assert isinstance(found, EventType)
    assert found.owning_application == "other"
    assert setup.verdict(found) is None


def test_a_stream_does_not_return_to_an_older_cached_event_type(setup):
    """A stream that knows a newer event type than the cache does not return to the older one."""
    assert setup.verdict() is None  # and caches it
    newer = setup.elsewhere.replace(setup.known, replace(setup.known, owning_application="other"))
    assert setup.verdict(newer) is None


def test_streams_of_a_deleted_event_type_are_refused(setup):
    """Streams over a deleted event type are refused. (L61)"""
    setup.elsewhere.remove(setup.known)
    found = setup.verdict()
    assert isinstance(found, TryLater)
    assert str(found) == 'EventType "a" does not exist.'


def test_a_successor_is_another(setup):
    """A new event type with the same name does not keep a stream alive. (L61)"""
    setup.elsewhere.remove(setup.known)
    setup.elsewhere.add(an_event_type(name="a", id="another"))
    assert isinstance(setup.verdict(), TryLater)


def test_a_stream_is_not_ended_for_what_was_there_before_it(setup):
    """If the cache still has a deleted predecessor, the judge reads again. (L61)"""
    assert setup.verdict() is None  # and caches it
    setup.elsewhere.remove(setup.known)
    setup.elsewhere.add(an_event_type(name="a", id="another"))
    successor = setup.access.authorize("a", UNAUTHENTICATED)
    assert setup.verdict(successor) is None
