"""Permissions, and the decisions of administrators at runtime: features, administrators, and the blacklist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import asdict

from nakadi.common.caching import Cache
from nakadi.model.authorization import (
    Attribute,
    Authorization,
    AuthorizationDraft,
    BlockedKind,
    Feature,
    Operation,
    Resource,
    Subject,
)
from nakadi.model.outcomes import MAX_BLACKLIST_NAMES_PER_KIND, Invalid, NotPermitted, TryLater
from nakadi.ports.registry import ABSENT_REVISION, ChangedMeanwhile, PutDocument, Registry

BLOCKED_MESSAGE = "Application or event type is blocked"

# An administrator may see and change every resource, but may not read or write its events by this alone.
ADMIN_PERMISSION_BY_OPERATION = {Operation.VIEW: Operation.ADMIN, Operation.ADMIN: Operation.WRITE}


class Permissions:
    """Decides what a subject may do, by a resource's lists, the administrators, and the blacklist."""

    def __init__(self, admins: Admins, blacklist: Blacklist, all_data_access: tuple[Attribute, ...]) -> None:
        self._admins = admins
        self._blacklist = blacklist
        # Asked with every batch.
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
        """Raise unless the subject administers the broker. The admins of the resource alone are not enough."""
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


# Authorization sections -----------------------------------------------------------------------------------------------


def authorization_body(draft: AuthorizationDraft | None) -> dict[str, Any] | None:
    """A section as its description has it."""
    if draft is None:
        return None
    return {name: None if listed is None else [asdict(each) for each in listed] for name, listed in draft.named_lists()}


def check_no_duplicates_in_lists(authorization: Authorization) -> None:
    problems = [
        f"authorization property '{operation}' contains duplicated attribute(s): {', '.join(map(str, duplicates))}"
        for operation in (Operation.ADMIN, Operation.READ, Operation.WRITE)
        if (duplicates := _duplicates(authorization.attributes_granting(operation)))
    ]
    if problems:
        raise Invalid("; ".join(problems))


def _duplicates(attributes: tuple[Attribute, ...]) -> list[Attribute]:
    return [attribute for attribute, count in Counter(attributes).items() if count > 1]


def check_authorization_not_removed(old: Authorization | None, new: object | None) -> None:
    """Refuse a request that leaves the lists out: by accident it would open the resource to everyone."""
    if old is not None and new is None:
        raise Invalid("Changing authorization object to `null` is not possible due to existing one")


# Features, administrators, and the blacklist --------------------------------------------------------------------------


READ_ONLY_MESSAGE = "Database is currently in read-only mode"


# Documents ------------------------------------------------------------------------------------------------------------


SETTINGS_KIND = "settings"
SettingsBody = Mapping[str, Any]

# Two administrators rarely write at the same time, and never ten times in a row by chance.
MAX_SETTINGS_WRITE_ATTEMPTS = 10


class SettingsDocument:
    """One JSON object of settings. `read` may return what the cache holds; `change` begins with what is stored."""

    def __init__(self, registry: Registry, key: str, cache: Cache[str, SettingsBody]) -> None:
        self._registry = registry
        self._key = key
        self._cache = cache
        self.read: Callable[[], SettingsBody] = partial(cache.get, key, lambda _: self._stored_body()[0])

    def change(self, new_body: Callable[[SettingsBody], SettingsBody]) -> None:
        """Replace the stored body with `new_body(body)`, unless they are equal."""
        for _ in range(MAX_SETTINGS_WRITE_ATTEMPTS):
            body, revision = self._stored_body()
            changed = new_body(body)
            if changed == body:
                return
            try:
                self._registry.write(PutDocument(SETTINGS_KIND, self._key, changed, expected_revision=revision))
            except ChangedMeanwhile:
                continue
            finally:
                self._cache.invalidate(self._key)
            return
        raise TryLater("The settings are being changed by others, please repeat request")

    def _stored_body(self) -> tuple[SettingsBody, int]:
        document = self._registry.get(SETTINGS_KIND, self._key)
        return (document.body, document.revision) if document else ({}, ABSENT_REVISION)


# Features -------------------------------------------------------------------------------------------------------------


class Features:
    def __init__(self, document: SettingsDocument) -> None:
        self._document = document

    def is_on(self, feature: Feature) -> bool:
        return bool(self._document.read().get(feature, False))

    def all(self) -> Mapping[Feature, bool]:
        return {feature: self.is_on(feature) for feature in Feature}

    def switch(self, feature: Feature, *, on: bool) -> None:
        self._document.change(lambda body: {**body, feature.value: on})

    def require_writes_allowed(self) -> None:
        if self.is_on(Feature.DISABLE_DB_WRITE_OPERATIONS):
            raise TryLater(READ_ONLY_MESSAGE)


# Administrators -------------------------------------------------------------------------------------------------------


class Admins:
    """The lists of administrators. The default administrators of the deployment are in each list, and stay there."""

    def __init__(self, document: SettingsDocument, features: Features, default: tuple[Attribute, ...]) -> None:
        self._document = document
        self._features = features
        self._default = default

    def authorization(self) -> Authorization:
        body = self._document.read()
        return Authorization(
            admins=self._with_default(body, "admins"),
            readers=self._with_default(body, "readers"),
            writers=self._with_default(body, "writers"),
        )

    def replace(self, lists: Authorization) -> None:
        self._features.require_writes_allowed()
        body = {
            "admins": self._without_default(lists.admins),
            "readers": self._without_default(lists.readers),
            "writers": self._without_default(lists.writers),
        }
        self._document.change(lambda _: body)

    def contains(self, subject: Subject, permission: Operation) -> bool:
        """Whether the subject is an administrator with this permission; while authentication is off everyone is."""
        return subject.trusted or subject.has_one_of(self.authorization().attributes_granting(permission))

    def require(
        self,
        subject: Subject,
        permission: Operation,
        refusal: str = "Admin privileges are required to perform this operation",
    ) -> None:
        if not self.contains(subject, permission):
            raise NotPermitted(refusal)

    def _with_default(self, body: SettingsBody, name: str) -> tuple[Attribute, ...]:
        stored = tuple(Attribute(*pair) for pair in body.get(name, ()))
        return tuple(dict.fromkeys(self._default + stored))

    def _without_default(self, attributes: tuple[Attribute, ...]) -> list[list[str]]:
        """The attributes to store: each once, and without the default administrators."""
        kept = [each for each in dict.fromkeys(attributes) if each not in self._default]
        return [[each.data_type, each.value] for each in kept]


# The blacklist --------------------------------------------------------------------------------------------------------


class Blacklist:
    def __init__(self, document: SettingsDocument) -> None:
        self._document = document

    def entries(self) -> Mapping[BlockedKind, tuple[str, ...]]:
        body = self._document.read()
        return {kind: tuple(body.get(kind, ())) for kind in BlockedKind}

    def block(self, kind: BlockedKind, name: str) -> None:
        """Add a name. Raises `Invalid` when the list is full: every request is compared with all of its names."""
        self._document.change(lambda body: _with_names(body, kind, {*body.get(kind, ()), name}))

    def unblock(self, kind: BlockedKind, name: str) -> None:
        self._document.change(lambda body: _with_names(body, kind, {*body.get(kind, ())} - {name}))

    def require_producer(self, subject: Subject, event_type: str) -> None:
        names = self._document.read()
        if event_type in names.get(BlockedKind.PRODUCER_EVENT_TYPE, ()) or subject.name in names.get(
            BlockedKind.PRODUCER_APP, ()
        ):
            raise NotPermitted(BLOCKED_MESSAGE)

    def blocks_consuming(self, application: str, event_types: Iterable[str]) -> bool:
        names = self._document.read()
        return application in names.get(BlockedKind.CONSUMER_APP, ()) or not set(event_types).isdisjoint(
            names.get(BlockedKind.CONSUMER_EVENT_TYPE, ())
        )


def _with_names(body: SettingsBody, kind: BlockedKind, names: set[str]) -> SettingsBody:
    if len(names) > max(MAX_BLACKLIST_NAMES_PER_KIND, len(body.get(kind, ()))):
        raise Invalid(f"The blacklist has at most {MAX_BLACKLIST_NAMES_PER_KIND} names of one kind")
    return {**body, kind.value: sorted(names)}
