"""Helpers for subscriptions that park events, and consumers that cannot process some events."""

from __future__ import annotations

from typing import Any

import httpx
from msgspec.structs import replace

from nakadi.app.broker import BrokerServices
from nakadi.model.event_type import Position
from tests.support.api import a_definition
from tests.support.consumer import Consumer

COUNT = "nakadi.zalando.org/subscription-max-event-send-count"
POLICY = "nakadi.zalando.org/subscription-unprocessable-event-policy"

PARKING = {COUNT: "2", POLICY: "PARK_KEY"}


def a_keyed_definition(**changes: Any) -> dict[str, Any]:
    """A definition of an event type with one partition, whose events have a key."""
    fields = {
        "partition_strategy": "hash",
        "partition_key_fields": ["key"],
        "schema": {"type": "object", "properties": {"key": {"type": "string"}}},
    }
    return a_definition(**fields | changes)


def publish_events(api: httpx.Client, event_type: str, *events: str) -> None:
    """Publish events. The key of an event is its first letter: `a1` has the key `a`."""
    body = [{"key": each[0], "event": each} for each in events]
    answer = api.post(f"/event-types/{event_type}/events", json=body)
    assert answer.status_code == 200, answer.text


def fail_until_parked(api: httpx.Client, subscription: dict[str, Any], event: str) -> None:
    """Open streams without committing the event that comes first, until another event comes first."""
    for _ in range(10):
        parameters = {"batch_limit": 1, "commit_timeout": 1, "batch_flush_timeout": 1, "stream_keep_alive_limit": 2}
        with Consumer(api, subscription, **parameters) as stream:
            batch = stream.batch()
            stream.rest()
        if batch is None or batch["events"][0]["event"] != event:
            return
    raise AssertionError(f"{event} comes again and again")


def parked_ids(api: httpx.Client, subscription: dict[str, Any]) -> list[str]:
    """The ids of the parked events."""
    return [each["id"] for each in api.get(f"/subscriptions/{subscription['id']}/parked-events").json()["items"]]


def give_up_on_the_next(services: BrokerServices, api: httpx.Client, subscription: dict[str, Any]) -> None:
    """Let streams count as failed at the next event, until the broker gives it up."""
    assert api.patch(f"/subscriptions/{subscription['id']}/cursors", json={"items": []}).status_code == 204
    coordination = services.coordination
    old = coordination.assignment(subscription["id"])
    [entry], [offset] = old.entries, coordination.committed_offsets(subscription["id"]).values()
    failed = replace(entry, failed_streams=2, search_end=Position(offset.position.timeline, offset.position.offset + 1))
    coordination.replace_assignment(subscription["id"], old, replace(old, entries=(failed,)), services.clock.now())
