"""The event logs of all storages, each opened when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from nakadi.model.outcomes import Unavailable
from nakadi.model.storage import DEFAULT_STORAGE_ID, Storage, StorageType, is_stream_name
from nakadi.ports import EventLog


class StorageLogs:
    """A storage keeps its configuration for good, and so the log that was opened for it stays the right one."""

    def __init__(
        self, built_in: EventLog, find: Callable[[str], Storage | None], opened: Callable[[Storage], EventLog]
    ) -> None:
        self._logs = {DEFAULT_STORAGE_ID: built_in}
        self._find = find
        self._opened = opened
        self._opening = threading.Lock()
        self._closed = False

    def of(self, storage_id: str) -> EventLog:
        return self._logs.get(storage_id) or self._open(storage_id)

    def close(self) -> None:
        with self._opening:
            self._closed = True
        for log in {id(log): log for log in self._logs.values()}.values():
            log.close()

    def _open(self, storage_id: str) -> EventLog:
        with self._opening:
            if self._closed:
                raise Unavailable("The event logs are closed.")
            if storage_id not in self._logs:
                storage = self._find(storage_id)
                if storage is None:
                    raise Unavailable(f"There is no storage {storage_id}")
                self._logs[storage_id] = self._opened(storage)
            return self._logs[storage_id]


def url_of(storage: Storage, built_in: str) -> str:
    """Where a storage's log is: in the built-in storage's file or memory, or a stream beside its stream.

    Raises `Unavailable` when this broker has no engine for the storage.
    """
    on_kinesis = built_in.startswith("kinesis:")
    if storage.type is StorageType.EMBEDDED and not on_kinesis:
        return built_in
    stream = storage.configuration.get("stream")
    if storage.type is not StorageType.KINESIS or not on_kinesis or not is_stream_name(stream):
        unreachable = f"This broker cannot reach the storage {storage.id}, it has no engine for it"
        raise Unavailable(unreachable, told=unreachable)
    return at_stream(built_in, str(stream))


def check_reachable(storage: Storage, built_in: str) -> None:
    """Raise `Unavailable`, within seconds, unless this broker can read and write events in a storage."""
    url = url_of(storage, built_in)
    if url == built_in:
        return
    from nakadi.eventlogs.kinesis.opening import check_stream  # noqa: PLC0415  # only brokers on Kinesis come here

    try:
        check_stream(url)
    except Unavailable as error:
        stream = storage.configuration["stream"]
        told = f"The stream {stream} of the storage {storage.id} cannot be reached"
        raise Unavailable(told, told=told) from error


def at_stream(url: str, stream: str) -> str:
    """The same service, another stream."""
    return urlsplit(url)._replace(netloc=stream).geturl()
