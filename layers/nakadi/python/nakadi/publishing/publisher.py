"""Publishing has these steps: check event owners, validate, choose partitions, enrich, append.

Each step works on the whole batch, and the first step that finds a faulty event rejects the batch. Until the last step,
nothing is stored and nothing is changed, so a batch can simply start again when its event type has moved to another
timeline.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from functools import partial
from itertools import repeat
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions, permission_denied_error
from nakadi.common.metrics import Metrics
from nakadi.common.tracing import Tracer
from nakadi.common.waiting import LEAVE_LOOP, run_blocking
from nakadi.common.work import LongWorkQueue, check_may_block, client_never_gone
from nakadi.event_types.effective_schemas import effective_schema_of
from nakadi.event_types.repository import EVENT_TYPE_BUSY_MESSAGE, EventTypes
from nakadi.model.authorization import Feature, Operation, Subject
from nakadi.model.event_type import (
    Category,
    CleanupPolicy,
    CompatibilityMode,
    EnrichmentStrategy,
    EventType,
    OwnerSelector,
    PartitionStrategy,
    Schema,
    SchemaType,
    Timeline,
    Version,
)
from nakadi.model.events import AppendRefused, AppendStored, Record
from nakadi.model.outcomes import Fault, Invalid, Malformed, NotPermitted, Outcome, TooLarge, TryLater, Unavailable
from nakadi.ports.clock import Clock
from nakadi.ports.deduplication import DeduplicatingLogs, EventIds
from nakadi.ports.event_log import (
    AppendResultByPartition,
    EventLogs,
    SealedTopic,
    UnknownTopic,
)
from nakadi.publishing.avro import (
    NO_DELETION_MESSAGE,
    AvroBatch,
    EventWriter,
    PayloadForm,
    PayloadForms,
    check_event_types,
    check_payloads_empty,
    find_avro_schema,
    make_records,
    outcome_of_avro_rejection,
    owner_of,
    partitions_by_keys,
    read_avro_batch,
    record_keys,
)
from nakadi.publishing.batch import (
    PARSE_ERRORS,
    Batch,
    BatchLimits,
    BatchOutcome,
    BatchRejected,
    BatchStatus,
    LongBatch,
    PublishingStatus,
    PublishingStep,
    WorkBudget,
    outcome_of_partial_append,
    outcome_of_rejection,
)
from nakadi.publishing.deduplication import eids_of_events, ids_for_append
from nakadi.publishing.enrichment import (
    BatchOrigin,
    DrawRandomNumber,
    HashOrders,
    choose_partitions,
    compaction_keys,
)
from nakadi.publishing.memory import is_parsed_at_once
from nakadi.publishing.records import RecordMaker, Stamps, join_records
from nakadi.publishing.validation import (
    LONG_BODY_BYTES,
    EnterLongWork,
    Owners,
    check_delete_batch,
    check_owners,
    cut_long_body,
    find_owners,
    read_batch,
    validate_events,
)
from nakadi.schemas.batch_check import make_batch_check
from nakadi.schemas.validation import Validator, compile_validator

log = logging.getLogger(__name__)

# The size up to which Avro is read on the event loop, which takes a few milliseconds.
MAX_AVRO_BYTES_AT_ONCE = 16 * 1024

# A switch of timelines takes well under a second; a batch that waits for a switch reads the event type again this
# often.
TIMELINE_POLL_INTERVAL_SECONDS = 0.05


class BatchSender(Struct, frozen=True, kw_only=True):
    """The client that sent a batch, which may have disconnected since, and the subscription to which it directs the
    batch, if there is one.

    `trace_context` is that of the request; events without a trace context of their own get it. `take_memory` is called
    with the number of bytes that a body in another form than JSON needs in memory, and may raise.
    """

    subject: Subject
    flow_id: str
    directed_to: str | None = None
    is_client_gone: Callable[[], bool] = client_never_gone
    trace_context: Mapping[str, str] = {}
    take_memory: Callable[[int], None] = lambda _: None


class RequestBody(Struct, kw_only=True):
    """The body of a request, whether it is parsed at once, and the batch in it, once it has been read."""

    body: bytes
    at_once: bool
    limits: BatchLimits
    enter_long_work: EnterLongWork
    batch: Batch | None = None

    def read_batch(self) -> Batch:
        if self.batch is None:
            self.batch = read_batch(self.body, self.limits, self.enter_long_work, at_once=self.at_once)
        return self.batch

    def outcome_of_rejection(self, rejection: BatchRejected) -> BatchOutcome:
        return outcome_of_rejection(self.read_batch().events, rejection)


class AvroRequestBody(RequestBody, kw_only=True):
    """The body of a request in Avro."""

    avro_batch: AvroBatch | None = None

    def read_batch(self) -> Batch:
        return self.read_avro_batch()

    def read_avro_batch(self) -> AvroBatch:
        if self.avro_batch is None:
            if len(self.body) > MAX_AVRO_BYTES_AT_ONCE:
                check_may_block()
            with self.enter_long_work() if len(self.body) > LONG_BODY_BYTES else nullcontext():
                self.avro_batch = read_avro_batch(self.body, self.limits)
        return self.avro_batch

    def outcome_of_rejection(self, rejection: BatchRejected) -> BatchOutcome:
        return outcome_of_avro_rejection(self.read_avro_batch(), rejection)


class PartitionedRecords(Struct, frozen=True):
    """The partition of each event, the records of each partition, and the events' eids if the event type
    deduplicates.
    """

    partitions: Sequence[int]
    records: Mapping[int, Sequence[Record]]
    eids: Sequence[str] | None = None


PrepareRecords = Callable[[EventType, RequestBody, BatchSender], PartitionedRecords]
"""Makes the records of a batch, and chooses the partition of each. Raises `BatchRejected`."""

CountEvents = Callable[[str, int, int], None]
"""Counts events of an event type that were stored, in a body of this number of bytes."""


class VersionCache:
    """The lists of schema versions of event types that have Avro schemas. After a new version, the list is loaded anew.

    If there are too many, the least recently used ones are dropped.
    """

    def __init__(self, max_lists: int = 500) -> None:
        self._max_lists = max_lists
        self._lock = threading.Lock()
        self._lists: OrderedDict[tuple[str, Version], Sequence[Schema]] = OrderedDict()

    def get_or_load(self, event_type: EventType, load: Callable[[EventType], Sequence[Schema]]) -> Sequence[Schema]:
        """The schemas of the present event type, newest first; `load` reads them from the registry."""
        key = (event_type.id, event_type.schema.version)
        with self._lock:
            if key in self._lists:
                self._lists.move_to_end(key)
                return self._lists[key]
        check_may_block()
        # Two threads may load the same list at once, and store it twice.
        found = load(event_type)
        with self._lock:
            self._lists[key] = found
            if len(self._lists) > self._max_lists:
                self._lists.popitem(last=False)
        return found


class Publisher(Struct, frozen=True, kw_only=True):
    """Accepts batches of events. `max_wait_seconds` is how long a batch waits for the end of maintenance."""

    event_types: EventTypes
    validators: ValidatorCache
    permissions: Permissions
    features: Features
    logs: EventLogs
    deduplication: DeduplicatingLogs
    clock: Clock
    limits: BatchLimits
    long_work_queue: LongWorkQueue = field(default_factory=LongWorkQueue)
    metrics: Metrics
    max_wait_seconds: float = 40.0
    sleep: Callable[[float], None] = time.sleep
    draw_random_number: DrawRandomNumber = random.random
    hash_orders: HashOrders = field(default_factory=dict)
    versions: VersionCache = field(default_factory=VersionCache)
    payload_forms: PayloadForms = field(default_factory=PayloadForms)
    tracer: Tracer | None = None

    def publish(self, event_type: str, body: bytes, subject: Subject, flow_id: str) -> BatchOutcome:
        """Store the events of a body; raises `Malformed`, `NotFound` or another outcome if it cannot be processed."""
        return run_blocking(self.publishing_task(event_type, body, BatchSender(subject=subject, flow_id=flow_id)))

    async def deletion_task(self, event_type: str, body: bytes, sender: BatchSender) -> BatchOutcome:
        """Store a tombstone for each event of a body."""
        return await self.publishing_task(event_type, body, sender, self._make_tombstones, self._count_deleted_events)

    async def avro_task(self, event_type: str, body: bytes, sender: BatchSender) -> BatchOutcome:
        """Store the events of a body in Avro."""
        return await self.publishing_task(event_type, body, sender, self._make_avro_records, form=AvroRequestBody)

    async def avro_deletion_task(self, event_type: str, body: bytes, sender: BatchSender) -> BatchOutcome:
        """Store a tombstone for each event of a body in Avro."""
        return await self.publishing_task(
            event_type, body, sender, self._make_avro_tombstones, self._count_deleted_events, form=AvroRequestBody
        )

    async def publishing_task(
        self,
        name: str,
        body: bytes,
        sender: BatchSender,
        prepare: PrepareRecords | None = None,
        count: CountEvents | None = None,
        *,
        form: type[RequestBody] = RequestBody,
    ) -> BatchOutcome:
        """Store the events of a body, as `publish` does.

        Nothing is changed before the first append, so the batch may start again until then.

        The task prepares and appends again until the event type's timeline is open, or the batch has waited too long.

        The cached event type may be out of date: another process may have changed it since, or deleted it and created
        it again. That is harmless. No batch is rejected because of it: before a rejection, the event type is read
        again. Nor is a batch stored wrongly: the topic of a deleted event type no longer exists, so the event type is
        read again, with a new check of the permission.
        """
        sent = form(
            body=body,
            at_once=is_parsed_at_once(body),
            limits=self.limits,
            enter_long_work=partial(self.long_work_queue.wait_for_turn, sender.is_client_gone),
        )
        prepare, count = prepare or self._make_records, count or self.metrics.stored
        try:
            event_type = self.event_types.cached(name)
        except (Outcome, Fault):
            sent.read_batch()  # this comes first, so that a body that cannot be read is reported first
            raise
        deadline = self.clock.monotonic() + self.max_wait_seconds
        while True:
            try:
                prepared = prepare(event_type, sent, sender)
                fates = await self._append_prepared(event_type, prepared, sender)
            except (SealedTopic, UnknownTopic):
                await LEAVE_LOOP
                event_type = self._await_next_timeline(event_type, deadline)
            except (NotPermitted, BatchRejected) as refusal:
                newer = self._newer_event_type(event_type, deadline)
                if newer is None:
                    return self._rejection_outcome(name, sent, refusal)
                event_type = newer
            else:
                if set(map(type, fates.values())) <= {AppendStored}:
                    count(name, len(prepared.partitions), len(body))
                    self.metrics.partition_loads.count_batch(name, prepared.records, event_type.timeline.partitions)
                    return BatchOutcome(BatchStatus.STORED, stored_count=len(prepared.partitions))
                await LEAVE_LOOP
                return self._partial_outcome(name, sent, prepared.partitions, fates, count)

    async def _append_prepared(
        self, event_type: EventType, prepared: PartitionedRecords, sender: BatchSender
    ) -> AppendResultByPartition:
        """Append the records of a batch. If it is unknown whether they were stored, they count as refused."""
        if not prepared.records:
            return {}
        ids = ids_for_append(event_type, prepared.partitions, prepared.eids, sender.directed_to)
        try:
            if self.tracer is None or not sender.trace_context:
                return await self._append(event_type.timeline, prepared.records, ids)
            return await self._append_in_span(self.tracer, sender, event_type.timeline, prepared.records, ids)
        except Unavailable as error:
            cause = error.__cause__ or error
            log.warning("Append to %s failed, outcome unknown: %s", event_type.name, cause, exc_info=True)
            return dict.fromkeys(prepared.records, AppendRefused("internal error"))

    async def _append(
        self, timeline: Timeline, records: Mapping[int, Sequence[Record]], ids: EventIds | None
    ) -> AppendResultByPartition:
        event_log = self.logs.for_storage(timeline.storage_id)
        if ids is None:
            return await event_log.append(timeline.topic, records)
        log = self.deduplication.find(timeline.storage_id)
        if log is None:
            raise Unavailable(f"Storage {timeline.storage_id} does not know events by their ids.")
        return await log.append_once(timeline.topic, records, ids)

    async def _append_in_span(
        self,
        tracer: Tracer,
        sender: BatchSender,
        timeline: Timeline,
        records: Mapping[int, Sequence[Record]],
        ids: EventIds | None,
    ) -> AppendResultByPartition:
        span = tracer.begin_part("append", timeline.topic, sender.trace_context)
        try:
            fates = await self._append(timeline, records, ids)
        except Exception as error:
            if span is not None:
                span.end(type(error).__name__)
            raise
        if span is not None:
            span.end(events=sum(map(len, records.values())))
        return fates

    def _partial_outcome(
        self,
        name: str,
        sent: RequestBody,
        partitions: Sequence[int],
        append_results: AppendResultByPartition,
        count: CountEvents,
    ) -> BatchOutcome:
        outcome = outcome_of_partial_append(sent.read_batch().events, partitions, append_results)
        failed = sum(each.publishing_status is PublishingStatus.FAILED for each in outcome.items)
        duplicates = len(outcome.items) - failed - outcome.stored_count
        if failed:
            self.metrics.events_refused.add(failed, name, outcome.step)
        if duplicates:
            self.metrics.event_duplicates.add(duplicates, name)
        if outcome.stored_count:
            count(name, outcome.stored_count, len(sent.body))
        return outcome

    def _rejection_outcome(self, name: str, sent: RequestBody, refusal: NotPermitted | BatchRejected) -> BatchOutcome:
        if isinstance(refusal, NotPermitted):
            raise refusal
        outcome = sent.outcome_of_rejection(refusal)
        self.metrics.events_refused.add(len(outcome.items), name, outcome.step)
        return outcome

    def _count_deleted_events(self, name: str, events: int, _size: int) -> None:
        self.metrics.events_deleted.add(events, name)

    # Turning a batch into records

    def _make_records(self, event_type: EventType, sent: RequestBody, sender: BatchSender) -> PartitionedRecords:
        made = None if sent.at_once else self._make_records_by_pieces(event_type, sent.body, sender)
        if made is not None:
            self._check_permission(event_type, sender)
            return made
        batch = sent.read_batch()
        self._check_permission(event_type, sender)
        with self._open_budget(sender) as budget:
            return self._make_records_of(event_type, batch, sender, budget)

    def _make_records_by_pieces(
        self, event_type: EventType, body: bytes, sender: BatchSender
    ) -> PartitionedRecords | None:
        """The records of a long body: all steps take one piece after the other, so that each piece is parsed once.

        None if a piece has a fault: an earlier step might find a fault in a later piece, and that would have to be
        reported first.
        """
        partitions: list[int] = []
        pieces: list[Mapping[int, Sequence[Record]]] = []
        eids: list[str] = []
        with suppress(BatchRejected, Malformed, TooLarge, *PARSE_ERRORS), self._open_budget(sender) as budget:
            budget.wait_for_turn()
            for piece in cut_long_body(body, self.limits).in_pieces():
                made = self._make_records_of(event_type, piece, sender, budget)
                partitions += made.partitions
                pieces.append(made.records)
                eids += made.eids or ()
            return PartitionedRecords(partitions, join_records(pieces), eids or None) if pieces else None
        return None

    def _make_records_of(
        self, event_type: EventType, batch: Batch, sender: BatchSender, budget: WorkBudget
    ) -> PartitionedRecords:
        """The records of a batch. Each step takes all events, so the first step that finds a faulty event determines
        the error.
        """
        if isinstance(batch, LongBatch):
            budget.wait_for_turn()
        owners, reached = self._find_permitted_owners(event_type, batch, sender.subject)
        if event_type.schema.type is not SchemaType.JSON:
            event_type = self._with_json_schema(event_type, reached)
        limit, validator = self.limits.max_event_bytes, self._validator(event_type)
        validate_events(event_type, batch, validator, budget, max_event_bytes=limit, prior_step=reached)
        partitions, keys = choose_partitions(event_type, batch, self.draw_random_number, budget, self.hash_orders)
        if event_type.cleanup_policy.compacts:
            keys = compaction_keys(batch)
        maker = RecordMaker(
            partitions=partitions,
            stamps=self._stamps(event_type, sender),
            keys=keys,
            owners=owners,
            directed_to=sender.directed_to,
        )
        return PartitionedRecords(partitions, maker.make_records(batch), eids_of_events(event_type, batch))

    def _open_budget(self, sender: BatchSender) -> closing[WorkBudget]:
        return closing(WorkBudget(self.limits.max_steps, self.long_work_queue, sender.is_client_gone))

    def _validator(self, event_type: EventType) -> Validator:
        return self.validators.get_or_compile(event_type, partial(effective_schema_of, event_type))

    def _stamps(self, event_type: EventType, sender: BatchSender) -> Stamps | None:
        if EnrichmentStrategy.METADATA not in event_type.enrichment_strategies:
            return None
        return Stamps(event_type, self._origin(event_type, sender))

    def _origin(self, event_type: EventType, sender: BatchSender) -> BatchOrigin:
        return BatchOrigin(
            published_by=sender.subject.name,
            flow_id=sender.flow_id,
            received_at=self.clock.now(),
            schema_version=event_type.schema.version,
            trace_context=sender.trace_context,
        )

    def _make_tombstones(self, event_type: EventType, sent: RequestBody, sender: BatchSender) -> PartitionedRecords:
        batch = sent.read_batch()
        self._check_permission(event_type, sender)
        with self._open_budget(sender) as budget:
            owners, reached = self._find_permitted_owners(event_type, batch, sender.subject)
            check_delete_batch(event_type, batch, max_event_bytes=self.limits.max_event_bytes, prior_step=reached)
            if isinstance(batch, LongBatch):
                budget.wait_for_turn()
            partitions, _ = choose_partitions(event_type, batch, self.draw_random_number, budget, self.hash_orders)
            keys = compaction_keys(batch)
        records: defaultdict[int, list[Record]] = defaultdict(list)
        for partition, key, owner in zip(partitions, keys, owners or repeat(None), strict=False):
            records[partition].append(Record(None, key, owner))
        return PartitionedRecords(partitions, records)

    def _make_avro_records(self, event_type: EventType, sent: RequestBody, sender: BatchSender) -> PartitionedRecords:
        assert isinstance(sent, AvroRequestBody)
        batch = sent.read_avro_batch()
        self._check_permission(event_type, sender)
        selector = self._owner_selector(event_type)
        with self._open_budget(sender) as budget:
            forms = check_event_types(event_type, batch, partial(self._payload_form, event_type))
            partitions = self._choose_avro_partitions(event_type, batch, budget)
            keys = record_keys(event_type, batch, partitions)
            writer = EventWriter(
                event_type=event_type,
                origin=self._origin(event_type, sender),
                limits=self.limits,
                budget=budget,
                take_memory=sender.take_memory,
                selector=selector,
            )
            texts, owners = writer.write(batch, forms, partitions)
        check_owners(batch, owners, sender.subject, self.permissions)
        records = make_records(texts, partitions, keys, owners, sender.directed_to)
        return PartitionedRecords(partitions, records, eids_of_events(event_type, batch))

    def _make_avro_tombstones(
        self, event_type: EventType, sent: RequestBody, sender: BatchSender
    ) -> PartitionedRecords:
        assert isinstance(sent, AvroRequestBody)
        if not event_type.cleanup_policy.compacts:
            raise Invalid(NO_DELETION_MESSAGE)
        batch = sent.read_avro_batch()
        self._check_permission(event_type, sender)
        check_event_types(event_type, batch, partial(self._payload_form, event_type))
        selector = self._owner_selector(event_type)
        owners = [None if selector is None else owner_of(event, selector) for event in batch.events]
        check_owners(batch, owners, sender.subject, self.permissions)
        check_payloads_empty(batch)
        with self._open_budget(sender) as budget:
            partitions = self._choose_avro_partitions(event_type, batch, budget)
        keys = record_keys(event_type, batch, partitions)
        return PartitionedRecords(partitions, make_records([None] * len(batch), partitions, keys, owners, None))

    def _choose_avro_partitions(self, event_type: EventType, batch: AvroBatch, budget: WorkBudget) -> Sequence[int]:
        if event_type.partition_strategy is PartitionStrategy.HASH:
            return partitions_by_keys(event_type, batch, self.hash_orders)
        return choose_partitions(event_type, batch, self.draw_random_number, budget, self.hash_orders)[0]

    def _payload_form(self, event_type: EventType, version: str) -> PayloadForm | str:
        """The form of payloads of a version, or the reason why there is none."""
        current = event_type.schema
        is_current = current.type is SchemaType.AVRO and str(current.version) == version
        versions = [current] if is_current else self.versions.get_or_load(event_type, self.event_types.schemas)
        schema = find_avro_schema(versions, event_type.name, version)
        return schema if isinstance(schema, str) else self.payload_forms.get_or_make(event_type, schema)

    def _check_permission(self, event_type: EventType, sender: BatchSender) -> None:
        if not self.permissions.allows(Operation.WRITE, event_type.resource, sender.subject):
            raise permission_denied_error(Operation.WRITE, event_type.resource)

    def _find_permitted_owners(
        self, event_type: EventType, batch: Batch, subject: Subject
    ) -> tuple[Owners | None, PublishingStep]:
        """The owner of each event, if the event type has owners; and the step that the events have reached.

        Raises `BatchRejected` if the subject may not write for an owner.
        """
        selector = self._owner_selector(event_type)
        if selector is None:
            return None, PublishingStep.NONE
        owners = find_owners(batch, selector)
        check_owners(batch, owners, subject, self.permissions)
        return owners, PublishingStep.VALIDATING

    def _owner_selector(self, event_type: EventType) -> OwnerSelector | None:
        """The selector of owners, if events may have owners."""
        is_on = self.features.is_on(Feature.EVENT_OWNER_SELECTOR_AUTHZ)
        return event_type.event_owner_selector if event_type.event_owner_selector and is_on else None

    def _with_json_schema(self, event_type: EventType, prior_step: PublishingStep) -> EventType:
        """The event type with its newest JSON schema, by which events in JSON are validated."""
        schemas = self.versions.get_or_load(event_type, self.event_types.schemas)
        schema = next((each for each in schemas if each.type is SchemaType.JSON), None)
        if schema is None:
            detail = f"No json_schema found for event type: {event_type.name}"
            raise BatchRejected(PublishingStep.VALIDATING, 0, detail, prior_step=prior_step)
        return replace(event_type, schema=schema)

    # The event type

    def _newer_event_type(self, event_type: EventType, deadline: float) -> EventType | None:
        """The event type of this name, if the cached one is out of date."""
        current = self.event_types.get(event_type.name)
        same = (current.id, current.revision) == (event_type.id, event_type.revision)
        return None if same or self.clock.monotonic() >= deadline else current

    def _await_next_timeline(self, event_type: EventType, deadline: float) -> EventType:
        """The event type, once it has a timeline other than this one."""
        while True:
            current = self.event_types.get(event_type.name)
            if current.timeline.id != event_type.timeline.id:
                return current
            if self.clock.monotonic() >= deadline:
                raise TryLater(EVENT_TYPE_BUSY_MESSAGE)
            self.sleep(TIMELINE_POLL_INTERVAL_SECONDS)


class ValidatorCache:
    """The validators in use, each compiled once, even if many threads need it at the same time.

    If there are too many, the least recently used ones are dropped.
    """

    def __init__(self, max_validators: int = 500) -> None:
        self._max_validators = max_validators
        self._lock = threading.Lock()
        self._entries: OrderedDict[_CacheKey, _CachedValidator] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def get_or_compile(self, event_type: EventType, load_schema: Callable[[], Mapping[str, Any]]) -> Validator:
        """The validator of the present event type; `load_schema` returns the schema if it is needed."""
        key = (
            event_type.id,
            event_type.schema.version,
            event_type.compatibility_mode,
            event_type.cleanup_policy,
            event_type.category,
        )
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self.misses += 1
                entry = self._entries[key] = _CachedValidator()
                if len(self._entries) > self._max_validators:
                    self._entries.popitem(last=False)
            else:
                self.hits += 1
                self._entries.move_to_end(key)
        # Compiling takes long, so it must not hold the common lock; each entry has its own lock for that.
        return entry.made or entry.compile_once(load_schema, has_metadata=event_type.category is not Category.UNDEFINED)


_CacheKey = tuple[str, Version, CompatibilityMode, CleanupPolicy, Category]


class _CachedValidator:
    """Compiles the validator of a schema when it is first needed. `made` is that validator, or None before. If
    compiling fails, the next thread that needs it tries again.
    """

    __slots__ = ("_lock", "made")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.made: Validator | None = None

    def compile_once(self, load_schema: Callable[[], Mapping[str, Any]], *, has_metadata: bool) -> Validator:
        check_may_block()
        with self._lock:
            if self.made is None:
                self.made = compile_event_validator(load_schema(), has_metadata=has_metadata)
            return self.made


def compile_event_validator(schema: Mapping[str, Any], *, has_metadata: bool) -> Validator:
    """A validator that also recognizes most valid events quickly. `has_metadata` is true for events that must have
    metadata.
    """
    made = compile_validator(schema)
    made.batch_check = make_batch_check(made.document, made.compile_parts, has_metadata=has_metadata)
    return made
