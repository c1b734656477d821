"""The parts that look after event types, wired.

Parts are imported when they are first asked for, so that a process loads only what it does.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nakadi.common.turns import Turns
    from nakadi.event_types.adoption import Adoption
    from nakadi.event_types.creation import EventTypeCreation
    from nakadi.event_types.deletion import DeletedEventTypes, EventTypeDeletion, LazyDependents
    from nakadi.event_types.rules import EventTypeLimits
    from nakadi.event_types.schema_versions import SchemaVersions
    from nakadi.event_types.system_event_types import SystemEventTypes
    from nakadi.event_types.timelines import Timelines
    from nakadi.event_types.update import EventTypeUpdate, Repartitioning
    from nakadi.model.event_type import EventTypeDraft


from abc import ABC, abstractmethod

from nakadi.app.core import Core, attributes_of


class EventTypeServices(Core, ABC):
    """Everything that registers, changes and removes event types, each part made once."""

    @property
    @abstractmethod
    def dependents(self) -> LazyDependents:
        """What depends on event types: subscriptions."""

    @cached_property
    def limits(self) -> EventTypeLimits:
        from nakadi.event_types.rules import EventTypeLimits

        return EventTypeLimits(
            default_partitions=self.settings.default_partitions,
            max_partitions=self.settings.max_partitions,
            retention_min=self.settings.retention_min_ms,
            retention_default=self.settings.retention_default_ms,
            retention_max=self.settings.retention_max_ms,
        )

    @cached_property
    def schema_turns(self) -> Turns:
        from nakadi.common.turns import Turns

        return self.followed("schemas", Turns(patience=20.0))

    @cached_property
    def creation(self) -> EventTypeCreation:
        from nakadi.event_types.creation import EventTypeCreation

        return EventTypeCreation(
            event_types=self.event_types,
            storages=self.storages,
            features=self.features,
            logs=self.logs,
            clock=self.clock,
            limits=self.limits,
            turns=self.schema_turns,
            permissions=self.permissions,
            reserved=self._reserved_names,
        )

    @property
    def _reserved_names(self) -> frozenset[str]:
        from nakadi.event_types.system_event_types import AUDIT_LOG, KPI_EVENT_TYPES

        settings = self.settings
        return frozenset({AUDIT_LOG, *KPI_EVENT_TYPES, settings.dead_letter_queue, settings.dead_letter_redrive})

    @cached_property
    def system_event_types(self) -> SystemEventTypes:
        from nakadi.event_types.system_event_types import SystemEventTypeOwner, SystemEventTypes, definitions

        settings = self.settings
        closed = settings.auth != "off"

        def owner_of(owner: str, members: tuple[tuple[str, str], ...]) -> SystemEventTypeOwner:
            """The members in the settings; else administrators, or all subjects without authentication."""
            return SystemEventTypeOwner(
                owner=owner, members=attributes_of(members or (settings.default_admins if closed else (("*", "*"),)))
            )

        return SystemEventTypes(
            definitions=definitions(
                dead_letter_queue=settings.dead_letter_queue,
                dead_letters=owner_of(settings.dead_letter_owning_application, settings.dead_letter_authorization),
                audit=owner_of(settings.audit_owning_application, settings.audit_authorization),
                figures=owner_of(settings.kpi_owning_application, settings.kpi_authorization),
            ),
            event_types=self.event_types,
            features=self.features,
            register=self._register_own,
            closed=closed,
        )

    def _register_own(self, draft: EventTypeDraft) -> None:
        """What creation needs is loaded when an event type is found missing, which is once in a deployment's life."""
        self.creation.create_system_event_type(draft)

    @cached_property
    def update(self) -> EventTypeUpdate:
        from nakadi.event_types.update import EventTypeUpdate

        return EventTypeUpdate(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            clock=self.clock,
            limits=self.limits,
            turns=self.schema_turns,
        )

    @cached_property
    def leftovers(self) -> DeletedEventTypes:
        from nakadi.event_types.deletion import DeletedEventTypes

        return DeletedEventTypes(self.registry, self.logs)

    @cached_property
    def deletion(self) -> EventTypeDeletion:
        from nakadi.event_types.deletion import EventTypeDeletion

        return EventTypeDeletion(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            leftovers=self.leftovers,
            dependents=self.dependents,
        )

    @cached_property
    def repartitioning(self) -> Repartitioning:
        from nakadi.event_types.update import Repartitioning

        return Repartitioning(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            logs=self.logs,
            dependents=self.dependents,
            max_partitions=self.settings.max_partitions,
            fixed_event_type=self.settings.dead_letter_redrive,
        )

    @cached_property
    def timelines(self) -> Timelines:
        from nakadi.event_types.timelines import Timelines

        return Timelines(
            event_types=self.event_types,
            storages=self.storages,
            permissions=self.permissions,
            features=self.features,
            logs=self.logs,
            clock=self.clock,
        )

    @cached_property
    def adoption(self) -> Adoption:
        from nakadi.event_types.adoption import Adoption

        return Adoption(
            timelines=self.timelines,
            event_types=self.event_types,
            logs=self.logs,
            leftovers=self.leftovers,
            dependents=self.dependents,
            clock=self.clock,
        )

    @cached_property
    def schema_versions(self) -> SchemaVersions:
        from nakadi.event_types.schema_versions import SchemaVersions

        return SchemaVersions(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            clock=self.clock,
            turns=self.schema_turns,
        )
