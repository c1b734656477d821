"""The event logs of storages."""

from urllib.parse import urlsplit

import pytest

from infra.laptop.kinesis_local import free_port
from nakadi.app import storages
from nakadi.app.storages import StorageLogs, check_storage_reachable, storage_url, with_stream_name
from nakadi.engines.kinesis import opening
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.model.event_type import Storage, StorageType
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import SystemClock
from tests.support.kinesis import open_on_local, open_on_moto

BUILT_IN = "kinesis://nakadi-live?region=eu-central-1&window=3"


def a_storage(storage_id="orders", **configuration):
    return Storage(id=storage_id, type=StorageType.KINESIS, configuration=configuration)


def a_kafka(configuration):
    return Storage(id="orders", type=StorageType.KAFKA, configuration=configuration)


def test_a_dedicated_stream_is_where_the_shared_one_is():
    """A storage with a dedicated stream uses the region and the other options of the built-in storage."""
    assert storage_url(a_storage(stream="nakadi-live-orders"), BUILT_IN) == (
        "kinesis://nakadi-live-orders?region=eu-central-1&window=3"
    )


@pytest.mark.parametrize(
    ("storage", "built_in"),
    [
        (a_storage(stream="orders"), "sqlite:////data/nakadi.db"),
        (a_storage(stream="user@orders/../x?endpoint=http://elsewhere"), BUILT_IN),
        (a_storage(), BUILT_IN),
        (Storage(id="orders", type=StorageType.EMBEDDED), BUILT_IN),
        (Storage(id="orders", type=StorageType.KAFKA, configuration={"stream": "orders"}), BUILT_IN),
    ],
)
def test_other_storages_are_out_of_reach(storage, built_in):
    """A broker reports a storage that it cannot open, and opens no other storage in its place."""
    with pytest.raises(Unavailable, match="cannot reach the storage orders"):
        storage_url(storage, built_in)


@pytest.mark.parametrize("built_in", ["memory:", BUILT_IN, "kafka://elsewhere:9092"])
def test_a_storage_in_kafka_is_where_it_says(built_in, monkeypatch):
    """Whatever the built-in storage is, other storages may be in Kafka; clients cannot choose how the broker logs
    in."""
    monkeypatch.setattr(storages, "find_spec", lambda _: True)
    servers = {"bootstrap_servers": "kafka-1:9092,kafka-2:9093"}

    assert storage_url(a_kafka(servers), built_in) == "kafka://kafka-1:9092,kafka-2:9093"
    assert storage_url(a_kafka(servers | {"topic_prefix": "n-"}), built_in, "/etc/kafka.properties") == (
        "kafka://kafka-1:9092,kafka-2:9093?prefix=n-&properties=%2Fetc%2Fkafka.properties"
    )


MSK = "b-1.shop.4fw2.c2.kafka.eu-central-1.amazonaws.com:9098"


@pytest.mark.parametrize(
    ("servers", "region"),
    [
        (MSK, "eu-central-1"),
        (f"{MSK},{MSK.replace('b-1', 'b-2')}", "eu-central-1"),
        ("boot-x1.c1.kafka-serverless.us-east-2.amazonaws.com:9098", "us-east-2"),
        ("b-1-public.shop.4fw2.c2.kafka.eu-west-1.amazonaws.com:9198", "eu-west-1"),
        ("b-1.shop.4fw2.c2.kafka.cn-north-1.amazonaws.com.cn:9098", "cn-north-1"),
        (MSK.replace("9098", "9096"), ""),
        (f"{MSK},kafka-1:9092", ""),
        (f"{MSK},{MSK.replace('eu-central-1', 'eu-west-1')}", ""),
        ("b-1.kafka.eu-central-1.amazonaws.com.example.org:9098", ""),
        ("b-1.kafka.eu-central-1.amazonaws.com.cn.example:9098", ""),
        ("kafka-1:9098", ""),
    ],
)
def test_a_storage_in_msk_is_signed_in_to_by_iam(servers, region, monkeypatch):
    """The broker signs in to MSK servers with a token for their region if the port is the one for IAM; no other
    server gets a token.
    """
    monkeypatch.setattr(storages, "find_spec", lambda _: True)
    url = storage_url(a_kafka({"bootstrap_servers": servers}), BUILT_IN, "/p")

    assert url == f"kafka://{servers}?" + (f"iam={region}&" if region else "") + "properties=%2Fp"


@pytest.mark.parametrize(
    "configuration",
    [
        {},
        {"bootstrap_servers": ["kafka-1:9092"]},
        {"bootstrap_servers": "kafka-1"},
        {"bootstrap_servers": "kafka-1:9092/?properties=/etc/passwd"},
        {"bootstrap_servers": "kafka-1:9092", "topic_prefix": "n&properties=/etc/passwd"},
        {"bootstrap_servers": "kafka-1:9092", "properties": "/etc/passwd"},
    ],
)
def test_a_storage_in_kafka_says_no_more_than_where_it_is(configuration, monkeypatch):
    """The configuration of a storage in Kafka is refused if it has no list of servers, or if it contains anything that
    would change the broker's own options.
    """
    monkeypatch.setattr(storages, "find_spec", lambda _: True)
    with pytest.raises(Unavailable, match="cannot reach the storage orders"):
        storage_url(a_kafka(configuration), "memory:")


def test_without_the_client_library_no_storage_in_kafka_is_reached(monkeypatch):
    """A broker without Kafka's client library has no engine for a storage in Kafka."""
    monkeypatch.setattr(storages, "find_spec", lambda _: None)
    with pytest.raises(Unavailable, match="it has no engine for it"):
        check_storage_reachable(a_kafka({"bootstrap_servers": "kafka-1:9092"}), "memory:")


@pytest.mark.parametrize("built_in", ["memory:", "sqlite:////data/nakadi.db"])
def test_an_embedded_storage_lies_in_the_built_in_one(built_in):
    """On one machine, another embedded storage uses the file or memory of the built-in one, so it can always be
    reached. (R239)
    """
    storage = Storage(id="orders", type=StorageType.EMBEDDED)

    assert storage_url(storage, built_in) == built_in
    check_storage_reachable(storage, built_in)


@pytest.mark.parametrize("kinesis", [open_on_moto, open_on_local], ids=["moto", "local"])
def test_a_stream_is_looked_for(kinesis, tmp_path):
    """A storage whose stream exists can be reached; one without a stream cannot. (R239)"""
    with kinesis(*([tmp_path] if kinesis is open_on_local else [])) as (built_in, _):
        there = urlsplit(built_in).netloc
        check_storage_reachable(a_storage("same", stream=there), built_in)
        check_storage_reachable(a_storage(stream=there), with_stream_name(built_in, "another"))
        with pytest.raises(Unavailable, match=r"^The stream no-such of the storage orders cannot be reached$"):
            check_storage_reachable(a_storage(stream="no-such"), built_in)


def test_a_service_that_is_not_there_is_found_out_soon(monkeypatch):
    """The search for a stream ends soon, even if no server listens at the address. (R239)"""
    monkeypatch.setattr(opening, "STREAM_CHECK_TIMEOUT_SECONDS", 0.1)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    nobody = f"kinesis://nakadi?region=eu-central-1&endpoint=http://127.0.0.1:{free_port()}"

    with pytest.raises(Unavailable, match=r"^The stream no-such of the storage orders cannot be reached$"):
        check_storage_reachable(a_storage(stream="no-such"), nobody)


def test_a_log_that_two_storages_share_is_closed_once():
    """Two storages with the same file share one log."""
    closed = []
    log = MemoryLog(SystemClock())
    log.close = lambda: closed.append(log)
    logs = StorageLogs(log, lambda storage_id: a_storage(storage_id, stream="orders"), lambda _: log)

    assert logs.for_storage("orders") is logs.for_storage("default")
    logs.close()

    assert closed == [log]


def test_a_log_is_opened_once_and_closed_with_the_others():
    """The first request for a storage's log opens the log, and later requests get the same log."""
    opened = []

    def open_for(storage):
        opened.append((storage.id, MemoryLog(SystemClock())))
        return opened[-1][1]

    built_in = MemoryLog(SystemClock())
    logs = StorageLogs(built_in, lambda storage_id: a_storage(storage_id, stream="orders"), open_for)

    assert logs.for_storage("default") is built_in
    assert logs.for_storage("orders") is logs.for_storage("orders")
    assert [storage_id for storage_id, _ in opened] == ["orders"]
    logs.close()
    with pytest.raises(Unavailable):
        opened[0][1].read("t", 0, 0, wait=1)


def test_an_unknown_storage_is_out_of_reach():
    """A timeline whose storage does not exist cannot be read for now."""
    logs = StorageLogs(MemoryLog(SystemClock()), lambda _: None, lambda _: MemoryLog(SystemClock()))
    with pytest.raises(Unavailable, match="no storage gone"):
        logs.for_storage("gone")


def test_no_log_is_opened_once_they_are_closed():
    """Once the logs are closed, a request for a storage's log is refused: nobody would close a log that was opened
    then.
    """
    opened = []
    logs = StorageLogs(
        MemoryLog(SystemClock()), lambda storage_id: a_storage(storage_id, stream="orders"), opened.append
    )
    logs.close()
    with pytest.raises(Unavailable, match="closed"):
        logs.for_storage("orders")
    assert opened == []
