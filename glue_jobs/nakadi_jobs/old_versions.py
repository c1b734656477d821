"""Erases old versions of objects: a versioned bucket still has everything that was removed or replaced. This module
searches old versions of archive objects, and removes those with the value. It also removes all old versions of the
files of the event type's tables and of copies for Spark, since no state of a table refers to them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

from msgspec import Struct

from nakadi.engines.archive import object_keys
from nakadi.engines.archive.gzip_format import BadArchive
from nakadi.engines.archive.member_format import ArchivedLine
from nakadi.engines.archive.stores import OldVersion, S3Store, open_archive
from nakadi.model.event_type import EventType
from nakadi.model.log_index import ArchiveLocation
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone
from nakadi_jobs.command import JobContext
from nakadi_jobs.dead_members import HoldingObject, timeline_topics
from nakadi_jobs.erasure import ErasedValue
from nakadi_jobs.in_tasks import run_in_tasks
from nakadi_jobs.namespaces import namespaces_of_broker


class OldObject(Struct, frozen=True):
    """An old version of an archive object."""

    version: OldVersion

    @property
    def location(self) -> ArchiveLocation:
        return ArchiveLocation(self.version.key, 0, self.version.size)


def remove_old_versions(
    work: JobContext, event_type: EventType, wanted: ErasedValue, table_folders: Sequence[str]
) -> Sequence[HoldingObject]:
    """Remove the old versions that have the value, or may have it, and return those that remain."""
    removed: list[OldVersion] = []
    left: list[HoldingObject] = []
    for store, find in (
        (work.store, partial(_holding_versions, work, event_type, wanted)),
        (work.table_files, partial(_versions_in_folders, table_folders)),
    ):
        if not isinstance(store, S3Store):
            continue  # no other store keeps versions
        try:
            found = find(store)
            kept = store.remove_old_versions(found)
        except Unavailable as error:
            left.append(
                HoldingObject(f"old versions in the bucket {store.bucket}", f"they could not be looked at: {error}")
            )
            continue
        removed += [each for each in found if each not in kept]
        left += [_holding_object(version, reason) for version, reason in kept.items()]
    if removed:
        work.report.info("archive", f"{len(removed)} old versions of objects are gone")
    work.report.details["removed_versions"] += len(removed)
    return left


def _holding_object(version: OldVersion, reason: str) -> HoldingObject:
    return HoldingObject(
        _name(version), f"an old version, which could not be removed: {reason}; it stays until it expires"
    )


def _versions_in_folders(folders: Sequence[str], store: S3Store) -> Sequence[OldVersion]:
    return [version for folder in folders for version in store.list_old_versions(f"{folder}/")]


def _holding_versions(
    work: JobContext, event_type: EventType, wanted: ErasedValue, store: S3Store
) -> Sequence[OldVersion]:
    parts = [
        OldObject(version)
        for namespace in sorted(namespaces_of_broker(work))
        for folder in (object_keys.LOG_FOLDER, object_keys.REWRITTEN_FOLDER)
        for version in store.list_old_versions(f"{folder}{namespace}/")
    ]
    job = partial(search_versions, work.archive.url, wanted, timeline_topics(event_type), event_type.name)
    found: Mapping[str, str] = dict(run_in_tasks(work.spark, parts, job))
    for problem in filter(None, found.values()):
        work.report.complain(event_type.name, f"not everything could be looked at: {problem}")
    return [each.version for each in parts if found.get(_name(each.version)) == ""]


def search_versions(
    url: str, wanted: ErasedValue, topics: Collection[str], name: str, parts: Iterable[OldObject]
) -> Iterator[tuple[str, str]]:
    """Search old versions for events of these topics, and of deleted event types with this name. Yields the name of
    each version that has the value, or the error for an unreadable one.
    """

    def is_meant(line: ArchivedLine) -> bool:
        return line.topic in topics or line.event_type == name

    with closing(open_archive(url)) as store:
        assert isinstance(store, S3Store)
        for part in parts:
            try:
                found = wanted.occurs_in_member(store.read_old_version(part.version), is_meant)
            except ArchiveObjectGone:
                continue
            except BadArchive as error:
                yield _name(part.version), f"{_name(part.version)} cannot be read: {error}"
                continue
            if found:
                yield _name(part.version), ""


def _name(version: OldVersion) -> str:
    return f"{version.key}@{version.version_id}"
