"""Engines by URL: the registry, the log index, the coordination and the event logs that settings name.

The scheme of a URL chooses the engine, and only that engine is imported: a Lambda function loads no engine that it
does not use. Each port has a table of its engines, `…_OPENERS`; docs/architecture.md says what else names engines.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode, urlsplit, urlunsplit

from msgspec import Struct, field

from nakadi.common.caching import ChangeWatch
from nakadi.common.metrics import Metrics
from nakadi.common.work import check_may_block
from nakadi.model.event_type import DEFAULT_STORAGE_ID, Storage, StorageType, is_kafka_configuration, is_stream_name
from nakadi.model.outcomes import BadSetting, Unavailable
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import Coordination
from nakadi.ports.eid_claims import EidClaims
from nakadi.ports.event_log import EventLog
from nakadi.ports.log_index import LogIndex
from nakadi.ports.registry import Registry
from nakadi.ports.secret_box import SecretBox

if TYPE_CHECKING:
    from nakadi.engines.archive.policy import ArchivePolicy, TopicCatalog

Opener = TypeVar("Opener")

MSK_SERVER_PATTERN = re.compile(
    r"[a-z0-9.-]+\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?:(?:9098|9198)"
)
"""A server that takes IAM, in its network or from the internet."""


def load_engines_on_aws() -> None:
    """Load what a function on AWS opens with its first invocation.

    It is called while the function starts: processor time is plentiful then, and scarce from the first invocation on.
    """
    import nakadi.engines.dynamodb.log_index
    import nakadi.engines.dynamodb.registry
    import nakadi.engines.kinesis.opening  # noqa: F401


def _opener_for(url: str, openers: Mapping[str, Opener], port: str) -> Opener:
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in openers:
        raise BadSetting(f"No {port} is known for {url!r}; it begins with one of: {', '.join(openers)}.")
    return openers[scheme]


def open_registry(url: str) -> Registry:
    """The registry at this URL: `memory:`, `sqlite:///path` or `dynamodb://table-prefix?region=…&endpoint=…`."""
    return _opener_for(url, REGISTRY_OPENERS, "registry")(url)


def _open_memory_registry(_url: str) -> Registry:
    from nakadi.engines.memory.registry import MemoryRegistry

    return MemoryRegistry()


def _open_sqlite_registry(url: str) -> Registry:
    from nakadi.engines.sqlite.file import path_in_url
    from nakadi.engines.sqlite.registry import SqliteRegistry

    return SqliteRegistry(path_in_url(url))


def _open_dynamodb_registry(url: str) -> Registry:
    from nakadi.engines.dynamodb.registry import DynamoDbRegistry
    from nakadi.engines.dynamodb.table_address import parse_table_address

    return DynamoDbRegistry(parse_table_address(url))


REGISTRY_OPENERS: Mapping[str, Callable[[str], Registry]] = {
    "memory": _open_memory_registry,
    "sqlite": _open_sqlite_registry,
    "dynamodb": _open_dynamodb_registry,
}


def open_log_index(url: str) -> LogIndex:
    """The log index at this URL, which begins as those of registries do."""
    return _opener_for(url, LOG_INDEX_OPENERS, "log index")(url)


def _open_memory_log_index(_url: str) -> LogIndex:
    from nakadi.engines.memory.log_index import MemoryLogIndex

    return MemoryLogIndex()


def _open_sqlite_log_index(url: str) -> LogIndex:
    from nakadi.engines.sqlite.file import path_in_url
    from nakadi.engines.sqlite.registry import SqliteLogIndex

    return SqliteLogIndex(path_in_url(url))


def _open_dynamodb_log_index(url: str) -> LogIndex:
    from nakadi.engines.dynamodb.log_index import DynamoDbLogIndex
    from nakadi.engines.dynamodb.table_address import parse_table_address

    return DynamoDbLogIndex(parse_table_address(url))


LOG_INDEX_OPENERS: Mapping[str, Callable[[str], LogIndex]] = {
    "memory": _open_memory_log_index,
    "sqlite": _open_sqlite_log_index,
    "dynamodb": _open_dynamodb_log_index,
}


def open_coordination(url: str) -> Coordination:
    """The coordination at this URL, which begins as those of registries do."""
    return _opener_for(url, COORDINATION_OPENERS, "coordination")(url)


def _open_memory_coordination(_url: str) -> Coordination:
    from nakadi.engines.memory.coordination import MemoryCoordination

    return MemoryCoordination()


def _open_sqlite_coordination(url: str) -> Coordination:
    from nakadi.engines.sqlite.coordination import SqliteCoordination
    from nakadi.engines.sqlite.file import path_in_url

    return SqliteCoordination(path_in_url(url))


def _open_dynamodb_coordination(url: str) -> Coordination:
    from nakadi.engines.dynamodb.coordination import DynamoDbCoordination
    from nakadi.engines.dynamodb.table_address import parse_table_address

    return DynamoDbCoordination(parse_table_address(url))


COORDINATION_OPENERS: Mapping[str, Callable[[str], Coordination]] = {
    "memory": _open_memory_coordination,
    "sqlite": _open_sqlite_coordination,
    "dynamodb": _open_dynamodb_coordination,
}


def open_eid_claims(url: str) -> EidClaims | None:
    """The claims at the URL of a registry; None for a registry that has no room for them."""
    opener = EID_CLAIMS_OPENERS.get(url.partition(":")[0])
    return None if opener is None else opener(url)


def _open_memory_eid_claims(_url: str) -> EidClaims:
    from nakadi.engines.memory.eid_claims import MemoryEidClaims

    return MemoryEidClaims()


def _open_sqlite_eid_claims(url: str) -> EidClaims:
    from nakadi.engines.sqlite.eid_claims import SqliteEidClaims
    from nakadi.engines.sqlite.file import path_in_url

    return SqliteEidClaims(path_in_url(url))


def _open_dynamodb_eid_claims(url: str) -> EidClaims:
    from nakadi.engines.dynamodb.eid_claims import DynamoDbEidClaims
    from nakadi.engines.dynamodb.table_address import parse_table_address

    return DynamoDbEidClaims(parse_table_address(url))


EID_CLAIMS_OPENERS: Mapping[str, Callable[[str], EidClaims]] = {
    "memory": _open_memory_eid_claims,
    "sqlite": _open_sqlite_eid_claims,
    "dynamodb": _open_dynamodb_eid_claims,
}


def data_file_paths(urls: Iterable[str]) -> Sequence[Path]:
    """The data files among the places of stores and logs, each once."""
    from nakadi.engines.sqlite.file import path_in_url

    return sorted({path_in_url(url) for url in urls if url.startswith("sqlite:")})


def open_secret_box(registry_url: str) -> SecretBox | None:
    """The box for the secrets that a registry stores: its key is as lasting as the registry. None if there is none."""
    opener = SECRET_BOX_OPENERS.get(registry_url.partition(":")[0])
    return None if opener is None else opener(registry_url)


def _open_memory_secret_box(_url: str) -> SecretBox:
    from nakadi.engines.common.key_file import KEY_BYTES, AesSecretBox

    return AesSecretBox(partial(secrets.token_bytes, KEY_BYTES))


def _open_sqlite_secret_box(url: str) -> SecretBox:
    from nakadi.engines.common.key_file import AesSecretBox, read_or_make_key
    from nakadi.engines.sqlite.file import path_in_url

    path = path_in_url(url)
    return AesSecretBox(partial(read_or_make_key, path.with_name(f"{path.name}.key")))


SECRET_BOX_OPENERS: Mapping[str, Callable[[str], SecretBox]] = {
    "memory": _open_memory_secret_box,
    "sqlite": _open_sqlite_secret_box,
}


def _open_nothing() -> None:
    return None


class LogDependencies(Struct, frozen=True, kw_only=True):
    """What a log may need beside its own store. It is opened by the log that asks for it, and closed with it."""

    open_index: Callable[[], LogIndex | None] = _open_nothing
    open_archive: Callable[[], ArchiveStore | None] = _open_nothing
    open_topic_directory: Callable[[], TopicCatalog | None] = _open_nothing
    make_archive_policy: Callable[[], ArchivePolicy | None] = _open_nothing
    watch: ChangeWatch | None = None
    """What notices changes in the index, where that shares its numbers with the registry."""
    metrics: Metrics = field(default_factory=Metrics)
    committer: socket | None = None
    """The connection to another process of this broker, which commits and archives what this one appends."""


NO_DEPENDENCIES = LogDependencies()


def open_event_log(url: str, clock: Clock, dependencies: LogDependencies = NO_DEPENDENCIES) -> EventLog:
    """The event log at this URL: `memory:`, `sqlite:///path`, `kinesis://stream?region=…` or `kafka://host:9092`."""
    return _opener_for(url, EVENT_LOG_OPENERS, "event log")(url, clock, dependencies)


def _open_memory_log(_url: str, clock: Clock, dependencies: LogDependencies) -> EventLog:
    from nakadi.engines.memory.event_log import MemoryLog

    return _open_log_with_archive(lambda: MemoryLog(clock), clock, dependencies)


def _open_sqlite_log(url: str, clock: Clock, dependencies: LogDependencies) -> EventLog:
    from nakadi.engines.sqlite.event_log import SqliteLog
    from nakadi.engines.sqlite.file import path_in_url

    metrics, committer = dependencies.metrics, dependencies.committer
    return _open_log_with_archive(
        lambda: SqliteLog(path_in_url(url), clock, metrics, committer=committer), clock, dependencies
    )


def _open_kinesis_log(url: str, clock: Clock, dependencies: LogDependencies) -> EventLog:
    from nakadi.engines.kinesis.opening import open_kinesis_log

    index = dependencies.open_index()
    if index is None:
        raise BadSetting("A Kinesis event log needs a log index.")
    return open_kinesis_log(url, clock, index, dependencies.open_archive(), dependencies.watch, dependencies.metrics)


def _open_kafka_log(url: str, clock: Clock, dependencies: LogDependencies) -> EventLog:
    try:
        from nakadi.engines.kafka.event_log import KafkaLog
    except ImportError as error:
        raise BadSetting(f"An event log in Kafka needs the Python package confluent-kafka: {error}") from error

    return _open_log_with_archive(lambda: KafkaLog(url, clock), clock, dependencies)


def _open_log_with_archive(
    open_hot_log: Callable[[], EventLog], clock: Clock, dependencies: LogDependencies
) -> EventLog:
    """A log and, if there is an archive, the archive as its cold half."""
    with ExitStack() as opened:
        store = dependencies.open_archive()
        if store is None:
            return open_hot_log()
        from nakadi.engines.archive.tiered_log import TieredLog

        opened.callback(store.close)
        index = dependencies.open_index()
        if index is None:
            raise BadSetting("An archive needs a log index.")
        opened.callback(index.close)
        event_log = open_hot_log()
        opened.callback(event_log.close)
        log = TieredLog(
            event_log,
            index,
            store,
            clock,
            dependencies.open_topic_directory(),
            dependencies.make_archive_policy(),
            dependencies.metrics,
        )
        opened.pop_all()
        return log


EVENT_LOG_OPENERS: Mapping[str, Callable[[str, Clock, LogDependencies], EventLog]] = {
    "memory": _open_memory_log,
    "sqlite": _open_sqlite_log,
    "kinesis": _open_kinesis_log,
    "kafka": _open_kafka_log,
}

STORAGE_TYPES: Mapping[str, StorageType] = {
    "memory": StorageType.EMBEDDED,
    "sqlite": StorageType.EMBEDDED,
    "kinesis": StorageType.KINESIS,
    "kafka": StorageType.KAFKA,
}


def storage_type(event_log_url: str) -> StorageType:
    """The type of the storage whose events are in this log."""
    return _opener_for(event_log_url, STORAGE_TYPES, "event log")


class StorageLogs:
    """The event logs of all storages, each opened when it is first asked for.

    A storage keeps its configuration for good, and so the log that was opened for it stays the right one.
    """

    def __init__(
        self, built_in: EventLog, find_storage: Callable[[str], Storage | None], open_log: Callable[[Storage], EventLog]
    ) -> None:
        self._logs = {DEFAULT_STORAGE_ID: built_in}
        self._find_storage = find_storage
        self._open_log = open_log
        self._opening = threading.Lock()
        self._closed = False
        # Asked for with every batch.
        self.for_storage: Callable[[str], EventLog] = cache(self._find_or_open_log)

    def close(self) -> None:
        with self._opening:
            self._closed = True
        for log in {id(log): log for log in self._logs.values()}.values():
            log.close()

    def _find_or_open_log(self, storage_id: str) -> EventLog:
        if storage_id in self._logs:
            return self._logs[storage_id]
        check_may_block()
        with self._opening:
            if self._closed:
                raise Unavailable("The event logs are closed.")
            if storage_id not in self._logs:
                storage = self._find_storage(storage_id)
                if storage is None:
                    raise Unavailable(f"There is no storage {storage_id}")
                self._logs[storage_id] = self._open_log(storage)
            return self._logs[storage_id]


def storage_url(storage: Storage, built_in: str, kafka_properties: str = "") -> str:
    """Where a storage's log is: in the built-in storage's file or memory, a stream beside its stream, or in Kafka.

    How to log in to a Kafka is never part of a storage, which anybody may read, but in the file `kafka_properties`.
    Clusters of MSK that take IAM are known by the names and the port of their servers.
    Raises `Unavailable` when this broker has no engine for the storage.
    """
    if (
        storage.type is StorageType.KAFKA
        and is_kafka_configuration(storage.configuration)
        and find_spec("confluent_kafka")
    ):
        servers = str(storage.configuration["bootstrap_servers"])
        options = {
            "prefix": storage.configuration.get("topic_prefix", ""),
            "iam": _msk_region(servers) if find_spec("botocore") else "",
            "properties": kafka_properties,
        }
        query = urlencode({name: value for name, value in options.items() if value})
        return urlunsplit(("kafka", servers, "", query, ""))
    on_kinesis = built_in.startswith("kinesis:")
    on_kafka = built_in.startswith("kafka:")
    if storage.type is StorageType.EMBEDDED and not on_kinesis and not on_kafka:
        return built_in
    stream = storage.configuration.get("stream")
    if storage.type is not StorageType.KINESIS or not on_kinesis or not is_stream_name(stream):
        unreachable = f"This broker cannot reach the storage {storage.id}, it has no engine for it"
        raise Unavailable(unreachable, public=unreachable)
    return with_stream_name(built_in, str(stream))


def _msk_region(servers: str) -> str:
    """The region of a cluster of MSK whose servers take IAM; empty for other servers.

    Only servers with names of AWS are sent a token: with it, any other could sign in to MSK as this process.
    """
    found = {match[1] if (match := MSK_SERVER_PATTERN.fullmatch(each)) else "" for each in servers.split(",")}
    return found.pop() if len(found) == 1 else ""


def check_storage_reachable(storage: Storage, built_in: str, kafka_properties: str = "") -> None:
    """Raise `Unavailable`, within seconds, unless this broker can read and write events in a storage."""
    url = storage_url(storage, built_in, kafka_properties)
    if url == built_in:
        return
    if storage.type is StorageType.KAFKA:
        from nakadi.engines.kafka.client import check_cluster as check

        place = "Kafka cluster"
    else:
        from nakadi.engines.kinesis.opening import check_stream as check

        place = f"stream {storage.configuration['stream']}"
    try:
        check(url)
    except Unavailable as error:
        message = f"The {place} of the storage {storage.id} cannot be reached"
        raise Unavailable(message, public=message) from error


def with_stream_name(url: str, stream: str) -> str:
    return urlsplit(url)._replace(netloc=stream).geturl()
