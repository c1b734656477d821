"""The audit log: the author of each change, and the resource before and after.

This module wraps each operation that changes something, reads the resource before and after, and publishes the
difference. The operations themselves do not know about the audit log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast
from uuid import uuid4

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nakadi.auth.admins import Admins
from nakadi.auth.blacklist import Blacklist
from nakadi.auth.features import Features
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.storages import Storages
from nakadi.event_types.system_event_type_definitions import AUDIT_LOG, EVENT_TYPE_LOG, SUBSCRIPTION_LOG
from nakadi.http import views
from nakadi.http.message import Answer, Request
from nakadi.http.router import Handler, Route
from nakadi.http.subscription_views import changed_reads_view, subscription_view
from nakadi.model.authorization import Feature
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import StillRunning
from nakadi.model.subscription import Redrive, SetOffsets, Subscription
from nakadi.ports.coordination import Coordination
from nakadi.publishing.system_events import BROKER_SUBJECT, SystemEventPublisher
from nakadi.subscriptions.api.parked_events import ParkedEvents, event_key
from nakadi.subscriptions.api.reads import SubscribedReads
from nakadi.subscriptions.api.repository import Subscriptions


def timelines_view(event_type: EventType) -> list[views.View]:
    return [views.timeline_view(each, event_type.name) for each in event_type.timelines]


class AuditedResources(Struct, frozen=True, kw_only=True):
    """Reads resources as clients see them. Its methods return None for a resource that does not exist."""

    event_types: EventTypes
    storages: Storages
    features: Features
    admins: Admins
    blacklist: Blacklist
    get_subscriptions: Callable[[], Subscriptions]
    get_parked_events: Callable[[], ParkedEvents]
    get_coordination: Callable[[], Coordination]
    read_sink: ReadState

    def audited_operations(self) -> Mapping[str, AuditedOperation]:
        """The changes of each operation, by operation."""
        event_type = AuditedOperation("event_type", resource_name_from_path("name"), self._event_type_state)
        storage = AuditedOperation("storage", resource_name_from_path("id"), self._storage_state)
        blacklist_entry = AuditedOperation("blacklist_entry", resource_name_from_path("name"), self._blacklist_state)
        subscription = AuditedOperation(
            "subscription", resource_name_from_path("subscription_id"), self._subscription_state
        )
        return {
            "create_event_type": replace(event_type, resource_id_of=resource_name_from_body("name")),
            "update_event_type": replace(event_type, read_others=self._subscriptions_with_reads),
            "delete_event_type": event_type,
            "add_schema": replace(event_type, read_others=self._subscriptions_with_reads),
            "set_partition_count": event_type,
            "create_timeline": AuditedOperation("timeline", resource_name_from_path("name"), self._timelines_state),
            "create_subscription": replace(
                subscription, resource_id_of=fixed_resource_name(""), created_id_of=resource_name_from_location
            ),
            "update_subscription": subscription,
            "delete_subscription": subscription,
            **dict.fromkeys(
                ("put_sink", "remove_sink", "pause_sink", "resume_sink", "rotate_sink_secret"),
                AuditedOperation("sink", resource_name_from_path("subscription_id"), self.read_sink),
            ),
            "reset_subscription_cursors": AuditedOperation(
                "cursors", resource_name_from_path_if_body_lists("subscription_id"), self._cursors_state
            ),
            "redrive_parked_event": AuditedOperation(
                "cursors", resource_name_from_path("subscription_id"), self._cursors_state
            ),
            "redrive_parked_events": AuditedOperation(
                "cursors", resource_name_from_path("subscription_id"), self._cursors_state
            ),
            "skip_parked_event": AuditedOperation(
                "parked_event",
                resource_name_from_path_parameters("subscription_id", "parked_event_id"),
                self._parked_event_state,
            ),
            "create_storage": replace(storage, resource_id_of=resource_name_from_body("id")),
            "delete_storage": storage,
            "set_default_storage": storage,
            "set_feature": AuditedOperation("feature", resource_name_from_body("feature"), self._feature_state),
            "set_admins": AuditedOperation("admins", fixed_resource_name("admins"), self._admins_state),
            "block": blacklist_entry,
            "unblock": blacklist_entry,
        }

    def _event_type_state(self, name: str) -> views.View | None:
        event_type = self.event_types.find(name)
        return None if event_type is None else views.event_type_view(event_type)

    def _storage_state(self, storage_id: str) -> views.View | None:
        storage = self.storages.find(storage_id)
        return None if storage is None else views.storage_view(storage)

    def _timelines_state(self, name: str) -> list[views.View] | None:
        event_type = self.event_types.find(name)
        return None if event_type is None else timelines_view(event_type)

    def _subscription_state(self, subscription_id: str) -> views.View | None:
        subscription = self.get_subscriptions().find(subscription_id)
        return None if subscription is None else self._subscription_view(subscription)

    def _subscription_view(self, subscription: Subscription) -> views.View:
        changed = SubscribedReads(self.event_types).changes_since_declared(subscription)
        return subscription_view(subscription) | changed_reads_view(changed)

    def _subscriptions_with_reads(self, event_type: str) -> Mapping[str, views.View]:
        """The subscriptions that a change of the event type's schema may affect, by their ids."""
        found = self.get_subscriptions().of_event_type(event_type)
        return {each.id: self._subscription_view(each) for each in found if each.reads}

    def _cursors_state(self, subscription_id: str) -> list[views.View]:
        """The subscription's cursors; during a reset, those that it will have once the streams that the reset waits for
        have ended.
        """
        if not subscription_id:
            return []
        coordination = self.get_coordination()
        # Read the reset before the offsets: a reset that is no longer pending has already written its result to the
        # offsets.
        reset = coordination.assignment(subscription_id).reset
        cursors = {
            partition: each.position for partition, each in coordination.committed_offsets(subscription_id).items()
        }
        if reset is not None and isinstance(reset.task, SetOffsets):
            cursors |= dict(reset.task.positions)
        shown: list[views.View] = [
            {"event_type": partition.event_type, "partition": partition.partition, "offset": str(cursors[partition])}
            for partition in sorted(cursors)
        ]
        if reset is not None and isinstance(reset.task, Redrive):
            of = reset.task.partition_and_key
            shown.append({"redrive": "all" if of is None else f"{of[0].event_type}:{of[0].partition}"})
        return shown

    def _parked_event_state(self, name: str) -> views.View | None:
        subscription_id, _, parked_id = name.partition("/")
        found = self.get_parked_events().find(subscription_id, parked_id)
        return None if found is None else {"subscription_id": subscription_id, "id": parked_id, "key": event_key(found)}

    def _feature_state(self, name: str) -> bool:
        features = self.features
        return features.all().get(Feature(name.lower()), False) if name.lower() in set(Feature) else False

    def _admins_state(self, _: str) -> views.View:
        return views.admins_view(self.admins.authorization())

    def _blacklist_state(self, name: str) -> list[str] | None:
        return [kind for kind, names in self.blacklist.entries().items() if name in names] or None


ReadState = Callable[[str], Any]


class AuditedOperation(Struct, frozen=True):
    """A change: the kind of resource, how to find its name in a request, and how to read it.

    `created_id_of` gets the name from the answer to a creation, if the broker chooses names. `read_others` reads the
    subscriptions that the change may affect, by their ids.
    """

    resource_type: str
    resource_id_of: Callable[[Request], str]
    read_state: ReadState
    created_id_of: Callable[[Answer], str] | None = None
    read_others: Callable[[str], Mapping[str, Any]] | None = None


class Audit(Struct, frozen=True):
    features: Features
    events: SystemEventPublisher
    audited_operations: Mapping[str, AuditedOperation]
    hash_text: Callable[[str], str]
    """Makes the text that stands for a subject where the subject's name must not appear."""

    def wrap_route(self, route: Route) -> Route:
        """Return the route with a handler that also publishes each of its changes to the audit log, if the operation is
        audited.
        """
        audited = self.audited_operations.get(route.operation)
        return (
            route
            if audited is None
            else replace(route, handler=self._audited_handler(cast(Handler, route.handler), audited))
        )

    def _audited_handler(self, handler: Handler, audited: AuditedOperation) -> Handler:
        def handle(request: Request) -> Answer:
            if not self._is_audit_or_kpi_on() and not _may_switch_on_audit_log(request):
                return handler(request)
            name = audited.resource_id_of(request)
            before = audited.read_state(name)
            others = {} if audited.read_others is None else audited.read_others(name)
            try:
                answer = handler(request)
            except StillRunning:
                # Publish what has changed so far: no later step knows the subject, and the client may never repeat the
                # request.
                self._publish_change(audited.resource_type, name, before, audited.read_state(name), request)
                raise
            if answer.status < 300:
                name = audited.created_id_of(answer) if audited.created_id_of else name
                self._publish_change(audited.resource_type, name, before, audited.read_state(name), request)
                for subscription_id, state in (audited.read_others(name) if audited.read_others else {}).items():
                    if subscription_id in others:
                        self._publish_change("subscription", subscription_id, others[subscription_id], state, request)
            return answer

        return handle

    def publish_own_change(self, resource_type: str, name: str, before: Any, after: Any) -> None:
        if self.features.is_on(Feature.AUDIT_LOG_COLLECTION):
            user = {"user": BROKER_SUBJECT.name, "user_hash": self.hash_text(BROKER_SUBJECT.name)}
            self.events.publish(AUDIT_LOG, audit_event(resource_type, name, before, after, user), str(uuid4()))

    def _is_audit_or_kpi_on(self) -> bool:
        return self.features.is_on(Feature.AUDIT_LOG_COLLECTION) or self.features.is_on(Feature.KPI_COLLECTION)

    def _publish_change(self, resource_type: str, name: str, before: Any, after: Any, request: Request) -> None:
        if before == after:
            return
        if self.features.is_on(Feature.AUDIT_LOG_COLLECTION):
            user = request.subject.name
            event = audit_event(resource_type, name, before, after, {"user": user, "user_hash": self.hash_text(user)})
            self.events.publish(AUDIT_LOG, event, request.flow_id)
        if self.features.is_on(Feature.KPI_COLLECTION):
            self._publish_kpi_event(resource_type, name, before, after, request.flow_id)

    def _publish_kpi_event(self, resource_type: str, name: str, before: Any, after: Any, flow_id: str) -> None:
        if resource_type == "event_type":
            self.events.publish(EVENT_TYPE_LOG, event_type_change_event(name, before, after), flow_id)
        elif resource_type == "subscription" and None in (before, after):
            self.events.publish(SUBSCRIPTION_LOG, subscription_change_event(name, before), flow_id)


def audit_event(resource_type: str, name: str, before: Any, after: Any, user: Mapping[str, str]) -> dict[str, Any]:
    """The event for a change of a resource. `before` is None for a new resource, and `after` for a deleted one."""
    operation = "C" if before is None else "D" if after is None else "U"
    data: dict[str, Any] = {"resource_type": resource_type, "resource_id": name, **user}
    for which, value in (("previous", before), ("new", after)):
        if value is not None:
            data |= {f"{which}_object": value, f"{which}_text": orjson.dumps(value).decode()}
    return {"data_type": resource_type, "data_op": operation, "data": data}


def event_type_change_event(name: str, before: Any, after: Any) -> dict[str, Any]:
    shown = after or before
    return {
        "event_type": name,
        "status": "created" if before is None else "deleted" if after is None else "updated",
        "category": shown["category"].upper(),
        "authz": "disabled" if shown["authorization"] is None else "enabled",
        "compatibility_mode": shown["compatibility_mode"].upper(),
    }


def subscription_change_event(name: str, before: Any) -> dict[str, Any]:
    """The event for a created or deleted subscription; other changes have none."""
    return {"subscription_id": name, "status": "created" if before is None else "deleted"}


def resource_name_from_path_parameters(*parameters: str) -> Callable[[Request], str]:
    return lambda request: "/".join(request.path_parameters[each] for each in parameters)


def resource_name_from_path(name: str) -> Callable[[Request], str]:
    return lambda request: request.path_parameters[name]


def resource_name_from_body(name: str) -> Callable[[Request], str]:
    """A function that takes the resource's name from this member of the body; its result is empty if the body is
    unreadable.
    """

    def name_from_body(request: Request) -> str:
        try:
            return str(orjson.loads(request.body)[name])
        except (ValueError, TypeError, KeyError, IndexError):
            return ""

    return name_from_body


def resource_name_from_path_if_body_lists(name: str) -> Callable[[Request], str]:
    """A function that takes the resource's name from the path; its result is empty if the body's `items` are missing or
    empty.
    """

    def name_from_body(request: Request) -> str:
        try:
            return request.path_parameters[name] if orjson.loads(request.body)["items"] else ""
        except (ValueError, TypeError, KeyError):
            return ""

    return name_from_body


def resource_name_from_location(answer: Answer) -> str:
    """The name of the created resource, from the end of its path; empty if the answer is not 201."""
    return answer.headers["location"].rpartition("/")[2] if answer.status == 201 else ""


def fixed_resource_name(name: str) -> Callable[[Request], str]:
    return lambda _: name


def _may_switch_on_audit_log(request: Request) -> bool:
    """Whether this request may switch on the audit log. If it does, the audit log also records this change."""
    return request.method == "POST" and request.path.rstrip("/") == "/settings/features"
