"""Publishes delivered events into another event type of this broker, so that a copy needs no consumer.

Events keep their ids: if the other event type deduplicates, a batch that is delivered twice is stored once. Metadata
that the broker itself wrote is omitted, and written again for the other event type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

import orjson

from nakadi.delivery.answers import MAX_ANSWER_CHARACTERS, Answer, Verdict
from nakadi.delivery.senders import Attempt
from nakadi.model.authorization import Subject
from nakadi.model.outcomes import Fault, Outcome, Unavailable
from nakadi.model.sink import Sink
from nakadi.publishing.batch import BatchOutcome, BatchStatus, ItemResult, PublishingStatus
from nakadi.publishing.enrichment import WRITTEN_BY_BROKER

Publish = Callable[[str, bytes, Subject, str], BatchOutcome]
"""Publishes the events of a body to an event type, for a subject, with a flow id; it blocks."""


class EventTypeSender:
    """Publishing blocks, so it runs in threads. No timeout abandons it: an abandoned batch might be stored after the
    next one. The publisher itself ends an attempt after a while.
    """

    def __init__(self, publish: Publish, threads: Executor, writing_subject: Callable[[Sink], Subject]) -> None:
        self._publish = publish
        self._threads = threads
        self._writing_subject = writing_subject

    async def deliver(self, attempt: Attempt) -> Answer:
        runs = () if attempt.batch is None else attempt.batch.runs
        body = body_to_publish(value for run in runs for value in run.values)
        sink = attempt.sink
        publishing = asyncio.get_running_loop().run_in_executor(
            self._threads, self._publish, sink.target, body, self._writing_subject(sink), attempt.message_id
        )
        try:
            return answer_of_publishing(await publishing)
        except (Outcome, Fault, Unavailable) as error:
            # The target event type was deleted, the subject may not write to it, or the broker is busy: no event is to
            # blame.
            return Answer(None, str(error)[:MAX_ANSWER_CHARACTERS], verdict=Verdict.LATER)

    async def close(self) -> None:
        self._threads.shutdown(wait=False)


def body_to_publish(events: Iterable[bytes]) -> bytes:
    """A batch of these events, as a client would publish it."""
    return b"[%b]" % b",".join(map(_event_to_publish, events))


def _event_to_publish(value: bytes) -> bytes:
    event = orjson.loads(value)
    metadata = event.get("metadata") if isinstance(event, dict) else None
    if not isinstance(metadata, dict):
        return value
    kept = {name: each for name, each in metadata.items() if name not in WRITTEN_BY_BROKER}
    return orjson.dumps({**event, "metadata": kept})


def answer_of_publishing(outcome: BatchOutcome) -> Answer:
    if outcome.status is BatchStatus.STORED:
        return Answer(200, verdict=Verdict.DELIVERED)
    failed = next((each for each in outcome.items if each.publishing_status is PublishingStatus.FAILED), None)
    text = "" if failed is None else failed.detail[:MAX_ANSWER_CHARACTERS]
    if outcome.status is BatchStatus.REJECTED:
        return Answer(None, text, verdict=Verdict.FAILED)
    return Answer(None, text, verdict=Verdict.LATER, delivered=_count_stored_before_first_failure(outcome.items))


def _count_stored_before_first_failure(items: Iterable[ItemResult]) -> int:
    count = 0
    for each in items:
        if each.publishing_status is not PublishingStatus.SUBMITTED:
            break
        count += 1
    return count
