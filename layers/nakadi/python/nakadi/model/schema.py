"""A schema as its owner wrote it, and the version the broker gave it."""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum, StrEnum

from msgspec import Struct


class SchemaType(StrEnum):
    JSON = "json_schema"
    AVRO = "avro_schema"


class ChangeLevel(IntEnum):
    """How far a change reaches; the highest of all changes found decides the next version."""

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

    def bumped(self, level: ChangeLevel) -> Version:
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
    """`text` is kept to the byte as it was submitted."""

    type: SchemaType = SchemaType.JSON
    text: str
    version: Version
    created_at: datetime


class SchemaDraft(Struct, frozen=True, kw_only=True):
    """A schema as a client sends it; None stands for a missing member."""

    type: SchemaType | None = None
    text: str | None = None
