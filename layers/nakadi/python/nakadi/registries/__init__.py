"""Registries, chosen by URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nakadi.ports import Clock, Registry


class UnknownEngine(Exception):
    """Raised at the start for a URL that no engine knows; the message names those there are."""


def _memory(_url: str, _clock: Clock) -> Registry:
    from nakadi.registries.memory import MemoryRegistry  # noqa: PLC0415  # an engine is imported when it is asked for

    return MemoryRegistry()


def _sqlite(url: str, _clock: Clock) -> Registry:
    from nakadi.registries.sqlite import SqliteRegistry  # noqa: PLC0415  # an engine is imported when it is asked for
    from nakadi.sqlite_file import path_in  # noqa: PLC0415  # as above

    return SqliteRegistry(path_in(url))


def _dynamodb(url: str, _clock: Clock) -> Registry:
    from nakadi.dynamodb.opening import NoTables, address_in  # noqa: PLC0415  # an engine is imported when asked for
    from nakadi.registries.dynamodb import DynamoDbRegistry  # noqa: PLC0415  # as above

    try:
        return DynamoDbRegistry(address_in(url))
    except NoTables as error:
        raise UnknownEngine(str(error)) from error


ENGINES: Mapping[str, Callable[[str, Clock], Registry]] = {"memory": _memory, "sqlite": _sqlite, "dynamodb": _dynamodb}


def open_registry(url: str, clock: Clock) -> Registry:
    """The registry at this URL: `memory:`, `sqlite:///path` or `dynamodb://table-prefix?region=…&endpoint=…`."""
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in ENGINES:
        raise UnknownEngine(f"No registry is known for {url!r}; it begins with one of: {', '.join(ENGINES)}.")
    return ENGINES[scheme](url, clock)
