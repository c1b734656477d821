"""Registries, chosen by URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, urlsplit

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
    from nakadi.registries.dynamodb import DynamoDbRegistry  # noqa: PLC0415  # an engine is imported when asked for

    parts = urlsplit(url)
    if not parts.netloc:
        raise UnknownEngine(f"{url!r} names no tables; it should be like dynamodb://prefix?region=eu-central-1")
    wishes = dict(parse_qsl(parts.query))
    return DynamoDbRegistry(parts.netloc, wishes.get("region"), wishes.get("endpoint"))


ENGINES: Mapping[str, Callable[[str, Clock], Registry]] = {"memory": _memory, "sqlite": _sqlite, "dynamodb": _dynamodb}


def open_registry(url: str, clock: Clock) -> Registry:
    """The registry at this URL: `memory:`, `sqlite:///path` or `dynamodb://table-prefix?region=…&endpoint=…`."""
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in ENGINES:
        raise UnknownEngine(f"No registry is known for {url!r}; it begins with one of: {', '.join(ENGINES)}.")
    return ENGINES[scheme](url, clock)
