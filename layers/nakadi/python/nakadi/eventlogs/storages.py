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

    def of(self, storage_id: str) -> EventLog:
        return self._logs.get(storage_id) or self._open(storage_id)

    def close(self) -> None:
        for log in self._logs.values():
            log.close()

    def _open(self, storage_id: str) -> EventLog:
        with self._opening:
            if storage_id not in self._logs:
                storage = self._find(storage_id)
                if storage is None:
                    raise Unavailable(f"There is no storage {storage_id}")
                self._logs[storage_id] = self._opened(storage)
            return self._logs[storage_id]


def url_of(storage: Storage, built_in: str) -> str:
    """Where a storage's log is: beside the built-in storage's, in the same region and account."""
    stream = storage.configuration.get("stream")
    reachable = storage.type is StorageType.KINESIS and built_in.startswith("kinesis:")
    if not reachable or not is_stream_name(stream):
        raise Unavailable(f"This broker cannot reach the storage {storage.id}")
    return at_stream(built_in, str(stream))


def at_stream(url: str, stream: str) -> str:
    """The same service, another stream."""
    return urlsplit(url)._replace(netloc=stream).geturl()
