"""Publishing and deleting events."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import asdict

from nakadi.auth.permissions import Permissions
from nakadi.http.compression import MAX_DECOMPRESSED_BYTES
from nakadi.http.message import JSON_MEDIA_TYPE, AnswerTask, Parameter, Request, Response, json_response
from nakadi.http.parameters import Header
from nakadi.http.problem import UnsupportedMediaType
from nakadi.http.router import Lane, Route
from nakadi.http.views import View
from nakadi.model.event_type import Position
from nakadi.model.outcomes import Fault, Invalid, Malformed, Outcome
from nakadi.publishing.batch import BatchOutcome, BatchStatus, ItemResult
from nakadi.publishing.memory import estimate_batch_memory
from nakadi.publishing.publisher import Publisher
from nakadi.publishing.system_events import KpiCollector

AVRO_MEDIA_TYPE = "application/avro-binary"

CONTENT_TYPE, CONSUMER_TAG = Header("content-type"), Header("x-consumer-tag")


def routes(publisher: Publisher, permissions: Permissions, kpi_collector: KpiCollector) -> list[Route]:
    handlers = _PublishingHandlers(publisher, permissions, kpi_collector)
    return [
        _route("events", handlers.publish_events, "publish_events", CONTENT_TYPE, CONSUMER_TAG),
        _route("deleted-events", handlers.publish_deletions, "delete_events", CONTENT_TYPE),
    ]


def _route(events: str, handler: Callable[[Request], AnswerTask], operation: str, *parameters: Parameter) -> Route:
    return Route(
        method="POST",
        template=f"/event-types/{{name}}/{events}",
        handler=handler,
        operation=operation,
        parameters=parameters,
        lane=Lane.EVENTS,
        quick=True,
        accepts_any_content_type=True,
        # What became of each event (207) is sent to every client: refused, it would publish all of them again.
        ignores_accept_header=True,
        max_body_bytes=MAX_DECOMPRESSED_BYTES,
        max_parsed_bytes=None,
    )


class _PublishingHandlers(Struct, frozen=True):
    publisher: Publisher
    permissions: Permissions
    kpi_collector: KpiCollector

    async def publish_events(self, request: Request) -> Response:
        try:
            tag = self._admit_batch(request, may_be_directed=True)
            name, began = request.path_parameters["name"], time.perf_counter()
            outcome = await self.publisher.publishing_task(
                name, request.body, request.subject, request.flow_id, tag, request.is_client_gone
            )
        except Exception as error:
            self._count_refused_batch(error)
            raise
        return self._publication_response(request, outcome, began)

    async def publish_deletions(self, request: Request) -> Response:
        try:
            self._admit_batch(request, may_be_directed=False)
            name, began = request.path_parameters["name"], time.perf_counter()
            outcome = await self.publisher.deletion_task(
                name, request.body, request.subject, request.flow_id, request.is_client_gone
            )
        except Exception as error:
            self._count_refused_batch(error)
            raise
        return self._publication_response(request, outcome, began)

    def _admit_batch(self, request: Request, *, may_be_directed: bool) -> str | None:
        """The id of the subscription that a batch is meant for, if it is one that may be directed, and is.

        Raises an outcome for a body that cannot be events, for who is blocked, before anything about the event type is
        found out, and for what there is no memory for.
        """
        content_type = CONTENT_TYPE.read(request) or ""
        if content_type != JSON_MEDIA_TYPE and content_type.partition(";")[0].strip().lower() == AVRO_MEDIA_TYPE:
            raise UnsupportedMediaType(f"Content type '{AVRO_MEDIA_TYPE}' not supported: events are published as JSON")
        if not request.body:
            raise Malformed(f"Required request body is missing: {request.method} {request.path}")
        header = CONSUMER_TAG.read(request) if may_be_directed else None
        tag = None if header is None else subscription_id_in_header(header)
        self.permissions.require_producer(request.subject, request.path_parameters["name"])
        request.memory.take(estimate_batch_memory(request.body, self.publisher.limits))
        return tag

    def _count_refused_batch(self, error: Exception) -> None:
        """Count a batch that was refused as a whole, by the kind of the outcome: `not_found` or `try_later`."""
        kind = type(error).__name__ if isinstance(error, Outcome | Fault) else "Fault"
        self.publisher.metrics.batches_refused.add(1, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower())

    def _publication_response(self, request: Request, outcome: BatchOutcome, began: float) -> Response:
        if outcome.status is not BatchStatus.STORED:
            items = [_item_view(each) for each in outcome.items]
            return json_response(items, 422 if outcome.status is BatchStatus.REJECTED else 207)
        self.kpi_collector.record_batch(
            request.path_parameters["name"],
            request.subject,
            request.flow_id,
            events=outcome.stored_count,
            seconds=time.perf_counter() - began,
            size=len(request.body),
        )
        # A body only where there is something to say: clients may take any for a failure of a part.
        return json_response([_item_view(each) for each in outcome.items]) if outcome.items else Response()


def _item_view(item: ItemResult) -> View:
    view: View = {name: value for name, value in asdict(item).items() if name != "duplicate_of"}
    if item.duplicate_of is not None:
        view["duplicate"] = True
        if (first := item.duplicate_of.first) is not None:
            offset = str(Position(first.timeline, first.offset))
            view["cursor"] = {"partition": str(first.partition), "offset": offset}
    return view


SUBSCRIPTION_ID_HEADER_KEY = "CONSUMER_SUBSCRIPTION_ID"
FORBIDDEN_DEBUG_HEADER_KEY = "DEBUG_PUBLISHER_TOPIC_ID"

_BLANKS_PATTERN = re.compile(r"\s+")
_UUID_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def subscription_id_in_header(header: str) -> str:
    """The id of the subscription that a batch is meant for."""
    text = _BLANKS_PATTERN.sub("", header)
    if not text:
        raise Invalid("X-CONSUMER-TAG: is empty!")
    tags: dict[str, str] = {}
    entries = text.rstrip(",").split(",")
    for entry in entries:
        name, value = _parse_header_pair(entry, len(entries))
        if name in tags:
            raise Invalid(f"duplicate header tag: {name}")
        tags[name] = value
    return tags[SUBSCRIPTION_ID_HEADER_KEY]


def _parse_header_pair(entry: str, entry_count: int) -> tuple[str, str]:
    parts = entry.split("=")
    if len(parts) != 2 or not parts[1]:
        raise Invalid(f"header tag parameter is imbalanced, expected: 2 but provided {entry_count}")
    name, value = parts[0].upper(), parts[1]
    if name == FORBIDDEN_DEBUG_HEADER_KEY:
        raise Invalid(f"header tag unsupported: {name}")
    if name != SUBSCRIPTION_ID_HEADER_KEY:
        raise Invalid(f"invalid header tag: {parts[0]}")
    if _UUID_PATTERN.fullmatch(value) is None:
        raise Invalid(f"header tag value: {value} is not an UUID")
    return name, value.lower()
