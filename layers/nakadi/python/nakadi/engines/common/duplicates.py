"""Leaves duplicates out of an append, and adds their places to the results of the append."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from nakadi.model.events import AppendResult, AppendStored, AppendStoredExcept, DuplicateEvent, EventPlace, Record

PlacesByIndex = Mapping[int, EventPlace]
"""The place of the first event with the same id, by the index of a duplicate within its partition's records."""

PlacesByPartition = Mapping[int, PlacesByIndex]

Item = TypeVar("Item")


def without_duplicates(
    batches: Mapping[int, Sequence[Record]], duplicates: PlacesByPartition
) -> Mapping[int, Sequence[Record]]:
    """The records that are not duplicates; partitions without such records are omitted."""
    kept = {
        partition: without_indices(records, duplicates[partition]) if partition in duplicates else records
        for partition, records in batches.items()
    }
    return {partition: records for partition, records in kept.items() if records}


def without_indices(items: Sequence[Item], indices: Mapping[int, object]) -> Sequence[Item]:
    return [item for index, item in enumerate(items[:]) if index not in indices]


def fates_with_duplicates(
    batches: Mapping[int, Sequence[Record]], duplicates: PlacesByPartition
) -> Mapping[int, AppendResult]:
    """The results of an append with these duplicates whose other events are all stored."""
    return {
        partition: AppendStoredExcept({index: DuplicateEvent(place) for index, place in duplicates[partition].items()})
        if partition in duplicates
        else AppendStored()
        for partition in batches
    }
