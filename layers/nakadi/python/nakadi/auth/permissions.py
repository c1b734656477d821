"""Decides who may do an action, by a resource's lists, the administrators, and the blacklist."""

from __future__ import annotations

from collections.abc import Iterable

from nakadi.auth.admins import Admins
from nakadi.auth.blacklist import BLOCKED_MESSAGE, Blacklist
from nakadi.model.authorization import (
    Attribute,
    Operation,
    Resource,
    Subject,
)
from nakadi.model.outcomes import NotPermitted

# The permission of an administrator that allows each operation on every resource. Reading and writing events are
# missing: being an administrator does not allow these.
ADMIN_PERMISSION_BY_OPERATION = {Operation.VIEW: Operation.ADMIN, Operation.ADMIN: Operation.WRITE}


class Permissions:
    """Decides what a subject may do, by a resource's lists, the administrators, and the blacklist."""

    def __init__(self, admins: Admins, blacklist: Blacklist, all_data_access: tuple[Attribute, ...]) -> None:
        self._admins = admins
        self._blacklist = blacklist
        # Bound here, because every batch calls it.
        self.require_producer = blacklist.require_producer
        self._all_data_access = all_data_access

    def allows(self, operation: Operation, resource: Resource, subject: Subject) -> bool:
        """Whether the subject may carry out the operation. A resource without lists is open to everyone."""
        if subject.trusted or resource.authorization is None:
            return True
        return (
            subject.has_one_of(resource.authorization.attributes_granting(operation))
            or self._is_administrator_for(operation, subject)
            or (operation is Operation.READ and subject.has_one_of(self._all_data_access))
        )

    def require(self, operation: Operation, resource: Resource, subject: Subject) -> None:
        if not self.allows(operation, resource, subject):
            raise permission_denied_error(operation, resource)

    def require_all_operations(self, operations: Iterable[Operation], resource: Resource, subject: Subject) -> None:
        """Raise for the first of the operations that the subject may not carry out."""
        if not subject.trusted and resource.authorization is not None:
            for operation in operations:
                self.require(operation, resource, subject)

    def require_administrator(self, operation: Operation, resource: Resource, subject: Subject) -> None:
        """Raise unless the subject is an administrator of the broker. Being one of the resource's `admins` is not
        enough."""
        if not self.is_administrator(subject):
            raise permission_denied_error(operation, resource)

    def is_administrator(self, subject: Subject, permission: Operation = Operation.WRITE) -> bool:
        return self._admins.contains(subject, permission)

    def require_consumer(self, subject: Subject, event_types: Iterable[str], refusal: str = BLOCKED_MESSAGE) -> None:
        if self._blacklist.blocks_consuming(subject.name, event_types):
            raise NotPermitted(refusal)

    def _is_administrator_for(self, operation: Operation, subject: Subject) -> bool:
        permission = ADMIN_PERMISSION_BY_OPERATION.get(operation)
        return permission is not None and self._admins.contains(subject, permission)


def permission_denied_error(operation: Operation, resource: Resource, reason: str = "") -> NotPermitted:
    because = f"; Reason : {reason}" if reason else ""
    return NotPermitted(f"Access on {operation} {resource.type}:{resource.name} denied{because}")
