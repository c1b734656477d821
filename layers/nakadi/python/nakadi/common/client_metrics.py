"""Metrics of each client: the times of its requests by path, and the bytes that its streams have sent.

Monitoring reads these figures at separate paths, `/request-metrics` and `/stream-metrics`. Clients choose the names, so
only the rows that were used most recently are kept: a client that keeps requesting new paths does not displace rows
that are in use.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Generic, Literal, TypeVar

from nakadi.common.counting import Distribution

RequestKey = tuple[str, str, str]
"""A client, a method and a path."""

StreamKey = tuple[Literal["lola", "hila"], str, str]
"""Low-level API and event type, or high-level API and subscription, with the client in the middle."""

Key = TypeVar("Key", RequestKey, StreamKey)
Row = TypeVar("Row")

MAX_ROWS = 1000
MAX_RECENT_SECONDS = 100


class RecentRows(Generic[Key, Row]):
    """Rows by their keys. If there are too many, a new row displaces the least recently used one."""

    def __init__(self, make_row: Callable[[], Row], max_rows: int) -> None:
        self._make_row = make_row
        self._max_rows = max_rows
        self._rows: OrderedDict[Key, Row] = OrderedDict()

    def row_for_update(self, key: Key) -> Row:
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
            return row
        if len(self._rows) >= self._max_rows:
            self._rows.popitem(last=False)
        row = self._rows[key] = self._make_row()
        return row

    def items(self) -> Iterable[tuple[Key, Row]]:
        return self._rows.items()


class ClientMetrics:
    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self._lock = threading.Lock()
        self._requests: RecentRows[RequestKey, Distribution] = RecentRows(_new_distribution, max_rows)
        self._sent_bytes: RecentRows[StreamKey, list[int]] = RecentRows(partial(list, (0,)), max_rows)

    def count_request(self, client: str, method: str, path: str, seconds: float) -> None:
        with self._lock:
            self._requests.row_for_update((client, method, path)).add_value(seconds, ())

    def count_sent_bytes(self, key: StreamKey, size: int) -> None:
        with self._lock:
            self._sent_bytes.row_for_update(key)[0] += size

    def requests(self) -> Mapping[RequestKey, Distribution]:
        """The times of requests. The least recently used ones come first."""
        with self._lock:
            return {key: row.copy() for key, row in self._requests.items()}

    def sent_bytes(self) -> Mapping[StreamKey, int]:
        with self._lock:
            return {key: size for key, [size] in self._sent_bytes.items()}

    def add(self, requests: Mapping[RequestKey, Distribution], sent_bytes: Mapping[StreamKey, int]) -> None:
        """Add the counts of another process."""
        for key, added in requests.items():
            with self._lock:
                self._requests.row_for_update(key).add_distribution(added)
        for stream, size in sent_bytes.items():
            self.count_sent_bytes(stream, size)


def _new_distribution() -> Distribution:
    return Distribution([0], recent_values=deque(maxlen=MAX_RECENT_SECONDS))
