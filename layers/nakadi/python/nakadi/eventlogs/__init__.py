"""Event logs, chosen by URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nakadi.ports import Clock, EventLog


class UnknownEngine(Exception):
    """Raised at the start for a URL that no engine knows; the message names those there are."""


def _memory(_url: str, clock: Clock) -> EventLog:
    from nakadi.eventlogs.memory import MemoryLog  # noqa: PLC0415  # an engine is imported when it is asked for

    return MemoryLog(clock)


def _sqlite(url: str, clock: Clock) -> EventLog:
    from nakadi.eventlogs.sqlite import SqliteLog  # noqa: PLC0415  # an engine is imported when it is asked for
    from nakadi.sqlite_file import path_in  # noqa: PLC0415  # as above

    return SqliteLog(path_in(url), clock)


ENGINES: Mapping[str, Callable[[str, Clock], EventLog]] = {"memory": _memory, "sqlite": _sqlite}


def open_event_log(url: str, clock: Clock) -> EventLog:
    """The event log at this URL: `memory:` or `sqlite:///path`."""
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in ENGINES:
        raise UnknownEngine(f"No event log is known for {url!r}; it begins with one of: {', '.join(ENGINES)}.")
    return ENGINES[scheme](url, clock)
