"""Publishing and deleting events."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress

from msgspec import Struct
from msgspec.structs import asdict

from nakadi.auth.permissions import Permissions
from nakadi.http.cloud_events import HEADER_PREFIX, ContentMode, content_mode, decode_attributes
from nakadi.http.compression import MAX_DECOMPRESSED_BYTES
from nakadi.http.message import JSON_MEDIA_TYPE, AnswerTask, Parameter, Request, Response, json_response
from nakadi.http.parameters import Header, HeaderFamily
from nakadi.http.problem import UnsupportedMediaType
from nakadi.http.router import Lane, Route
from nakadi.http.trace_context import trace_context
from nakadi.http.views import View
from nakadi.model.event_type import Position
from nakadi.model.outcomes import Fault, Invalid, Malformed, Outcome
from nakadi.publishing.batch import BatchOutcome, BatchStatus, ItemResult
from nakadi.publishing.cloud_events import CloudEventReader, Publication
from nakadi.publishing.memory import SHORT_BODY_BYTES, estimate_batch_memory
from nakadi.publishing.publisher import BatchSender, Publisher
from nakadi.publishing.system_events import KpiCollector

AVRO_MEDIA_TYPE = "application/avro-binary"

CONTENT_TYPE, CONSUMER_TAG = Header("content-type"), Header("x-consumer-tag")
CLOUD_EVENT_ATTRIBUTES = HeaderFamily(HEADER_PREFIX)
TRACE_PARENT, TRACE_STATE = Header("traceparent"), Header("tracestate")
PUBLISHING_HEADERS = (CONTENT_TYPE, CONSUMER_TAG, CLOUD_EVENT_ATTRIBUTES, TRACE_PARENT, TRACE_STATE)


def routes(publisher: Publisher, permissions: Permissions, kpi_collector: KpiCollector) -> list[Route]:
    handlers = _PublishingHandlers(publisher, permissions, kpi_collector)
    return [
        _route("events", handlers.publish_events, "publish_events", *PUBLISHING_HEADERS),
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
        # Every client gets the result for each event (207), whatever it accepts: after a 406, it would publish all
        # events again.
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
            avro = _is_avro(request)
            mode = None if avro else content_mode(_content_type(request), CLOUD_EVENT_ATTRIBUTES.read(request))
            self._require_body(request, may_be_empty=mode is ContentMode.BINARY)
            header = CONSUMER_TAG.read(request)
            tag = None if header is None else subscription_id_in_header(header)
            self._admit_batch(request)
            name, began = request.path_parameters["name"], time.perf_counter()
            sent = Publication(request.body) if mode is None else self._read_cloud_events(request, mode)
            sender = BatchSender(
                subject=request.subject,
                flow_id=request.flow_id,
                directed_to=tag,
                is_client_gone=request.is_client_gone,
                trace_context=trace_context(TRACE_PARENT.read(request), TRACE_STATE.read(request)),
                take_memory=request.memory.take,
            )
            publish = self.publisher.avro_task if avro else self.publisher.publishing_task
            outcome = await publish(name, sent.body, sender)
        except Exception as error:
            self._count_refused_batch(error)
            raise
        return self._publication_response(request, outcome, began, sent.ids)

    async def publish_deletions(self, request: Request) -> Response:
        try:
            avro = _is_avro(request)
            if not avro:
                _require_no_cloud_events(request)
            self._require_body(request)
            self._admit_batch(request)
            name, began = request.path_parameters["name"], time.perf_counter()
            sender = BatchSender(
                subject=request.subject, flow_id=request.flow_id, is_client_gone=request.is_client_gone
            )
            delete = self.publisher.avro_deletion_task if avro else self.publisher.deletion_task
            outcome = await delete(name, request.body, sender)
        except Exception as error:
            self._count_refused_batch(error)
            raise
        return self._publication_response(request, outcome, began)

    @staticmethod
    def _require_body(request: Request, *, may_be_empty: bool = False) -> None:
        if not request.body and not may_be_empty:
            raise Malformed(f"Required request body is missing: {request.method} {request.path}")

    def _admit_batch(self, request: Request) -> None:
        """Raise an outcome if the client is blocked, before the broker looks up the event type, or if there is no
        memory for the batch.
        """
        self.permissions.require_producer(request.subject, request.path_parameters["name"])
        request.memory.take(estimate_batch_memory(request.body, self.publisher.limits))

    def _read_cloud_events(self, request: Request, mode: ContentMode) -> Publication:
        """The batch of the CloudEvents in a body. A long body is read in a turn at long work."""
        body = request.body
        # This is for the texts of the events, and for the batch that they form.
        request.memory.take(2 * len(body))
        reader = CloudEventReader(
            now=self.publisher.clock.now(),
            is_compacted=self._is_compacted(request.path_parameters["name"]),
            limits=self.publisher.limits,
        )
        turn = self.publisher.long_work_queue.wait_for_turn(request.is_client_gone)
        with turn if len(body) > SHORT_BODY_BYTES else nullcontext():
            match mode:
                case ContentMode.BATCHED:
                    return reader.read_batch(body)
                case ContentMode.STRUCTURED:
                    return reader.read_event(body)
                case ContentMode.BINARY:
                    headers = CLOUD_EVENT_ATTRIBUTES.read(request)
                    return reader.read_parts(decode_attributes(headers, CONTENT_TYPE.read(request) or ""), body)

    def _is_compacted(self, name: str) -> bool:
        # The faults of a body are reported before a missing event type, which publishing notices later.
        with suppress(Outcome, Fault):
            return self.publisher.event_types.cached(name).cleanup_policy.compacts
        return False

    def _count_refused_batch(self, error: Exception) -> None:
        """Count a batch that was refused as a whole, by the kind of the outcome: `not_found` or `try_later`."""
        kind = type(error).__name__ if isinstance(error, Outcome | Fault) else "Fault"
        self.publisher.metrics.batches_refused.add(1, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower())

    def _publication_response(
        self, request: Request, outcome: BatchOutcome, began: float, ids: Sequence[str] = ()
    ) -> Response:
        """The response to a batch; `ids` are the ids of its events if they are CloudEvents."""
        items = [_item_view(each) for each in outcome.items]
        for view, cloud_event_id in zip(items, ids, strict=False):
            view["id"] = cloud_event_id
        if outcome.status is not BatchStatus.STORED:
            return json_response(items, 422 if outcome.status is BatchStatus.REJECTED else 207)
        self.kpi_collector.record_batch(
            request.path_parameters["name"],
            request.subject,
            request.flow_id,
            events=outcome.stored_count,
            seconds=time.perf_counter() - began,
            size=len(request.body),
        )
        # The response has a body only if there is something to report: clients may interpret any body as a partial
        # failure.
        return json_response(items) if items else Response()


def _content_type(request: Request) -> str:
    return CONTENT_TYPE.read(request) or ""


def _is_avro(request: Request) -> bool:
    content_type = _content_type(request)
    return content_type != JSON_MEDIA_TYPE and content_type.partition(";")[0].strip().lower() == AVRO_MEDIA_TYPE


def _require_no_cloud_events(request: Request) -> None:
    if content_mode(_content_type(request), {}) is not None:
        raise UnsupportedMediaType("Content type of CloudEvents not supported: events are deleted as JSON")


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
    """The id of the subscription to which the client directs a batch, from this header."""
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
        raise Invalid(f"header tag unsupported: {parts[0]}")
    if name != SUBSCRIPTION_ID_HEADER_KEY:
        raise Invalid(f"invalid header tag: {parts[0]}")
    if _UUID_PATTERN.fullmatch(value) is None:
        raise Invalid(f"header tag value: {value} is not an UUID")
    return name, value.lower()
