"""Whom a single event belongs to, and whether its publisher may write on their behalf."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nakadi.access.permissions import Permissions, denied
from nakadi.model.authorization import Attribute, Authorization, Operation, Resource, ResourceType, Subject
from nakadi.model.event_type import OwnerSelector, OwnerSelectorType
from nakadi.publishing.outcome import Rejected, Step, eid_of
from nakadi.publishing.paths import NoSuchField, segments, value_at
from nakadi.schemas.values import text_of

log = logging.getLogger(__name__)

Event = Mapping[str, Any]
Owners = Sequence[Attribute | None]


def owners_of(events: Sequence[Event], selector: OwnerSelector) -> Owners:
    """The owner of each event; None for those that name nobody."""
    find = _finding(selector)
    owners = [find(event) for event in events]
    if None in owners:
        log.info("%d of %d events name no %s", owners.count(None), len(owners), selector.name)
    return owners


def check_owners(events: Sequence[Event], owners: Owners, subject: Subject, permissions: Permissions) -> None:
    """Raise `Rejected` at the first event whose owner the subject may not write for."""
    refused = {owner for owner in set(owners) if owner and not _may_write(owner, subject, permissions)}
    for index, owner in enumerate(owners):
        if owner in refused:
            event = Resource(ResourceType.EVENT, eid_of(events[index]))
            raise Rejected(Step.VALIDATING, index, denied(Operation.WRITE, event).detail)


def _may_write(owner: Attribute, subject: Subject, permissions: Permissions) -> bool:
    lists = Authorization(admins=(), readers=(owner,), writers=(owner,))
    return permissions.allows(Operation.WRITE, Resource(ResourceType.EVENT, "", lists), subject)


def _finding(selector: OwnerSelector) -> Callable[[Event], Attribute | None]:
    match selector.type:
        case OwnerSelectorType.STATIC:
            owner = _owner(selector.name, selector.value)
            return lambda _: owner
        case OwnerSelectorType.PATH:
            path = segments(selector.value or "")
            return lambda event: _owner(selector.name, _value_or_none(event, path))
        case OwnerSelectorType.METADATA:
            return _refuse


def _refuse(_: Event) -> Attribute | None:
    """JSON events have no such metadata, and one without an owner would be open to everybody."""
    raise Rejected(Step.VALIDATING, 0, "event_owner_selector of type 'metadata' is not supported for JSON events")


def _owner(name: str, value: Any) -> Attribute | None:
    return None if value is None else Attribute(name, text_of(value))


def _value_or_none(event: Event, path: tuple[str, ...]) -> Any:
    try:
        return value_at(event, path)
    except NoSuchField:
        return None
