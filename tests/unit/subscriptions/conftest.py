"""A broker without a socket, and sessions without streams."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.model.subscription import Assignment, EventTypePartition, Session
from nakadi.subscriptions.api import assignments
from tests.support.api import create_event_type
from tests.support.clock import HandMovedClock
from tests.support.http import make_client
from tests.support.subscriptions import create_subscription, publish, reset

HOLDER = "this process"


class BrokerInMemory:
    """A whole broker in memory. The test moves its clock, and its sessions take part without sending anything."""

    def __init__(self, **settings: Any) -> None:
        self.clock = HandMovedClock()
        self.broker = open_broker(Settings(cache_seconds=0, **settings), self.clock)
        self.api = make_client(make_application(self.broker))
        self.coordination = self.broker.coordination
        self.subscription_services = self.broker.subscription_services
        self.coordination.renew_lease(HOLDER, self.clock.now() + timedelta(days=1))

    def wait(self, seconds: float) -> None:
        """Let time pass, while the process of the sessions renews its lease."""
        self.clock.move(seconds)
        self.coordination.renew_lease(HOLDER, self.clock.now() + timedelta(days=1))

    def event_type(self, partitions: int = 1, events: int = 0) -> str:
        statistic = {
            "messages_per_minute": 1,
            "message_size": 1,
            "read_parallelism": partitions,
            "write_parallelism": partitions,
        }
        name = create_event_type(self.api, default_statistic=statistic)["name"]
        if events:
            publish(self.api, name, events)
        return name

    def subscription(self, *event_types: str, **changes: Any) -> dict[str, Any]:
        """A subscription whose offsets are initialised."""
        found = create_subscription(self.api, *event_types, **{"read_from": "begin"} | changes)
        assert reset(self.api, found).status_code == 204
        return found

    def assignment(self, subscription: dict[str, Any]) -> Assignment:
        return self.coordination.assignment(subscription["id"])

    def session(self, subscription: dict[str, Any], *requested: EventTypePartition, **changes: Any) -> str:
        """Let a session join, and return its id."""
        defaults: dict[str, Any] = {
            "id": str(uuid4()),
            "process_id": HOLDER,
            "started_at": self.clock.now(),
            "commit_timeout": 60.0,
            "requested_partitions": requested,
        }
        session = Session(**defaults | changes)
        old = self.assignment(subscription)
        new = assignments.with_session(old, session, subscription["id"], self.clock.now())
        self.coordination.replace_assignment(subscription["id"], old, new, self.clock.now())
        return session.id

    def leave(self, subscription: dict[str, Any], session_id: str) -> None:
        old = self.assignment(subscription)
        self.coordination.replace_assignment(
            subscription["id"], old, assignments.without_sessions(old, {session_id}), self.clock.now()
        )

    def hand_over(self, subscription: dict[str, Any], session_id: str) -> None:
        old = self.assignment(subscription)
        new = assignments.with_partitions_handed_over(old, session_id, {each.partition for each in old.entries})
        self.coordination.replace_assignment(subscription["id"], old, new, self.clock.now())

    def commit(self, subscription: dict[str, Any], session_id: str, *items: dict[str, Any]) -> httpx.Response:
        headers = {"X-Nakadi-StreamId": session_id}
        return self.api.post(f"/subscriptions/{subscription['id']}/cursors", json={"items": items}, headers=headers)

    def stats(self, subscription: dict[str, Any], **query: Any) -> dict[str, dict[str, Any]]:
        """The statistics by partition, for the only event type."""
        [found] = self.api.get(f"/subscriptions/{subscription['id']}/stats", params=query).json()["items"]
        return {each.pop("partition"): each for each in found["partitions"]}

    def close(self) -> None:
        self.api.close()
        self.broker.close()


@pytest.fixture
def house() -> Iterator[BrokerInMemory]:
    opened = BrokerInMemory()
    yield opened
    opened.close()


@pytest.fixture
def impatient_house() -> Iterator[BrokerInMemory]:
    """A broker whose requests do not wait."""
    opened = BrokerInMemory(max_commit_timeout_seconds=-1)
    yield opened
    opened.close()
