"""The event types of the target: as in the source, with the same partitions and versions of their schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from nakadi_cli.api import Api, path
from nakadi_cli.failures import NotFound, Refused

_OWN_EVENT_TYPES = "nakadi."
_GIVEN_BY_BROKER = frozenset({"created_at", "updated_at", "measured_statistic", "table", "id"})
_DEDUPLICATION_SECONDS = 7 * 24 * 60 * 60


def matching_definitions(source: Api, patterns: Sequence[str]) -> list[dict[str, Any]]:
    """The source's event types whose names match one of the patterns, without the broker's own."""
    return [
        each
        for each in source.get("/event-types")
        if not each["name"].startswith(_OWN_EVENT_TYPES) and any(fnmatchcase(each["name"], one) for one in patterns)
    ]


def definition_for_target(
    definition: Mapping[str, Any], schema: Schema, partitions: int, *, deduplicates: bool
) -> dict[str, Any]:
    """The request that creates an event type with this schema and number of partitions."""
    body = {key: value for key, value in definition.items() if key not in _GIVEN_BY_BROKER and value is not None}
    one = {"messages_per_minute": 1, "message_size": 1}
    body["schema"] = schema.draft
    body["default_statistic"] = {**one, "read_parallelism": partitions, "write_parallelism": partitions}
    if deduplicates:
        body["deduplication"] = {"window_seconds": _DEDUPLICATION_SECONDS}
    return body


@dataclass(frozen=True)
class Schema:
    """A version of an event type's schema."""

    version: str
    type: str
    text: str

    @property
    def draft(self) -> dict[str, str]:
        return {"type": self.type, "schema": self.text}

    def is_same_as(self, other: Schema) -> bool:
        return self.type == other.type and json.loads(self.text) == json.loads(other.text)


def schema_versions(broker: Api, name: str) -> list[Schema]:
    """All versions of an event type's schema, the oldest first."""
    found = [
        Schema(each["version"], each["type"], each["schema"])
        for each in broker.items(path("event-types", name, "schemas"))
    ]
    return sorted(found, key=lambda schema: tuple(map(int, schema.version.split("."))))


def prepare_event_type(
    source: Api, target: Api, definition: Mapping[str, Any], note: Callable[[str], None], *, deduplicates: bool
) -> list[str]:
    """Create an event type in the target, or give it the schemas and partitions that it lacks. Returns the partitions.

    The versions of the schema are created in their original order. The target may reject an earlier version, for
    example if the mode has changed since; the mirror then reports and omits it.
    """
    name = definition["name"]
    where = path("event-types", name)
    partitions = [each["partition"] for each in source.get(f"{where}/partitions")]
    versions = schema_versions(source, name)
    try:
        there = target.get(where)
    except NotFound:
        first = definition_for_target(definition, versions[0], len(partitions), deduplicates=deduplicates)
        target.post("/event-types", first)
        there = target.get(where)
    for schema in _lacking(Schema("", there["schema"]["type"], there["schema"]["schema"]), versions):
        try:
            kept = {key: value for key, value in target.get(where).items() if key not in _GIVEN_BY_BROKER}
            target.put(where, {**kept, "schema": schema.draft})
        except Refused as refusal:
            if schema is versions[-1]:
                raise
            note(f"{name}: version {schema.version} of its schema is left out: {refusal.message}")
    if len(target.get(f"{where}/partitions")) < len(partitions):
        target.put(f"{where}/partition-count", {"partition_count": len(partitions)})
    return partitions


def _lacking(current: Schema, versions: Sequence[Schema]) -> Sequence[Schema]:
    """The versions after the target's current one; only the last version if the target has a different schema."""
    for number in reversed(range(len(versions))):
        if versions[number].is_same_as(current):
            return versions[number + 1 :]
    return versions[-1:]
