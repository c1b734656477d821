"""Event types: what is known of a kind of event, and where its events are kept."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

from nakadi.model.authorization import Authorization, AuthorizationDraft, Resource, ResourceType
from nakadi.model.schema import Schema, SchemaDraft
from nakadi.model.timeline import Timeline


class Category(StrEnum):
    UNDEFINED = "undefined"
    DATA = "data"
    BUSINESS = "business"


class EnrichmentStrategy(StrEnum):
    METADATA = "metadata_enrichment"


class PartitionStrategy(StrEnum):
    """In the order in which the registry lists them."""

    HASH = "hash"
    USER_DEFINED = "user_defined"
    RANDOM = "random"


class CleanupPolicy(StrEnum):
    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_AND_DELETE = "compact_and_delete"

    @property
    def compacts(self) -> bool:
        return self is not CleanupPolicy.DELETE


class CompatibilityMode(StrEnum):
    FORWARD = "forward"
    COMPATIBLE = "compatible"
    NONE = "none"


class Audience(StrEnum):
    COMPONENT_INTERNAL = "component-internal"
    BUSINESS_UNIT_INTERNAL = "business-unit-internal"
    COMPANY_INTERNAL = "company-internal"
    EXTERNAL_PARTNER = "external-partner"
    EXTERNAL_PUBLIC = "external-public"


class OwnerSelectorType(StrEnum):
    PATH = "path"
    STATIC = "static"
    METADATA = "metadata"


class Statistics(Struct, frozen=True, kw_only=True):
    """What the owner expects of the traffic; the two parallelisms decide the number of partitions."""

    messages_per_minute: int
    message_size: int
    read_parallelism: int
    write_parallelism: int


class OwnerSelector(Struct, frozen=True, kw_only=True):
    """Where the owner of a single event is found: at a path in it, or fixed."""

    type: OwnerSelectorType
    name: str
    value: str | None = None


class EventType(Struct, frozen=True, kw_only=True):
    """An event type as it is registered.

    `id` is new at every creation, so that a deleted name can be used again without meeting its past.
    `timelines` are those that events were ever written to, oldest first; `switching_to` is the next one while it is
    being prepared.
    `revision` counts the writes of the registered entry: a change is stored only if no other change came first.
    """

    id: str
    name: str
    owning_application: str
    category: Category
    schema: Schema
    enrichment_strategies: tuple[EnrichmentStrategy, ...] = ()
    partition_strategy: PartitionStrategy = PartitionStrategy.RANDOM
    partition_key_fields: tuple[str | None, ...] = ()
    ordering_key_fields: tuple[str, ...] = ()
    ordering_instance_ids: tuple[str, ...] = ()
    cleanup_policy: CleanupPolicy = CleanupPolicy.DELETE
    compatibility_mode: CompatibilityMode = CompatibilityMode.FORWARD
    default_statistic: Statistics | None = None
    retention_time: int
    authorization: Authorization | None = None
    audience: Audience | None = None
    event_owner_selector: OwnerSelector | None = None
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    created_at: datetime
    updated_at: datetime
    timelines: tuple[Timeline, ...]
    switching_to: Timeline | None = None
    revision: int = 0

    @property
    def timeline(self) -> Timeline:
        """The one that events are written to."""
        return self.timelines[-1]

    @property
    def partitions(self) -> tuple[str, ...]:
        return tuple(str(number) for number in range(self.timeline.partitions))

    @property
    def resource(self) -> Resource:
        return Resource(ResourceType.EVENT_TYPE, self.name, self.authorization)


class StatisticsDraft(Struct, frozen=True, kw_only=True):
    messages_per_minute: int | None = None
    message_size: int | None = None
    read_parallelism: int | None = None
    write_parallelism: int | None = None


class OwnerSelectorDraft(Struct, frozen=True, kw_only=True):
    type: OwnerSelectorType | None = None
    name: str | None = None
    value: str | None = None


class EventTypeDraft(Struct, frozen=True, kw_only=True):
    """An event type as a client sends it.

    A field that the request leaves out has its default here; None says that it was null, or missing without a default.
    For `annotations`, `labels`, `retention_time` and `default_statistic`, None means: as it was.
    """

    name: str | None = None
    owning_application: str | None = None
    category: Category | None = None
    schema: SchemaDraft | None = None
    enrichment_strategies: tuple[EnrichmentStrategy | None, ...] | None = ()
    partition_strategy: str | None = PartitionStrategy.RANDOM
    partition_key_fields: tuple[str | None, ...] = ()
    ordering_key_fields: tuple[str, ...] = ()
    ordering_instance_ids: tuple[str, ...] = ()
    cleanup_policy: CleanupPolicy | None = CleanupPolicy.DELETE
    compatibility_mode: CompatibilityMode | None = CompatibilityMode.FORWARD
    default_statistic: StatisticsDraft | None = None
    retention_time: int | None = None
    authorization: AuthorizationDraft | None = None
    audience: Audience | None = None
    event_owner_selector: OwnerSelectorDraft | None = None
    annotations: Mapping[str, str | None] | None = None
    labels: Mapping[str, str | None] | None = None
