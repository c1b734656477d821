"""Who shall read what: pure functions from the sessions and entries there are to the entries that change.

Sessions that asked for partitions by name get just those; the others share the rest evenly. A live owner keeps its
partition until it lets go of it; what is taken from it is only announced, as the entry's `next`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from nakadi.model.coordination import Entry, Session
from nakadi.model.subscription import EventTypePartition

NO_CHANGE: tuple[Entry, ...] = ()


def rebalance(sessions: Sequence[Session], entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries that have to change so that everybody has a fair share; none if that cannot be had.

    It cannot be had if somebody asks for a partition that is not there or asked for twice, or if the sessions that
    share outnumber the partitions left to them.
    """
    claimed = _claimed(sessions, entries)
    if claimed is None:
        return NO_CHANGE
    live = {session.id for session in sessions}
    sharing = sorted(session.id for session in sessions if not session.requested)
    rest = [entry for entry in entries if entry.place not in claimed]
    moved = [moved_to(entry, claimed[entry.place], live) for entry in entries if entry.place in claimed]
    if sharing and rest:
        if len(rest) < len(sharing):
            return NO_CHANGE
        moved += _shared(sharing, rest)
    before = {entry.place: entry for entry in entries}
    return tuple(entry for entry in moved if entry != before[entry.place])


def moved_to(entry: Entry, session: str, live: Collection[str]) -> Entry:
    """The entry on its way to a session: at once if nobody live stands in between."""
    if entry.owner is None or entry.owner == session or entry.owner not in live:
        return replace(entry, owner=session, next=None)
    return replace(entry, next=session)


def given_to_next(entries: Iterable[Entry], session: str, places: Collection[EventTypePartition]) -> tuple[Entry, ...]:
    """The entries that change when a session lets go of partitions that somebody else waits for."""
    return tuple(
        replace(entry, owner=entry.next, next=None)
        for entry in entries
        if entry.place in places and entry.owner == session and entry.next is not None
    )


def _claimed(sessions: Iterable[Session], entries: Iterable[Entry]) -> Mapping[EventTypePartition, str] | None:
    """Partition -> session that asked for it by name; None if they cannot all have what they asked for."""
    there = {entry.place for entry in entries}
    claimed: dict[EventTypePartition, str] = {}
    for session in sessions:
        for place in session.requested:
            if place not in there or place in claimed:
                return None
            claimed[place] = session.id
    return claimed


def _shared(sharing: Sequence[str], entries: Sequence[Entry]) -> list[Entry]:
    """The moves that give everybody a fair share of these entries."""
    quota = _quotas(sharing, len(entries))
    held: dict[str, list[Entry]] = {session: [] for session in sharing}
    pool: deque[Entry] = deque()
    for entry in entries:
        (held[entry.next or entry.owner or ""] if _settled(entry, held) else pool).append(entry)
    for session in sharing:
        pool.extend(_surplus(held[session], quota[session]))
    return [
        moved_to(pool.popleft(), session, held)
        for session in sharing
        for _ in range(quota[session] - min(len(held[session]), quota[session]))
    ]


def _quotas(sharing: Sequence[str], count: int) -> Mapping[str, int]:
    share, left_over = divmod(count, len(sharing))
    return {session: share + (index < left_over) for index, session in enumerate(sharing)}


def _settled(entry: Entry, sharing: Collection[str]) -> bool:
    """Whether everybody that the entry names is one of those who share."""
    return entry.owner in sharing and (entry.next is None or entry.next in sharing)


def _surplus(entries: Sequence[Entry], quota: int) -> Sequence[Entry]:
    """What a session has too much: first what it would only get later, then the last."""
    coming = [entry for entry in entries if entry.next is not None]
    present = [entry for entry in entries if entry.next is None]
    return [*coming, *reversed(present)][: max(0, len(entries) - quota)]
