"""Erases bytes that are still stored although no segment of the archive refers to them. If a member of an archive
object is rewritten, merged or dropped, its old bytes stay in the object as long as other members are in use. An object
without references stays until a job removes it. This module searches both kinds of objects. If an object has the value,
the module moves the members in use to another object, and removes the old one at once; readers of the old object then
look their events up again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial

from msgspec import Struct

from nakadi.engines.archive.evacuation import SETTLED_AGE, Evacuation, EvacuationBusy, LiveMember, PartlyDeadObject
from nakadi.engines.archive.gzip_format import BadArchive
from nakadi.engines.archive.member_format import ArchivedLine
from nakadi.engines.archive.merging import PartitionBusy
from nakadi.engines.archive.stores import open_archive
from nakadi.model.event_type import EventType
from nakadi.model.log_index import ArchiveLocation
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone
from nakadi_jobs.command import JobContext
from nakadi_jobs.erasure import CLAIM_TIMEOUT_SECONDS, ErasedValue
from nakadi_jobs.in_tasks import run_in_tasks
from nakadi_jobs.namespaces import namespaces_of_broker


class WholeObject(Struct, frozen=True):
    """An archive object, with everything that was ever in it."""

    location: ArchiveLocation


class HoldingObject(Struct, frozen=True):
    """An object that has the value, and why it is still there; `removable_from` says when it can be removed, if that is
    known.
    """

    key: str
    reason: str
    removable_from: datetime | None = None

    def __str__(self) -> str:
        when = f"; it can go from {self.removable_from:%Y-%m-%dT%H:%M:%SZ} on" if self.removable_from else ""
        return f"{self.key} ({self.reason}{when})"


def remove_dead_members(work: JobContext, event_type: EventType, wanted: ErasedValue) -> Sequence[HoldingObject]:
    """Remove every object in which dead members have the value, and return those that have to stay for now."""
    evacuation = Evacuation(work.index, work.store, namespaces_of_broker(work))
    try:
        with evacuation.claimed() as renew_claim:
            dead = _holding_objects(work, evacuation.partly_dead_objects(), event_type, wanted)
            members = evacuation.members_of({each.stored.key for each in dead})
            left: list[HoldingObject] = []
            removable: list[str] = []
            for each in dead:
                renew_claim()
                problem = _move_members_out(evacuation, each, members, work.clock.now())
                if problem is None:
                    removable.append(each.stored.key)
                else:
                    left.append(problem)
            # An object that was about to be used when this run listed the objects is in use by now.
            needed = evacuation.members_of(removable)
            left += [HoldingObject(key, "another process has begun to use it") for key in removable if key in needed]
            gone = [key for key in removable if key not in needed]
            work.store.remove(gone)
    except EvacuationBusy:
        return [HoldingObject("the archive", "another process moves members of its objects")]
    work.report.details["removed_objects"] += gone
    if gone:
        work.report.info("archive", f"{len(gone)} objects are gone that had it in members without a reference")
    return left


def _holding_objects(
    work: JobContext, dead: Sequence[PartlyDeadObject], event_type: EventType, wanted: ErasedValue
) -> Sequence[PartlyDeadObject]:
    parts = [WholeObject(ArchiveLocation(each.stored.key, 0, each.stored.size)) for each in dead]
    job = partial(search_objects, work.archive.url, wanted, timeline_topics(event_type), event_type.name)
    found = dict(run_in_tasks(work.spark, parts, job))
    for problem in found.values():
        if problem:
            work.report.complain(event_type.name, f"not everything could be looked at: {problem}")
    return [each for each in dead if found.get(each.stored.key) == ""]


def timeline_topics(event_type: EventType) -> frozenset[str]:
    return frozenset(timeline.topic for timeline in event_type.timelines)


def search_objects(
    url: str, wanted: ErasedValue, topics: Collection[str], name: str, parts: Iterable[WholeObject]
) -> Iterator[tuple[str, str]]:
    """Search objects for events of these topics, and of deleted event types with this name. Yields the key of each
    object that has the value, or the error for an unreadable one.
    """

    def is_meant(line: ArchivedLine) -> bool:
        return line.topic in topics or line.event_type == name

    with closing(open_archive(url)) as store:
        for part in parts:
            key = part.location.key
            try:
                found = wanted.occurs_in_member(store.read_range(part.location), is_meant)
            except ArchiveObjectGone:
                continue
            except BadArchive as error:
                yield key, f"{key} cannot be read: {error}"
                continue
            if found:
                yield key, ""


def _move_members_out(
    evacuation: Evacuation, found: PartlyDeadObject, members: Mapping[str, Sequence[LiveMember]], now: datetime
) -> HoldingObject | None:
    """Move all members in use out of an object. Returns what prevented that, if anything did."""
    key = found.stored.key
    try:
        if not evacuation.is_settled(found.stored, now):
            return HoldingObject(key, "it may be about to be used", found.stored.written_at + SETTLED_AGE)
        if key in members:
            evacuation.vacate_object(key, members[key], CLAIM_TIMEOUT_SECONDS)
    except PartitionBusy:
        return HoldingObject(key, "another process writes a partition of it anew")
    except (ArchiveObjectGone, BadArchive, Unavailable) as error:
        return HoldingObject(key, f"its live members could not be moved: {error}")
    return None
