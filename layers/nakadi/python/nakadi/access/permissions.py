"""Permissions: what the lists of a resource, the administrators and the blacklist say of a subject."""

from __future__ import annotations

from collections.abc import Iterable

from nakadi.administration.admins import Admins
from nakadi.administration.blacklist import Blacklist
from nakadi.model.administration import AdminPermission
from nakadi.model.authorization import Attribute, Operation, Resource, Subject
from nakadi.model.outcomes import NotPermitted

BLOCKED = "Application or event type is blocked"

# An administrator may see and change every resource; reading and writing events takes more than being one.
ADMIN_PERMISSION_FOR = {Operation.VIEW: AdminPermission.ADMIN, Operation.ADMIN: AdminPermission.WRITE}


class Permissions:
    def __init__(self, admins: Admins, blacklist: Blacklist, all_data_access: tuple[Attribute, ...]) -> None:
        self._admins = admins
        self._blacklist = blacklist
        self._all_data_access = all_data_access

    def allows(self, operation: Operation, resource: Resource, subject: Subject) -> bool:
        """Whether the subject may; a resource without lists is open to everyone."""
        if subject.trusted or resource.authorization is None:
            return True
        return (
            subject.has_one_of(resource.authorization.granting(operation))
            or self._as_administrator(operation, subject)
            or (operation is Operation.READ and subject.has_one_of(self._all_data_access))
        )

    def require(self, operation: Operation, resource: Resource, subject: Subject) -> None:
        if not self.allows(operation, resource, subject):
            raise denied(operation, resource)

    def require_administrator(self, operation: Operation, resource: Resource, subject: Subject) -> None:
        """For what the resource's own admins may not do either."""
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

    def _as_administrator(self, operation: Operation, subject: Subject) -> bool:
        permission = ADMIN_PERMISSION_FOR.get(operation)
        return permission is not None and self._admins.include(subject, permission)


def denied(operation: Operation, resource: Resource, reason: str = "") -> NotPermitted:
    because = f"; Reason : {reason}" if reason else ""
    return NotPermitted(f"Access on {operation} {resource.type}:{resource.name} denied{because}")
