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


class Storage(Struct, frozen=True, kw_only=True):
    """`configuration` is of the type's own shape and is kept as it was given."""

    id: str
    type: StorageType
    configuration: Mapping[str, Any] = field(default_factory=dict)
    default: bool = False


def is_stream_name(name: object) -> bool:
    return isinstance(name, str) and STREAM_NAME.fullmatch(name) is not None
