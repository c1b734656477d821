"""Holds all events of a batch to their schema at once.

Much of what schemas say can be said by a type of msgspec, and converting events to it takes a third of the time of the
code that is made of a schema. What a type cannot say is checked after it, by code that is made of that part of the
schema alone. What the check does not accept may be valid all the same: then the code for the whole schema decides.

A type is held to each value once, and to no value twice, so its time is bounded by the size of the events.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

import msgspec
from msgspec import Struct

from nakadi.schemas.document import EID_PATTERN, SchemaDocument
from nakadi.schemas.formats import is_usual_timestamp, timestamp_problem
from nakadi.schemas.shapes import MsgspecTypes
from nakadi.schemas.untyped_parts import AcceptsValue, PartKey, PathStep, values_at
from nakadi.schemas.values import StepsExhausted

CompileParts = Callable[[Sequence[Mapping[str, Any]]], Sequence[AcceptsValue]]
"""Makes functions of parts of one schema, which refer to it."""

_is_eid = re.compile(EID_PATTERN.strip("^$"), re.ASCII).fullmatch

# What the values of the type may take: so much as their parsed form may.
_MAX_MEMORY_BYTES = 8 * 1024 * 1024
_MEMORY_BYTES_OF_OBJECT, _MEMORY_BYTES_OF_MEMBER = 64, 8
_MIN_OBJECT_BYTES = len("{}")
# A hundredth of a second at worst. What takes longer is left to those who wait for their turn.
MAX_STEPS = 200_000

_CheckOfPart = tuple[Sequence[PathStep], AcceptsValue]


class BatchCheck(Struct, frozen=True):
    """`type` has the member `events`. Each object in them may take a place for all members that its schema names."""

    type: Any
    max_objects: int
    checks_of_parts: Sequence[_CheckOfPart]
    has_metadata: bool

    def fits(self, text: bytes) -> bool:
        """Whether events of this text may be converted: their objects are not too many."""
        return len(text) <= self.max_objects * _MIN_OBJECT_BYTES or text.count(b"{") <= self.max_objects

    def accepts(self, events: Sequence[Any]) -> bool:
        """Whether all of these are certainly valid."""
        steps = [MAX_STEPS]
        try:
            msgspec.convert({"events": events}, self.type)
            for path, accepts_value in self.checks_of_parts:
                if not all(map(accepts_value, values_at(path, events), repeat(steps))):
                    return False
        except (msgspec.ValidationError, StepsExhausted, RecursionError):
            return False
        return not self.has_metadata or _has_valid_metadata(events)


def _has_valid_metadata(events: Sequence[Any]) -> bool:
    """Whether the eids and moments are valid of events that fit their schema but for these."""
    metadata = [event["metadata"] for event in events]
    moments = [each["occurred_at"] for each in metadata]
    return all(map(_is_eid, [each["eid"] for each in metadata])) and (
        all(map(is_usual_timestamp, moments)) or not any(map(timestamp_problem, moments))
    )


def make_batch_check(document: SchemaDocument, compile_parts: CompileParts, *, has_metadata: bool) -> BatchCheck:
    """The check of events of this schema. `has_metadata` is of events that must have some."""
    root = {"type": "object", **document.root}  # events are objects, whether the schema says so or not
    types = MsgspecTypes(document)
    if has_metadata:
        # Held to their pattern with all others: within a type that takes twice as long.
        types.set_type(root["properties"]["metadata"]["properties"]["eid"], str)
    made = types.type_of_part(root)
    parts: dict[PartKey, Mapping[str, Any]] = {each.key: each.schema_to_check() for each in made.untyped_parts}
    accepts_by_part = dict(zip(parts, compile_parts(list(parts.values())) if parts else (), strict=True))
    batch_type = msgspec.defstruct("Batch", [("events", list[made.type])])  # type: ignore[name-defined]  # made here
    # Makes it ready as long as no other thread has it.
    msgspec.convert({"events": ()}, batch_type)
    return BatchCheck(
        batch_type,
        _MAX_MEMORY_BYTES // (_MEMORY_BYTES_OF_OBJECT + _MEMORY_BYTES_OF_MEMBER * types.max_members),
        [(each.path, accepts_by_part[each.key]) for each in made.untyped_parts],
        has_metadata,
    )
