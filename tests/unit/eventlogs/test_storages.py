"""The event logs of storages."""

import pytest

from nakadi.clock import SystemClock
from nakadi.eventlogs.memory import MemoryLog
from nakadi.eventlogs.storages import StorageLogs, url_of
from nakadi.model.outcomes import Unavailable
from nakadi.model.storage import Storage, StorageType

BUILT_IN = "kinesis://nakadi-live?region=eu-central-1&window=3"


def a_storage(storage_id="orders", **configuration):
    return Storage(id=storage_id, type=StorageType.KINESIS, configuration=configuration)


def test_a_dedicated_stream_is_where_the_shared_one_is():
    """A storage's stream has the region, and whatever else is said, of the built-in storage's."""
    assert url_of(a_storage(stream="nakadi-live-orders"), BUILT_IN) == (
        "kinesis://nakadi-live-orders?region=eu-central-1&window=3"
    )


@pytest.mark.parametrize(
    ("storage", "built_in"),
    [
        (a_storage(stream="orders"), "sqlite:////data/nakadi.db"),
        (a_storage(stream="user@orders/../x?endpoint=http://elsewhere"), BUILT_IN),
        (a_storage(), BUILT_IN),
        (Storage(id="orders", type=StorageType.KAFKA, configuration={"stream": "orders"}), BUILT_IN),
    ],
)
def test_other_storages_are_out_of_reach(storage, built_in):
    """What this broker cannot open, it says so of, and opens nothing else instead."""
    with pytest.raises(Unavailable, match="cannot reach the storage orders"):
        url_of(storage, built_in)


def test_a_log_is_opened_once_and_closed_with_the_others():
    """A storage's log is opened by who asks first, and is the same for everybody."""
    opened = []

    def open_for(storage):
        opened.append((storage.id, MemoryLog(SystemClock())))
        return opened[-1][1]

    built_in = MemoryLog(SystemClock())
    logs = StorageLogs(built_in, lambda storage_id: a_storage(storage_id, stream="orders"), open_for)

    assert logs.of("default") is built_in
    assert logs.of("orders") is logs.of("orders")
    assert [storage_id for storage_id, _ in opened] == ["orders"]
    logs.close()
    with pytest.raises(Unavailable):
        opened[0][1].read("t", 0, 0, wait=1)


def test_an_unknown_storage_is_out_of_reach():
    """A timeline in a storage that is not there cannot be read now."""
    logs = StorageLogs(MemoryLog(SystemClock()), lambda _: None, lambda _: MemoryLog(SystemClock()))
    with pytest.raises(Unavailable, match="no storage gone"):
        logs.of("gone")
