"""Calls about subscriptions that many tests make."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx

from tests.support.api import attributes, create_event_type
from tests.support.builders import a_name


def a_request(*event_types: str, **changes: Any) -> dict[str, Any]:
    """The body of a request that creates a subscription, for an application that no other test uses."""
    return {"owning_application": a_name("app"), "event_types": list(event_types)} | changes


def create_subscription(api: httpx.Client, *event_types: str, **changes: Any) -> dict[str, Any]:
    """Create a subscription, to a new event type if none is named, and return it as registered."""
    names = event_types or (create_event_type(api)["name"],)
    answer = api.post("/subscriptions", json=a_request(*names, **changes))
    assert answer.status_code == 201, answer.text
    return answer.json()


def a_subscription_authorization(admins: str = "ann", readers: str = "ann") -> dict[str, Any]:
    """An authorization section of a subscription."""
    return {"admins": attributes(*admins.split()), "readers": attributes(*readers.split())}


def change_request(subscription: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The body of a request that changes these fields of a subscription."""
    fixed = ("owning_application", "event_types", "consumer_group", "read_from", "initial_cursors")
    return {name: subscription[name] for name in fixed} | changes


def a_cursor(event_type: str, partition: str = "0", offset: int | str = -1) -> dict[str, Any]:
    """A cursor for a commit or a reset; a number means an offset in the first timeline."""
    text = offset if isinstance(offset, str) else offset_text(offset)
    return {"event_type": event_type, "partition": partition, "offset": text, "cursor_token": str(uuid4())}


def offset_text(offset: int, timeline: int = 1) -> str:
    return f"001-{timeline:04x}-{offset:018d}" if offset >= 0 else f"001-{timeline:04x}-{offset}"


def committed_offsets(api: httpx.Client, subscription: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The committed offset of each partition."""
    items = api.get(f"/subscriptions/{subscription['id']}/cursors").json()["items"]
    return {(each["event_type"], each["partition"]): each["offset"] for each in items}


def reset(api: httpx.Client, subscription: dict[str, Any], *items: dict[str, Any]) -> httpx.Response:
    return api.patch(f"/subscriptions/{subscription['id']}/cursors", json={"items": list(items)})


def publish(api: httpx.Client, event_type: str, count: int = 1) -> None:
    answer = api.post(f"/event-types/{event_type}/events", json=[{"n": number} for number in range(count)])
    assert answer.status_code == 200, answer.text


def create_event_type_with(api, partitions):
    statistic = dict.fromkeys(("messages_per_minute", "message_size"), 1)
    return create_event_type(
        api, default_statistic=statistic | {"read_parallelism": partitions, "write_parallelism": partitions}
    )["name"]


def subscribe_from_beginning(api, partitions=1, events=0):
    """Create an event type with this number of partitions and events, and subscribe to it from the beginning."""
    name = create_event_type_with(api, partitions)
    if events:
        publish(api, name, events)
    return create_subscription(api, name, read_from="begin")


def events_url(subscription):
    return f"/subscriptions/{subscription['id']}/events"
