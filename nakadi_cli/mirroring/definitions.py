"""The event types of the target: as in the source, with the same partitions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from nakadi_cli.api import Api, path
from nakadi_cli.failures import Failed, NotFound

_OWN_EVENT_TYPES = "nakadi."
_GIVEN_BY_BROKER = frozenset({"created_at", "updated_at", "measured_statistic", "table", "id"})
_DEDUPLICATION_SECONDS = 7 * 24 * 60 * 60


def matching_definitions(source: Api, patterns: Sequence[str]) -> list[dict[str, Any]]:
    """The source's event types whose names match one of the patterns, without those of the broker itself."""
    return [
        each
        for each in source.get("/event-types")
        if not each["name"].startswith(_OWN_EVENT_TYPES) and any(fnmatchcase(each["name"], one) for one in patterns)
    ]


def definition_for_target(definition: Mapping[str, Any], partitions: int, *, deduplicates: bool) -> dict[str, Any]:
    """The request that creates an event type with the same number of partitions."""
    body = {key: value for key, value in definition.items() if key not in _GIVEN_BY_BROKER and value is not None}
    body["schema"] = {key: definition["schema"][key] for key in ("type", "schema")}
    one = {"messages_per_minute": 1, "message_size": 1}
    body["default_statistic"] = {**one, "read_parallelism": partitions, "write_parallelism": partitions}
    if deduplicates:
        body["deduplication"] = {"window_seconds": _DEDUPLICATION_SECONDS}
    return body


def prepare_event_type(source: Api, target: Api, definition: Mapping[str, Any], *, deduplicates: bool) -> list[str]:
    """Create an event type in the target, or give it the source's schema and partitions. Returns the partitions.

    Raises `Failed` for an event type with an Avro schema: the events that are read are JSON, which it does not take.
    """
    if definition["schema"]["type"] == "avro_schema":
        raise Failed("Its schema is an Avro schema; only events in JSON are copied.")
    where = path("event-types", definition["name"])
    partitions = [each["partition"] for each in source.get(f"{where}/partitions")]
    try:
        there = target.get(where)
    except NotFound:
        target.post("/event-types", definition_for_target(definition, len(partitions), deduplicates=deduplicates))
        return partitions
    if json.loads(there["schema"]["schema"]) != json.loads(definition["schema"]["schema"]):
        kept = {key: value for key, value in there.items() if key not in _GIVEN_BY_BROKER}
        schema = {key: definition["schema"][key] for key in ("type", "schema")}
        target.put(where, {**kept, "schema": schema})
    if len(target.get(f"{where}/partitions")) < len(partitions):
        target.put(f"{where}/partition-count", {"partition_count": len(partitions)})
    return partitions
