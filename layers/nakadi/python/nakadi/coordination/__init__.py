"""Coordination, chosen by URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nakadi.ports import Clock, Coordination


class UnknownEngine(Exception):
    """Raised at the start for a URL that no engine knows; the message names those there are."""


def _memory(_url: str, _clock: Clock) -> Coordination:
    from nakadi.coordination.memory import MemoryCoordination  # noqa: PLC0415  # an engine is imported when asked for

    return MemoryCoordination()


def _sqlite(url: str, _clock: Clock) -> Coordination:
    from nakadi.coordination.sqlite import SqliteCoordination  # noqa: PLC0415  # an engine is imported when asked for
    from nakadi.sqlite_file import path_in  # noqa: PLC0415  # as above

    return SqliteCoordination(path_in(url))


def _dynamodb(url: str, _clock: Clock) -> Coordination:
    from nakadi.coordination.dynamodb import DynamoDbCoordination  # noqa: PLC0415  # an engine is imported when asked for
    from nakadi.dynamodb.opening import NoTables, address_in  # noqa: PLC0415  # as above

    try:
        return DynamoDbCoordination(address_in(url))
    except NoTables as error:
        raise UnknownEngine(str(error)) from error


ENGINES: Mapping[str, Callable[[str, Clock], Coordination]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "dynamodb": _dynamodb,
}


def open_coordination(url: str, clock: Clock) -> Coordination:
    """The coordination at this URL: `memory:`, `sqlite:///path` or `dynamodb://table-prefix?region=…&endpoint=…`."""
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in ENGINES:
        raise UnknownEngine(f"No coordination is known for {url!r}; it begins with one of: {', '.join(ENGINES)}.")
    return ENGINES[scheme](url, clock)
