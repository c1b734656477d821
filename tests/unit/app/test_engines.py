"""The engines that URLs select."""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from nakadi.app import engines
from nakadi.app.engines import LogDependencies, open_event_log
from nakadi.app.settings import Settings
from nakadi.engines.archive.stores import open_archive_if_set
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.model.outcomes import BadSetting, Unavailable
from nakadi.ports.clock import SystemClock
from tests.support.clock import HandMovedClock
from tests.support.engines import COORDINATIONS, EID_CLAIMS, EVENT_LOGS, LOG_INDEXES, REGISTRIES
from tests.support.environment import plain_environment


def test_a_scheme_names_an_engine():
    """The scheme `memory:` selects the engine in memory."""
    assert isinstance(engines.open_event_log("memory:", HandMovedClock()), MemoryLog)
    assert isinstance(engines.open_registry("memory:"), MemoryRegistry)


@pytest.mark.parametrize("url", ["", "memory", "redis://here", "/data/nakadi.db"])
def test_an_unknown_scheme_is_answered_with_those_there_are(url):
    """A URL that no engine knows is refused, and the message lists the known schemes."""
    with pytest.raises(BadSetting, match=r"memory.*sqlite"):
        engines.open_event_log(url, HandMovedClock())
    with pytest.raises(BadSetting, match=r"memory.*sqlite"):
        engines.open_registry(url)


def test_an_engine_is_imported_when_it_is_asked_for():
    """Importing the broker's packages imports no engine."""
    program = "import sys, nakadi.app.engines, nakadi.app.engines; print([m for m in sys.modules if 'sqlite' in m])"
    environment = plain_environment(PYTHONPATH=":".join(sys.path))
    assert subprocess.check_output([sys.executable, "-c", program], env=environment).strip() == b"[]"


@pytest.mark.parametrize(
    "open_store", [engines.open_log_index, engines.open_coordination], ids=["log index", "coordination"]
)
def test_an_engine_that_serves_one_port_serves_no_other(open_store, monkeypatch):
    """A scheme that only registries have is refused as a log index and as a coordination; the message lists the schemes
    that can be one.
    """
    monkeypatch.setattr(engines, "REGISTRY_OPENERS", {**engines.REGISTRY_OPENERS, "new": MemoryRegistry})
    with pytest.raises(BadSetting, match="'new://here'; it begins with one of: memory, sqlite, dynamodb"):
        open_store("new://here")


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"event_log": "kinesis://events", "log_index": "dynamodb://named"}, "dynamodb://named"),
        ({"event_log": "sqlite:///data/events.db"}, "sqlite:///data/events.db"),
        ({"event_log": "memory:"}, "memory:"),
        ({"event_log": "kafka://kafka-1:9092"}, "sqlite:///data/nakadi.db"),
        ({"event_log": "kinesis://events"}, "memory:"),
        ({"event_log": "new://here"}, "new://here"),
    ],
    ids=["named", "data file", "memory", "Kafka", "Kinesis", "new engine"],
)
def test_a_log_index_is_in_the_store_of_its_log_if_that_can_hold_one(settings, url, monkeypatch):
    """The log index has its own setting; by default, it is in the store of the events, if that engine has a log
    index."""
    monkeypatch.setattr(engines, "LOG_INDEX_OPENERS", {**engines.LOG_INDEX_OPENERS, "new": MemoryLogIndex})
    assert engines.log_index_url(Settings(registry="sqlite:///data/nakadi.db", **settings)) == url


def test_an_engine_that_is_new_counts_as_shared_and_as_changed_by_others():
    """An engine that the tables of exceptions do not name is treated in the way that is safe for every engine: as
    shared with other processes, whose changes it does not notice.
    """
    urls = ["memory:", "sqlite:///data/nakadi.db", "dynamodb://tables", "new://here"]
    assert [engines.is_shared_store(url) for url in urls] == [False, True, True, True]
    assert [engines.may_have_unknown_neighbours(url) for url in urls] == [False, False, True, True]


def test_every_event_log_has_a_type_of_storage():
    """Every event log has a storage type; a missing type is an error, and does not count as embedded."""
    assert engines.STORAGE_TYPES.keys() == engines.EVENT_LOG_OPENERS.keys()
    with pytest.raises(BadSetting, match=r"memory.*sqlite"):
        engines.storage_type("redis://here")


@pytest.mark.parametrize(
    ("openers", "tested"),
    [
        (engines.REGISTRY_OPENERS, REGISTRIES),
        (engines.LOG_INDEX_OPENERS, LOG_INDEXES),
        (engines.COORDINATION_OPENERS, COORDINATIONS),
        (engines.EID_CLAIMS_OPENERS, EID_CLAIMS),
        (engines.EVENT_LOG_OPENERS, EVENT_LOGS),
    ],
    ids=["registry", "log index", "coordination", "claims", "event log"],
)
def test_every_engine_is_in_the_tables_of_the_contract_suites(openers, tested):
    """An engine that a URL can name passes the suite of its port: tests/support/engines.py has a line for it."""
    assert set(openers) <= {url.partition(":")[0] for url in tested.values()}


def test_every_folder_of_engines_is_opened():
    """Every folder of engines has an entry in a table of openers; without an entry, no setting could select the
    engine.
    """
    source = Path(engines.__file__)
    folders = {each.parent.name for each in source.parents[1].glob("engines/*/__init__.py")}
    opened = set(re.findall(r"from nakadi\.engines\.(\w+)", source.read_text()))
    assert folders - {"archive", "common"} == opened - {"archive", "common"}


def test_without_the_client_library_no_log_in_kafka_is_opened(monkeypatch):
    """A broker without Kafka's client library cannot open a log in Kafka; the message names the package that is
    missing.
    """
    for name in [each for each in sys.modules if each.startswith("nakadi.engines.kafka.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(BadSetting, match="needs the Python package confluent-kafka"):
        open_event_log("kafka://kafka-1:9092", SystemClock())


def test_a_log_whose_archive_cannot_be_opened_is_closed(tmp_path):
    """A failed attempt to open a log leaves nothing open, however often it is repeated."""
    hot = MemoryLog(SystemClock())

    def unavailable():
        raise Unavailable("The registry does not answer.")

    dependencies = LogDependencies(
        open_index=MemoryLogIndex,
        open_archive=partial(open_archive_if_set, str(tmp_path)),
        open_topic_directory=unavailable,
    )
    with pytest.raises(Unavailable, match="registry"):
        engines._open_log_with_archive(lambda: hot, SystemClock(), dependencies)
    with pytest.raises(Unavailable, match="closed"):
        hot.create_topic("t", 1)
