"""Whether an Avro schema may follow another schema, its version, and the objections to it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from nakadi.model.event_type import ChangeLevel, CompatibilityMode, Schema, SchemaType
from nakadi.model.outcomes import IncompatibilityReason, IncompatibleSchema, Invalid
from nakadi.schemas.avro.compatibility import Incompatibility, IncompatibilityType, find_incompatibilities
from nakadi.schemas.avro.types import are_equal_schemas, parse_avro_schema

NO_WAY_BACK_MESSAGE = "Cannot change from avro_schema to json_schema!"

_CAUSES = {
    IncompatibilityType.NAME_MISMATCH: "the two types have different names ({})",
    IncompatibilityType.FIXED_SIZE_MISMATCH: "the two types have different sizes ({})",
    IncompatibilityType.MISSING_ENUM_SYMBOLS: "their schema lacks the symbols {}, and has no default for them",
    IncompatibilityType.READER_FIELD_MISSING_DEFAULT_VALUE: (
        "their schema has the field `{}` without a default, and it was not written"
    ),
    IncompatibilityType.TYPE_MISMATCH: "{}",
    IncompatibilityType.MISSING_UNION_BRANCH: "{}",
}


class AvroEvolution(Struct, frozen=True):
    """The effect of an Avro schema that follows another schema. `refusing` are the incompatibilities that the mode does
    not permit.
    """

    level: ChangeLevel
    problems: Sequence[Incompatibility] = ()
    refusing: Sequence[Incompatibility] = ()


def judge_avro_evolution(current: Schema, text: str, of: SchemaType, mode: CompatibilityMode) -> AvroEvolution:
    """Compare a valid schema with the current one. At least one of the two is an Avro schema. Raises `Invalid`."""
    if of is not SchemaType.AVRO:
        raise Invalid(NO_WAY_BACK_MESSAGE)
    if current.type is not SchemaType.AVRO:
        return AvroEvolution(ChangeLevel.MAJOR)
    if text == current.text or are_equal_schemas(text, current.text):
        return AvroEvolution(ChangeLevel.NONE)
    old, new = parse_avro_schema(current.text), parse_avro_schema(text)
    problems = find_incompatibilities(old, new)
    return AvroEvolution(ChangeLevel.MAJOR, problems, [each for each in problems if _is_forbidden(mode, each)])


def _is_forbidden(mode: CompatibilityMode, problem: Incompatibility) -> bool:
    match mode:
        case CompatibilityMode.COMPATIBLE:
            return True
        case CompatibilityMode.FORWARD:
            return not problem.is_backward
        case CompatibilityMode.NONE:
            return False


def next_avro_schema(current: Schema, text: str, of: SchemaType, mode: CompatibilityMode, now: datetime) -> Schema:
    """The schema after `text` was submitted: the same one, or one with a new version. Raises `IncompatibleSchema`."""
    evolution = judge_avro_evolution(current, text, of, mode)
    if evolution.refusing:
        raise incompatible_avro_schema_error(evolution)
    if evolution.level is ChangeLevel.NONE:
        return current
    return Schema(type=of, text=text, version=current.version.bumped_by(evolution.level), created_at=now)


def incompatible_avro_schema_error(evolution: AvroEvolution) -> IncompatibleSchema:
    return IncompatibleSchema(
        f"Failed to evolve avro schema due to [{', '.join(map(str, evolution.refusing))}]",
        tuple(IncompatibilityReason(each.type, each.location, explain_problem(each)) for each in evolution.refusing),
    )


def explain_problem(problem: Incompatibility) -> str:
    reader, writer = ("new", "old") if problem.is_backward else ("old", "new")
    cause = _CAUSES[problem.type].format(problem.message)
    return f"Consumers with the {reader} schema cannot read what is written with the {writer} one: {cause}."
