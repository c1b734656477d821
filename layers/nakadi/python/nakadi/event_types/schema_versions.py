"""Schemas of event types: checks, and the versions of each event type's schema."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.common.work import LongWorkQueue, client_never_gone
from nakadi.event_types.drafts import now_in_milliseconds
from nakadi.event_types.effective_schemas import effective_schema_from, effective_schema_of_avro
from nakadi.event_types.forecast import (
    ChangeForecast,
    RefusalCollector,
    SchemaForecast,
    find_no_objections,
    forecast_evolution,
)
from nakadi.event_types.readers import NOBODY, Force, JudgedSchema, SchemaReaders
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.rules import check_fields_in_schema
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import EventType, EventTypeDraft, Schema, SchemaDraft, SchemaType, SubmittedSchema
from nakadi.model.outcomes import Invalid, Malformed, MalformedFields, NotFound, Violations
from nakadi.model.reads import AffectedReader
from nakadi.openapi.checks import openapi_violations
from nakadi.ports.clock import Clock
from nakadi.schemas.avro.types import canonical_form, parse_avro_schema
from nakadi.schemas.document import SchemaDocument
from nakadi.schemas.limits import check_expansion, check_schema_length, check_schema_size
from nakadi.schemas.strict_json import StrictJsonError, parse_strict
from nakadi.schemas.submission import check_schema_language, parse_submitted_schema
from nakadi.schemas.validation import compile_validator
from nakadi.schemas.values import canonical_text

# A check of a longer schema waits for its turn: compiling the schema takes up to a second.
MAX_SCHEMA_CHARACTERS_WITHOUT_TURN = 20_000


def turn_if_check_is_long(schema: SchemaDraft, long_work_queue: LongWorkQueue) -> AbstractContextManager[None]:
    """A turn to check this schema, if the check may take long; other long checks wait meanwhile."""
    return (
        long_work_queue.wait_for_turn(client_never_gone)
        if len(schema.text or "") > MAX_SCHEMA_CHARACTERS_WITHOUT_TURN
        else nullcontext()
    )


def check_schema(schema: SchemaDraft, definition: EventType | EventTypeDraft) -> SubmittedSchema:
    """Check that the schema is valid, within limits, and has the fields that the event type names.

    Raises `Invalid` for the first problem. The draft's fields were checked before, so none that is mandatory is
    missing.
    """
    assert schema.text is not None
    assert definition.category is not None
    assert definition.compatibility_mode is not None
    if schema.type is SchemaType.AVRO:
        _check_avro_schema(schema.text, definition)
        return SubmittedSchema(SchemaType.AVRO, schema.text)
    check_schema_length(schema.text)
    tree = parse_submitted_schema(schema.text, category=definition.category)
    whole = effective_schema_from(tree, definition)
    # Compile the schema now, so that one that cannot be compiled is refused now, rather than when the first event is
    # published.
    compile_validator(whole)
    check_fields_in_schema(definition, whole)
    check_schema_language(tree, definition.compatibility_mode)
    return SubmittedSchema(SchemaType.JSON, schema.text)


def _check_avro_schema(text: str, definition: EventType | EventTypeDraft) -> None:
    """Check an Avro schema. The fields that the event type names need no check, because Avro events have their keys in
    the metadata."""
    effective = effective_schema_of_avro(text, definition)
    # Declared reads, projections and tables use this JSON schema, which must not expand too far.
    check_schema_size(effective)
    check_expansion(SchemaDocument.from_root(effective))


LATEST_VERSION = "latest"
MAX_SCHEMAS_PAGE_SIZE = 1000


class SchemaEvaluation(Struct, frozen=True):
    """The result of a compatibility check: the effect of a schema that follows `compared_schema`."""

    event_type: EventType
    compared_schema: Schema
    forecast: SchemaForecast
    readers: tuple[AffectedReader, ...] = ()


class SchemaVersions(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    permissions: Permissions
    features: Features
    clock: Clock
    readers: SchemaReaders
    long_work_queue: LongWorkQueue = field(default_factory=LongWorkQueue)

    def page(self, name: str, offset: int, limit: int, subject: Subject) -> tuple[Sequence[Schema], bool]:
        """A page of schema versions, newest first, and whether there are more."""
        event_type = self._get_visible(name, subject)
        _check_page_limits(offset, limit)
        schemas = self.event_types.schemas(event_type)
        return schemas[offset : offset + limit], len(schemas) > offset + limit

    def get(self, name: str, version: str, subject: Subject) -> Schema:
        """One version of the schema; `latest` is the current one."""
        return self._schema_of_version(self._get_visible(name, subject), version)

    def find_equal(self, name: str, draft: SchemaDraft, subject: Subject) -> Schema:
        """The newest version that is equal to the draft: as JSON, or by the canonical form of an Avro schema."""
        text = _required_schema_text(draft)
        check_schema_length(text)
        event_type = self._get_visible(name, subject)
        schema_type = draft.type or SchemaType.JSON
        wanted = _comparable_text_of_draft(text, schema_type)
        for schema in self.event_types.schemas(event_type):
            if schema.type is schema_type and _comparable_text_of_version(schema) == wanted:
                return schema
        raise NotFound(f"schema is not found for {name}")

    def add(self, name: str, draft: SchemaDraft, subject: Subject, force: Force = NOBODY) -> JudgedSchema:
        """Make this the current schema, if the compatibility mode of the event type permits it, and `force` names every
        subscription that reads a removed member.
        """
        _required_schema_text(draft)
        self.features.require_writes_allowed()
        return self.event_types.retry_if_changed(lambda: self._add(name, draft, subject, force))

    def evaluate(self, name: str, version: str, text: str | None, subject: Subject) -> SchemaEvaluation:
        """Check whether a schema could follow a version, without storing it."""
        if text is None:
            raise Violations(openapi_violations("CompatibilityQuestion", {}))
        event_type = self._get_visible(name, subject)
        against = self._schema_of_version(event_type, version)
        draft = SchemaDraft(type=against.type, text=text)
        with turn_if_check_is_long(draft, self.long_work_queue):
            submitted = check_schema(draft, event_type)
            forecast = forecast_evolution(
                replace(event_type, schema=against),
                submitted,
                event_type.compatibility_mode,
                lambda each: check_schema(replace(draft, text=each), event_type),
                find_objections=self.readers.find_objections(event_type, event_type)
                if against is event_type.schema
                else find_no_objections,
            )
            readers, refusal = (
                self.readers.affected_readers_and_refusal(event_type, submitted)
                if against is event_type.schema
                else ((), None)
            )
        return SchemaEvaluation(event_type, against, replace(forecast, refusal=forecast.refusal or refusal), readers)

    def forecast(self, name: str, draft: SchemaDraft, subject: Subject, force: Force = NOBODY) -> ChangeForecast:
        """The effect of `add`. This stores nothing, so it also works while the registry is read-only."""
        _required_schema_text(draft)
        event_type = self._get_visible(name, subject)
        self.permissions.require(Operation.ADMIN, event_type.resource, subject)
        refusals = RefusalCollector()
        with turn_if_check_is_long(draft, self.long_work_queue):
            with refusals:
                schema = check_schema(draft, event_type)
                self.readers.judge(event_type, event_type, schema, now_in_milliseconds(self.clock), force)
            return self.readers.forecast(
                event_type,
                event_type,
                SubmittedSchema(draft.type or SchemaType.JSON, draft.text or ""),
                lambda each: check_schema(replace(draft, text=each), event_type),
                refusals.details,
                force,
            )

    def _add(self, name: str, draft: SchemaDraft, subject: Subject, force: Force) -> JudgedSchema:
        event_type = self._get_visible(name, subject)
        self.permissions.require(Operation.ADMIN, event_type.resource, subject)
        now = now_in_milliseconds(self.clock)
        with turn_if_check_is_long(draft, self.long_work_queue):
            schema = check_schema(draft, event_type)
            judged = self.readers.judge(event_type, event_type, schema, now, force)
        if judged.schema != event_type.schema:
            self.event_types.replace(event_type, replace(event_type, schema=judged.schema, updated_at=now))
        return judged

    def _get_visible(self, name: str, subject: Subject) -> EventType:
        event_type = self.event_types.get(name)
        self.permissions.require(Operation.VIEW, event_type.resource, subject)
        return event_type

    def _schema_of_version(self, event_type: EventType, version: str) -> Schema:
        if version in (LATEST_VERSION, str(event_type.schema.version)):
            return event_type.schema
        for schema in self.event_types.schemas(event_type):
            if str(schema.version) == version:
                return schema
        raise NotFound(f'EventType "{event_type.name}" has no schema with version "{version}"')


def _required_schema_text(draft: SchemaDraft) -> str:
    """The text of the draft. Raises `MalformedFields`, which is answered as a bad request, if a member is missing."""
    missing = openapi_violations("SchemaDraft", {"type": draft.type, "schema": draft.text})
    if draft.text is None or missing:
        raise MalformedFields(missing)
    return draft.text


def _comparable_text_of_draft(text: str, schema_type: SchemaType) -> str:
    if schema_type is SchemaType.AVRO:
        parse_avro_schema(text)
        return canonical_form(text)
    try:
        return canonical_text(parse_strict(text))
    except StrictJsonError as error:
        raise Invalid(f"schema must be a valid json: {error}") from error


def _comparable_text_of_version(schema: Schema) -> str:
    # The fast parser is enough, because stored schemas have passed the strict one, and there may be thousands of
    # versions.
    return canonical_form(schema.text) if schema.type is SchemaType.AVRO else canonical_text(orjson.loads(schema.text))


def _check_page_limits(offset: int, limit: int) -> None:
    if not 1 <= limit <= MAX_SCHEMAS_PAGE_SIZE:
        raise Malformed(f"'limit' parameter sholud have value between 1 and {MAX_SCHEMAS_PAGE_SIZE}")
    if offset < 0:
        raise Malformed("'offset' parameter can't be lower than 0")
