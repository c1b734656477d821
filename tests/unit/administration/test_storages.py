import pytest

from nakadi.administration.documents import SettingsDocument
from nakadi.administration.features import Features
from nakadi.administration.storages import Storages
from nakadi.caching import Cache
from nakadi.model.outcomes import NotFound, NotPermitted
from nakadi.model.storage import Storage, StorageType
from nakadi.ports import ChangedMeanwhile, Put
from nakadi.registries.memory import MemoryRegistry
from tests.support.clock import HandMovedClock

KAFKA = Storage(id="k", type=StorageType.KAFKA, configuration={"bootstrap_servers": "k:9092"})


@pytest.fixture
def registry():
    return MemoryRegistry()


@pytest.fixture
def storages(registry):
    def document(key):
        return SettingsDocument(registry, key, Cache(HandMovedClock(), 1.0))

    return Storages(registry, document("storage"), Features(document("features")), StorageType.EMBEDDED)


def test_new_event_types_get_the_built_in_storage(storages):
    """As long as nobody chooses, the storage `default` is the one. (R234, R239)"""
    assert storages.chosen().id == "default"


def test_a_chosen_storage_is_for_what_comes(storages):
    """A chosen storage is the one that new event types get. (R239)"""
    storages.add(KAFKA)
    storages.choose("k")

    assert storages.chosen().id == "k"


def test_the_default_storage_cannot_go(storages):
    """A storage that new event types get is in use, though nothing is in it yet. (R238)"""
    storages.add(KAFKA)
    storages.choose("k")

    with pytest.raises(NotPermitted):
        storages.remove("k", lambda _: False)


def test_a_storage_in_use_stays_and_stays_usable(storages):
    """A removal that is refused leaves the storage as it was. (R238)"""
    storages.add(KAFKA)

    with pytest.raises(NotPermitted):
        storages.remove("k", lambda _: True)

    assert storages.find("k") == KAFKA
    assert storages.still_there("k")


def test_nobody_moves_into_a_storage_that_is_being_removed(storages, registry):
    """Whoever looked at a storage before its removal began cannot write a timeline into it after. (R238)"""
    storages.add(KAFKA)
    seen_before = storages.still_there("k")

    def in_use(_):
        with pytest.raises(NotFound):
            storages.still_there("k")
        with pytest.raises(ChangedMeanwhile):
            registry.write(Put("event-types", "x", {}), *seen_before)
        return False

    storages.remove("k", in_use)

    assert storages.find("k") is None
