"""Parked events of subscriptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlencode

import orjson
from msgspec import Struct

from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.parameters import TextParameter
from nakadi.http.router import Route
from nakadi.http.routes.subscriptions import LIMIT, read_subscription_id
from nakadi.http.views import (
    View,
    timestamp,
)
from nakadi.model.outcomes import Malformed
from nakadi.subscriptions.api.parked_events import (
    ParkedEventFilter,
    ParkedEvents,
    ParkedEventStatus,
    event_key,
    parse_parked_event_id,
)

EVENT_TYPE, PARTITION, KEY, AFTER = map(TextParameter, ("event_type", "partition", "key", "after"))


class ParkedEventHandlers(Struct, frozen=True):
    parked_events: ParkedEvents

    def routes(self) -> list[Route]:
        all_ = "/subscriptions/{subscription_id}/parked-events"
        one = f"{all_}/{{parked_event_id}}"
        return [
            Route(
                method="GET",
                template=all_,
                handler=self.list,
                operation="list_parked_events",
                parameters=(EVENT_TYPE, PARTITION, KEY, AFTER, LIMIT),
            ),
            Route(
                method="POST", template=f"{all_}/redrive", handler=self.redrive_all, operation="redrive_parked_events"
            ),
            Route(method="GET", template=one, handler=self.get, operation="get_parked_event"),
            Route(method="DELETE", template=one, handler=self.skip, operation="skip_parked_event"),
            Route(method="POST", template=f"{one}/redrive", handler=self.redrive, operation="redrive_parked_event"),
        ]

    def list(self, request: Request) -> Response:
        limit, after = _parked_event_limit(request), _last_listed_parked_event(request)
        wanted = ParkedEventFilter(
            event_type=EVENT_TYPE.read(request),
            partition=PARTITION.read(request),
            key=KEY.read(request),
        )
        found = self.parked_events.list_events(read_subscription_id(request), wanted, after, limit + 1, request.subject)
        links = dict(_parked_event_links(request, wanted, found, limit))
        return json_response({"items": [parked_event_view(each) for each in found[:limit]], "_links": links})

    def get(self, request: Request) -> Response:
        standing, value = self.parked_events.get_event(
            read_subscription_id(request), _parked_event_id(request), request.subject
        )
        return json_response({**parked_event_view(standing), "event": orjson.Fragment(value)})

    def skip(self, request: Request) -> Response:
        self.parked_events.skip(read_subscription_id(request), _parked_event_id(request), request.subject)
        return empty_response(204)

    def redrive(self, request: Request) -> Response:
        self.parked_events.redrive(read_subscription_id(request), _parked_event_id(request), request.subject)
        return empty_response(204)

    def redrive_all(self, request: Request) -> Response:
        self.parked_events.redrive_all(read_subscription_id(request), request.subject)
        return empty_response(204)


def parked_event_view(status: ParkedEventStatus) -> View:
    parked, key = status.parked, event_key(status.parked)
    return {
        "id": status.id,
        "event_type": parked.partition.event_type,
        "partition": parked.partition.partition,
        "offset": str(parked.position),
        **({} if key is None else {"key": key}),
        "state": "redriving" if status.is_being_resent else "parked",
        "failed_commits": parked.failed_streams,
        "stored_at": timestamp(parked.stored_at),
        "parked_at": timestamp(parked.parked_at),
    }


def _parked_event_id(request: Request) -> str:
    return request.path_parameters["parked_event_id"]


def _parked_event_limit(request: Request) -> int:
    limit = LIMIT.read(request)
    if not 1 <= limit <= 1000:
        raise Malformed("'limit' parameter should have value between 1 and 1000")
    return limit


def _last_listed_parked_event(request: Request) -> str | None:
    after = AFTER.read(request)
    if after and parse_parked_event_id(after) is None:
        raise Malformed(f"'{after}' is not the id of a parked event")
    return after or None


def _parked_event_links(
    request: Request, filters: ParkedEventFilter, found: Sequence[ParkedEventStatus], limit: int
) -> Iterator[tuple[str, dict[str, str]]]:
    if len(found) > limit:
        parameters = (
            ("event_type", filters.event_type),
            ("partition", filters.partition),
            ("key", filters.key),
        )
        query = [(name, value) for name, value in parameters if value is not None]
        query += [("after", found[limit - 1].id), ("limit", str(limit))]
        yield "next", {"href": f"/subscriptions/{read_subscription_id(request)}/parked-events?{urlencode(query)}"}
