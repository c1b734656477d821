"""Publishing into another event type, and what the outcome means for a batch."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from nakadi.delivery.answers import Answer, Verdict
from nakadi.delivery.event_type_sender import EventTypeSender, answer_of_publishing, body_to_publish
from nakadi.delivery.senders import Attempt
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.outcomes import NotFound, TryLater, Unavailable
from nakadi.model.sink import SinkSecrets
from nakadi.publishing.batch import BatchOutcome, BatchStatus, ItemResult, PublishingStatus, PublishingStep
from tests.support.clock import HandMovedClock
from tests.support.sinks import an_event_type_sink


def an_item(status, detail=""):
    return ItemResult(publishing_status=status, detail=detail, step=PublishingStep.PUBLISHING, eid="")


SUBMITTED, ABORTED = an_item(PublishingStatus.SUBMITTED), an_item(PublishingStatus.ABORTED)
FAILED = an_item(PublishingStatus.FAILED, "no room")


def test_events_are_published_without_what_the_broker_wrote():
    """Events are published without the broker's own metadata; their ids and all that clients wrote stay. (X37)"""
    own = {"eid": "e", "occurred_at": "t", "span_ctx": {"a": "b"}, "partition": "1"}
    written = {"event_type": "x", "received_at": "t", "version": "1.0.0", "flow_id": "f", "published_by": "p"}
    events = [{"n": 1, "metadata": {**own, **written}}, {"n": 2}, [3]]
    body = body_to_publish(json.dumps(each).encode() for each in events)
    assert json.loads(body) == [{"n": 1, "metadata": own}, {"n": 2}, [3]]
    assert body_to_publish([]) == b"[]"


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [
        (BatchOutcome(BatchStatus.STORED, stored_count=2), Answer(200, verdict=Verdict.DELIVERED)),
        (BatchOutcome(BatchStatus.REJECTED, (ABORTED, FAILED)), Answer(None, "no room", verdict=Verdict.FAILED)),
        (
            BatchOutcome(BatchStatus.NOT_ALL_STORED, (SUBMITTED, FAILED, SUBMITTED)),
            Answer(None, "no room", verdict=Verdict.LATER, delivered=1),
        ),
    ],
    ids=["stored", "rejected", "stored in part"],
)
def test_what_an_outcome_means(outcome, answer):
    """Only rejected events are to blame; stored events are not sent again. (X15, X35, X37)"""
    assert answer_of_publishing(outcome) == answer


@pytest.mark.parametrize("error", [NotFound("gone"), TryLater("busy"), Unavailable("down")])
def test_what_hinders_publishing_blames_no_event(error):
    """If publishing is not possible for now, the batch waits, and no event is to blame. (X15, X37)"""

    def publish(*_):
        raise error

    async def deliver():
        sender = EventTypeSender(publish, ThreadPoolExecutor(1), lambda _: UNAUTHENTICATED)
        now = HandMovedClock().now()
        attempt = Attempt(
            sink=an_event_type_sink(),
            secrets=SinkSecrets((), {}),
            message_id="msg_1",
            batch=None,
            now=now,
            timeout_seconds=1,
        )
        try:
            return await sender.deliver(attempt)
        finally:
            await sender.close()

    answer = asyncio.run(deliver())
    assert (answer.verdict, answer.text) == (Verdict.LATER, str(error))
