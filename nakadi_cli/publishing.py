"""Publishes batches with the client's producer, and counts the results of their events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from nakadi_cli.api import failure_of
from nakadi_cli.failures import Failed, Refused
from nakadi_cli.reading_events import Event
from nakadi_client import (
    Closed,
    Connection,
    Delivered,
    Delivery,
    EventRefused,
    Limits,
    NakadiError,
    NotDelivered,
    Producer,
)
from nakadi_client import Refused as RefusedByBroker

MOST_BYTES = 4_000_000
# Batches are sent when they are full, and events are given up after a number of attempts. Neither depends on time.
_DAY = 86_400.0


@dataclass
class Outcome:
    """The result for the events so far; each unpublished event with its number and the reason."""

    published: int = 0
    refused: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    # From this event on, nothing was published, because an event of its batch was rejected.
    ended_at: int | None = None


class Publisher:
    """Publishes batches to one event type, in order, so that order within a partition holds.

    `keep` is called with the events of each batch that are not published, in their order. If the broker rejects an
    event, publishing ends there; with `keep_going`, it continues without that event. `retries` is the number of times
    that an event is resent if the broker could not store it. The other keywords are the same as for `Producer`.
    """

    def __init__(
        self,
        connection: Connection,
        event_type: str,
        *,
        batch_size: int,
        retries: int,
        keep_going: bool,
        keep: Callable[[Iterable[Event]], None] = lambda _events: None,
        form: Literal["tombstones", "cloudevents"] | None = None,
        only_for: str | None = None,
    ) -> None:
        limits = Limits(
            batch_events=batch_size,
            # The command counts commas between the events of a batch; the producer counts one comma for each event.
            batch_bytes=MOST_BYTES + 1,
            linger=_DAY,
            buffer_events=batch_size,
            buffer_bytes=3 * MOST_BYTES,
            delivery_timeout=_DAY,
            attempts=retries + 1,
        )
        self._producer = Producer[bytes](
            connection,
            event_type,
            metadata=None,
            tombstones=form == "tombstones",
            only_for=only_for,
            cloud_events=form == "cloudevents",
            on_failure="continue" if keep_going else "stop",
            limits=limits,
            stop_on_signals=False,
        )
        self._keep = keep
        self._keep_going = keep_going
        self.outcome = Outcome()

    def publish(self, batches: Iterable[Sequence[Event]], after_each: Callable[[Outcome], None]) -> None:
        """Publish batches until the end, or until an event cannot be published and publishing must not continue. Raises
        errors that no retry can fix.
        """
        for batch in batches:
            deliveries: list[Delivery] = []
            try:
                # If a part of the batch was sent earlier and failed, the producer accepts no more events. The list has
                # the events that it accepted before.
                with suppress(Closed):
                    deliveries.extend(self._producer.send(event.text) for event in batch)
                self._producer.flush()
            finally:
                # This runs no matter how the batch ends, even after an interruption.
                left = self._count(batch, deliveries)
            after_each(self.outcome)
            if not self._goes_on(left):
                break

    def close(self) -> None:
        """End at once. Events in unfinished requests may still be stored."""
        self._producer.close(timeout=0)

    def _count(self, batch: Sequence[Event], deliveries: Sequence[Delivery]) -> list[tuple[Event, NakadiError]]:
        """Count the published events, pass all others to `keep`, and return those that failed, each with its error."""
        outcomes = [each.outcome for each in deliveries]
        outcomes += [None] * (len(batch) - len(outcomes))
        pairs = list(zip(batch, outcomes, strict=True))
        self.outcome.published += sum(isinstance(outcome, Delivered) for outcome in outcomes)
        self._keep(event for event, outcome in pairs if not isinstance(outcome, Delivered))
        return [(event, outcome) for event, outcome in pairs if isinstance(outcome, NakadiError)]

    def _goes_on(self, left: Sequence[tuple[Event, NakadiError]]) -> bool:
        """Note why events of a batch are not published, and decide whether publishing continues."""
        failure: Failed | None = None
        has_failed = False
        for event, error in left:
            if isinstance(error, EventRefused):
                if error.step == "none":
                    raise Refused("The broker rejected a whole batch; tombstones need a compacted event type.")
                self.outcome.refused.append({"event": event.number, "step": error.step, "reason": str(error)})
            elif not isinstance(error, NotDelivered) or error.reason:
                has_failed = True
                found = failure_of(error)
                self.outcome.failed.append({"event": event.number, "reason": found.message})
                failure = failure or (found if _is_final(error) else None)
        if failure:
            raise failure
        if left and not has_failed and not self._keep_going:
            self.outcome.ended_at = left[0][0].number
        return not has_failed and (self._keep_going or not left)


def _is_final(error: NakadiError) -> bool:
    """Whether the broker would reject the event again, or only lacked capacity or time."""
    reason = error.reason if isinstance(error, NotDelivered) else error
    return isinstance(reason, RefusedByBroker) and reason.status < 500 and reason.status not in (408, 429)
