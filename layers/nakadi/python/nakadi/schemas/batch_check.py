"""Checks all events of a batch against their schema at once.

A type of msgspec can express much of a schema, and converting events to it takes a third of the time that code
generated for the schema takes. Code generated from parts of the schema then checks the rules that a type cannot
express. A value that the check does not accept may still be valid: the code for the whole schema then decides whether
it is.

A type checks each value once, and no value twice, so its time is bounded by the size of the events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

import msgspec
from msgspec import Struct

from nakadi.schemas.document import SchemaDocument
from nakadi.schemas.formats import Lines, make_lines
from nakadi.schemas.shapes import MsgspecTypes
from nakadi.schemas.untyped_parts import AcceptsValue, PartKey, PathStep, UntypedPart, values_at
from nakadi.schemas.values import RemainingSteps, StepsExhausted

CompileParts = Callable[[Sequence[Mapping[str, Any]]], Sequence[AcceptsValue]]
"""Makes a function of each of these parts, which belong to one schema and may refer to its definitions."""

# How much memory the values of the type may take: as much as their parsed form.
_MAX_MEMORY_BYTES = 8 * 1024 * 1024
_MEMORY_BYTES_OF_OBJECT, _MEMORY_BYTES_OF_MEMBER = 64, 8
_MIN_OBJECT_BYTES = len("{}")
# The limit of steps for all quick checks of a batch, which take a hundredth of a second at worst. Slower work waits for
# its turn.
MAX_STEPS = 200_000

# These rules for metadata are not part of the schema, but events must meet them too.
_MOMENT_PART = UntypedPart(("metadata", "occurred_at"), {"format": "date-time"})


class PartCheck(Struct, frozen=True):
    """Checks the values at a path against a part of the schema. `lines`, if there are any, quickly accept most valid
    texts.
    """

    path: Sequence[PathStep]
    accepts_value: AcceptsValue
    lines: Lines | None

    def accepts_values(self, values: Sequence[Any], steps: RemainingSteps) -> bool:
        if self.lines is not None and self.lines.accepts(values, steps):
            return True
        return all(map(self.accepts_value, values, repeat(steps)))

    def find_doubtful(self, values: Sequence[Any], steps: RemainingSteps) -> Sequence[int]:
        """The indexes of the values that are not certainly valid, perhaps only because the steps were used up."""
        try:
            if self.lines is not None and self.lines.accepts(values, steps):
                return ()
        except StepsExhausted:
            pass
        found = []
        for index, value in enumerate(values):
            try:
                if not self.accepts_value(value, steps):
                    found.append(index)
            except (StepsExhausted, RecursionError):
                found.append(index)
        return found


class BatchCheck(Struct, frozen=True):
    """`type` has the member `events`. Each object may take memory for all members that its schema names."""

    type: Any
    max_objects: int
    checks_of_parts: Sequence[PartCheck]

    def fits(self, texts: Sequence[bytes]) -> bool:
        """Whether the number of objects in these texts is small enough to convert all events together."""
        if sum(map(len, texts)) <= self.max_objects * _MIN_OBJECT_BYTES:
            return True
        return sum(text.count(b"{") for text in texts) <= self.max_objects

    def accepts(self, events: Sequence[Any], steps: RemainingSteps) -> bool:
        """Whether all of these events are certainly valid. If the steps are used up, this is not certain."""
        try:
            msgspec.convert({"events": events}, self.type)
            return all(part.accepts_values(values_at(part.path, events), steps) for part in self.checks_of_parts)
        except (msgspec.ValidationError, StepsExhausted, RecursionError):
            return False


def make_batch_check(document: SchemaDocument, compile_parts: CompileParts, *, has_metadata: bool) -> BatchCheck:
    """The check of events of this schema. `has_metadata`: the events must have metadata."""
    root = {"type": "object", **document.root}  # events are objects, whether the schema says so or not
    types = MsgspecTypes(document)
    made = types.type_of_part(root)
    parts = [*made.untyped_parts, *([_MOMENT_PART] if has_metadata else ())]
    schemas: dict[PartKey, Mapping[str, Any]] = {each.key: each.schema_to_check() for each in parts}
    accepts_by_part = dict(zip(schemas, compile_parts(list(schemas.values())) if schemas else (), strict=True))
    batch_type = msgspec.defstruct("Batch", [("events", list[made.type])])  # type: ignore[name-defined]  # made here
    # This makes msgspec prepare the type while no other thread uses it.
    msgspec.convert({"events": ()}, batch_type)
    return BatchCheck(
        batch_type,
        _MAX_MEMORY_BYTES // (_MEMORY_BYTES_OF_OBJECT + _MEMORY_BYTES_OF_MEMBER * types.max_members),
        [PartCheck(each.path, accepts_by_part[each.key], _lines_of(schemas[each.key])) for each in parts],
    )


def _lines_of(schema: Mapping[str, Any]) -> Lines | None:
    if not schema.keys() <= {"pattern", "format"}:
        return None
    return make_lines(pattern=schema.get("pattern"), form=schema.get("format"))
