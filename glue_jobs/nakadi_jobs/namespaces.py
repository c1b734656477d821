"""The namespaces of the archive in which every object belongs to this broker."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from urllib.parse import urlsplit

from nakadi.engines.archive.object_keys import namespace_of_key
from nakadi.event_types.storages import STORAGES_KIND
from nakadi.model.event_type import StorageType
from nakadi_jobs.command import JobContext


def namespaces_of_broker(work: JobContext) -> Collection[str]:
    """Return the namespaces that the index refers to, and those that the broker writes to. After the last event type of
    a namespace is deleted, only the broker's own configuration names it, but its objects still exist.
    """
    referenced = {namespace_of_key(key) for key in work.index.referenced_archive_keys()}
    return {*referenced, work.index.identity(), *_kinesis_streams(work)}


def _kinesis_streams(work: JobContext) -> Iterator[str]:
    """The Kinesis streams of the broker. The log indexer stores objects by stream."""
    own = urlsplit(work.options.event_log or "")
    if own.scheme == StorageType.KINESIS:
        yield own.netloc
    for storage in work.registry.list(STORAGES_KIND):
        if storage.body["type"] == StorageType.KINESIS:
            yield storage.body["configuration"]["stream"]
