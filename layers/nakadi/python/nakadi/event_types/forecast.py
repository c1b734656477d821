"""The effect of a change of an event type: the rules that reject it, the changes of its schema, and the new version.

If a schema is rejected, a proposal says how to alter it so that the broker accepts it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from msgspec import UNSET, Struct

from nakadi.model.event_type import (
    ChangeLevel,
    CompatibilityMode,
    EventType,
    SchemaType,
    SubmittedSchema,
    Version,
)
from nakadi.model.outcomes import Invalid
from nakadi.model.reads import AffectedReader
from nakadi.schemas.avro.evolution import explain_problem, incompatible_avro_schema_error, judge_avro_evolution
from nakadi.schemas.change_reasons import description_of_change, reason_against, warning_to_publishers
from nakadi.schemas.changes import SchemaChange
from nakadi.schemas.evolution import (
    IsForced,
    JudgedChange,
    SchemaEvolution,
    incompatible_schema_error,
    judge_evolution,
    never_forced,
)
from nakadi.schemas.json_patch import Operation, patch_between
from nakadi.schemas.places import values_of_change
from nakadi.schemas.proposals import propose_schema
from nakadi.schemas.strict_json import parse_strict
from nakadi.schemas.values import canonical_text, first_items_fitting_message

CheckSchemaText = Callable[[str], object]
"""Raises `Invalid` for an unacceptable schema."""

# The longest value that is shown, so that it does not hide the others. The path of a longer value is shown without the
# value.
MAX_VALUE_CHARACTERS = 2_000


class ForecastChange(Struct, frozen=True, kw_only=True):
    """One change of a schema. `old` and `new` are `UNSET` if there is no value, or one too long to show."""

    rule: str
    path: str
    level: ChangeLevel
    permitted: bool
    explanation: str
    old: Any
    new: Any


class SchemaForecast(Struct, frozen=True, kw_only=True):
    """The effect of a change on the event type's schema. `refusal` is the detail of the refusal, if there is one."""

    level: ChangeLevel = ChangeLevel.NONE
    changes: tuple[ForecastChange, ...] = ()
    refusal: str | None = None
    proposal: list[Operation] | None = None


class ChangeForecast(Struct, frozen=True, kw_only=True):
    """The effect of a change on an event type. `refusals` are the details of all refusals, in order; `readers` are the
    subscriptions that would miss members.
    """

    current: EventType
    refusals: tuple[str, ...]
    schema: SchemaForecast
    readers: tuple[AffectedReader, ...] = ()

    @property
    def version(self) -> Version | None:
        """The new version of the schema; None if the change is refused."""
        return None if self.refusals else self.current.schema.version.bumped_by(self.schema.level)


class RefusalCollector(AbstractContextManager[None]):
    """Collects the details of refusals by several checks, each of which raises only its first: `with collector:
    check(…)`.
    """

    def __init__(self) -> None:
        self._details: list[str] = []

    @property
    def details(self) -> tuple[str, ...]:
        return tuple(self._details)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, Invalid):
            self._details.append(error.detail)
            return True
        return False


FindObjections = Callable[[Mapping[str, Any], SchemaEvolution], Sequence[SchemaChange]]
"""Finds the schema changes to which readers object, rather than the mode. Raises `Invalid` if none of the changes is at
fault.
"""


def find_no_objections(_schema: Mapping[str, Any], _evolution: SchemaEvolution) -> Sequence[SchemaChange]:
    return ()


def forecast_schema(  # the arguments of `forecast_evolution`
    current: EventType,
    submitted: SubmittedSchema,
    mode: CompatibilityMode,
    check: CheckSchemaText,
    is_forced: IsForced = never_forced,
    find_objections: FindObjections = find_no_objections,
) -> SchemaForecast:
    """The effect of submitting this text as the event type's schema, with this compatibility mode."""
    try:
        check(submitted.text)
        return forecast_evolution(current, submitted, mode, check, is_forced, find_objections)
    except Invalid as refusal:
        return SchemaForecast(refusal=refusal.detail)


def forecast_evolution(  # the change, and who judges it
    current: EventType,
    submitted: SubmittedSchema,
    mode: CompatibilityMode,
    check: CheckSchemaText,
    is_forced: IsForced = never_forced,
    find_objections: FindObjections = find_no_objections,
) -> SchemaForecast:
    """The effect of submitting a text that has passed the check; raises `Invalid` if it cannot be compared."""
    if SchemaType.AVRO in (current.schema.type, submitted.type):
        return _forecast_avro_evolution(current, submitted, mode)
    text = submitted.text
    if text == current.schema.text:
        return SchemaForecast()
    old, new = parse_strict(current.schema.text), parse_strict(text)
    evolution = judge_evolution(old, new, current.compatibility_mode, mode, is_forced)
    shown = first_items_fitting_message(evolution.changes, lambda each: each.change.path.text)
    changes = tuple(_forecast_change(each, evolution, old, new) for each in shown)

    def refused_in(schema: Mapping[str, Any]) -> Sequence[SchemaChange]:
        found = judge_evolution(old, schema, current.compatibility_mode, mode)
        return (*found.refused, *find_objections(schema, found))

    def check_all(schema: Mapping[str, Any]) -> None:
        check(json.dumps(schema, ensure_ascii=False))
        if schema is old:
            refused_in(schema)

    if not evolution.refused and not _have_objections(find_objections, new, evolution):
        return SchemaForecast(level=evolution.level, changes=changes)
    proposed = propose_schema(old, new, refused_in, check_all)
    return SchemaForecast(
        level=evolution.level,
        changes=changes,
        refusal=incompatible_schema_error(evolution).detail if evolution.refused else None,
        proposal=None if proposed is None else patch_between(new, proposed),
    )


def _have_objections(find_objections: FindObjections, new: Mapping[str, Any], evolution: SchemaEvolution) -> bool:
    """Whether readers object to some changes of the schema; if so, a proposal without these changes may help."""
    try:
        return bool(find_objections(new, evolution))
    except Invalid:
        return False


def _forecast_avro_evolution(current: EventType, submitted: SubmittedSchema, mode: CompatibilityMode) -> SchemaForecast:
    """The effect of an Avro schema, for which there are no proposals."""
    evolution = judge_avro_evolution(current.schema, submitted.text, submitted.type, mode)
    changes = (
        ForecastChange(
            rule=each.type,
            path=each.location,
            level=evolution.level,
            permitted=each not in evolution.refusing,
            explanation=explain_problem(each),
            old=UNSET,
            new=UNSET,
        )
        for each in evolution.problems
    )
    refusal = incompatible_avro_schema_error(evolution).detail if evolution.refusing else None
    return SchemaForecast(level=evolution.level, changes=tuple(changes), refusal=refusal)


def _forecast_change(
    judged: JudgedChange, evolution: SchemaEvolution, old: Mapping[str, Any], new: Mapping[str, Any]
) -> ForecastChange:
    change = judged.change
    before, now = values_of_change(change, old, new)
    return ForecastChange(
        rule=change.kind.value,
        path=change.path.text,
        level=judged.level,
        permitted=judged.permitted,
        explanation=(
            description_of_change(change, judged.level) + warning_to_publishers(change, before, now)
            if judged.permitted
            else reason_against(change, evolution.forbidden_by).explanation
        ),
        old=_unless_too_long(before),
        new=_unless_too_long(now),
    )


def _unless_too_long(value: Any) -> Any:
    return UNSET if value is UNSET or len(canonical_text(value)) > MAX_VALUE_CHARACTERS else value
