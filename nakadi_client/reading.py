"""The common parts of both readers: requests, and the treatment of events that do not fit."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from nakadi_client.batches import Batch
from nakadi_client.connections import Request, json_request, path
from nakadi_client.consuming import skip, stop_at
from nakadi_client.publishing import CLOUD_EVENTS
from nakadi_client.reader_core import Find, Measure, OpenStream

OnMisfit = Literal["stop", "skip"]


def request_of(event_type: str, step: Find | Measure | OpenStream) -> Request:
    """Create the request of a step."""
    where = path("event-types", event_type)
    if isinstance(step, Find):
        return Request("GET", f"{where}/partitions")
    if isinstance(step, Measure):
        return json_request("POST", f"{where}/cursors-lag", step.cursors)
    headers = {"X-Nakadi-Cursors": msgspec.json.encode(step.cursors).decode()}
    if step.cloud_events:
        headers["Accept"] = CLOUD_EVENTS
    return Request("GET", f"{where}/events", None, headers, step.parameters())


def treat_misfits(batch: Batch[Any], on_poison: OnMisfit) -> None:
    """Log events that do not fit the model, or raise `Poison` at the first one."""
    for poison in batch.poison:
        if on_poison == "stop":
            raise stop_at(poison, batch)
        skip(poison, batch)
