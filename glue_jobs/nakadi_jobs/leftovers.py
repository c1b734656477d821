"""Finds erased values that are still on disk: in files of interrupted runs, in files of old snapshots, in rows that are
only marked as replaced, and in the bounds of manifests.

Other modules search the rows of tables and the events of the archive. This one searches the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from nakadi.common.avro_files import BadAvro
from nakadi.engines.archive import member_format
from nakadi.engines.archive.gzip_format import BadArchive
from nakadi.model.log_index import ArchiveLocation
from nakadi.ports.archive_store import ArchiveObjectGone, ArchiveStore, StoredObject
from nakadi_jobs.erasure import ErasedValue
from nakadi_jobs.manifest_bounds import read_bounds
from nakadi_jobs.tables import Table

TRUNCATED_LENGTH = 16
"""The number of characters of a text in a manifest."""

DELETE_FILE_SUFFIX = "-deletes.parquet"
"""The suffix of files that contain places of rows, but no values."""

GATHERED_FOLDER = "_gathered"
"""The folder beside the tables for copies of archive parts, which Spark reads."""


class Unreadable(Exception):
    """Raised for a file that cannot be searched."""


def search_files(
    table: Table, files: ArchiveStore, url: str, holds: Callable[[DataFrame], bool], spark: SparkSession
) -> Iterator[str]:
    """The data files that have the value, even if the table does not show it. `url` is the URL of `files`."""
    known = table.visible_files()
    folder = relative_folder(url, table.location())
    for kept in files.list_objects(f"{folder}/data/"):
        name = kept.key.rpartition("/")[2]
        if not name.endswith(".parquet") or name.endswith(DELETE_FILE_SUFFIX) or name.startswith(".") or name in known:
            continue
        try:
            found = holds(spark.read.parquet(f"{url.rstrip('/')}/{kept.key}"))
        except (Py4JError, PySparkException) as error:
            raise Unreadable(kept.key) from error
        if found:
            yield kept.key


def search_metadata(table: Table, files: ArchiveStore, url: str, wanted: ErasedValue) -> Iterator[str]:
    """The manifests, and lists of manifests, that no snapshot uses and that have the value."""
    known = table.manifest_files()
    folder = relative_folder(url, table.location())
    for kept in files.list_objects(f"{folder}/metadata/"):
        name = kept.key.rpartition("/")[2]
        if not name.endswith(".avro") or name in known:
            continue
        try:
            found = holds_bound(read_bounds(files.read_range(ArchiveLocation(kept.key, 0, kept.size))), wanted)
        except ArchiveObjectGone:
            continue
        except BadAvro as error:
            raise Unreadable(kept.key) from error
        if found:
            yield kept.key


def search_bounds(table: Table, wanted: ErasedValue) -> bool:
    """Whether a manifest of a snapshot has the value."""
    return holds_bound(table.bounds(), wanted)


def holds_bound(bounds: frozenset[bytes], wanted: ErasedValue) -> bool:
    """Whether the value is a partition value, or whether the value or its beginning is a bound of a column."""
    beginning = wanted.value[:TRUNCATED_LENGTH]
    # If Iceberg truncates an upper bound, it increments the last character.
    above = wanted.value[: TRUNCATED_LENGTH - 1].encode()
    cut = len(wanted.value) > TRUNCATED_LENGTH
    return not bounds.isdisjoint((wanted.value.encode(), beginning.encode())) or (
        cut and any(bound.startswith(above) for bound in bounds)
    )


def search_copies(files: ArchiveStore, topic: str, wanted: ErasedValue) -> Iterator[str]:
    """The copies of archive parts that have the value."""
    for kept in files.list_objects(f"{GATHERED_FOLDER}/{topic}/"):
        if _occurs_in_copy(files, kept, wanted):
            yield kept.key


def remove_copies(files: ArchiveStore, prefix: str, before: datetime) -> int:
    """Remove the copies below a prefix that were written before a moment. Returns their number."""
    keys = [kept.key for kept in files.list_objects(prefix) if kept.written_at < before]
    files.remove(keys)
    return len(keys)


def relative_folder(url: str, location: str) -> str:
    """The path of a table's folder below the folder of all tables."""
    whole, part = urlsplit(url), urlsplit(location)
    base = f"{whole.path.rstrip('/')}/"
    if part.netloc != whole.netloc or not part.path.startswith(base):
        raise Unreadable(location)
    return part.path.removeprefix(base).strip("/")


def _occurs_in_copy(files: ArchiveStore, kept: StoredObject, wanted: ErasedValue) -> bool:
    try:
        content = files.read_range(ArchiveLocation(kept.key, 0, kept.size))
        return any(wanted.occurs_in_record(event.record) for event in member_format.parse_member(content))
    except ArchiveObjectGone:
        return False
    except BadArchive as error:
        raise Unreadable(kept.key) from error
