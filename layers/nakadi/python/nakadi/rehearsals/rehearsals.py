"""Starts, shows and removes rehearsals.

The process that receives a request runs the rehearsal in a thread. The state of a rehearsal is a document of the
registry, which every process can show or remove.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.common.metrics import Metrics
from nakadi.common.work import LongWorkQueue
from nakadi.event_types.cursors import CursorError
from nakadi.event_types.positions import next_event_location
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.rules import check_enrichment
from nakadi.event_types.schema_versions import check_schema, turn_if_check_is_long
from nakadi.event_types.snapshot import PartitionSnapshot
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import (
    Category,
    CompatibilityMode,
    EnrichmentStrategy,
    EventType,
    Position,
    SchemaDraft,
    SchemaType,
)
from nakadi.model.events import Record
from nakadi.model.outcomes import Invalid, NotFound, TryLater
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLogs, OffsetUnavailable, UnknownTopic
from nakadi.ports.registry import ABSENT_REVISION, PutDocument, Registry, RemoveDocument
from nakadi.rehearsals.documents import (
    REHEARSALS_KIND,
    Rehearsal,
    RehearsalState,
    rehearsal_body,
    rehearsal_from_body,
    rehearsal_key,
)
from nakadi.rehearsals.findings import Findings, Sample
from nakadi.rehearsals.history import HistoryReader, Span, partition_spans
from nakadi.rehearsals.job import RehearsalJob, RehearsalStopped
from nakadi.rehearsals.judge import make_judge
from nakadi.streaming.access import ReadAccess

MAX_RUNNING = 2
"""How many rehearsals a process runs at once: each takes up to half of a processor."""

ANSWER_WITHIN_SECONDS = 2.0
SHORT_PAUSE_SECONDS = 0.05
ID_PATTERN = re.compile("[0-9a-f]{32}")
MAX_REHEARSALS_OF_EVENT_TYPE = 20
# A longer sample is left out, because twenty events of a megabyte would be too long an answer.
MAX_SAMPLE_BYTES = 20_000

TOO_MANY_RUNNING_MESSAGE = f"{MAX_RUNNING} rehearsals are running here, please repeat request when one has ended"
TOO_MANY_KEPT_MESSAGE = (
    f"{MAX_REHEARSALS_OF_EVENT_TYPE} rehearsals of this event type are running, please repeat request when one has "
    "ended"
)

ONLY_JSON_MESSAGE = "Only events with a JSON schema can be rehearsed, and only with a JSON schema"


class RehearsalDraft(Struct, frozen=True, kw_only=True):
    """A rehearsal as a client asks for it. None means the event type's own value."""

    schema: SchemaDraft
    span: Span
    category: Category | None = None
    enrichment_strategies: tuple[EnrichmentStrategy | None, ...] | None = None
    compatibility_mode: CompatibilityMode | None = None


class ShownRehearsal(Struct, frozen=True, kw_only=True):
    """A rehearsal with the events of its samples; None for an event that is too long or no longer stored."""

    event_type: EventType
    rehearsal: Rehearsal
    state: RehearsalState
    samples: Sequence[tuple[Sample, bytes | None]]


class Rehearsals:
    """The rehearsals of a broker, and the threads of those that this process runs."""

    def __init__(  # noqa: PLR0913  # every part by its name
        self,
        *,
        event_types: EventTypes,
        permissions: Permissions,
        features: Features,
        access: ReadAccess,
        logs: EventLogs,
        registry: Registry,
        clock: Clock,
        long_work_queue: LongWorkQueue,
        metrics: Metrics,
        answer_within_seconds: float = ANSWER_WITHIN_SECONDS,
    ) -> None:
        self._event_types = event_types
        self._permissions = permissions
        self._features = features
        self._access = access
        self._logs = logs
        self._registry = registry
        self._clock = clock
        self._long_work_queue = long_work_queue
        self._metrics = metrics
        self._answer_within_seconds = answer_within_seconds
        self._threads = ThreadPoolExecutor(MAX_RUNNING, thread_name_prefix="nakadi-rehearsals")
        self._slots = threading.BoundedSemaphore(MAX_RUNNING)
        self._stopping = threading.Event()

    def start(self, name: str, draft: RehearsalDraft, subject: Subject) -> ShownRehearsal:
        """Start a rehearsal. A short rehearsal has ended when this returns."""
        event_type = self._find_permitted(name, subject)
        self._features.require_writes_allowed()
        proposed = _proposed_event_type(event_type, draft)
        with turn_if_check_is_long(draft.schema, self._long_work_queue):
            text = check_schema(draft.schema, proposed).text
            proposed = replace(proposed, schema=replace(proposed.schema, text=text))
            self._take_slot()
            try:
                job, rehearsal_id = self._register_job(event_type, proposed, draft.span, subject)
                running = self._threads.submit(job.run)
            except BaseException:
                self._free_slot()
                raise
        running.add_done_callback(lambda _: self._free_slot())
        wait([running], timeout=self._answer_within_seconds)
        return self._show(event_type, self._find(event_type, rehearsal_id), subject)

    def get(self, name: str, rehearsal_id: str, subject: Subject) -> ShownRehearsal:
        """A rehearsal as it is now."""
        event_type = self._find_permitted(name, subject)
        return self._show(event_type, self._find(event_type, rehearsal_id), subject)

    def list(self, name: str, subject: Subject) -> Sequence[ShownRehearsal]:
        """The rehearsals of an event type, the newest first, without samples."""
        event_type = self._find_permitted(name, subject)
        found = sorted(self._all_of(event_type), key=lambda each: each.started_at, reverse=True)
        now = self._clock.now()
        return [
            ShownRehearsal(event_type=event_type, rehearsal=each, state=each.state_at(now), samples=())
            for each in found
        ]

    def remove(self, name: str, rehearsal_id: str, subject: Subject) -> None:
        """Remove a rehearsal. If it runs, it ends within moments."""
        event_type = self._find_permitted(name, subject)
        self._features.require_writes_allowed()
        found = self._find(event_type, rehearsal_id)
        self._registry.write(RemoveDocument(REHEARSALS_KIND, found.key))

    def close(self) -> None:
        """End the rehearsals that run here."""
        self._stopping.set()
        self._threads.shutdown()

    def _take_slot(self) -> None:
        if not self._slots.acquire(blocking=False):
            raise TryLater(TOO_MANY_RUNNING_MESSAGE)
        self._metrics.rehearsals_running.add(1)

    def _free_slot(self) -> None:
        self._metrics.rehearsals_running.add(-1)
        self._slots.release()

    def _find_permitted(self, name: str, subject: Subject) -> EventType:
        """The event type, if the subject may read its events and change its schema."""
        event_type = self._event_types.get(name)
        for operation in (Operation.VIEW, Operation.ADMIN, Operation.READ):
            self._permissions.require(operation, event_type.resource, subject)
        self._permissions.require_consumer(subject, [name])
        return event_type

    def _register_job(
        self, event_type: EventType, proposed: EventType, span: Span, subject: Subject
    ) -> tuple[RehearsalJob, str]:
        self._access.refresh_features()
        now = self._clock.now()
        spans = partition_spans(event_type, PartitionSnapshot(event_type, self._logs), span, now)
        rehearsal = Rehearsal(
            id=uuid4().hex,
            event_type_id=event_type.id,
            span=span,
            started_by=subject.name,
            started_at=now,
            updated_at=now,
            expected_count=sum(each.count for each in spans),
            findings=Findings(),
        )
        judge = make_judge(event_type, proposed, self._stopping.is_set)
        self._make_room(event_type)
        self._registry.write(
            PutDocument(REHEARSALS_KIND, rehearsal.key, rehearsal_body(rehearsal), expected_revision=ABSENT_REVISION)
        )
        job = RehearsalJob(
            rehearsal=rehearsal,
            revision=ABSENT_REVISION + 1,
            event_type=event_type,
            spans=spans,
            judge=judge,
            reader=HistoryReader(event_types=self._event_types, logs=self._logs, pause=self._pause),
            may_read=self._may_read_as(subject),
            pause=self._pause,
            registry=self._registry,
            clock=self._clock,
            metrics=self._metrics,
        )
        return job, rehearsal.id

    def _pause(self, seconds: float) -> None:
        # Short pauses sleep: waiting for the event would take twice as much CPU time, and most pauses last half a
        # millisecond.
        if seconds < SHORT_PAUSE_SECONDS:
            self._clock.sleep(seconds)
        if self._stopping.wait(0.0 if seconds < SHORT_PAUSE_SECONDS else seconds):
            raise RehearsalStopped

    def _may_read_as(self, subject: Subject) -> Callable[[Record], bool]:
        return lambda record: self._access.may_read(record, subject)

    def _make_room(self, event_type: EventType) -> None:
        """Remove the oldest rehearsals that have ended, if there are too many."""
        known, now = sorted(self._all_of(event_type), key=lambda each: each.started_at), self._clock.now()
        surplus = len(known) - MAX_REHEARSALS_OF_EVENT_TYPE + 1
        ended = [each for each in known if each.state_at(now) is not RehearsalState.RUNNING]
        if surplus > len(ended):
            raise TryLater(TOO_MANY_KEPT_MESSAGE)
        for each in ended[: max(0, surplus)]:
            self._registry.write(RemoveDocument(REHEARSALS_KIND, each.key))

    def _all_of(self, event_type: EventType) -> Iterator[Rehearsal]:
        documents = self._registry.list(REHEARSALS_KIND, prefix=rehearsal_key(event_type.id, ""))
        return (rehearsal_from_body(each.body) for each in documents)

    def _find(self, event_type: EventType, rehearsal_id: str) -> Rehearsal:
        """Raises `NotFound`, even for a text that cannot be an id, because not every registry accepts every text as a
        key.
        """
        is_id = ID_PATTERN.fullmatch(rehearsal_id) is not None
        document = self._registry.get(REHEARSALS_KIND, rehearsal_key(event_type.id, rehearsal_id)) if is_id else None
        if document is None:
            raise NotFound(f'There is no rehearsal "{rehearsal_id}" of this event type')
        return rehearsal_from_body(document.body)

    # Showing rehearsals

    def _show(self, event_type: EventType, rehearsal: Rehearsal, subject: Subject) -> ShownRehearsal:
        self._access.refresh_features()
        return ShownRehearsal(
            event_type=event_type,
            rehearsal=rehearsal,
            state=rehearsal.state_at(self._clock.now()),
            samples=list(self._readable_samples(event_type, rehearsal.findings.samples, subject)),
        )

    def _readable_samples(
        self, event_type: EventType, samples: Sequence[Sample], subject: Subject
    ) -> Iterator[tuple[Sample, bytes | None]]:
        """The samples that a subject may read. A sample that the log no longer has comes without its text."""
        may_read = self._may_read_as(subject)
        for sample in samples:
            record = self._find_record(event_type, sample)
            if record is None:
                yield sample, None
            elif may_read(record):
                assert record.value is not None
                yield sample, record.value if len(record.value) <= MAX_SAMPLE_BYTES else None

    def _find_record(self, event_type: EventType, sample: Sample) -> Record | None:
        before = Position(sample.position.timeline, sample.position.offset - 1)
        try:
            timeline, offset = next_event_location(event_type, before, sample.partition)
            if Position(timeline.order, offset) != sample.position:
                return None
            log = self._logs.for_storage(timeline.storage_id)
            found = log.read(timeline.topic, sample.partition, offset, limit=1)
        except (CursorError, OffsetUnavailable, UnknownTopic):
            return None
        return next((each.record for each in found.events if each.offset == offset), None)


def _proposed_event_type(event_type: EventType, draft: RehearsalDraft) -> EventType:
    if SchemaType.AVRO in (draft.schema.type, event_type.schema.type):
        raise Invalid(ONLY_JSON_MESSAGE)
    category = draft.category or event_type.category
    strategies = draft.enrichment_strategies
    if strategies is None:
        strategies = () if category is Category.UNDEFINED else (EnrichmentStrategy.METADATA,)
    check_enrichment(strategies, category)
    mode = draft.compatibility_mode or event_type.compatibility_mode
    return replace(event_type, category=category, compatibility_mode=mode)
