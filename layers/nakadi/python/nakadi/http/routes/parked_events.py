"""Parked events: what is in a subscription's lot, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import orjson

from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.routing import Route
from nakadi.http.views import View, timestamp
from nakadi.model.outcomes import Malformed
from nakadi.subscriptions.api.listing import DEFAULT_LIMIT
from nakadi.subscriptions.api.parked_events import ParkedEvents, Standing, Wanted, own_key, place_in


@dataclass(frozen=True, slots=True)
class ParkedEventDoors:
    parked: ParkedEvents

    def routes(self) -> list[Route]:
        all_ = "/subscriptions/{subscription_id}/parked-events"
        one = f"{all_}/{{parked_event_id}}"
        return [
            Route(method="GET", template=all_, handler=self.list, operation="list_parked_events"),
            Route(
                method="POST", template=f"{all_}/redrive", handler=self.redrive_all, operation="redrive_parked_events"
            ),
            Route(method="GET", template=one, handler=self.get, operation="get_parked_event"),
            Route(method="DELETE", template=one, handler=self.skip, operation="skip_parked_event"),
            Route(method="POST", template=f"{one}/redrive", handler=self.redrive, operation="redrive_parked_event"),
        ]

    def list(self, request: Request) -> Response:
        limit, after = _limit(request), _after(request)
        wanted = Wanted(
            event_type=request.parameter("event_type"),
            partition=request.parameter("partition"),
            key=request.parameter("key"),
        )
        found = self.parked.listed(_subscription(request), wanted, after, limit + 1, request.subject)
        links = dict(_links(request, wanted, found, limit))
        return json_response({"items": [parked_view(each) for each in found[:limit]], "_links": links})

    def get(self, request: Request) -> Response:
        standing, value = self.parked.one(_subscription(request), _parked(request), request.subject)
        return json_response({**parked_view(standing), "event": orjson.Fragment(value)})

    def skip(self, request: Request) -> Response:
        self.parked.skip(_subscription(request), _parked(request), request.subject)
        return empty_response(204)

    def redrive(self, request: Request) -> Response:
        self.parked.redrive(_subscription(request), _parked(request), request.subject)
        return empty_response(204)

    def redrive_all(self, request: Request) -> Response:
        self.parked.redrive_all(_subscription(request), request.subject)
        return empty_response(204)


def parked_view(standing: Standing) -> View:
    parked, key = standing.parked, own_key(standing.parked)
    return {
        "id": standing.id,
        "event_type": parked.place.event_type,
        "partition": parked.place.partition,
        "offset": str(parked.position),
        **({} if key is None else {"key": key}),
        "state": "redriving" if standing.again else "parked",
        "failed_commits": parked.fails,
        "stored_at": timestamp(parked.stored_at),
        "parked_at": timestamp(parked.parked_at),
    }


def _subscription(request: Request) -> str:
    return request.path_parameters["subscription_id"]


def _parked(request: Request) -> str:
    return request.path_parameters["parked_event_id"]


def _limit(request: Request) -> int:
    limit = request.integer("limit", DEFAULT_LIMIT)
    if limit is None or not 1 <= limit <= 1000:
        raise Malformed("'limit' parameter should have value between 1 and 1000")
    return limit


def _after(request: Request) -> str | None:
    after = request.parameter("after")
    if after and place_in(after) is None:
        raise Malformed(f"'{after}' is not the id of a parked event")
    return after or None


def _links(
    request: Request, wanted: Wanted, found: Sequence[Standing], limit: int
) -> Iterator[tuple[str, dict[str, str]]]:
    if len(found) > limit:
        told = (("event_type", wanted.event_type), ("partition", wanted.partition), ("key", wanted.key))
        query = [(name, value) for name, value in told if value is not None]
        query += [("after", found[limit - 1].id), ("limit", str(limit))]
        yield "next", {"href": f"/subscriptions/{_subscription(request)}/parked-events?{urlencode(query)}"}
