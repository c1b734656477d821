"""Where the events of an event type are: storages, timelines, and the cursors that clients name places with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

# Storages -------------------------------------------------------------------------------------------------------------


class StorageType(StrEnum):
    EMBEDDED = "embedded"
    KINESIS = "kinesis"
    KAFKA = "kafka"


DEFAULT_STORAGE_ID = "default"

# The service's own rule; what has another shape could be more than a name in a URL.
STREAM_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")

# Hosts with ports, and what the names of topics may begin with: nothing that would be another part of a URL.
KAFKA_SERVERS = re.compile(r"[a-zA-Z0-9.-]{1,253}:[0-9]{1,5}(,[a-zA-Z0-9.-]{1,253}:[0-9]{1,5}){0,31}")
TOPIC_PREFIX = re.compile(r"[a-zA-Z0-9_.-]{0,100}")


class Storage(Struct, frozen=True, kw_only=True):
    """`configuration` is of the type's own shape and is kept as it was given."""

    id: str
    type: StorageType
    configuration: Mapping[str, Any] = field(default_factory=dict)
    default: bool = False


def is_stream_name(name: object) -> bool:
    return isinstance(name, str) and STREAM_NAME.fullmatch(name) is not None


def is_kafka(configuration: Mapping[str, Any]) -> bool:
    """Whether a configuration says where a Kafka is, and nothing that would be kept in vain."""
    servers, prefix = configuration.get("bootstrap_servers"), configuration.get("topic_prefix", "")
    return (
        configuration.keys() <= {"bootstrap_servers", "topic_prefix"}
        and isinstance(servers, str)
        and KAFKA_SERVERS.fullmatch(servers) is not None
        and isinstance(prefix, str)
        and TOPIC_PREFIX.fullmatch(prefix) is not None
    )


# Timelines ------------------------------------------------------------------------------------------------------------


class Timeline(Struct, frozen=True, kw_only=True):
    """One generation. `topic` names it in its storage's event log and is never used twice.

    `latest_positions` (partition -> offset of the last event, -1 for none) is known once the timeline is closed.
    `cleaned_up_at` of a closed timeline is when its events may go; `deleted` is set once they are gone.
    The topic of one that is `adopted` belongs to another broker, and is never deleted.
    One `after_loss` was begun because events were lost behind the one before, which ends where offsets are certain.
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


# Cursors --------------------------------------------------------------------------------------------------------------


class Cursor(Struct, frozen=True):
    """A place as a client wrote it; delivery goes on *behind* it."""

    partition: str
    offset: str


class Position(Struct, frozen=True, order=True):
    """A place as the broker understands it: the event `offset` of the timeline `timeline`; -1 is before the first."""

    timeline: int
    offset: int

    def __str__(self) -> str:
        """The form that is published: `001-0001-000000000000000012`, `001-0001--1`."""
        number = f"{self.offset:018d}" if self.offset >= 0 else str(self.offset)
        return f"001-{self.timeline:04x}-{number}"
