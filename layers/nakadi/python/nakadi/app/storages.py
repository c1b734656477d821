"""The storages of events: the URL of each storage's log, whether this broker can reach it, and the open logs.

The built-in storage is the event log that the settings name. Administrators can add others.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from urllib.parse import urlencode, urlsplit, urlunsplit

from nakadi.common.work import check_may_block
from nakadi.model.event_type import DEFAULT_STORAGE_ID, Storage, StorageType, is_kafka_configuration, is_stream_name
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import EventLog

MSK_SERVER_PATTERN = re.compile(
    r"[a-z0-9.-]+\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?:(?:9098|9198)"
)
"""A server that accepts IAM, in its network or from the internet."""


class StorageLogs:
    """The event logs of all storages, each opened at its first use.

    The configuration of a storage never changes, so an open log stays the right one.
    """

    def __init__(
        self, built_in: EventLog, find_storage: Callable[[str], Storage | None], open_log: Callable[[Storage], EventLog]
    ) -> None:
        self._logs = {DEFAULT_STORAGE_ID: built_in}
        self._find_storage = find_storage
        self._open_log = open_log
        self._opening = threading.Lock()
        self._closed = False
        # Cached, because every batch needs a log.
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
    """The URL of a storage's log: the built-in log, a stream beside the built-in stream, or Kafka.

    A storage, which any client may read, never contains credentials for Kafka: these are in the file
    `kafka_properties`. The names and ports of the servers show whether they are an MSK cluster with IAM. Raises
    `Unavailable` if this broker has no engine for the storage.
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
    """The region of an MSK cluster whose servers accept IAM; empty for other servers.

    Only servers with domain names of AWS get a token: any other server could use the token to sign in to MSK as this
    process.
    """
    found = {match[1] if (match := MSK_SERVER_PATTERN.fullmatch(each)) else "" for each in servers.split(",")}
    return found.pop() if len(found) == 1 else ""


def check_storage_reachable(storage: Storage, built_in: str, kafka_properties: str = "") -> None:
    """Raise `Unavailable`, within seconds, if this broker cannot read and write events in a storage."""
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
