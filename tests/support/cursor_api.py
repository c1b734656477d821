"""The operations on partitions and cursors of one event type, without a broker."""

import json
from collections.abc import Sequence
from typing import Any

import httpx

from nakadi.auth.permissions import permission_denied_error
from nakadi.event_types.snapshot import CursorResolver
from nakadi.http.application import Application
from nakadi.http.routes import cursors as routes
from nakadi.model.authorization import Operation, Resource, Subject
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import NotFound
from tests.support.http import make_client
from tests.support.places import TimelineWithPast, an_event_type_with_past

NAME = "order.created"
TIMELINE_NOT_FOUND = (
    "Timeline not found. It might happen in case the cursor refers to a timeline that has already expired."
)


class OneEventType:
    def __init__(self, event_type: EventType) -> None:
        self._event_type = event_type

    def get(self, name: str) -> EventType:
        if name != self._event_type.name:
            raise NotFound(f'EventType "{name}" does not exist.')
        return self._event_type


class DenyingPermissions:
    def __init__(self, refused: Sequence[Operation]) -> None:
        self._refused = refused

    def require(self, operation: Operation, resource: Resource, _: Subject) -> None:
        if operation in self._refused:
            raise permission_denied_error(operation, resource)


class Api:
    """The operations on one event type with the given timelines."""

    def __init__(self, *generations: TimelineWithPast, refused: Sequence[Operation] = ()) -> None:
        event_type, self.logs = an_event_type_with_past(*generations, name=NAME)
        found = routes.routes(OneEventType(event_type), DenyingPermissions(refused), CursorResolver(self.logs))
        self._client = make_client(Application(found))

    def get(self, path: str, **query: Any) -> httpx.Response:
        texts = {name: each if isinstance(each, str) else json.dumps(each) for name, each in query.items()}
        return self._client.get(f"/event-types/{path}", params=texts)

    def post(self, operation: str, body: Any, name: str = NAME) -> httpx.Response:
        return self._client.post(f"/event-types/{name}/{operation}", json=body)

    def send(self, operation: str, text: bytes, content_type: str = "application/json") -> httpx.Response:
        headers = {"content-type": content_type}
        return self._client.post(f"/event-types/{NAME}/{operation}", content=text, headers=headers)


def read_refusal(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["detail"]


def cursor(offset: Any = "001-0001-0", partition: Any = "0") -> dict[str, Any]:
    return {"partition": partition, "offset": offset}


def pair(first: str, last: str, partition: str = "0", other: str | None = None) -> dict[str, Any]:
    return {"initial_cursor": cursor(first, partition), "final_cursor": cursor(last, other or partition)}
