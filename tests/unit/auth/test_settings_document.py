import threading

import pytest

from nakadi.auth.settings_document import MAX_SETTINGS_WRITE_ATTEMPTS, SettingsDocument
from nakadi.common.caching import Cache
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.model.outcomes import TryLater
from nakadi.ports.registry import ChangedMeanwhile
from tests.support.clock import HandMovedClock


class BusyRegistry(MemoryRegistry):
    """A registry in which another process writes first, the given number of times."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    def write(self, *changes):
        if self.times:
            self.times -= 1
            raise ChangedMeanwhile(changes[0])
        super().write(*changes)


def document(registry, clock=None):
    return SettingsDocument(registry, "matter", Cache(clock or HandMovedClock(), 1.0))


def test_a_document_that_was_never_written_is_empty():
    """A document that does not exist has no members."""
    assert document(MemoryRegistry()).read() == {}


def test_a_change_is_read_at_once_by_the_process_that_made_it():
    """A process sees its own change, despite its cache. (R108)"""
    settings = document(MemoryRegistry())
    settings.read()

    settings.change(lambda body: {**body, "a": 1})

    assert settings.read() == {"a": 1}


def test_a_change_of_another_process_is_read_after_a_second():
    """A process sees the changes of other processes once its cached document is too old. (R65, R226)"""
    registry, clock = MemoryRegistry(), HandMovedClock()
    here, there = document(registry, clock), document(registry, clock)
    here.read()

    there.change(lambda _: {"a": 1})

    assert here.read() == {}
    clock.move(1.0)
    assert here.read() == {"a": 1}


def test_an_equal_body_is_not_written():
    """Writing the same body again does not count as a change."""
    registry = MemoryRegistry()
    settings = document(registry)
    settings.change(lambda _: {"a": 1})
    settings.change(lambda _: {"a": 1})

    assert registry.get("settings", "matter").revision == 1


def test_concurrent_changes_are_all_kept():
    """Administrators who change one document at the same time lose none of their changes. (R223)"""
    registry = MemoryRegistry()

    def add(number):
        document(registry).change(lambda body: {**body, str(number): True})

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert set(document(registry).read()) == {str(number) for number in range(8)}


def test_a_change_that_always_loses_is_refused_as_temporary():
    """A change that another process overtakes at every attempt is given up, and the client is told to try later."""
    with pytest.raises(TryLater):
        document(BusyRegistry(MAX_SETTINGS_WRITE_ATTEMPTS)).change(lambda _: {"a": 1})

    settings = document(BusyRegistry(MAX_SETTINGS_WRITE_ATTEMPTS - 1))
    settings.change(lambda _: {"a": 1})
    assert settings.read() == {"a": 1}
