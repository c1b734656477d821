"""A consumer of a subscription over plain HTTP: it reads its stream line by line, and commits."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.support.open_stream import OpenStream
from tests.support.patience import until


class Consumer(OpenStream):
    """Commits through the client `api`. Parameters go into the query, or into the body if there are `partitions`."""

    def __init__(
        self, api: httpx.Client, subscription: dict[str, Any], headers: dict[str, str] | None = None, **parameters: Any
    ) -> None:
        target = f"/subscriptions/{subscription['id']}/events"
        body = None
        if "partitions" in parameters:
            named = [{"event_type": event_type, "partition": number} for event_type, number in parameters["partitions"]]
            body = json.dumps(parameters | {"partitions": named}).encode()
        else:
            target += "?" + "&".join(f"{name}={value}" for name, value in parameters.items())
        super().__init__(str(api.base_url), target, headers, body=body)
        self.api = api
        self.subscription = subscription

    @property
    def id(self) -> str:
        return self.headers["x-nakadi-streamid"]

    def batch(self) -> Any:
        """The next line with events, or None at the end of the stream."""
        while line := self.line():
            batch = json.loads(line)
            if "events" in batch:
                return batch
        return None

    def keep_alive(self) -> Any:
        """The next line without events, or None at the end of the stream."""
        while line := self.line():
            batch = json.loads(line)
            if "events" not in batch:
                return batch
        return None

    def commit(self, *cursors: dict[str, Any]) -> httpx.Response:
        """Commit cursors, or the cursors of batches."""
        items = [each.get("cursor", each) for each in cursors]
        return self.api.post(
            f"/subscriptions/{self.subscription['id']}/cursors",
            json={"items": items},
            headers={"X-Nakadi-StreamId": self.id},
        )

    def consumed(self, count: int) -> list[Any]:
        """Read this number of events, and commit each batch."""
        events: list[Any] = []
        while len(events) < count:
            batch = self.batch()
            assert batch is not None, f"the stream ended after {events}"
            events += batch["events"]
            assert self.commit(batch).status_code == 204
        return events

    def debug_at_the_end(self) -> list[str]:
        """Read the stream to its end, and return the debug messages in it."""
        lines = [json.loads(line) for line in self.rest().splitlines()]
        return [line["info"]["debug"] for line in lines if "info" in line]


def owners(api: httpx.Client, subscription: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The owner of each partition: "" if there is none, and "a>" while `a` hands it over."""
    answer = api.get(f"/subscriptions/{subscription['id']}/stats")
    assert answer.status_code == 200, answer.text
    return {
        (item["event_type"], each["partition"]): each["stream_id"] + (">" if each["state"] == "reassigning" else "")
        for item in answer.json()["items"]
        for each in item["partitions"]
    }


soon = until
