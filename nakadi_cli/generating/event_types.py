"""An event type, as far as types and examples of its events depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode
from nakadi.schemas.document import effective_schema


class EventTypeSchema(Struct, frozen=True):
    """An event type with its schema as written, which the broker would accept.

    A schema from a file has no `version`.
    """

    name: str
    schema: Mapping[str, Any]
    category: Category = Category.UNDEFINED
    mode: CompatibilityMode = CompatibilityMode.NONE
    cleanup_policy: CleanupPolicy = CleanupPolicy.DELETE
    version: str | None = None
    partition_strategy: str = "random"

    @property
    def label(self) -> str:
        return self.name if self.version is None else f"{self.name} {self.version}"

    def without_metadata(self) -> EventTypeSchema:
        return replace(self, category=Category.UNDEFINED)

    @property
    def effective_schema(self) -> dict[str, Any]:
        """The schema that the broker validates events against."""
        return effective_schema(
            self.schema,
            event_type=self.name,
            category=self.category,
            mode=self.mode,
            cleanup_policy=self.cleanup_policy,
        )

    @property
    def sample_schema(self) -> dict[str, Any]:
        """The effective schema, with the additional requirements that the broker has for metadata: events made from it
        can be published.
        """
        schema = self.effective_schema
        if self.category is Category.UNDEFINED:
            return schema
        metadata = schema["properties"]["metadata"]
        members = {name: each for name, each in metadata["properties"].items() if name != "partition"}
        members["occurred_at"] = {"type": "string", "format": "date-time"}
        required = metadata["required"]
        if self.partition_strategy == "user_defined":
            members["partition"] = {"enum": ["0"]}
            required = [*required, "partition"]
        sample = {**metadata, "properties": members, "required": required}
        return {**schema, "properties": {**schema["properties"], "metadata": sample}}
