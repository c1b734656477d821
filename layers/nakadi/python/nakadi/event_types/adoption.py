"""Adoption: an event type takes over topics of another broker with the Nakadi API.

The other broker's timelines, with their orders, replace the timelines of the event type, so that the other broker's
cursors stay valid here. The topics still belong to the other broker: this broker reads and writes them, and removes
events older than the retention time, but never deletes the topics themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from nakadi.event_types.deduplication import check_storage_deduplicates
from nakadi.event_types.deletion import DeletedEventTypeCleanup, GetDependents
from nakadi.event_types.repository import EventTypes, cleanup_note
from nakadi.event_types.timeline_states import TimelineFact, timeline_after
from nakadi.event_types.timelines import Timelines
from nakadi.model.authorization import Subject
from nakadi.model.event_type import CleanupPolicy, EventType, Timeline
from nakadi.model.outcomes import Conflict, Invalid
from nakadi.ports.clock import Clock
from nakadi.ports.deduplication import DeduplicatingLogs
from nakadi.ports.event_log import EventLog, EventLogs, SealedTopic, TopicAdoptingLog, UnknownTopic
from nakadi.ports.registry import DocumentChange

MAX_ADOPTED_TIMELINES = 100

# Kafka's own rule, without the names that Kafka has for itself.
TOPIC_NAME_PATTERN = re.compile(r"(?!__)[a-zA-Z0-9._-]{1,249}")

MAX_TIMELINE_ORDER = 0xFFFF
"""The greatest order that fits into the digits of a cursor."""


class TimelineToAdopt(Struct, frozen=True, kw_only=True):
    """A timeline as the other broker describes it. If it is closed, it has the last offset of each partition."""

    order: int | None
    topic: str | None
    latest_offsets: Sequence[int | None] | None = None


class TopicAdoption(Struct, frozen=True, kw_only=True):
    """Lets an event type that has no events take over topics of another broker."""

    timelines: Timelines
    event_types: EventTypes
    logs: EventLogs
    deduplication: DeduplicatingLogs
    deleted_event_type_cleanup: DeletedEventTypeCleanup
    dependents: GetDependents
    clock: Clock

    def adopt(self, name: str, storage_id: str | None, drafts: Sequence[TimelineToAdopt], subject: Subject) -> None:
        """Replace the timelines of an event type. Returns when the last new timeline is in use."""
        self.timelines.require_may_switch(name, subject)
        event_type = self.event_types.get(name)
        storage_conditions = self.timelines.write_conditions_on_storage(storage_id)
        check_storage_deduplicates(event_type, str(storage_id), self.deduplication)
        self._require_no_events(event_type)
        adopted = self._timelines_of_drafts(event_type, str(storage_id), drafts)
        announce = partial(self.timelines.announce_switch, name, event_type.timeline.storage_id)
        announced = self.event_types.retry_if_changed(announce)
        replace_timelines = partial(self._replace_timelines, announced, adopted, storage_conditions)
        self.timelines.retry_while_stores_fail(lambda: self.event_types.retry_if_changed(replace_timelines))
        self.deleted_event_type_cleanup.try_to_clean_up(str(announced.switching_to and announced.switching_to.id), name)

    def _replace_timelines(
        self, announced: EventType, adopted: tuple[Timeline, ...], storage_conditions: Sequence[DocumentChange]
    ) -> None:
        """Replace the timelines after sealing the topic, so that no event can follow once it was found to be empty.

        Until then, the announced switch prevents any other switch. If an event was stored meanwhile, the switch is
        completed like any other, so that the event type accepts events again, and the adoption is refused.
        """
        event_type = self.event_types.get(announced.name)
        if event_type.timelines == adopted:
            return  # an earlier attempt has stored this, but its answer got lost
        following = event_type.switching_to
        if following is None or announced.switching_to is None or following.id != announced.switching_to.id:
            raise Conflict(f"The timelines of {announced.name} were changed by others, please repeat request")
        try:
            self.timelines.seal_topic(event_type.timeline)
            self._require_no_events(event_type)
            check_storage_deduplicates(event_type, adopted[-1].storage_id, self.deduplication)
        except (Conflict, Invalid):
            self.timelines.complete_switch(announced)
            raise
        note = cleanup_note(following.id, (*event_type.timelines, following))
        changed = replace(event_type, timelines=adopted, switching_to=None)
        self.event_types.replace(event_type, changed, note, *storage_conditions)

    def _timelines_of_drafts(
        self, event_type: EventType, storage_id: str, drafts: Sequence[TimelineToAdopt]
    ) -> tuple[Timeline, ...]:
        """The timelines of these drafts, completed with what their topics show, such as the number of partitions."""
        log = self.logs.for_storage(storage_id)
        if not isinstance(log, TopicAdoptingLog):
            raise Invalid(f"Topics of others cannot be adopted in the storage {storage_id}")
        _check_drafts(drafts)
        self._require_unused_topics({str(each.topic) for each in drafts})
        return tuple(self._adopted_timeline(event_type, storage_id, log, log.adopt_topic, each) for each in drafts)

    def _adopted_timeline(
        self,
        event_type: EventType,
        storage_id: str,
        log: EventLog,
        adopt_topic: Callable[[str], int],
        draft: TimelineToAdopt,
    ) -> Timeline:
        topic, now = str(draft.topic), self.clock.now()
        timeline = Timeline(
            id=str(uuid4()),
            order=draft.order or 0,
            storage_id=storage_id,
            topic=topic,
            partitions=len(draft.latest_offsets or ()),
            created_at=now,
            switched_at=now,
            adopted=True,
        )
        if draft.latest_offsets is None:
            try:
                timeline = replace(timeline, partitions=adopt_topic(topic))
            except UnknownTopic as error:
                raise Invalid(f"There is no topic {topic}") from error
            except SealedTopic as error:
                raise Invalid(f"The topic {topic} was closed, no event can go there") from error
        else:
            timeline = self._closed_timeline(
                event_type, log, timeline, [-1 if each is None else each for each in draft.latest_offsets]
            )
        if not timeline.deleted:
            _require_json_events(log, timeline)
        return timeline

    def _closed_timeline(
        self, event_type: EventType, log: EventLog, timeline: Timeline, last_offsets: Sequence[int]
    ) -> Timeline:
        """A closed timeline. The other broker may have deleted the topic when its retention time ended."""
        kept_until = timeline.created_at + timedelta(milliseconds=event_type.retention_time)
        closed = timeline_after(
            timeline,
            TimelineFact.ENDED,
            latest_positions=dict(enumerate(last_offsets)),
            cleaned_up_at=None if event_type.cleanup_policy is CleanupPolicy.COMPACT else kept_until,
        )
        try:
            bounds = log.bounds(closed.topic, range(closed.partitions))
        except UnknownTopic:
            return timeline_after(closed, TimelineFact.MISSED, deleted=True)
        short = [number for number, each in bounds.items() if each.next_offset <= last_offsets[number]]
        if short:
            raise Invalid(f"Partition {short[0]} of the topic {closed.topic} ends before {last_offsets[short[0]]}")
        return closed

    def _require_unused_topics(self, topics: set[str]) -> None:
        for event_type in self.event_types.all():
            for timeline in event_type.timelines:
                if timeline.topic in topics:
                    raise Conflict(f"The topic {timeline.topic} is in use by the event type {event_type.name}")

    def _require_no_events(self, event_type: EventType) -> None:
        """Raise `Conflict` if the event type has events or subscriptions."""
        if any(each.adopted or self._has_events(each) for each in event_type.timelines):
            raise Conflict(f"The event type {event_type.name} has events of its own")
        # A subscription that is created after this check does no harm: it has no offsets before its first stream.
        if self.dependents().any_depend_on(event_type.name):
            raise Conflict(f"The event type {event_type.name} has subscriptions")

    def _has_events(self, timeline: Timeline) -> bool:
        ends = timeline.latest_positions
        if ends is None:
            bounds = self.logs.for_storage(timeline.storage_id).bounds(timeline.topic, range(timeline.partitions))
            ends = {number: each.next_offset - 1 for number, each in bounds.items()}
        return any(end >= 0 for end in ends.values())


def _check_drafts(drafts: Sequence[TimelineToAdopt]) -> None:
    """Raise unless these can be the timelines of an event type: in ascending order, and all closed except the last
    one.
    """
    if not 0 < len(drafts) <= MAX_ADOPTED_TIMELINES:
        raise Invalid(f"Between 1 and {MAX_ADOPTED_TIMELINES} timelines can be adopted")
    before = 0
    for draft in drafts:
        if draft.order is None or not before < draft.order <= MAX_TIMELINE_ORDER:
            raise Invalid(f"The orders of adopted timelines must ascend, from 1 to {MAX_TIMELINE_ORDER} at most")
        before = draft.order
        if draft.topic is None or TOPIC_NAME_PATTERN.fullmatch(draft.topic) is None:
            raise Invalid(f"The timeline {draft.order} needs the name of a topic")
        if (draft.latest_offsets is None) != (draft is drafts[-1]):
            raise Invalid("Each adopted timeline but the last one needs its latest_position")
    if len({draft.topic for draft in drafts}) < len(drafts):
        raise Invalid("Each adopted timeline needs a topic of its own")


def _require_json_events(log: EventLog, timeline: Timeline) -> None:
    """Raise unless the first and the last event of each partition are JSON: events that are not JSON were written in
    Avro.
    """
    for number, bounds in log.bounds(timeline.topic, range(timeline.partitions)).items():
        for start in {bounds.oldest, max(bounds.next_offset - 1, bounds.oldest)}:
            for event in log.read(timeline.topic, number, start, limit=1).events:
                if not (event.record.value or b"{").lstrip().startswith(b"{"):
                    raise Invalid(
                        f"Event {event.offset} in partition {number} of the topic {timeline.topic} is no JSON"
                    )
