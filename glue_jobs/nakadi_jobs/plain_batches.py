"""Turns a batch of the archive into rows of a table: plain lines become data files, and all others become text for
Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit
from uuid import uuid4

from py4j.protocol import Py4JError
from pyarrow import ArrowException
from pyspark.errors import PySparkException

from nakadi.engines.archive.gzip_format import BadArchive
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone
from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.columns import Struct
from nakadi_jobs.command import JobContext
from nakadi_jobs.data_files import NewFile, UnsupportedForm
from nakadi_jobs.gathering import IncompleteReading, Reading
from nakadi_jobs.leftovers import GATHERED_FOLDER, Unreadable, relative_folder
from nakadi_jobs.plain_files import StoreUrls, Target, make_files, remove_files
from nakadi_jobs.plain_lines import Form, NotPlain, Reader
from nakadi_jobs.tables import ChangedMeanwhile, Table

RECOVERABLE_ERRORS = (
    ArchiveObjectGone,
    BadArchive,
    Unavailable,
    OSError,
    ArrowException,
    Py4JError,
    PySparkException,
)
"""Errors after which Spark may still succeed."""


@contextmanager
def open_plain_batch(
    work: JobContext, table: Table, columns: Struct, parts: Sequence[ArchiveRange]
) -> Iterator[Reading]:
    """Write data files for the table, and yield them with the remaining lines for Spark. At the end, remove the
    gathered lines, and also the files if they were not added to the table.

    Raises `NotPlain` if no line can become a file, and `RECOVERABLE_ERRORS`.
    """
    try:
        form = table.file_form()
        folder = relative_folder(work.tables, form.location)
    except (UnsupportedForm, Unreadable) as reason:
        # The table has another layout, or its catalog keeps tables elsewhere.
        raise NotPlain(str(reason)) from reason
    url = work.tables.rstrip("/")
    gathered = f"{GATHERED_FOLDER}/{parts[0].topic}/"
    batch = uuid4().hex
    target = Target(
        form=Form(columns, form.schema),
        folder=f"{folder}/data",
        partition=form.partition,
        gathered=f"{gathered}{batch}",
        batch=batch,
    )
    Reader(target.form)
    query = urlsplit(work.archive.url).query
    places = StoreUrls(work.archive.url, f"{work.tables}?{query}".rstrip("?"))
    try:
        made = make_files(work.spark, work.store, work.table_files, places, target, parts)
        files = [
            NewFile(
                path=f"{form.location}{each.key.removeprefix(folder)}",
                partition=f"{form.partition}={each.day}",
                size=each.size,
                footer=each.footer,
            )
            for each in made.files
        ]
        lines = work.archive.text([f"{url}/{key}" for key in made.gathered])
        yield Reading(lines, parts, (), files=files, has_lines=bool(made.gathered))
    except (ChangedMeanwhile, IncompleteReading):
        # After other errors, the table may have the files.
        remove_files(work.table_files, target, parts)
        raise
    finally:
        kept = [each.key for each in work.table_files.list_objects(gathered)]
        work.table_files.remove([key for key in kept if key.startswith(target.gathered)])
