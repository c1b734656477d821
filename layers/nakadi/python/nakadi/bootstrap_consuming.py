"""The parts that streams of subscriptions consist of, wired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nakadi.streaming.access import ReadAccess
from nakadi.subscriptions.stream.admission import StreamAdmission
from nakadi.subscriptions.stream.calls import DeadLetterPublisher
from nakadi.subscriptions.stream.streams import StreamBounds, SubscriptionStreams

if TYPE_CHECKING:
    from nakadi.bootstrap import Broker


def subscription_streams(broker: Broker) -> SubscriptionStreams:
    settings = broker.settings
    return SubscriptionStreams(
        admission=StreamAdmission(
            subscriptions=broker.subscribing.subscriptions,
            event_types=broker.event_types,
            permissions=broker.permissions,
            initialisation=broker.subscribing.initialisation,
            fulfil_wish=broker.subscribing.wish_fulfilment.attempt,
        ),
        coordination=broker.coordination,
        cursors=broker.cursors,
        logs=broker.logs,
        judge=ReadAccess(broker.event_types, broker.permissions, broker.features),
        letters=DeadLetterPublisher(
            own=broker.system_event_types,
            publisher=broker.publisher,
            clock=broker.clock,
            name=settings.dead_letter_queue,
            metrics=broker.metrics,
        ),
        clock=broker.clock,
        bounds=StreamBounds(
            most_commit_seconds=settings.max_commit_timeout_seconds,
            longest_seconds=settings.longest_stream_seconds or None,
            silence_seconds=settings.longest_silence_seconds or None,
            redrive=settings.dead_letter_redrive,
        ),
        metrics=broker.metrics,
    )
