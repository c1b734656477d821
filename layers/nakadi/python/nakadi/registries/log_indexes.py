"""Log indexes, chosen by URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nakadi.ports import LogIndex
from nakadi.registries import UnknownEngine


def _memory(_url: str) -> LogIndex:
    from nakadi.registries.log_index_memory import MemoryLogIndex  # noqa: PLC0415  # imported when it is asked for

    return MemoryLogIndex()


def _sqlite(url: str) -> LogIndex:
    from nakadi.registries.log_index_sqlite import SqliteLogIndex  # noqa: PLC0415  # imported when it is asked for
    from nakadi.sqlite_file import path_in  # noqa: PLC0415  # as above

    return SqliteLogIndex(path_in(url))


def _dynamodb(url: str) -> LogIndex:
    from nakadi.dynamodb.opening import NoTables, address_in  # noqa: PLC0415  # imported when it is asked for
    from nakadi.registries.log_index_dynamodb import DynamoDbLogIndex  # noqa: PLC0415  # as above

    try:
        return DynamoDbLogIndex(address_in(url))
    except NoTables as error:
        raise UnknownEngine(str(error)) from error


ENGINES: Mapping[str, Callable[[str], LogIndex]] = {"memory": _memory, "sqlite": _sqlite, "dynamodb": _dynamodb}


def open_log_index(url: str) -> LogIndex:
    """The log index at this URL: `memory:`, `sqlite:///path` or `dynamodb://table-prefix?region=…&endpoint=…`."""
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in ENGINES:
        raise UnknownEngine(f"No log index is known for {url!r}; it begins with one of: {', '.join(ENGINES)}.")
    return ENGINES[scheme](url)
