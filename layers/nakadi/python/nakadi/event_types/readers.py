"""Which subscriptions read which members of an event type, and whether a new schema may remove them.

Subscriptions declare the members that they read. A schema that removes, renames or retypes such a member, or makes it
optional, is refused in the modes `compatible` and `forward` until the request names these subscriptions in `force`. If
the request also names the subscriptions that declare nothing, and so may read the member, the mode itself permits such
changes too. In the mode `none`, the broker only warns about it.

A check does not see a subscription that declares members at the same moment; `show` shows afterwards what such a
subscription misses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nakadi.auth.permissions import Permissions
from nakadi.event_types.deletion import GetDependents
from nakadi.event_types.effective_schemas import effective_schema_of
from nakadi.event_types.forecast import ChangeForecast, CheckSchemaText, FindObjections, forecast_schema
from nakadi.event_types.members import members_of, schema_that_readers_see
from nakadi.event_types.repository import EventTypes
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import Category, CompatibilityMode, EventType, Schema, SchemaType, SubmittedSchema
from nakadi.model.outcomes import IncompatibilityReason, IncompatibleSchema, Invalid
from nakadi.model.reads import AffectedReader, Reader
from nakadi.schemas.changes import SchemaChange
from nakadi.schemas.evolution import SchemaEvolution, next_schema
from nakadi.schemas.read_paths import parse_read_path, read_path_text
from nakadi.schemas.reads import changes_of_members, find_read_changes, lost_members, unknown_paths
from nakadi.schemas.strict_json import parse_strict
from nakadi.schemas.values import RemainingSteps

MEMBER_READ_RULE = "MEMBER_READ"

MAX_NAMED_SUBSCRIPTIONS = 20
"""How many subscriptions the text of a Problem names; its `readers` have all of them."""

MAX_STEPS_OF_REVIEW = 200_000
"""The steps of a review for all readers together, which take up to two seconds. Readers for whom no steps are left
count as affected, because they may be.
"""

Force = frozenset[str]
"""The ids of subscriptions that may lose members."""

NOBODY: Force = frozenset()


class JudgedSchema(Struct, frozen=True):
    """The schema that an event type gets, and the readers that will miss members."""

    schema: Schema
    affected: tuple[AffectedReader, ...]


class EventTypeReaders(Struct, frozen=True):
    """The readers of an event type. `unread` are the members that no subscription has declared."""

    readers: Sequence[Reader]
    unread: tuple[str, ...]


class SchemaReaders(Struct, frozen=True):
    event_types: EventTypes
    permissions: Permissions
    get_dependents: GetDependents

    def show(self, name: str, subject: Subject) -> EventTypeReaders:
        """Show the readers and the members that they read, to subjects that may see the event type."""
        event_type = self.event_types.get(name)
        self.permissions.require(Operation.VIEW, event_type.resource, subject)
        schema = schema_that_readers_see(event_type)
        readers = [_with_declared(each, schema) for each in self.get_dependents().readers_of(name)]
        read = {parse_read_path(path) for each in readers for path in each.reads or ()}
        unread = [
            path for path in members_of(event_type) if not any(path[:end] in read for end in range(1, len(path) + 1))
        ]
        return EventTypeReaders(readers, tuple(map(read_path_text, unread)))

    def judge(
        self, old: EventType, new: EventType, submitted: SubmittedSchema, now: datetime, force: Force
    ) -> JudgedSchema:
        """The schema that the event type `old` gets when it becomes `new`, and the affected readers. Raises
        `IncompatibleSchema`.
        """
        review = self._review(old, _with_schema(new, submitted), force)
        try:
            schema = next_schema(
                old, submitted.text, new.compatibility_mode, now, review.is_forced, schema_type=submitted.type
            )
        except IncompatibleSchema as error:
            raise IncompatibleSchema(error.detail, error.reasons, (*review.affected, *review.unasked)) from error
        if old.compatibility_mode is not CompatibilityMode.NONE and review.unnamed:
            raise members_read_error(review)
        return JudgedSchema(schema, review.affected)

    def forecast(  # the arguments of `judge`, and the readers found before
        self,
        old: EventType,
        new: EventType,
        submitted: SubmittedSchema,
        check: CheckSchemaText,
        refusals: tuple[str, ...],
        force: Force,
    ) -> ChangeForecast:
        """The effect of a change on the schema and its readers, in addition to the refusals that were already found."""
        try:
            check(submitted.text)
            review = self._review(old, _with_schema(new, submitted), force)
        except Invalid:
            review = _Review()
        find_objections = self.find_objections(old, new, force)
        schema = forecast_schema(old, submitted, new.compatibility_mode, check, review.is_forced, find_objections)
        return ChangeForecast(current=old, refusals=refusals, schema=schema, readers=review.affected)

    def affected_readers_and_refusal(
        self, event_type: EventType, submitted: SubmittedSchema
    ) -> tuple[tuple[AffectedReader, ...], str | None]:
        """The readers that would miss members after a change of the schema, and the detail of the refusal that they
        cause."""
        review = self._review(event_type, _with_schema(event_type, submitted), NOBODY)
        is_refused = event_type.compatibility_mode is not CompatibilityMode.NONE and review.unnamed
        return review.affected, members_read_error(review).detail if is_refused else None

    def find_objections(self, old: EventType, new: EventType, force: Force = NOBODY) -> FindObjections:
        """Return a function that finds the schema changes that would make readers miss members."""
        steps = [MAX_STEPS_OF_REVIEW]

        def find(schema: Mapping[str, Any], evolution: SchemaEvolution) -> Sequence[SchemaChange]:
            if old.compatibility_mode is CompatibilityMode.NONE:
                return ()
            readers = [each for each in self.get_dependents().readers_of(old.name) if each.subscription_id not in force]
            changed = _with_schema(new, SubmittedSchema(SchemaType.JSON, orjson.dumps(schema).decode()))
            affected = _affected_readers(readers, old, changed, steps)
            if not affected:
                return ()
            inner = 1 if old.category is Category.DATA else 0
            missed = [parse_read_path(change.member)[inner:] for each in affected for change in each.changes]
            changes = [each.change for each in evolution.changes]
            found = changes_of_members(changes, missed, parse_strict(old.schema.text), schema)
            if not found:
                raise Invalid("No change of the schema is at fault")
            return found

        return find

    def _review(self, old: EventType, new: EventType, force: Force) -> _Review:
        if (old.schema.text, old.category) == (new.schema.text, new.category):
            return _Review()
        readers = self.get_dependents().readers_of(old.name)
        affected = _affected_readers(readers, old, new, [MAX_STEPS_OF_REVIEW])
        return _Review(
            affected=affected,
            unnamed=tuple(each.reader for each in affected if each.reader.subscription_id not in force),
            # A subscription that declares nothing may read any member. That matters only if the request forces the
            # change, because otherwise the mode protects these subscriptions.
            unasked=tuple(
                AffectedReader(each, ())
                for each in readers
                if affected and force and each.reads is None and each.subscription_id not in force
            ),
            old=old,
            new=new,
        )


def _with_schema(event_type: EventType, submitted: SubmittedSchema) -> EventType:
    return replace(event_type, schema=replace(event_type.schema, type=submitted.type, text=submitted.text))


class _Review(Struct, frozen=True, dict=True):
    """The readers that would miss members after a change from `old` to `new`. `unnamed` are the ones that the request
    does not name; `unasked` declare nothing, and the request does not name them either.
    """

    affected: tuple[AffectedReader, ...] = ()
    unnamed: tuple[Reader, ...] = ()
    unasked: tuple[AffectedReader, ...] = ()
    old: EventType | None = None
    new: EventType | None = None

    def is_forced(self, change: SchemaChange) -> bool:
        """Whether a change is permitted in spite of the mode, because the request names every subscription that may
        read the changed members.
        """
        if self.old is None or not self.affected or self.unnamed or self.unasked:
            return False
        around = ("data",) if self.old.category is Category.DATA else ()
        lost = lost_members(change, *self._schemas)
        return bool(lost) and all(read_path_text((*around, *path)) in self._missed_members for path in lost)

    @cached_property
    def _schemas(self) -> tuple[Any, Any]:
        """The submitted schemas, before and after the change."""
        assert self.old is not None
        assert self.new is not None
        return parse_strict(self.old.schema.text), parse_strict(self.new.schema.text)

    @cached_property
    def _missed_members(self) -> frozenset[str]:
        return frozenset(each.member for reader in self.affected for each in reader.changes)


def _affected_readers(
    readers: Sequence[Reader], old: EventType, new: EventType, steps: RemainingSteps
) -> tuple[AffectedReader, ...]:
    paths = dict.fromkeys(path for each in readers for path in each.reads or ())
    if not paths:
        return ()
    before, after = effective_schema_of(old), effective_schema_of(new)
    changes = {path: find_read_changes(before, after, [path], steps) for path in paths}
    found = (
        AffectedReader(each, tuple(change for path in each.reads or () for change in changes[path])) for each in readers
    )
    return tuple(each for each in found if each.changes)


def members_read_error(review: _Review) -> IncompatibleSchema:
    unnamed = review.unnamed
    listed = ", ".join(reader_text(each) for each in unnamed[:MAX_NAMED_SUBSCRIPTIONS])
    more = f" and {len(unnamed) - MAX_NAMED_SUBSCRIPTIONS} more" if len(unnamed) > MAX_NAMED_SUBSCRIPTIONS else ""
    explanations = {
        change.member: change.explanation
        for each in review.affected
        if each.reader in unnamed
        for change in each.changes
    }
    reasons = tuple(
        IncompatibilityReason(
            MEMBER_READ_RULE,
            member,
            f"{text} Subscriptions read it. Keep it, or name these subscriptions in `force`.",
        )
        for member, text in explanations.items()
    )
    detail = f"The schema changes what subscriptions read: {listed}{more}. To change it anyway, name them in `force`"
    return IncompatibleSchema(detail, reasons, review.affected)


def _with_declared(reader: Reader, schema: Mapping[str, Any]) -> Reader:
    """A reader with its reads of this event type; its subscription may also read other event types."""
    if reader.reads is None:
        return reader
    unknown = unknown_paths(schema, reader.reads)
    return replace(reader, reads=tuple(path for path in reader.reads if path not in unknown))


def reader_text(reader: Reader) -> str:
    return f"{reader.subscription_id} ({reader.owning_application}, {reader.consumer_group})"
