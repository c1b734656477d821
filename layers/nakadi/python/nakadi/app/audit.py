"""What the audit log looks at: operation by operation, the resource that it changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nakadi.http import views
from nakadi.http.audit import (
    Audit,
    AuditedOperation,
    always,
    by_body,
    by_location,
    by_path,
    by_path_if_listed,
    by_paths,
)
from nakadi.http.views import subscription_view
from nakadi.model.authorization import Feature
from nakadi.model.event_type import EventType
from nakadi.model.subscription import Redrive, SetOffsets
from nakadi.publishing.system_events import SystemEvents, name_hasher
from nakadi.subscriptions.api.parked_events import event_key

if TYPE_CHECKING:
    from nakadi.app.broker import BrokerServices


def audit_of(broker: BrokerServices) -> Audit:
    events = SystemEvents(own=broker.system_event_types, publisher=broker.publisher, clock=broker.clock)
    return Audit(broker.features, events, AuditedResources(broker).audited(), name_hasher(broker.settings.hash_salt))


def timelines_view(event_type: EventType) -> list[views.View]:
    return [views.timeline_view(each, event_type.name) for each in event_type.timelines]


class AuditedResources(Struct, frozen=True):
    """How resources look, None for one that is not there."""

    broker: BrokerServices

    def audited(self) -> Mapping[str, AuditedOperation]:
        """Operation -> what it changes."""
        event_type = AuditedOperation("event_type", by_path("name"), self._event_type)
        storage = AuditedOperation("storage", by_path("id"), self._storage)
        blacklist_entry = AuditedOperation("blacklist_entry", by_path("name"), self._blacklist_entry)
        subscription = AuditedOperation("subscription", by_path("subscription_id"), self._subscription)
        return {
            "create_event_type": replace(event_type, id_of=by_body("name")),
            "update_event_type": event_type,
            "delete_event_type": event_type,
            "add_schema": event_type,
            "set_partition_count": event_type,
            "create_timeline": AuditedOperation("timeline", by_path("name"), self._timelines),
            "create_subscription": replace(subscription, id_of=always(""), made=by_location),
            "update_subscription": subscription,
            "delete_subscription": subscription,
            "reset_subscription_cursors": AuditedOperation(
                "cursors", by_path_if_listed("subscription_id"), self._cursors
            ),
            "redrive_parked_event": AuditedOperation("cursors", by_path("subscription_id"), self._cursors),
            "redrive_parked_events": AuditedOperation("cursors", by_path("subscription_id"), self._cursors),
            "skip_parked_event": AuditedOperation(
                "parked_event", by_paths("subscription_id", "parked_event_id"), self._parked_event
            ),
            "create_storage": replace(storage, id_of=by_body("id")),
            "delete_storage": storage,
            "set_default_storage": storage,
            "set_feature": AuditedOperation("feature", by_body("feature"), self._feature),
            "set_admins": AuditedOperation("admins", always("admins"), self._admins),
            "block": blacklist_entry,
            "unblock": blacklist_entry,
        }

    def _event_type(self, name: str) -> views.View | None:
        event_type = self.broker.event_types.find(name)
        return None if event_type is None else views.event_type_view(event_type)

    def _storage(self, storage_id: str) -> views.View | None:
        storage = self.broker.storages.find(storage_id)
        return None if storage is None else views.storage_view(storage)

    def _timelines(self, name: str) -> list[views.View] | None:
        event_type = self.broker.event_types.find(name)
        return None if event_type is None else timelines_view(event_type)

    def _subscription(self, subscription_id: str) -> views.View | None:
        subscription = self.broker.subscription_services.subscriptions.find(subscription_id)
        return None if subscription is None else subscription_view(subscription)

    def _cursors(self, subscription_id: str) -> list[views.View]:
        """As they are, or as they will be once the streams have ended that a reset is waiting for."""
        if not subscription_id:
            return []
        coordination = self.broker.coordination
        # In this order: what is not awaited any more is in the offsets.
        reset = coordination.assignment(subscription_id).reset
        cursors = {place: each.position for place, each in coordination.offsets(subscription_id).items()}
        if reset is not None and isinstance(reset.task, SetOffsets):
            cursors |= dict(reset.task.positions)
        shown: list[views.View] = [
            {"event_type": place.event_type, "partition": place.partition, "offset": str(cursors[place])}
            for place in sorted(cursors)
        ]
        if reset is not None and isinstance(reset.task, Redrive):
            of = reset.task.of
            shown.append({"redrive": "all" if of is None else f"{of[0].event_type}:{of[0].partition}"})
        return shown

    def _parked_event(self, name: str) -> views.View | None:
        subscription_id, _, parked_id = name.partition("/")
        found = self.broker.subscription_services.parked_events.find(subscription_id, parked_id)
        return None if found is None else {"subscription_id": subscription_id, "id": parked_id, "key": event_key(found)}

    def _feature(self, name: str) -> bool:
        features = self.broker.features
        return features.all().get(Feature(name.lower()), False) if name.lower() in set(Feature) else False

    def _admins(self, _: str) -> views.View:
        return views.admins_view(self.broker.admins.lists())

    def _blacklist_entry(self, name: str) -> list[str] | None:
        return [kind for kind, names in self.broker.blacklist.entries().items() if name in names] or None
