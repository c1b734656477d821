"""Storages: the places where event logs live."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class StorageType(StrEnum):
    EMBEDDED = "embedded"
    KINESIS = "kinesis"
    KAFKA = "kafka"


DEFAULT_STORAGE_ID = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """`configuration` is of the type's own shape and is kept as it was given."""

    id: str
    type: StorageType
    configuration: Mapping[str, Any] = field(default_factory=dict)
    default: bool = False
