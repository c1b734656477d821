"""Reads the events that the broker publishes about itself."""

from __future__ import annotations

import json
from typing import Any

import httpx


def own_events(api: httpx.Client, name: str) -> list[dict[str, Any]]:
    """The events of one of the broker's own event types, in the order of each partition; empty if the event type does
    not exist yet.
    """
    partitions = api.get(f"/event-types/{name}/partitions")
    if partitions.status_code == 404:
        return []
    cursors = [{"partition": each["partition"], "offset": "BEGIN"} for each in partitions.json()]
    lags = api.post(f"/event-types/{name}/cursors-lag", json=cursors).json()
    count = sum(each["unconsumed_events"] for each in lags)
    if not count:
        return []
    answer = api.get(
        f"/event-types/{name}/events",
        params={"batch_limit": 1, "stream_limit": count, "stream_timeout": 60},
        headers={"X-Nakadi-Cursors": json.dumps(cursors)},
    )
    return [event for line in answer.text.splitlines() for event in json.loads(line).get("events", [])]
