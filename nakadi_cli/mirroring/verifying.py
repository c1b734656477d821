"""Compares the events of two brokers by partition and minute: their number, and whether they are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nakadi_cli.mirroring.definitions import schema_versions
from nakadi_cli.mirroring.events import BEGIN, identity, is_compacted, is_reached, read_batches
from nakadi_cli.mirroring.removals import compaction_key

if TYPE_CHECKING:
    from nakadi_cli.api import Api
    from nakadi_client import Batch

# With these strategies and several partitions, the order in which events arrive is random.
_RANDOM = "random"
_ALL = "all"

Place = tuple[str, str]


@dataclass
class Content:
    """Events by partition and minute: their number, and the sum of their identities. Repeated events count once."""

    counts: dict[Place, int] = field(default_factory=dict)
    sums: dict[Place, int] = field(default_factory=dict)
    events: int = 0
    repeated: int = 0


@dataclass(frozen=True)
class Difference:
    """A minute of a partition in which two brokers differ."""

    partition: str
    minute: str
    in_source: int
    in_target: int


@dataclass(frozen=True)
class Comparison:
    events: int
    repeated: int
    minutes: int
    differences: tuple[Difference, ...]
    missing_versions: tuple[str, ...] = ()


def compare_event_type(
    source: Api, target: Api, definition: Mapping[str, Any], copied: Mapping[str, str]
) -> Comparison:
    """Compare what was copied. Minutes whose beginning the source has removed are left out.

    For a compacted event type, only the newest event of each key is compared, because brokers compact at different
    times.
    """
    by_partition = len(copied) == 1 or definition.get("partition_strategy") != _RANDOM
    name = definition["name"]
    read = _newest_content if is_compacted(definition) else _content
    there = read(_copied_batches(source, name, copied), by_partition=by_partition)
    here = read(read_batches(target, name, dict.fromkeys(copied, BEGIN)), by_partition=by_partition)
    keeps_all = definition.get("cleanup_policy") == "compact"
    oldest: dict[str, str] = {}
    for partition, minute in sorted(there.counts):
        oldest.setdefault(partition, minute)
    places = {
        (partition, minute)
        for partition, minute in (*there.counts, *here.counts)
        if keeps_all or (partition in oldest and minute >= oldest[partition])
    }
    first = {(partition, minute) for partition, minute in oldest.items() if minute}
    differences = tuple(
        Difference(*place, there.counts.get(place, 0), here.counts.get(place, 0))
        for place in sorted(places)
        if (there.counts.get(place), there.sums.get(place)) != (here.counts.get(place), here.sums.get(place))
        and not (not keeps_all and place in first and here.counts.get(place, 0) > there.counts[place])
    )
    return Comparison(there.events, here.repeated, len(places), differences, _missing_versions(source, target, name))


def _missing_versions(source: Api, target: Api, name: str) -> tuple[str, ...]:
    """The versions of the schema that only the source has."""
    here = schema_versions(target, name)
    return tuple(
        schema.version for schema in schema_versions(source, name) if not any(schema.is_same_as(each) for each in here)
    )


def _copied_batches(source: Api, name: str, copied: Mapping[str, str]) -> Iterator[Batch[Any]]:
    """The events of the source up to the copied offsets, although it may have more by now."""
    at = {partition: BEGIN for partition, offset in copied.items() if offset != BEGIN}
    ended: set[str] = set()
    for batch in read_batches(source, name, dict(at)) if at else ():
        if batch.partition in ended:
            continue
        if is_reached(batch.offset, copied[batch.partition]):
            at[batch.partition] = batch.offset
            yield batch
            continue
        # The end is within this batch, which contains only the offset of its last event.
        ended.add(batch.partition)
        for single in read_batches(source, name, {batch.partition: at[batch.partition]}, 1):
            if not is_reached(single.offset, copied[batch.partition]):
                break
            yield single


def _content(batches: Iterable[Batch[Any]], *, by_partition: bool) -> Content:
    content, seen = Content(), set[bytes]()
    for batch in batches:
        for event in batch.events:
            key, minute = identity(bytes(event))
            if key in seen:
                content.repeated += 1
                continue
            seen.add(key)
            place = (batch.partition if by_partition else _ALL, minute)
            content.events += 1
            content.counts[place] = content.counts.get(place, 0) + 1
            content.sums[place] = content.sums.get(place, 0) + int.from_bytes(key)
    return content


def _newest_content(batches: Iterable[Batch[Any]], *, by_partition: bool) -> Content:
    """The content of these batches, with only the newest event of each key."""
    newest: dict[tuple[str, str], tuple[bytes, Place]] = {}
    content, seen = Content(), set[bytes]()
    for batch in batches:
        for event in batch.events:
            key, minute = identity(bytes(event))
            content.repeated += key in seen
            seen.add(key)
            place = (batch.partition if by_partition else _ALL, minute)
            newest[batch.partition, compaction_key(bytes(event))] = (key, place)
    for key, place in newest.values():
        content.events += 1
        content.counts[place] = content.counts.get(place, 0) + 1
        content.sums[place] = content.sums.get(place, 0) + int.from_bytes(key)
    return content
