"""Subscriptions: the resource, its cursors, and the state of its streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any
from urllib.parse import urlencode

from msgspec import UNSET, Struct

from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.delivery.sinks import Sinks
from nakadi.event_types.system_event_type_definitions import KPI_EVENT_TYPES
from nakadi.http.bodies import ObjectReader, json_body, object_body
from nakadi.http.drafts import attribute_parameter, subscription_draft
from nakadi.http.message import Request, Response, empty_response, is_request_about_kpis, json_response
from nakadi.http.parameters import FlagParameter, Header, IntegerParameter, ListParameter, TextParameter
from nakadi.http.router import Lane, Route
from nakadi.http.routes.sinks import sink_draft, stored_sink_view
from nakadi.http.subscription_views import (
    changed_reads_view,
    committed_cursors_view,
    cursor_results_view,
    objective_counts_view,
    subscription_stats_view,
    subscription_view,
)
from nakadi.http.views import View, timestamp
from nakadi.model.annotations import SUBSCRIPTION_ANNOTATIONS, annotation_warnings
from nakadi.model.authorization import Feature, Operation
from nakadi.model.outcomes import Malformed, Violations
from nakadi.model.subscription import CommitResult, SubscriptionCursor
from nakadi.openapi.checks import conforms_to_schema, openapi_violations
from nakadi.subscriptions.api.cursors import CursorOperations
from nakadi.subscriptions.api.listing import (
    DEFAULT_PAGE_SIZE,
    FIRST_PAGE,
    SubscriptionFilters,
    SubscriptionListing,
    SubscriptionPage,
)
from nakadi.subscriptions.api.objectives import Objectives
from nakadi.subscriptions.api.open_streams import OpenStreams
from nakadi.subscriptions.api.reads import SubscribedReads
from nakadi.subscriptions.api.repository import Subscriptions
from nakadi.subscriptions.api.resource import SubscriptionCreation, SubscriptionDeletion, SubscriptionUpdater
from nakadi.subscriptions.api.stats import SubscriptionStats

STREAM_ID_HEADER = "X-Nakadi-StreamId"
STREAM_ID = Header(STREAM_ID_HEADER.lower())

_get_event_type = attrgetter("event_type")

# Characters that have no special meaning in the value of a parameter.
UNESCAPED_QUERY_CHARACTERS = ":/?@!$'()*,~"

SHOW_STATUS, SHOW_STATS, SHOW_TIME_LAG = SHOW_PARAMETERS = (
    FlagParameter("show_status"),
    FlagParameter("show_stats"),
    FlagParameter("show_time_lag"),
)
OWNING_APPLICATION, READER, TOKEN = TextParameter("owning_application"), TextParameter("reader"), TextParameter("token")
EVENT_TYPES = ListParameter("event_type")
LIMIT, OFFSET = IntegerParameter("limit", DEFAULT_PAGE_SIZE), IntegerParameter("offset", 0)

MAX_PAGE_LIMIT, MAX_PAGE_LIMIT_WITH_STATS = 1000, 100
"""The largest numbers of subscriptions in a page: statistics need separate reads for each subscription."""

COMMIT_BODY_SCHEMA, RESET_BODY_SCHEMA = "SubscriptionCursorList", "CursorResetList"

BODY_SCHEMAS_TO_COMPILE = (COMMIT_BODY_SCHEMA,)
"""The schemas of frequent bodies, which are compiled while a function starts; the others are compiled when the first
such body arrives.
"""


class SubscriptionHandlers(Struct, frozen=True, kw_only=True):
    subscriptions: Subscriptions
    listing: SubscriptionListing
    creation: SubscriptionCreation
    update: SubscriptionUpdater
    deletion: SubscriptionDeletion
    cursors: CursorOperations
    stats: SubscriptionStats
    reads: SubscribedReads
    objectives: Objectives
    open_streams: OpenStreams
    permissions: Permissions
    features: Features
    sinks: Sinks

    def routes(self) -> list[Route]:
        all_, one = "/subscriptions", "/subscriptions/{subscription_id}"
        cursors, stream = f"{one}/cursors", f"{one}/streams/{{stream_id}}"
        return [
            Route(
                method="GET",
                template=all_,
                handler=self.list,
                operation="list_subscriptions",
                parameters=(OWNING_APPLICATION, EVENT_TYPES, READER, *SHOW_PARAMETERS, LIMIT, OFFSET, TOKEN),
            ),
            Route(method="POST", template=all_, handler=self.create, operation="create_subscription"),
            Route(method="GET", template=one, handler=self.get, operation="get_subscription"),
            Route(
                method="PUT",
                template=one,
                handler=self.replace,
                operation="update_subscription",
                changes_cached_documents=True,
            ),
            Route(
                method="DELETE",
                template=one,
                handler=self.delete,
                operation="delete_subscription",
                changes_cached_documents=True,
            ),
            Route(method="GET", template=cursors, handler=self.get_cursors, operation="get_subscription_cursors"),
            Route(
                method="POST",
                template=cursors,
                handler=self.commit_cursors,
                operation="commit_subscription_cursors",
                parameters=(STREAM_ID,),
                lane=Lane.EVENTS,
                quick=True,
            ),
            Route(method="PATCH", template=cursors, handler=self.reset_cursors, operation="reset_subscription_cursors"),
            Route(
                method="GET",
                template=f"{one}/stats",
                handler=self.get_stats,
                operation="get_subscription_stats",
                parameters=(SHOW_TIME_LAG,),
            ),
            Route(method="DELETE", template=stream, handler=self.leave_stream, operation="leave_subscription_stream"),
            Route(
                method="POST",
                template=f"{stream}/extend",
                handler=self.extend_stream,
                operation="extend_subscription_stream",
            ),
        ]

    # The resource

    def list(self, request: Request) -> Response:
        shown = {each.name: each.read(request) for each in SHOW_PARAMETERS}
        limit, offset = (
            _page_limit(request, MAX_PAGE_LIMIT_WITH_STATS if shown[SHOW_STATS.name] else MAX_PAGE_LIMIT),
            _page_offset(request),
        )
        filters = _read_filters(request)
        token = self._page_token_or_none(request, offset)
        page = self.listing.page_of_token(filters, token, limit) if token else self.listing.page(filters, offset, limit)
        if shown[SHOW_STATS.name]:
            found = self.stats.stats_of_each(page.items, request.subject, with_lag=shown[SHOW_TIME_LAG.name])
            items = [subscription_view(each, stats) for each, stats in found]
        elif shown[SHOW_STATUS.name]:
            items = [subscription_view(each, self.stats.status(each, request.subject)) for each in page.items]
        else:
            items = [subscription_view(each) for each in page.items]
        return json_response({"items": items, "_links": dict(_page_links(page, filters, limit, shown))})

    def _page_token_or_none(self, request: Request, offset: int) -> str | None:
        """The token of the page; None if pages are addressed by offset."""
        by_token = offset == 0 and self.features.is_on(Feature.TOKEN_SUBSCRIPTIONS_ITERATION)
        return TOKEN.read(request) or (FIRST_PAGE if by_token else None)

    def create(self, request: Request) -> Response:
        body = object_body(request)
        draft, wanted = subscription_draft(body), body.object("sink")
        sink = None if wanted is None else sink_draft(wanted)
        if sink is not None:
            self.sinks.check_for_new_subscription(sink, draft.event_types or (), request.subject)
        subscription, is_new = self.creation.create(draft, request.subject)
        view = subscription_view(subscription)
        if sink is not None:
            # If this fails and the client repeats its request, that request finds the subscription, and registers the
            # sink.
            view["sink"] = stored_sink_view(self.sinks.put_if_missing(subscription.id, sink, request.subject))
        location = f"/subscriptions/{subscription.id}"
        warning = _warning_header(subscription.annotations)
        if not is_new:
            return json_response(view, 200, {"location": location, **warning})
        headers = {"location": location, "content-location": location, **warning}
        return json_response(view, 201, headers)

    def get(self, request: Request) -> Response:
        subscription = self.subscriptions.get(read_subscription_id(request))
        self.permissions.require(Operation.VIEW, subscription.resource, request.subject)
        changed = self.reads.changes_since_declared(
            subscription, lambda each: self.permissions.allows(Operation.VIEW, each.resource, request.subject)
        )
        return json_response(subscription_view(subscription) | changed_reads_view(changed))

    def replace(self, request: Request) -> Response:
        draft = subscription_draft(object_body(request))
        subscription_id = read_subscription_id(request)
        self.update.update(subscription_id, draft, request.subject)
        if (draft.reads, draft.projection) != (UNSET, UNSET):
            self.sinks.restart_stream(subscription_id, request.subject)
        return empty_response(204, _warning_header(draft.annotations or {}))

    def delete(self, request: Request) -> Response:
        self.deletion.delete(read_subscription_id(request), request.subject)
        return empty_response(204)

    # Cursors

    def get_cursors(self, request: Request) -> Response:
        return json_response(
            committed_cursors_view(self.cursors.committed_positions(read_subscription_id(request), request.subject))
        )

    async def commit_cursors(self, request: Request) -> Response:
        subscription_id, (items, cursors) = (
            request.path_parameters["subscription_id"],
            _read_cursors(request, COMMIT_BODY_SCHEMA),
        )
        stream_id = STREAM_ID.read(request)
        if stream_id is None:
            raise Malformed(f"Required request header '{STREAM_ID_HEADER}' is not present")
        verdicts = await self.cursors.commit(subscription_id, stream_id, cursors, request.subject)
        if not KPI_EVENT_TYPES.isdisjoint(map(_get_event_type, cursors)):
            is_request_about_kpis.set(True)
        if verdicts.count(CommitResult.COMMITTED) == len(verdicts):
            return Response(204)
        return json_response(cursor_results_view(items, verdicts))

    def reset_cursors(self, request: Request) -> Response:
        _, cursors = _read_cursors(request, RESET_BODY_SCHEMA)
        self.cursors.reset(read_subscription_id(request), cursors, request.subject)
        return empty_response(204)

    # Open streams

    def leave_stream(self, request: Request) -> Response:
        self.open_streams.leave(read_subscription_id(request), request.path_parameters["stream_id"], request.subject)
        return empty_response(204)

    def extend_stream(self, request: Request) -> Response:
        commit_by = self.open_streams.extend(
            read_subscription_id(request), request.path_parameters["stream_id"], request.subject
        )
        return json_response({"commit_by": timestamp(commit_by)})

    # Stats

    def get_stats(self, request: Request) -> Response:
        subscription_id = read_subscription_id(request)
        found = self.stats.stats_of(subscription_id, request.subject, with_lag=SHOW_TIME_LAG.read(request))
        subscription = self.subscriptions.get(subscription_id)
        view: View = {"items": subscription_stats_view(found)}
        if subscription.objective is not None:
            view["objective"] = objective_counts_view(
                self.objectives.status_by_counts(subscription.id, subscription.objective)
            )
        failure = self.sinks.failure_now(subscription.id)
        if failure is not None:
            view["failing_sink"] = {"at": timestamp(failure.at), "status": failure.status, "text": failure.text}
        return json_response(view)


def _warning_header(annotations: Mapping[str, str | None]) -> Mapping[str, str]:
    """A header that names misspelt annotations, if there are any."""
    texts = annotation_warnings(annotations, SUBSCRIPTION_ANNOTATIONS)
    return {"warning": f'299 nakadi "{". ".join(texts)}"'} if texts else {}


def _read_cursors(request: Request, schema: str) -> tuple[Sequence[Mapping[str, str]], Sequence[SubscriptionCursor]]:
    """The cursors of a commit or a reset, as the client sent them and as the broker interprets them."""
    body = json_body(request)
    if not conforms_to_schema(schema, body):
        body = _with_scalars_as_texts(ObjectReader.from_value(body))
        found = openapi_violations(schema, body)
        if found:
            raise Violations(found)
    items = body["items"]
    return items, [SubscriptionCursor(each["event_type"], each["partition"], each["offset"]) for each in items]


def _with_scalars_as_texts(body: ObjectReader) -> dict[str, Any]:
    """The body of a commit or a reset, in whose cursors numbers and truth values are converted to texts."""
    items = body.objects("items")
    names = ("event_type", "partition", "offset", "cursor_token")
    return {"items": None if items is None else [{name: each.text(name) for name in names} for each in items]}


def read_subscription_id(request: Request) -> str:
    return request.path_parameters["subscription_id"]


def _page_limit(request: Request, max_limit: int) -> int:
    """The number of items in a page. A client may request more than `max_limit` items, and then gets `max_limit`."""
    limit = LIMIT.read(request)
    if not 1 <= limit <= MAX_PAGE_LIMIT:
        raise Malformed(f"'limit' parameter should have value between 1 and {MAX_PAGE_LIMIT}")
    return min(limit, max_limit)


def _page_offset(request: Request) -> int:
    offset = OFFSET.read(request)
    if offset < 0:
        raise Malformed("'offset' parameter can't be lower than 0")
    return offset


def _read_filters(request: Request) -> SubscriptionFilters:
    return SubscriptionFilters(
        owning_application=OWNING_APPLICATION.read(request),
        event_types=tuple(dict.fromkeys(EVENT_TYPES.read(request))),
        reader=attribute_parameter(request, READER),
    )


def _page_links(
    page: SubscriptionPage, filters: SubscriptionFilters, limit: int, flags: Mapping[str, bool]
) -> Iterator[tuple[str, dict[str, str]]]:
    for name, place in (("prev", page.previous_page), ("next", page.next_page)):
        if place is not None:
            yield (
                name,
                {"href": f"/subscriptions?{_encoded_query(_page_parameters(place, filters, limit, flags))}"},
            )


def _encoded_query(parameters: Sequence[tuple[str, str]]) -> str:
    """The query in the form that clients know: only characters with a meaning in a query are escaped."""
    return urlencode(parameters, safe=UNESCAPED_QUERY_CHARACTERS)


def _page_parameters(
    start: str | int, filters: SubscriptionFilters, limit: int, flags: Mapping[str, bool]
) -> list[tuple[str, str]]:
    """The parameters of another page, in the order in which clients know them."""
    query = [("event_type", each) for each in filters.event_types]
    if filters.reader is not None:
        query.append(("reader", str(filters.reader)))
    if filters.owning_application is not None:
        query.append(("owning_application", filters.owning_application))
    query += [(name, "true") for name, wanted in flags.items() if wanted]
    query.append(("token" if isinstance(start, str) else "offset", str(start)))
    return [*query, ("limit", str(limit))]
