"""The audit log: who changed what, from what to what.

An operation that changes something is wrapped: its resource is looked at before and after, and the difference is
published. The operations themselves know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast
from uuid import uuid4

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nakadi.auth.permissions import Features
from nakadi.event_types.system_event_types import AUDIT_LOG, EVENT_TYPE_LOG, SUBSCRIPTION_LOG
from nakadi.http.application import Handler, Route
from nakadi.http.message import Answer, Request
from nakadi.model.authorization import Feature
from nakadi.model.outcomes import StillRunning
from nakadi.publishing.system_events import BROKER, SystemEvents

Look = Callable[[str], Any]


class AuditedOperation(Struct, frozen=True):
    """What an operation changes: the kind of resource, how a request names it, and how to look at it.

    `made` is the name in an answer to the creation of a resource, if the broker chooses names.
    """

    resource_type: str
    id_of: Callable[[Request], str]
    look: Look
    made: Callable[[Answer], str] | None = None


class Audit(Struct, frozen=True):
    features: Features
    events: SystemEvents
    audited: Mapping[str, AuditedOperation]
    hashed: Callable[[str], str]
    """What stands for the name of a subject where the name itself must not be read."""

    def wrapped(self, route: Route) -> Route:
        """The route, telling the audit log of every change that it makes."""
        audited = self.audited.get(route.operation)
        return (
            route
            if audited is None
            else replace(route, handler=self._audited_handler(cast(Handler, route.handler), audited))
        )

    def _audited_handler(self, handler: Handler, audited: AuditedOperation) -> Handler:
        def handle(request: Request) -> Answer:
            if not self._is_on() and not _may_switch_on(request):
                return handler(request)
            name = audited.id_of(request)
            before = audited.look(name)
            try:
                answer = handler(request)
            except StillRunning:
                # The subject is known now, and the request may never be repeated.
                self._publish_change(audited.resource_type, name, before, audited.look(name), request)
                raise
            if answer.status < 300:
                name = audited.made(answer) if audited.made else name
                self._publish_change(audited.resource_type, name, before, audited.look(name), request)
            return answer

        return handle

    def publish_own_change(self, resource_type: str, name: str, before: Any, after: Any) -> None:
        """Publish a change that the broker made by itself to the audit log."""
        if self.features.is_on(Feature.AUDIT_LOG_COLLECTION):
            user = {"user": BROKER.name, "user_hash": self.hashed(BROKER.name)}
            self.events.publish(AUDIT_LOG, audit_event(resource_type, name, before, after, user), str(uuid4()))

    def _is_on(self) -> bool:
        return self.features.is_on(Feature.AUDIT_LOG_COLLECTION) or self.features.is_on(Feature.KPI_COLLECTION)

    def _publish_change(self, resource_type: str, name: str, before: Any, after: Any, request: Request) -> None:
        if before == after:
            return
        if self.features.is_on(Feature.AUDIT_LOG_COLLECTION):
            user = request.subject.name
            event = audit_event(resource_type, name, before, after, {"user": user, "user_hash": self.hashed(user)})
            self.events.publish(AUDIT_LOG, event, request.flow_id)
        if self.features.is_on(Feature.KPI_COLLECTION):
            self._count(resource_type, name, before, after, request.flow_id)

    def _count(self, resource_type: str, name: str, before: Any, after: Any, flow_id: str) -> None:
        if resource_type == "event_type":
            self.events.publish(EVENT_TYPE_LOG, event_type_event(name, before, after), flow_id)
        elif resource_type == "subscription" and None in (before, after):
            self.events.publish(SUBSCRIPTION_LOG, subscription_event(name, before), flow_id)


def audit_event(resource_type: str, name: str, before: Any, after: Any, user: Mapping[str, str]) -> dict[str, Any]:
    """What happened to a resource; None says that it was not there, or is not there any more."""
    operation = "C" if before is None else "D" if after is None else "U"
    data: dict[str, Any] = {"resource_type": resource_type, "resource_id": name, **user}
    for which, value in (("previous", before), ("new", after)):
        if value is not None:
            data |= {f"{which}_object": value, f"{which}_text": orjson.dumps(value).decode()}
    return {"data_type": resource_type, "data_op": operation, "data": data}


def event_type_event(name: str, before: Any, after: Any) -> dict[str, Any]:
    shown = after or before
    return {
        "event_type": name,
        "status": "created" if before is None else "deleted" if after is None else "updated",
        "category": shown["category"].upper(),
        "authz": "disabled" if shown["authorization"] is None else "enabled",
        "compatibility_mode": shown["compatibility_mode"].upper(),
    }


def subscription_event(name: str, before: Any) -> dict[str, Any]:
    """Subscriptions come and go; changes are not counted."""
    return {"subscription_id": name, "status": "created" if before is None else "deleted"}


def by_paths(*parameters: str) -> Callable[[Request], str]:
    return lambda request: "/".join(request.path_parameters[each] for each in parameters)


def by_path(name: str) -> Callable[[Request], str]:
    """A resource that is named in the path."""
    return lambda request: request.path_parameters[name]


def by_body(name: str) -> Callable[[Request], str]:
    """A resource that is named by a member of the body; a body that cannot be read names nothing."""

    def named(request: Request) -> str:
        try:
            return str(orjson.loads(request.body)[name])
        except (ValueError, TypeError, KeyError, IndexError):
            return ""

    return named


def by_path_if_listed(name: str) -> Callable[[Request], str]:
    """A resource that is named in the path, if the body lists anything to do."""

    def named(request: Request) -> str:
        try:
            return request.path_parameters[name] if orjson.loads(request.body)["items"] else ""
        except (ValueError, TypeError, KeyError):
            return ""

    return named


def by_location(answer: Answer) -> str:
    """The name of what was created, at the end of the path to it."""
    return answer.headers["location"].rpartition("/")[2] if answer.status == 201 else ""


def always(name: str) -> Callable[[Request], str]:
    """The only resource of its kind."""
    return lambda _: name


def _may_switch_on(request: Request) -> bool:
    """Whether this request may be the one that switches the log on, which then records that."""
    return request.method == "POST" and request.path.rstrip("/") == "/settings/features"
