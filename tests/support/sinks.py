"""Sinks as they are registered."""

from datetime import UTC, datetime

from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.sink import Sink, SinkFormat, SinkType

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def an_event_type_sink() -> Sink:
    return Sink(
        subscription_id="a-subscription",
        type=SinkType.EVENT_TYPE,
        target="a-copy",
        header_names=(),
        sealed="",
        format=SinkFormat.NAKADI,
        batch_limit=100,
        timeout_seconds=30,
        max_in_flight=1,
        subject=UNAUTHENTICATED,
        created_at=NOW,
        configured_at=NOW,
    )
