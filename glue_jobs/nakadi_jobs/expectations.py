"""Counts the events that do not meet the expectations of their event type.

For this, the archive is read once more with the text of each event, because columns do not hold every value. Event
types without expectations do not pay for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import orjson

from nakadi.engines.archive.stores import open_archive
from nakadi.event_types.expectations import Expectation, expectation_problem, stated_expectations
from nakadi.model.event_type import EventType
from nakadi.ports.archive_store import ArchiveStore
from nakadi.schemas.conditions import Condition, parse_condition
from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.command import JobContext
from nakadi_jobs.plain_batches import RECOVERABLE_ERRORS
from nakadi_jobs.plain_files import MAX_SHARE_BYTES, Chunk, read_chunks, runs_in_driver, split_into_shares
from nakadi_jobs.reports import first_line
from nakadi_jobs.transform import join_ranges

UNREADABLE = object()

_PLACE = re.compile(rb'\{"topic":"[^"]*","partition":([0-9]+),"offset":([0-9]+)')
"""The beginning of a line."""


def count_unmet(work: JobContext, event_type: EventType, parts: Sequence[ArchiveRange]) -> Mapping[Expectation, int]:
    """The number of events in these ranges that do not meet each expectation.

    Expectations that cannot be counted are missing: an administrator may have entered one that is not a valid
    condition, or the archive may have changed meanwhile.
    """
    wanted = []
    for each in stated_expectations(event_type.annotations):
        if problem := expectation_problem(each):
            work.report.warn(event_type.name, problem)
        else:
            wanted.append(each)
    if not (wanted and parts):
        return {}
    try:
        counts = _count_unmet_by_condition(work, parts, [each.condition for each in wanted])
    except RECOVERABLE_ERRORS as error:
        work.report.info(event_type.name, f"expectations are not counted. {first_line(error)}")
        return {}
    return dict(zip(wanted, counts, strict=True))


def _count_unmet_by_condition(
    work: JobContext, parts: Sequence[ArchiveRange], conditions: Sequence[str]
) -> Sequence[int]:
    context = work.spark.sparkContext
    if runs_in_driver(str(context.master), parts):
        shares = list(split_into_shares(parts, os.cpu_count() or 1))
        with ThreadPoolExecutor(len(shares)) as pool:
            counted = list(pool.map(partial(count_in_share, work.store, conditions), shares))
    else:
        shares = list(split_into_shares(parts, context.defaultParallelism, MAX_SHARE_BYTES))
        tasks = context.parallelize(shares, len(shares))
        counted = tasks.map(partial(_count_in_task, work.archive.url, conditions)).collect()
    return [sum(counts) for counts in zip(*counted, strict=True)]


def _count_in_task(url: str, conditions: Sequence[str], parts: Sequence[ArchiveRange]) -> Sequence[int]:
    with closing(open_archive(url)) as archive:
        return count_in_share(archive, conditions, parts)


def count_in_share(archive: ArchiveStore, conditions: Sequence[str], parts: Sequence[ArchiveRange]) -> Sequence[int]:
    """The number of events that do not meet each condition. Texts that are not JSON meet none; tombstones are not
    events."""
    are_met = [parse_condition(text) for text in conditions]
    unmet = [0] * len(conditions)
    for chunk in read_chunks(archive, parts):
        for event in _select_events(chunk):
            for number, is_met in enumerate(are_met):
                unmet[number] += not _meets(event, is_met)
    return unmet


def _select_events(chunk: Chunk) -> Iterator[Any]:
    """The events at the wanted places; `UNREADABLE` for a line that is not JSON."""
    ranges = list(join_ranges((part.partition, part.first, part.end) for part in chunk.parts))
    for line in chunk.text.splitlines():
        place = _PLACE.match(line)
        partition, offset = (int(place[1]), int(place[2])) if place else (-1, -1)
        if not any(number == partition and first <= offset < end for number, first, end in ranges):
            continue
        try:
            parsed = orjson.loads(line)
        except orjson.JSONDecodeError:
            yield UNREADABLE
            continue
        if "event" in parsed:
            yield parsed["event"]


def _meets(event: Any, is_met: Condition) -> bool:
    try:
        return event is not UNREADABLE and is_met(event)
    except RecursionError:
        # Values are nested too deep to be compared.
        return True
