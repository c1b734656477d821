"""Registered sinks, and attempts to deliver to them."""

from datetime import UTC, datetime
from types import SimpleNamespace

from msgspec.structs import replace

from nakadi.delivery.lanes import DeliveryBatch
from nakadi.delivery.senders import Attempt
from nakadi.delivery.sinks import SinkRepository
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.sink import Sink, SinkFormat, SinkSecrets, SinkType
from nakadi.model.subscription import EventTypePartition
from nakadi.ports.registry import ABSENT_REVISION, PutDocument
from nakadi.streaming.chunks import EventRun
from nakadi.subscriptions.api.repository import SUBSCRIPTIONS_KIND

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def an_event_type_sink() -> Sink:
    return a_sink(SinkType.EVENT_TYPE, "a-copy")


def a_sink(sink_type: SinkType, target: str, sink_format: SinkFormat = SinkFormat.NAKADI) -> Sink:
    return Sink(
        subscription_id="a-subscription",
        type=sink_type,
        target=target,
        header_names=(),
        sealed="",
        format=sink_format,
        batch_limit=100,
        timeout_seconds=30,
        max_in_flight=1,
        subject=UNAUTHENTICATED,
        created_at=NOW,
        configured_at=NOW,
    )


def stored_sink(repository: SinkRepository, sink: Sink, subscription_id: str = "a-subscription") -> Sink:
    """Store a subscription with this sink, and return the stored sink."""
    repository.registry.write(PutDocument(SUBSCRIPTIONS_KIND, subscription_id, {}, expected_revision=ABSENT_REVISION))
    subscription = SimpleNamespace(id=subscription_id, revision=1)
    repository.write(replace(sink, subscription_id=subscription_id), subscription)  # type: ignore[arg-type]  # all that it needs
    return repository.get(subscription_id)


def an_attempt(sink: Sink, *runs: EventRun, timeout_seconds: float = 30) -> Attempt:
    """An attempt to deliver these events of partition 0 of `orders` or, without events, a test delivery."""
    return Attempt(
        sink=sink,
        secrets=SinkSecrets((), {}),
        message_id="msg_1",
        batch=DeliveryBatch(EventTypePartition("orders", "0"), runs, 1) if runs else None,
        now=NOW,
        timeout_seconds=timeout_seconds,
    )
