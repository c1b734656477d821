"""Event logs, chosen by URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nakadi.caching import ChangeWatch
from nakadi.metrics import Metrics
from nakadi.ports import ArchiveStore, Clock, EventLog, LogIndex

if TYPE_CHECKING:
    from nakadi.eventlogs.tiered.options import Directory, Tiers


class UnknownEngine(Exception):
    """Raised at the start for a URL that no engine knows; the message names those there are."""


def _nothing_beside() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a log may need beside its own store. It is opened by the log that asks for it, and closed with it."""

    index: Callable[[], LogIndex | None] = _nothing_beside
    archive: Callable[[], ArchiveStore | None] = _nothing_beside
    directory: Callable[[], Directory | None] = _nothing_beside
    tiers: Callable[[], Tiers | None] = _nothing_beside
    watch: ChangeWatch | None = None
    """What tells of changes in the index, where that shares its numbers with the registry."""
    metrics: Metrics = field(default_factory=Metrics)


NOTHING_BESIDE = Beside()


def _memory(_url: str, clock: Clock, beside: Beside) -> EventLog:
    from nakadi.eventlogs.memory import MemoryLog  # noqa: PLC0415  # an engine is imported when it is asked for

    return _with_archive(lambda: MemoryLog(clock), clock, beside)


def _sqlite(url: str, clock: Clock, beside: Beside) -> EventLog:
    from nakadi.eventlogs.sqlite import SqliteLog  # noqa: PLC0415  # an engine is imported when it is asked for
    from nakadi.sqlite_file import path_in  # noqa: PLC0415  # as above

    return _with_archive(lambda: SqliteLog(path_in(url), clock, beside.metrics), clock, beside)


def _kinesis(url: str, clock: Clock, beside: Beside) -> EventLog:
    from nakadi.eventlogs.kinesis.opening import open_at  # noqa: PLC0415  # as above

    index = beside.index()
    if index is None:
        raise UnknownEngine("A Kinesis event log needs a log index.")
    return open_at(url, clock, index, beside.archive(), beside.watch, beside.metrics)


def _with_archive(hot: Callable[[], EventLog], clock: Clock, beside: Beside) -> EventLog:
    """A log and, if there is an archive, the archive as its cold half."""
    with ExitStack() as opened:
        store = beside.archive()
        if store is None:
            return hot()
        from nakadi.eventlogs.tiered.log import TieredLog  # noqa: PLC0415  # only who has an archive needs it

        opened.callback(store.close)
        index = beside.index()
        if index is None:
            raise UnknownEngine("An archive needs a log index.")
        opened.callback(index.close)
        log = TieredLog(hot(), index, store, clock, beside.directory(), beside.tiers(), beside.metrics)
        opened.pop_all()
        return log


ENGINES: Mapping[str, Callable[[str, Clock, Beside], EventLog]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "kinesis": _kinesis,
}


def open_event_log(url: str, clock: Clock, beside: Beside = NOTHING_BESIDE) -> EventLog:
    """The event log at this URL: `memory:`, `sqlite:///path` or `kinesis://stream?region=…`."""
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in ENGINES:
        raise UnknownEngine(f"No event log is known for {url!r}; it begins with one of: {', '.join(ENGINES)}.")
    return ENGINES[scheme](url, clock, beside)
