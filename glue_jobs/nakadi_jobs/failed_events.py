"""Erases events with a value among those that consumers could not process: parked events, dead letters, and republished
dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

from msgspec.structs import replace

from nakadi.app.engines import open_coordination
from nakadi.model.event_type import EventType
from nakadi.ports.event_log import EventLog
from nakadi.subscriptions.api.parked_events import ParkedEventStore, notify_streams, parked_event_id
from nakadi.subscriptions.api.repository import SUBSCRIPTIONS_KIND
from nakadi_jobs import hot_log
from nakadi_jobs.archive_ranges import NO_PROGRESS, unread_parts
from nakadi_jobs.command import JobContext, registry_url
from nakadi_jobs.dead_members import HoldingObject
from nakadi_jobs.erasure import ErasedValue, search_archive
from nakadi_jobs.in_tasks import run_in_tasks

SUBSCRIPTIONS_PER_QUERY = 1000


def find_dead_letters(
    work: JobContext, event_type: EventType, wanted: ErasedValue
) -> Iterator[tuple[EventType, ErasedValue]]:
    """Yield the event type of dead letters, and the value to erase there. Yield nothing if the broker has no such event
    type, or if it is `event_type` itself.
    """
    letters = work.event_types.find(work.options.dead_letter_queue)
    if letters is not None and letters.id != event_type.id:
        yield letters, replace(wanted, path=("event", *wanted.path), failed_in=event_type.name)


def remove_parked_events(work: JobContext, meant: Sequence[tuple[EventType, ErasedValue]]) -> Sequence[HoldingObject]:
    """Skip the parked events of these event types that have the value. Returns the events with the value that are in
    the event type for redriving; they may come from any event type.
    """
    wanted_by_name = {event_type.name: wanted for event_type, wanted in meant}
    redrive = work.options.dead_letter_redrive
    left: list[HoldingObject] = []
    skipped = 0
    with closing(open_coordination(work.options.coordination or registry_url(work.options))) as coordination:
        for subscription in _subscription_ids(work):
            found = 0
            for parked in ParkedEventStore(coordination, subscription).events():
                name = parked.partition.event_type
                wanted = wanted_by_name.get(name) or (meant[0][1] if name == redrive else None)
                if wanted is None:
                    continue
                value = coordination.parked_event_value(subscription, parked.partition, parked.position)
                if value is None or not wanted.occurs_in_text(value):
                    continue
                if name in wanted_by_name:
                    coordination.remove_parked_events(subscription, parked.partition, [parked.position])
                    found += 1
                else:
                    left.append(
                        _redriven_object(f"parked event {parked_event_id(parked)} of subscription {subscription}")
                    )
            if found:
                notify_streams(coordination, subscription, work.clock.now())
                skipped += found
    work.report.details["skipped_parked_events"] = skipped
    if skipped:
        work.report.info("parked events", f"{skipped} are skipped")
    return left


def search_redriven(work: JobContext, hot: EventLog | None, wanted: ErasedValue) -> Sequence[HoldingObject]:
    """Search the event type for redriving for the value."""
    event_type = work.event_types.find(work.options.dead_letter_redrive)
    if event_type is None or event_type.name == work.options.event_type:
        return ()
    parts = list(unread_parts(work.index, event_type, NO_PROGRESS))
    is_archived = any(run_in_tasks(work.spark, parts, partial(search_archive, work.archive.url, wanted)))
    if is_archived or (hot is not None and any(hot_log.partitions_with(hot, event_type, wanted))):
        return [_redriven_object(f"the event type {event_type.name}")]
    return ()


def _redriven_object(place: str) -> HoldingObject:
    return HoldingObject(place, "it may be an event of another event type: erase it from there too")


def _subscription_ids(work: JobContext) -> Iterator[str]:
    after = ""
    while page := work.registry.list(SUBSCRIPTIONS_KIND, after=after, limit=SUBSCRIPTIONS_PER_QUERY):
        yield from (document.key for document in page)
        after = page[-1].key
