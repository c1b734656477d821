"""From one assignment to the next: which session owns a partition, and which gets it next.

Sessions join and leave, and partitions change owners, but this module stores nothing. To change an assignment, a
process reads it, computes the next one with a function of this module, and writes the next one only if the stored
assignment is still the one that it read; if another process was faster, it starts again. So two processes never give
one partition to two sessions.

One write moves at most `MAX_PARTITIONS_PER_WRITE` partitions; the next `with_rebalanced_partitions` moves the rest, so
call it until it returns its input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from nakadi.model.outcomes import Conflict
from nakadi.model.subscription import (
    Assignment,
    EndedReset,
    EventTypePartition,
    PartitionAssignment,
    Session,
    SetOffsets,
    Standstill,
    TimedOutSession,
)
from nakadi.ports.coordination import MAX_PARTITIONS_PER_WRITE
from nakadi.subscriptions.api.lease_watch import CLOCK_MARGIN

RESET_IN_PROGRESS_MESSAGE = "Resetting subscription cursors request is still in progress"
RESET_TIMED_OUT_MESSAGE = "Timeout resetting cursors"


def with_session(assignment: Assignment, session: Session, subscription: str, now: datetime) -> Assignment:
    """The assignment with one more session, and with its partitions redistributed; raises `Conflict` if there is no
    partition for the session.
    """
    if session.requested_partitions:
        _check_partitions_unclaimed(assignment.sessions, session.requested_partitions)
    else:
        _check_free_slots(assignment, subscription)
    if is_being_reset(assignment, now):
        raise Conflict(RESET_IN_PROGRESS_MESSAGE)
    if assignment.reset is not None:
        # The pending reset has timed out, so it is given up, and the session may join.
        assignment = with_reset_ended(assignment, assignment.reset.id, now, RESET_TIMED_OUT_MESSAGE)
    return with_rebalanced_partitions(replace(assignment, sessions=(*assignment.sessions, session)))


def without_sessions(assignment: Assignment, session_ids: Collection[str]) -> Assignment:
    """The assignment without these sessions. Their partitions go to the sessions that wait for them, or are
    redistributed.
    """
    staying = tuple(each for each in assignment.sessions if each.id not in session_ids)
    released = tuple(_entry_without_sessions(entry, session_ids) for entry in assignment.entries)
    shared = _with_changed_entries(released, changes_to_rebalance(staying, released))
    return replace(assignment, sessions=staying, entries=_limited_to_one_write(assignment.entries, shared))


MAX_TIMED_OUT_SESSIONS = 20
"""How many of the sessions that ended without a commit in time an assignment remembers."""


def with_timed_out_session(assignment: Assignment, session: Session, now: datetime) -> Assignment:
    """Record that a session ends because its client has not committed in time."""
    added = TimedOutSession(session.id, now, session.commit_timeout)
    return replace(assignment, timed_out_sessions=(*assignment.timed_out_sessions, added)[-MAX_TIMED_OUT_SESSIONS:])


MAX_STANDSTILLS = 100
"""How many of the partitions in which streams made no progress an assignment remembers."""


def with_standstills(assignment: Assignment, found: Iterable[Standstill]) -> Assignment:
    """Record the committed positions of a session's partitions when it ends; `streams` is 1 for a partition of which
    the session had sent events beyond that position, otherwise 0.
    """
    known = {each.partition: each for each in assignment.standstills}
    for each in found:
        continued = _with_earlier_streams(each, known.pop(each.partition, None))
        if continued.streams:
            known[each.partition] = continued
    return replace(assignment, standstills=tuple(known.values())[-MAX_STANDSTILLS:])


def _with_earlier_streams(found: Standstill, before: Standstill | None) -> Standstill:
    if before is None or before.position != found.position:
        return found
    return replace(found, streams=before.streams + found.streams)


def with_session_leaving(assignment: Assignment, session_id: str) -> Assignment:
    """Record that a session, if it exists, has to end."""
    return _with_session_changed(assignment, session_id, lambda each: replace(each, is_leaving=True))


def with_extension_requested(assignment: Assignment, session_id: str) -> Assignment:
    """Record a request for more time for a session, if it exists. All requests that the session has not answered yet
    share one answer.
    """

    def request_extension(session: Session) -> Session:
        return replace(session, extensions_requested=session.extensions_granted + 1)

    return _with_session_changed(assignment, session_id, request_extension)


def with_extension_granted(assignment: Assignment, session_id: str, number: int, commit_by: datetime) -> Assignment:
    """Record a session's answer to its extension request with this number."""

    def grant_extension(session: Session) -> Session:
        if session.extensions_granted >= number:
            return session
        return replace(session, extensions_granted=number, commit_by=commit_by)

    return _with_session_changed(assignment, session_id, grant_extension)


def _with_session_changed(assignment: Assignment, session_id: str, change: Callable[[Session], Session]) -> Assignment:
    sessions = tuple(change(each) if each.id == session_id else each for each in assignment.sessions)
    return replace(assignment, sessions=sessions)


def with_rebalanced_partitions(assignment: Assignment) -> Assignment:
    shared = _with_changed_entries(assignment.entries, changes_to_rebalance(assignment.sessions, assignment.entries))
    return replace(assignment, entries=_limited_to_one_write(assignment.entries, shared))


def with_partitions_handed_over(
    assignment: Assignment, session: str, partitions: Collection[EventTypePartition]
) -> Assignment:
    """Give these partitions, which a session hands over, to the sessions that wait for them."""
    changes = entries_handed_over(assignment.entries, session, partitions)
    return replace(
        assignment,
        entries=_limited_to_one_write(assignment.entries, _with_changed_entries(assignment.entries, changes)),
    )


def with_entries(assignment: Assignment, changes: Iterable[PartitionAssignment]) -> Assignment:
    return replace(assignment, entries=_with_changed_entries(assignment.entries, changes))


def is_being_reset(assignment: Assignment, now: datetime) -> bool:
    """Whether offsets are being reset. A reset that began in the future was requested before a clock was set back, and
    is ignored: its process may have ended long ago. If it has not, it notices sessions that join, because offsets are
    set only while there is no session.
    """
    reset = assignment.reset
    return (
        reset is not None
        and now < reset.expires_at
        and (reset.began_at is None or reset.began_at <= now + CLOCK_MARGIN)
    )


def with_reset_ended(assignment: Assignment, reset_id: str, now: datetime, failure: str = "") -> Assignment:
    """End this reset in the assignment, if it is still pending."""
    reset = assignment.reset
    if reset is None or reset.id != reset_id:
        return assignment
    # A request that only ends streams is not remembered, because the next such request concerns other partitions.
    task = None if reset.task == SetOffsets() else reset.task
    return replace(assignment, reset=None, ended_reset=EndedReset(reset_id, now, failure, task))


def _check_free_slots(assignment: Assignment, subscription: str) -> None:
    sharing = sum(not each.requested_partitions for each in assignment.sessions)
    claimed = {partition for each in assignment.sessions for partition in each.requested_partitions}
    total = len(assignment.entries)
    if sharing >= total - len(claimed):
        raise Conflict(f"No free slots for streaming available for subscription {subscription}. Total slots: {total}")


def _check_partitions_unclaimed(sessions: Iterable[Session], requested: Iterable[EventTypePartition]) -> None:
    claimed = {partition for each in sessions for partition in each.requested_partitions}
    taken = [str(partition) for partition in requested if partition in claimed]
    if taken:
        raise Conflict(
            "The following partitions are already requested by other stream(s) of this subscription: " + ",".join(taken)
        )


def _entry_without_sessions(entry: PartitionAssignment, session_ids: Collection[str]) -> PartitionAssignment:
    following = None if entry.next_owner in session_ids else entry.next_owner
    if entry.owner in session_ids:
        return replace(entry, owner=following, next_owner=None)
    return replace(entry, next_owner=following)


def _with_changed_entries(
    entries: Iterable[PartitionAssignment], changes: Iterable[PartitionAssignment]
) -> tuple[PartitionAssignment, ...]:
    new = {each.partition: each for each in changes}
    return tuple(new.get(each.partition, each) for each in entries)


def _limited_to_one_write(
    old: Iterable[PartitionAssignment], new: Iterable[PartitionAssignment]
) -> tuple[PartitionAssignment, ...]:
    """The new entries, up to the number of owner changes that one write may make; the rest are the old ones."""
    room, kept = MAX_PARTITIONS_PER_WRITE, []
    for before, after in zip(old, new, strict=True):
        room -= before.owner != after.owner
        kept.append(after if room >= 0 else before)
    return tuple(kept)


NO_CHANGED_ENTRIES: tuple[PartitionAssignment, ...] = ()


def changes_to_rebalance(
    sessions: Sequence[Session], entries: Sequence[PartitionAssignment]
) -> tuple[PartitionAssignment, ...]:
    """The entries that have to change so that every session has a fair share; none if that is impossible.

    Raises an outcome if a requested partition does not exist or is requested twice, or if there are more sharing
    sessions than partitions left for them.
    """
    claimed = _sessions_by_requested_partition(sessions, entries)
    if claimed is None:
        return NO_CHANGED_ENTRIES
    live = {session.id for session in sessions}
    sharing = sorted(session.id for session in sessions if not session.requested_partitions)
    rest = [entry for entry in entries if entry.partition not in claimed]
    moved = [entry_moved_to(entry, claimed[entry.partition], live) for entry in entries if entry.partition in claimed]
    if sharing and rest:
        if len(rest) < len(sharing):
            return NO_CHANGED_ENTRIES
        moved += _moves_for_fair_share(sharing, rest)
    before = {entry.partition: entry for entry in entries}
    return tuple(entry for entry in moved if entry != before[entry.partition])


def entry_moved_to(entry: PartitionAssignment, session: str, live_sessions: Collection[str]) -> PartitionAssignment:
    """The entry with this session as next owner, or as owner at once if its present owner is not live."""
    if entry.owner is None or entry.owner == session or entry.owner not in live_sessions:
        return replace(entry, owner=session, next_owner=None)
    return replace(entry, next_owner=session)


def entries_handed_over(
    entries: Iterable[PartitionAssignment], session: str, partitions: Collection[EventTypePartition]
) -> tuple[PartitionAssignment, ...]:
    """The entries that change when a session hands over partitions that others wait for."""
    return tuple(
        replace(entry, owner=entry.next_owner, next_owner=None)
        for entry in entries
        if entry.partition in partitions and entry.owner == session and entry.next_owner is not None
    )


def _sessions_by_requested_partition(
    sessions: Iterable[Session], entries: Iterable[PartitionAssignment]
) -> Mapping[EventTypePartition, str] | None:
    """For each partition that a session requested by name, that session; None if requests conflict."""
    there = {entry.partition for entry in entries}
    claimed: dict[EventTypePartition, str] = {}
    for session in sessions:
        for partition in session.requested_partitions:
            if partition not in there or partition in claimed:
                return None
            claimed[partition] = session.id
    return claimed


def _moves_for_fair_share(sharing: Sequence[str], entries: Sequence[PartitionAssignment]) -> list[PartitionAssignment]:
    """The moves that give every session a fair share of these entries."""
    quota = _partitions_per_session(sharing, len(entries))
    held: dict[str, list[PartitionAssignment]] = {session: [] for session in sharing}
    pool: deque[PartitionAssignment] = deque()
    for entry in entries:
        (held[entry.next_owner or entry.owner or ""] if _belongs_to_sharing_sessions(entry, held) else pool).append(
            entry
        )
    for session in sharing:
        pool.extend(_entries_above_quota(held[session], quota[session]))
    return [
        entry_moved_to(pool.popleft(), session, held)
        for session in sharing
        for _ in range(quota[session] - min(len(held[session]), quota[session]))
    ]


def _partitions_per_session(sharing: Sequence[str], count: int) -> Mapping[str, int]:
    share, left_over = divmod(count, len(sharing))
    return {session: share + (index < left_over) for index, session in enumerate(sharing)}


def _belongs_to_sharing_sessions(entry: PartitionAssignment, sharing: Collection[str]) -> bool:
    """Whether the entry's owner, and its next owner if there is one, are among the sessions that share partitions."""
    return entry.owner in sharing and (entry.next_owner is None or entry.next_owner in sharing)


def _entries_above_quota(entries: Sequence[PartitionAssignment], quota: int) -> Sequence[PartitionAssignment]:
    """The entries that a session has beyond its quota: first those that it waits for, then the last of those that it
    owns.
    """
    coming = [entry for entry in entries if entry.next_owner is not None]
    present = [entry for entry in entries if entry.next_owner is None]
    return [*coming, *reversed(present)][: max(0, len(entries) - quota)]
