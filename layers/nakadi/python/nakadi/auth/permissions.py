"""Permissions: what a subject may do, and which authorization sections are valid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from msgspec.structs import asdict

from nakadi.auth.administration import Admins, Blacklist
from nakadi.model.administration import AdminPermission
from nakadi.model.authorization import (
    Attribute,
    Authorization,
    AuthorizationDraft,
    Operation,
    Resource,
    Subject,
)
from nakadi.model.outcomes import Invalid, NotPermitted

BLOCKED = "Application or event type is blocked"

# An administrator may see and change every resource, but may not read or write its events by this alone.
ADMIN_PERMISSION_FOR = {Operation.VIEW: AdminPermission.ADMIN, Operation.ADMIN: AdminPermission.WRITE}


class Permissions:
    """Decides what a subject may do, by a resource's lists, the administrators, and the blacklist."""

    def __init__(self, admins: Admins, blacklist: Blacklist, all_data_access: tuple[Attribute, ...]) -> None:
        self._admins = admins
        self._blacklist = blacklist
        self._all_data_access = all_data_access

    def allows(self, operation: Operation, resource: Resource, subject: Subject) -> bool:
        """Whether the subject may carry out the operation. A resource without lists is open to everyone."""
        if subject.trusted or resource.authorization is None:
            return True
        return (
            subject.has_one_of(resource.authorization.granting(operation))
            or self._is_administrator_for(operation, subject)
            or (operation is Operation.READ and subject.has_one_of(self._all_data_access))
        )

    def require(self, operation: Operation, resource: Resource, subject: Subject) -> None:
        if not self.allows(operation, resource, subject):
            raise denied(operation, resource)

    def require_administrator(self, operation: Operation, resource: Resource, subject: Subject) -> None:
        """Raise unless the subject administers the broker. The admins of the resource alone are not enough."""
        if not self.is_administrator(subject):
            raise denied(operation, resource)

    def is_administrator(self, subject: Subject, permission: AdminPermission = AdminPermission.WRITE) -> bool:
        return self._admins.include(subject, permission)

    def require_producer(self, subject: Subject, event_type: str) -> None:
        if self._blacklist.blocks_producing(subject.name, event_type):
            raise NotPermitted(BLOCKED)

    def require_consumer(self, subject: Subject, event_types: Iterable[str], refusal: str = BLOCKED) -> None:
        if self._blacklist.blocks_consuming(subject.name, event_types):
            raise NotPermitted(refusal)

    def _is_administrator_for(self, operation: Operation, subject: Subject) -> bool:
        permission = ADMIN_PERMISSION_FOR.get(operation)
        return permission is not None and self._admins.include(subject, permission)


def denied(operation: Operation, resource: Resource, reason: str = "") -> NotPermitted:
    because = f"; Reason : {reason}" if reason else ""
    return NotPermitted(f"Access on {operation} {resource.type}:{resource.name} denied{because}")


# Authorization sections -----------------------------------------------------------------------------------------------


def authorization_body(draft: AuthorizationDraft | None) -> dict[str, Any] | None:
    """A section as its description has it."""
    if draft is None:
        return None
    return {name: None if listed is None else [asdict(each) for each in listed] for name, listed in draft.lists()}


def check_no_duplicates(authorization: Authorization) -> None:
    problems = [
        f"authorization property '{operation}' contains duplicated attribute(s): {', '.join(map(str, duplicates))}"
        for operation in (Operation.ADMIN, Operation.READ, Operation.WRITE)
        if (duplicates := _duplicates(authorization.granting(operation)))
    ]
    if problems:
        raise Invalid("; ".join(problems))


def _duplicates(attributes: tuple[Attribute, ...]) -> list[Attribute]:
    return [attribute for attribute, count in Counter(attributes).items() if count > 1]


def check_not_removed(old: Authorization | None, new: object | None) -> None:
    """Refuse a request that leaves the lists out: by accident it would open the resource to everyone."""
    if old is not None and new is None:
        raise Invalid("Changing authorization object to `null` is not possible due to existing one")
