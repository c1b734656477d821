"""Whether a schema can serve an event type: sound by itself, within limits, and defining what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nakadi.catalog.rules import check_fields_in_schema
from nakadi.model.event_type import EventType, EventTypeDraft
from nakadi.model.outcomes import Invalid
from nakadi.model.schema import SchemaDraft, SchemaType
from nakadi.schemas.effective import effective_schema
from nakadi.schemas.limits import check_limits
from nakadi.schemas.strict_json import parse
from nakadi.schemas.submission import check_language, checked
from nakadi.schemas.validation import compile_validator
from nakadi.turns import Turns, still_there

NO_AVRO = "Schemas of type avro_schema are not supported by this broker, json_schema is the only type"


# Longer ones take up to a second to be made ready.
LONG_SCHEMA = 20_000


def turn_at(schema: SchemaDraft, turns: Turns) -> AbstractContextManager[None]:
    """What a check of this schema has to wait for: its turn, if it may take long."""
    return turns.turn(still_there) if len(schema.text or "") > LONG_SCHEMA else nullcontext()


def check_schema(schema: SchemaDraft, wanted: EventType | EventTypeDraft) -> str:
    """The schema's text if it can serve; raises `Invalid` with the first reason why it cannot.

    A draft has passed the look at its fields, so that nothing mandatory is missing.
    """
    assert schema.text is not None
    assert wanted.category is not None
    assert wanted.compatibility_mode is not None
    if schema.type is SchemaType.AVRO:
        raise Invalid(NO_AVRO)
    check_limits(schema.text)
    tree = checked(schema.text, category=wanted.category)
    whole = _effective(tree, wanted)
    # A schema that cannot become a validator is refused here, rather than with the first event.
    compile_validator(whole)
    check_fields_in_schema(wanted, whole)
    check_language(tree, wanted.compatibility_mode)
    return schema.text


def effective(event_type: EventType) -> dict[str, Any]:
    """What the events of a registered event type are validated against."""
    return _effective(parse(event_type.schema.text), event_type)


def _effective(tree: Mapping[str, Any], wanted: EventType | EventTypeDraft) -> dict[str, Any]:
    assert wanted.name is not None
    assert wanted.category is not None
    assert wanted.compatibility_mode is not None
    assert wanted.cleanup_policy is not None
    return effective_schema(
        tree,
        event_type=wanted.name,
        category=wanted.category,
        mode=wanted.compatibility_mode,
        cleanup_policy=wanted.cleanup_policy,
    )
