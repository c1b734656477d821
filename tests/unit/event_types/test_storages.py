import pytest

from nakadi.auth.features import Features
from nakadi.auth.settings_document import SettingsDocument
from nakadi.common.caching import Cache
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.event_types.storages import Storages
from nakadi.model.event_type import Storage, StorageType
from nakadi.model.outcomes import Invalid, NotFound, NotPermitted, TryLater, Unavailable
from nakadi.ports.registry import ChangedMeanwhile, PutDocument
from tests.support.clock import HandMovedClock
from tests.support.registry import WriteFate, act_before_next_writes, let_next_writes_fail

KAFKA = Storage(id="k", type=StorageType.KAFKA, configuration={"bootstrap_servers": "k:9092"})


@pytest.fixture
def registry():
    return MemoryRegistry()


@pytest.fixture
def out_of_reach():
    """The ids of the storages that cannot be reached at the moment."""
    return set()


@pytest.fixture
def storages(registry, out_of_reach):
    def document(key):
        return SettingsDocument(registry, key, Cache(HandMovedClock(), 1.0))

    def reach(storage):
        if storage.id in out_of_reach:
            raise Unavailable(f"The storage {storage.id} cannot be reached")

    return Storages(registry, document("storage"), Features(document("features")), StorageType.EMBEDDED, reach)


def test_new_event_types_get_the_built_in_storage(storages):
    """Until a storage is chosen, new event types use the storage `default`. (R234, R239)"""
    assert storages.chosen_for_new_event_types().id == "default"


def test_a_chosen_storage_is_used_for_new_event_types(storages):
    """New event types use the chosen storage. (R239)"""
    storages.add(KAFKA)
    storages.choose("k")

    assert storages.chosen_for_new_event_types().id == "k"


def test_the_default_storage_cannot_be_removed(storages):
    """The storage for new event types counts as in use, even if it is still empty, so it cannot be removed. (R238)"""
    storages.add(KAFKA)
    storages.choose("k")

    with pytest.raises(NotPermitted):
        storages.remove("k", lambda _: False)


def test_a_storage_in_use_is_not_removed_and_stays_usable(storages):
    """A refused removal leaves the storage unchanged. (R238)"""
    storages.add(KAFKA)

    with pytest.raises(NotPermitted):
        storages.remove("k", lambda _: True)

    assert storages.find("k") == KAFKA
    assert storages.write_conditions_on("k")


def test_no_timeline_begins_in_a_storage_that_is_being_removed(storages, registry):
    """A process that has read a storage before its removal cannot start a timeline in it. (R238)"""
    storages.add(KAFKA)
    seen_before = storages.write_conditions_on("k")

    def is_in_use(_):
        with pytest.raises(NotFound):
            storages.write_conditions_on("k")
        with pytest.raises(ChangedMeanwhile):
            registry.write(PutDocument("event-types", "x", {}), *seen_before)
        return False

    storages.remove("k", is_in_use)

    assert storages.find("k") is None


def change_storage(registry):
    """Another administrator updates the storage's document."""
    document = registry.get("storages", "k")
    registry.write(PutDocument("storages", "k", document.body))


@pytest.mark.parametrize("before", [0, 1])
def test_a_removal_that_loses_a_race_is_repeated(storages, registry, before):
    """Whichever write of the removal collides with another change, the storage is eventually removed. (R238)"""
    storages.add(KAFKA)
    act_before_next_writes(registry, *[lambda: None] * before, lambda: change_storage(registry))

    storages.remove("k", lambda _: False)

    assert storages.find("k") is None


@pytest.mark.parametrize(
    "fates",
    [
        [WriteFate.WRITTEN_WITHOUT_ANSWER],
        [WriteFate.ANSWERED, WriteFate.NOT_WRITTEN],
    ],
)
def test_a_removal_that_fails_leaves_the_storage_usable(storages, registry, fates):
    """If the registry fails during a removal, timelines can still begin in the storage. (R238)"""
    storages.add(KAFKA)
    let_next_writes_fail(registry, *fates)

    with pytest.raises(Unavailable):
        storages.remove("k", lambda _: False)

    assert storages.find("k") == KAFKA
    assert storages.write_conditions_on("k")


def test_a_removal_that_cannot_look_for_timelines_leaves_the_storage_usable(storages):
    """If event types cannot be read, the storage is not removed, and timelines can still begin in it. (R238)"""
    storages.add(KAFKA)

    def fail(_):
        raise Unavailable("The registry does not answer.")

    with pytest.raises(Unavailable):
        storages.remove("k", fail)

    assert storages.write_conditions_on("k")


def test_a_removal_that_always_loses_is_refused_as_temporary(storages, registry):
    """The removal of a storage that is changed repeatedly is given up, and the client may retry. (R238)"""
    storages.add(KAFKA)
    act_before_next_writes(registry, *[lambda: change_storage(registry)] * 100)

    with pytest.raises(TryLater, match="please repeat request"):
        storages.remove("k", lambda _: False)


def test_a_removal_does_not_remove_a_storage_added_since(storages):
    """A removal reads the storage again if another removal and an addition have overtaken it. (R238)"""
    storages.add(KAFKA)
    answers = iter([False, True])

    def is_in_use(_):
        if is_in_use.first:
            is_in_use.first = False
            storages.remove("k", lambda _: False)
            storages.add(KAFKA)
        return next(answers)

    is_in_use.first = True

    with pytest.raises(NotPermitted):
        storages.remove("k", is_in_use)

    assert storages.write_conditions_on("k")


def test_a_storage_out_of_reach_is_not_added(storages, out_of_reach):
    """A storage that does not answer is refused when it is added. (R235)"""
    out_of_reach.add("k")

    with pytest.raises(Invalid, match="The storage k cannot be reached"):
        storages.add(KAFKA)

    assert storages.find("k") is None


def test_a_storage_out_of_reach_is_not_chosen(storages, out_of_reach):
    """New event types keep their storage if the chosen one does not answer. (R239)"""
    storages.add(KAFKA)
    out_of_reach.add("k")

    with pytest.raises(Invalid, match="The storage k cannot be reached"):
        storages.choose("k")

    assert storages.chosen_for_new_event_types().id == "default"


def test_the_built_in_storage_can_always_be_chosen(storages, out_of_reach):
    """The broker's own storage can be chosen again even if no storage answers. (R239)"""
    storages.add(KAFKA)
    storages.choose("k")
    out_of_reach.update({"default", "k"})

    assert storages.choose("default").default


def test_a_storage_chosen_during_its_removal_is_not_used(storages):
    """When a storage is chosen just as it is removed, new event types use the built-in storage, and the broker reports
    it as the default. (R239)"""
    storages.add(KAFKA)
    storages.remove("k", lambda _: storages.choose("k") is None)

    assert storages.chosen_for_new_event_types().id == "default"
    assert [each.id for each in storages.all() if each.default] == ["default"]


@pytest.mark.parametrize(
    "storage_id", ["", " ", "a b", ".", "..", "a/b", "/", "-a", ".a", "a\n", "\x00", "a%2fb", "a;b", "é", "x" * 37]
)
def test_an_id_must_be_a_segment_of_a_path(storages, storage_id):
    """An id that cannot be part of a path is refused. (R236)"""
    with pytest.raises(Invalid, match="A storage id has 1 to 36 letters"):
        storages.add(Storage(id=storage_id, type=StorageType.EMBEDDED))


@pytest.mark.parametrize("storage_id", ["a", "0", "_", "a.b-c_D", "x" * 36])
def test_valid_ids_are_accepted(storages, storage_id):
    """An id consists of letters, digits, underscores, hyphens and dots. (R235)"""
    storages.add(Storage(id=storage_id, type=StorageType.EMBEDDED))

    assert storages.find(storage_id)


def test_an_embedded_storage_has_no_configuration(storages):
    """An embedded storage with a configuration is refused: clients cannot choose where it keeps its events. (R233)"""
    with pytest.raises(Invalid, match="embedded_configuration must be empty"):
        storages.add(Storage(id="e", type=StorageType.EMBEDDED, configuration={"path": "/etc"}))
