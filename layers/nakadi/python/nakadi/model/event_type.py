"""Event types: their definitions, their schemas, and the storages and timelines of their events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from nakadi.model.annotations import DEDUPLICATION_ANNOTATION
from nakadi.model.authorization import Authorization, AuthorizationDraft, Resource, ResourceType


class SchemaType(StrEnum):
    JSON = "json_schema"
    AVRO = "avro_schema"


class ChangeLevel(IntEnum):
    """The level of a change. The highest level of all changes decides the next version."""

    NONE = 0
    PATCH = 1
    MINOR = 2
    MAJOR = 3


class Version(Struct, frozen=True, order=True):
    major: int = 1
    minor: int = 0
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> Version:
        major, minor, patch = (int(part) for part in text.split("."))
        return cls(major, minor, patch)

    def bumped_by(self, level: ChangeLevel) -> Version:
        match level:
            case ChangeLevel.MAJOR:
                return Version(self.major + 1, 0, 0)
            case ChangeLevel.MINOR:
                return Version(self.major, self.minor + 1, 0)
            case ChangeLevel.PATCH:
                return Version(self.major, self.minor, self.patch + 1)
            case ChangeLevel.NONE:
                return self

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class Schema(Struct, frozen=True, kw_only=True):
    """A schema. `text` is exactly as the client submitted it."""

    type: SchemaType = SchemaType.JSON
    text: str
    version: Version
    created_at: datetime


class SchemaDraft(Struct, frozen=True, kw_only=True):
    """A schema as a client sends it; None means a missing member."""

    type: SchemaType | None = None
    text: str | None = None


class SubmittedSchema(Struct, frozen=True):
    """A schema that has passed the checks, and that an event type is about to get."""

    type: SchemaType
    text: str


class StorageType(StrEnum):
    EMBEDDED = "embedded"
    KINESIS = "kinesis"
    KAFKA = "kafka"


DEFAULT_STORAGE_ID = "default"

# This is Kinesis' own rule for names of streams; a name of another form could contain other parts of a URL.
STREAM_NAME_PATTERN = re.compile(r"[a-zA-Z0-9_.-]{1,128}")

# Hosts with ports, and the possible prefixes of topics: these forms cannot contain other parts of a URL.
KAFKA_SERVERS_PATTERN = re.compile(r"[a-zA-Z0-9.-]{1,253}:[0-9]{1,5}(,[a-zA-Z0-9.-]{1,253}:[0-9]{1,5}){0,31}")
TOPIC_PREFIX_PATTERN = re.compile(r"[a-zA-Z0-9_.-]{0,100}")


class Storage(Struct, frozen=True, kw_only=True):
    """A storage. The form of `configuration` depends on the type of the storage; the broker stores it as the client
    sent it.
    """

    id: str
    type: StorageType
    configuration: Mapping[str, Any] = field(default_factory=dict)
    default: bool = False


def is_stream_name(name: object) -> bool:
    return isinstance(name, str) and STREAM_NAME_PATTERN.fullmatch(name) is not None


def is_kafka_configuration(configuration: Mapping[str, Any]) -> bool:
    """Whether a configuration names a Kafka cluster, and has no members that mean nothing."""
    servers, prefix = configuration.get("bootstrap_servers"), configuration.get("topic_prefix", "")
    return (
        configuration.keys() <= {"bootstrap_servers", "topic_prefix"}
        and isinstance(servers, str)
        and KAFKA_SERVERS_PATTERN.fullmatch(servers) is not None
        and isinstance(prefix, str)
        and TOPIC_PREFIX_PATTERN.fullmatch(prefix) is not None
    )


class Timeline(Struct, frozen=True, kw_only=True):
    """One generation of an event type's log. `topic` names it in its storage's event log, and is never used twice.

    `latest_positions` (partition -> offset of the last event, -1 without events) is set once the timeline is closed.
    `cleaned_up_at` of a closed timeline is when its events may be removed; `deleted` is set when they are about to be
    removed. The topic of an `adopted` timeline belongs to another broker, and is never deleted. A timeline `after_loss`
    began because events were lost at the end of the previous one, which ends at the last certain offset.
    """

    id: str
    order: int
    storage_id: str
    topic: str
    partitions: int
    created_at: datetime
    switched_at: datetime | None = None
    cleaned_up_at: datetime | None = None
    latest_positions: Mapping[int, int] | None = None
    deleted: bool = False
    after_loss: bool = False
    adopted: bool = False

    @property
    def closed(self) -> bool:
        return self.latest_positions is not None


class Cursor(Struct, frozen=True):
    """A position as a client wrote it; reading continues after it."""

    partition: str
    offset: str


class Position(Struct, frozen=True, order=True):
    """A position as the broker understands it: the event `offset` of the timeline `timeline`; -1 is before the first
    event.
    """

    timeline: int
    offset: int

    def __str__(self) -> str:
        """The published form: `001-0001-000000000000000012`, `001-0001--1`."""
        number = f"{self.offset:018d}" if self.offset >= 0 else str(self.offset)
        return f"001-{self.timeline:04x}-{number}"


MAX_DEDUPLICATION_SECONDS = 7 * 24 * 3600
WINDOW_PATTERN = re.compile("[1-9][0-9]{0,5}")


class Deduplication(Struct, frozen=True, kw_only=True):
    """For how long the broker does not store another event with the same id."""

    window_seconds: int


def deduplication_seconds_in_annotation(annotations: Mapping[str, str | None]) -> int | None:
    """The seconds in an annotation; None if there is none, and 0 for a value that is not allowed."""
    text = annotations.get(DEDUPLICATION_ANNOTATION)
    if text is None:
        return None
    return int(text) if WINDOW_PATTERN.fullmatch(text) and int(text) <= MAX_DEDUPLICATION_SECONDS else 0


class Category(StrEnum):
    UNDEFINED = "undefined"
    DATA = "data"
    BUSINESS = "business"


class EnrichmentStrategy(StrEnum):
    METADATA = "metadata_enrichment"


class PartitionStrategy(StrEnum):
    """The strategies, in the order in which the registry lists them."""

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
    """The traffic that the owner expects. The two parallelisms decide the number of partitions."""

    messages_per_minute: int
    message_size: int
    read_parallelism: int
    write_parallelism: int


class OwnerSelector(Struct, frozen=True, kw_only=True):
    """The place of a single event's owner: a path in the event, or a fixed value."""

    type: OwnerSelectorType
    name: str
    value: str | None = None


class EventType(Struct, frozen=True, kw_only=True, dict=True):
    """A registered event type. Derived values are computed once, since each batch needs them.

    `id` is new at every creation, so that an event type with a name that was used before has nothing of the deleted
    one. `timelines` are all timelines to which events were ever written, oldest first; `switching_to` is the next one
    while it is being prepared. `revision` counts the writes of the registered entry: a change is stored only if no
    other change was stored since the entry was read.
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
    deduplication: Deduplication | None = None
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    created_at: datetime
    updated_at: datetime
    timelines: tuple[Timeline, ...]
    switching_to: Timeline | None = None
    revision: int = 0

    @cached_property
    def timeline(self) -> Timeline:
        """The timeline that events are written to."""
        return self.timelines[-1]

    @cached_property
    def partitions(self) -> tuple[str, ...]:
        return tuple(str(number) for number in range(self.timeline.partitions))

    @cached_property
    def deduplication_window(self) -> timedelta | None:
        """How long ids of events are remembered; None if they are not. The field takes precedence over the
        annotation.
        """
        if self.deduplication is not None:
            return timedelta(seconds=self.deduplication.window_seconds)
        seconds = deduplication_seconds_in_annotation(self.annotations)
        return timedelta(seconds=seconds) if seconds else None

    @cached_property
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


class DeduplicationDraft(Struct, frozen=True, kw_only=True):
    window_seconds: int | None = None


class EventTypeDraft(Struct, frozen=True, kw_only=True):
    """An event type as a client sends it.

    Fields that the request leaves out have their defaults here; None means that a field was null, or is missing and has
    no default. For `annotations`, `labels`, `retention_time` and `default_statistic`, None means: unchanged. A missing
    `deduplication` also means unchanged, so that clients that do not know the field do not end it; null ends it.
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
    deduplication: DeduplicationDraft | UnsetType | None = UNSET
    annotations: Mapping[str, str | None] | None = None
    labels: Mapping[str, str | None] | None = None
