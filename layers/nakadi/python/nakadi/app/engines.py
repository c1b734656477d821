"""Engines by URL: the registry, the log index, the coordination and the event logs that settings name.

The scheme of a URL selects the engine, and only selected engines are imported, so a Lambda function loads no engine
that it does not use. Each port has a table of its engines, `…_OPENERS`; docs/architecture.md lists other places that
name engines.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from nakadi.common.caching import ChangeWatch
from nakadi.common.metrics import Metrics
from nakadi.model.event_type import StorageType
from nakadi.model.outcomes import BadSetting
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import Coordination
from nakadi.ports.eid_claims import EidClaims
from nakadi.ports.event_log import EventLog
from nakadi.ports.log_index import LogIndex
from nakadi.ports.registry import Registry
from nakadi.ports.secret_box import SecretBox

if TYPE_CHECKING:
    from nakadi.app.settings import Settings
    from nakadi.engines.archive.policy import ArchivePolicy, TopicCatalog

Opener = TypeVar("Opener")


def load_engines_on_aws() -> None:
    """Import the engines that a function on AWS opens at its first invocation.

    Call this while the function starts, when Lambda provides more CPU time than later.
    """
    import nakadi.engines.dynamodb.log_index
    import nakadi.engines.dynamodb.registry
    import nakadi.engines.kinesis.opening  # noqa: F401


def _opener_for(url: str, openers: Mapping[str, Opener], port: str) -> Opener:
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in openers:
        raise BadSetting(f"No {port} is known for {url!r}; it begins with one of: {', '.join(openers)}.")
    return openers[scheme]


UNSHARED_ENGINES = frozenset({"memory"})
"""Engines that make a new store each time a URL is opened; such a store ends with the process."""

ENGINES_WITH_KNOWN_NEIGHBOURS = frozenset({"memory", "sqlite"})
"""Engines of registries whose changes every process sees at once: the processes that share a data file count changes in
shared memory.
"""


def is_shared_store(url: str) -> bool:
    """Whether all processes that open this URL get the same store."""
    return _scheme_of(url) not in UNSHARED_ENGINES


def may_have_unknown_neighbours(registry_url: str) -> bool:
    """Whether processes that do not announce their changes may share the registry."""
    return _scheme_of(registry_url) not in ENGINES_WITH_KNOWN_NEIGHBOURS


def _scheme_of(url: str) -> str:
    return url.partition(":")[0]


def open_registry(url: str) -> Registry:
    """Open the registry at this URL: `memory:`, `sqlite:///path` or `dynamodb://table-prefix?region=…&endpoint=…`."""
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
    """Open the log index at this URL, which has the same form as a registry's URL."""
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


def log_index_url(settings: Settings) -> str:
    """The URL of the log index: the setting, otherwise the store of the event log or of its registry, otherwise
    memory.
    """
    if settings.log_index:
        return settings.log_index
    if _scheme_of(settings.event_log) in LOG_INDEX_OPENERS:
        return settings.event_log
    return "memory:" if storage_type(settings.event_log) is StorageType.KINESIS else settings.registry


def open_coordination(url: str) -> Coordination:
    """Open the coordination at this URL, which has the same form as a registry's URL."""
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
    """Open the claims at the URL of a registry; None if that registry cannot store them."""
    opener = EID_CLAIMS_OPENERS.get(_scheme_of(url))
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
    """The paths of the data files that these URLs name, each once."""
    from nakadi.engines.sqlite.file import path_in_url

    return sorted({path_in_url(url) for url in urls if url.startswith("sqlite:")})


def open_secret_box(registry_url: str, key_arn: str) -> SecretBox | None:
    """The box that encrypts secrets in a registry, with a key in KMS if `key_arn` names one; otherwise with a key in a
    file beside the data file or, for a registry in memory, a key that is lost with the process. None for other
    registries.
    """
    if key_arn:
        try:
            from nakadi.engines.common.kms_box import KmsSecretBox
        except ImportError as error:
            raise BadSetting(f"NAKADI_SINK_KEY needs the Python package boto3: {error}") from error

        return KmsSecretBox(key_arn)
    opener = SECRET_BOX_OPENERS.get(_scheme_of(registry_url))
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
    """What a log may need besides its own store. A log opens only the dependencies that it needs, and closes what it
    opened.
    """

    open_index: Callable[[], LogIndex | None] = _open_nothing
    open_archive: Callable[[], ArchiveStore | None] = _open_nothing
    open_topic_directory: Callable[[], TopicCatalog | None] = _open_nothing
    make_archive_policy: Callable[[], ArchivePolicy | None] = _open_nothing
    watch: ChangeWatch | None = None
    """Notices changes in the index, if the index shares its change counters with the registry."""
    metrics: Metrics = field(default_factory=Metrics)
    committer: socket | None = None
    """A connection to the process of this broker that commits and archives the events of this process."""


NO_DEPENDENCIES = LogDependencies()


def open_event_log(url: str, clock: Clock, dependencies: LogDependencies = NO_DEPENDENCIES) -> EventLog:
    """Open the event log at this URL: `memory:`, `sqlite:///path`, `kinesis://stream?region=…` or
    `kafka://host:9092`.
    """
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
    """Open a log; if there is an archive, combine it with the log, so that readers see one log."""
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
    """The type of a storage whose event log has this URL."""
    return _opener_for(event_log_url, STORAGE_TYPES, "event log")
