"""Proposes a schema that would be accepted, as close as possible to one that was refused.

Each refused change is taken back where it was made: the part of the old schema returns to its place, and the rest of
the submitted schema stays. Changes that are still refused are then undone at the enclosing schema, and finally at the
root.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import count
from typing import Any

from nakadi.model.outcomes import Invalid
from nakadi.schemas.changes import ChangeKind, SchemaChange
from nakadi.schemas.document import SchemaDocument, reference_steps, value_at_step
from nakadi.schemas.places import KEYWORDS_BY_KIND, Place, place_of, value_of

FindRefusedChanges = Callable[[Mapping[str, Any]], Sequence[SchemaChange]]
"""The changes in a schema that its compatibility mode refuses; raises `Invalid` if it cannot be determined."""

CheckSchema = Callable[[Mapping[str, Any]], object]
"""Raises `Invalid` for a schema that may not be submitted at all."""

# Most schemas need one or two attempts. Each compares the whole schemas again.
MAX_ROUNDS = 8
MAX_REPAIRS_PER_ROUND = 200


def propose_schema(
    old: Mapping[str, Any], submitted: Mapping[str, Any], refused_in: FindRefusedChanges, check: CheckSchema
) -> Mapping[str, Any] | None:
    """A schema near the submitted one that passes both checks, or None if not even the old one does."""
    with suppress(Invalid):
        repaired = _repair_object(old, submitted, refused_in, check)
        if repaired is not None:
            return repaired
    with suppress(Invalid):
        check(old)
        return old
    return None


def _repair_object(
    old: Mapping[str, Any], submitted: Mapping[str, Any], refused_in: FindRefusedChanges, check: CheckSchema
) -> Mapping[str, Any] | None:
    repair = _Repair(SchemaDocument.from_root(old), deepcopy(dict(submitted)))
    repairs_by_path: Counter[str] = Counter()
    for _ in range(MAX_ROUNDS):
        refused = refused_in(repair.schema)
        if not refused:
            return repair.schema
        for change in refused[:MAX_REPAIRS_PER_ROUND]:
            repair.take_back(change, widened_by=repairs_by_path[change.path.text])
            repairs_by_path[change.path.text] += 1
        # The check comes first, because only valid schemas can be compared.
        check(repair.schema)
    return None


class _Repair:
    """The submitted schema, while changes in it are undone one by one."""

    def __init__(self, old: SchemaDocument, schema: dict[str, Any]) -> None:
        self._old = old
        self.schema = schema

    def take_back(self, change: SchemaChange, *, widened_by: int) -> None:
        """Undo a change. `widened_by` is the number of earlier attempts at the same place that were not enough."""
        if widened_by == 0 and self._undo_within_schema(change):
            return
        steps = change.path.steps
        # The innermost enclosing place that both documents have.
        for length in range(max(len(steps) - max(widened_by - 1, 0), 0), -1, -1):
            before, now = place_of(self._old.root, steps[:length]), place_of(self.schema, steps[:length])
            if before is None or now is None or before.is_root is not now.is_root:
                continue
            if now.is_root:
                self.schema = deepcopy(dict(self._old.root))
                return
            if before.is_filled or now.is_filled:
                self._restore(before, now)
                return

    def _undo_within_schema(self, change: SchemaChange) -> bool:
        """Undo a change in a way that keeps more of the submitted schema than inserting the old schema would. Return
        whether this was possible.
        """
        steps = change.path.steps
        before, now = place_of(self._old.root, steps), place_of(self.schema, steps)
        if change.kind in KEYWORDS_BY_KIND:
            schemas = value_of(self._old.root, before), value_of(self.schema, now)
            return self._restore_keywords(*schemas, KEYWORDS_BY_KIND[change.kind])
        if before is None or now is None or now.is_root or not before.is_filled or not now.is_filled:
            return False
        if change.kind is ChangeKind.REQUIRED_ARRAY_CHANGED:
            now.container[now.name] = [*before.value, *(each for each in now.value if each not in before.value)]
            return True
        if change.kind is ChangeKind.TYPE_CHANGED and len(steps) > 1 and steps[-2] == "properties":
            # The intended property is added under another name.
            now.container[_free_name(now)] = now.value
        self._restore(before, now)
        return True

    def _restore_keywords(self, old: Any, new: Any, keywords: Sequence[str]) -> bool:
        if not isinstance(old, Mapping) or not isinstance(new, dict):
            return False
        for keyword in keywords:
            if keyword in old or keyword in new:
                self._restore(Place(old, keyword), Place(new, keyword))
        return True

    def _restore(self, before: Place, now: Place) -> None:
        """Restore a place from the old document."""
        index = now.name if isinstance(now.container, Mapping) else int(now.name)
        if not before.is_filled:
            del now.container[index]
            return
        now.container[index] = deepcopy(before.value)
        self._add_missing_targets(before.value)

    def _add_missing_targets(self, restored: Any) -> None:
        """Restore the definitions to which a restored part refers."""
        waiting = [restored]
        while waiting:
            value = waiting.pop()
            if isinstance(value, list):
                waiting += value
            elif isinstance(value, Mapping):
                waiting += value.values()
                if isinstance(reference := value.get("$ref"), str) and (target := self._bring_back_target(reference)):
                    waiting.append(target)

    def _bring_back_target(self, reference: str) -> Any:
        """Copy the definition of a reference from the old document, unless the new one has it; return the copy."""
        steps, target = reference_steps(reference), self._old.find_target(reference)
        if not steps or target is None:
            return None
        container: Any = self.schema
        for step in steps[:-1]:
            container = (
                container.setdefault(step, {}) if isinstance(container, dict) else value_at_step(container, step)
            )
        if not isinstance(container, dict) or steps[-1] in container:
            return None
        container[steps[-1]] = deepcopy(target)
        return target


def _free_name(place: Place) -> str:
    """A free name for a property like this one: `size_2`, unless that exists."""
    return next(name for number in count(2) if (name := f"{place.name}_{number}") not in place.container)
