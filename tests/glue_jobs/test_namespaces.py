"""The archive's namespaces that belong to a broker."""

from types import SimpleNamespace

import pytest

from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.event_types.storages import STORAGES_KIND
from nakadi.ports.registry import ABSENT_REVISION, PutDocument
from nakadi_jobs.namespaces import namespaces_of_broker


def broker_with_log(event_log, *storages):
    registry = MemoryRegistry()
    for number, (kind, configuration) in enumerate(storages):
        body = {"type": kind, "configuration": configuration}
        registry.write(PutDocument(STORAGES_KIND, f"s{number}", body, expected_revision=ABSENT_REVISION))
    options = SimpleNamespace(event_log=event_log)
    return SimpleNamespace(registry=registry, index=MemoryLogIndex(), options=options)


@pytest.mark.parametrize(
    ("event_log", "streams"),
    [
        (None, set()),
        ("sqlite:///data/nakadi.db", set()),
        ("kinesis://nakadi-test?region=eu-central-1", {"nakadi-test"}),
    ],
)
def test_a_broker_owns_the_namespaces_that_it_writes_to(event_log, streams):
    """Some namespaces are known without a reference: the index's own, and those of the streams of the log and of
    storages.
    """
    work = broker_with_log(event_log, ("kinesis", {"stream": "orders"}), ("kafka", {"bootstrap_servers": "k:9092"}))

    assert namespaces_of_broker(work) == {work.index.identity(), "orders", *streams}
