"""Wires the parts that create, change and delete event types, from top to bottom."""

from __future__ import annotations

from msgspec import Struct

from nakadi.app.core import BrokerCore
from nakadi.app.settings import Settings
from nakadi.common.work import LongWorkQueue
from nakadi.event_types.adoption import TopicAdoption
from nakadi.event_types.creation import EventTypeCreation
from nakadi.event_types.deletion import EventTypeDeletion, GetDependents
from nakadi.event_types.readers import SchemaReaders
from nakadi.event_types.repartitioning import Repartitioning
from nakadi.event_types.rules import EventTypeLimits
from nakadi.event_types.schema_versions import SchemaVersions
from nakadi.event_types.system_event_type_definitions import AUDIT_LOG, KPI_EVENT_TYPES
from nakadi.event_types.timelines import Timelines
from nakadi.event_types.update import EventTypeUpdate
from nakadi.ports.deduplication import DeduplicatingLogs

SCHEMA_WORK_TURN_TIMEOUT_SECONDS = 20.0


class RegistrationServices(Struct, frozen=True, kw_only=True):
    long_work_queue: LongWorkQueue
    creation: EventTypeCreation
    update: EventTypeUpdate
    deletion: EventTypeDeletion
    repartitioning: Repartitioning
    topic_adoption: TopicAdoption
    schema_versions: SchemaVersions
    readers: SchemaReaders


def make_registration_services(
    core: BrokerCore,
    *,
    deduplication: DeduplicatingLogs,
    timelines: Timelines,
    get_dependents: GetDependents,
) -> RegistrationServices:
    """Make the services that create, change and delete event types. They call `get_dependents` only when they need the
    dependents, so that their modules load late.
    """
    long_work_queue = LongWorkQueue(timeout_seconds=SCHEMA_WORK_TURN_TIMEOUT_SECONDS)
    readers = SchemaReaders(core.event_types, core.permissions, get_dependents)
    limits = _event_type_limits(core.settings)
    return RegistrationServices(
        long_work_queue=long_work_queue,
        creation=EventTypeCreation(
            event_types=core.event_types,
            storages=core.storages,
            features=core.features,
            logs=core.logs,
            deduplication=deduplication,
            clock=core.clock,
            limits=limits,
            long_work_queue=long_work_queue,
            permissions=core.permissions,
            reserved_names=_reserved_names(core.settings),
        ),
        update=EventTypeUpdate(
            event_types=core.event_types,
            permissions=core.permissions,
            features=core.features,
            deduplication=deduplication,
            clock=core.clock,
            limits=limits,
            readers=readers,
            long_work_queue=long_work_queue,
        ),
        deletion=EventTypeDeletion(
            event_types=core.event_types,
            permissions=core.permissions,
            features=core.features,
            deleted_event_type_cleanup=core.deleted_event_type_cleanup,
            dependents=get_dependents,
        ),
        repartitioning=Repartitioning(
            event_types=core.event_types,
            permissions=core.permissions,
            features=core.features,
            logs=core.logs,
            dependents=get_dependents,
            max_partitions=core.settings.max_partitions,
            event_type_with_fixed_partitions=core.settings.dead_letter_redrive,
        ),
        topic_adoption=TopicAdoption(
            timelines=timelines,
            event_types=core.event_types,
            logs=core.logs,
            deduplication=deduplication,
            deleted_event_type_cleanup=core.deleted_event_type_cleanup,
            dependents=get_dependents,
            clock=core.clock,
        ),
        schema_versions=SchemaVersions(
            event_types=core.event_types,
            permissions=core.permissions,
            features=core.features,
            clock=core.clock,
            readers=readers,
            long_work_queue=long_work_queue,
        ),
        readers=readers,
    )


def _event_type_limits(settings: Settings) -> EventTypeLimits:
    return EventTypeLimits(
        default_partitions=settings.default_partitions,
        max_partitions=settings.max_partitions,
        retention_min=settings.retention_min_ms,
        retention_default=settings.retention_default_ms,
        retention_max=settings.retention_max_ms,
    )


def _reserved_names(settings: Settings) -> frozenset[str]:
    """The names of event types that the broker itself creates."""
    return frozenset({AUDIT_LOG, *KPI_EVENT_TYPES, settings.dead_letter_queue, settings.dead_letter_redrive})
