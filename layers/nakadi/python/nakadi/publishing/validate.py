"""Whether the events of a batch follow the schema of their event type, and may be written for their owners."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from nakadi.auth.permissions import Permissions, denied
from nakadi.model.authorization import Attribute, Authorization, Operation, Resource, ResourceType, Subject
from nakadi.model.event_type import Category, EventType, OwnerSelector, OwnerSelectorType
from nakadi.publishing.batch import Batch, Event, WorkBudget
from nakadi.publishing.outcome import BatchRejected, Step, eid_of
from nakadi.schemas import strict_json
from nakadi.schemas.effective import effective_schema
from nakadi.schemas.formats import timestamp_problem
from nakadi.schemas.validation import Validator
from nakadi.schemas.values import Exhausted, NoSuchField, path_segments, text_of, value_at

TOO_MUCH = (
    "Validating the events of this batch takes more than {} steps: its schema holds their values against too much. "
    "Publish fewer or smaller events at once, or simplify the schema"
)


def effective_schema_of(event_type: EventType) -> dict[str, Any]:
    return effective_schema(
        strict_json.parse(event_type.schema.text),
        event_type=event_type.name,
        category=event_type.category,
        mode=event_type.compatibility_mode,
        cleanup_policy=event_type.cleanup_policy,
    )


def validate(
    event_type: EventType, batch: Batch, validator: Validator, budget: WorkBudget, *, most_bytes: int, reached: Step
) -> None:
    """Raise `BatchRejected` at the first event that is not as it should be, or at which the work becomes too much."""
    too_large = batch.sizes_above(most_bytes)
    has_metadata = event_type.category is not Category.UNDEFINED
    for index, event in enumerate(batch.events):
        try:
            valid: bool | None = validator.check(event, budget.steps)
        except RecursionError:
            valid = False
        except Exhausted:
            valid = _accepts_with_more_steps(event, validator, budget)
        if valid is None:
            raise BatchRejected(Step.VALIDATING, index, TOO_MUCH.format(budget.most), reached=reached)
        if not valid:
            raise BatchRejected(Step.VALIDATING, index, validator.explain(event, budget.take_turn), reached=reached)
        if has_metadata and (problem := timestamp_problem(event["metadata"]["occurred_at"])) is not None:
            raise BatchRejected(Step.VALIDATING, index, f"#/metadata/occurred_at:{problem}", reached=reached)
        if index in too_large:
            raise _rejected_as_too_large(index, too_large[index], most_bytes, reached)


def _accepts_with_more_steps(event: Event, validator: Validator, budget: WorkBudget) -> bool | None:
    """Whether an event is valid that took all the steps there were, begun anew until there are enough; None if never.

    From the second time on, each attempt has twice the steps of the one before, so that all of them together take no
    more than twice the work of the last.
    """
    larger = False
    while True:
        try:
            budget.extend(larger=larger)
        except Exhausted:
            return None
        try:
            return validator.accepts(event, budget.steps)
        except Exhausted:
            larger = True


def check_deletable(event_type: EventType, batch: Batch, *, most_bytes: int, reached: Step) -> None:
    """Raise `BatchRejected` if events of this type are not deleted, or at the first event that is too large."""
    if not event_type.cleanup_policy.compacts:
        raise BatchRejected(Step.VALIDATING)
    for index, size in batch.sizes_above(most_bytes).items():
        raise _rejected_as_too_large(index, size, most_bytes, reached)


def _rejected_as_too_large(index: int, size: int, most_bytes: int, reached: Step) -> BatchRejected:
    detail = f"Event too large: {size} bytes, max size is {most_bytes} bytes"
    return BatchRejected(Step.VALIDATING, index, detail, reached=reached)


# Owners ---------------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

Owners = Sequence[Attribute | None]


def find_owners(events: Sequence[Event], selector: OwnerSelector) -> Owners:
    """The owner of each event; None for an event without one."""
    find = _owner_finder(selector)
    owners = [find(event) for event in events]
    if None in owners:
        log.info("%d of %d events name no %s", owners.count(None), len(owners), selector.name)
    return owners


def check_owners(events: Sequence[Event], owners: Owners, subject: Subject, permissions: Permissions) -> None:
    """Raise `BatchRejected` at the first event whose owner the subject may not write for."""
    refused = {owner for owner in set(owners) if owner and not _may_write(owner, subject, permissions)}
    for index, owner in enumerate(owners):
        if owner in refused:
            event = Resource(ResourceType.EVENT, eid_of(events[index]))
            raise BatchRejected(Step.VALIDATING, index, denied(Operation.WRITE, event).detail)


def _may_write(owner: Attribute, subject: Subject, permissions: Permissions) -> bool:
    lists = Authorization(admins=(), readers=(owner,), writers=(owner,))
    return permissions.allows(Operation.WRITE, Resource(ResourceType.EVENT, "", lists), subject)


def _owner_finder(selector: OwnerSelector) -> Callable[[Event], Attribute | None]:
    match selector.type:
        case OwnerSelectorType.STATIC:
            owner = _owner_attribute(selector.name, selector.value)
            return lambda _: owner
        case OwnerSelectorType.PATH:
            path = path_segments(selector.value or "")
            return lambda event: _owner_attribute(selector.name, _value_or_none(event, path))
        case OwnerSelectorType.METADATA:
            return _reject_metadata_selector


def _reject_metadata_selector(_: Event) -> Attribute | None:
    """JSON events have no such metadata, and one without an owner would be open to all readers."""
    raise BatchRejected(Step.VALIDATING, 0, "event_owner_selector of type 'metadata' is not supported for JSON events")


def _owner_attribute(name: str, value: Any) -> Attribute | None:
    return None if value is None else Attribute(name, text_of(value))


def _value_or_none(event: Event, path: tuple[str, ...]) -> Any:
    try:
        return value_at(event, path)
    except NoSuchField:
        return None
