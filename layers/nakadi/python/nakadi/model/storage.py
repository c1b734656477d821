"""Storages: the places where event logs live."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field


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
