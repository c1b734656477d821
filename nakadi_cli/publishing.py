"""Publishes batches: it sends again what was not stored, but not what was rejected."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nakadi_cli.api import Api, path, refusal
from nakadi_cli.failures import NotAnswered, Refused
from nakadi_cli.reading_events import Event
from nakadi_client.answers import ItemResult, answer_of, retry_after
from nakadi_client.pauses import Pauses

if TYPE_CHECKING:
    import httpx

# The broker has no room or no time now, and may have later.
_LATER = {408, 429, 502, 503, 504}
_LONGEST_PAUSE = 10.0
_PAUSES = Pauses(first=0.1, longest=_LONGEST_PAUSE)


@dataclass
class Outcome:
    """What became of the events so far; each that is not published with its number and the reason."""

    published: int = 0
    refused: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    # From this event on nothing was published, because one of its batch was refused.
    ended_at: int | None = None


class Publisher:
    """Publishes batches to one event type, one after the other, so that order within a partition holds.

    `tombstones` deletes by the keys of the events instead, and `only_for` names the one subscription that sees them.
    `keep` is called with the events of each batch that are not published, in their order.

    What the broker could not store (207), or had no time for, is sent again up to `retries` times, with pauses that
    grow. What it refuses (422) is not stored, and neither is the rest of its batch: with `keep_going` the rest is sent
    without what was refused, otherwise publishing ends there.
    """

    def __init__(
        self,
        api: Api,
        event_type: str,
        *,
        retries: int,
        keep_going: bool,
        pause: Callable[[float], None],
        keep: Callable[[Iterable[Event]], None] = lambda _events: None,
        tombstones: bool = False,
        only_for: str | None = None,
    ) -> None:
        self._api = api
        self._where = path("event-types", event_type, "deleted-events" if tombstones else "events")
        self._headers = {"X-CONSUMER-TAG": f"CONSUMER_SUBSCRIPTION_ID={only_for}"} if only_for else {}
        self._keep = keep
        self._left: dict[int, Event] = {}
        self._retries = retries
        self._keep_going = keep_going
        self._pause = pause
        self.outcome = Outcome()

    def publish(self, batches: Iterable[Sequence[Event]], after_each: Callable[[Outcome], None]) -> Outcome:
        for batch in batches:
            self._left = {event.number: event for event in batch}
            try:
                goes_on = self._publish(list(batch))
            finally:
                # Whatever ended the batch, an interruption too.
                self._keep(self._left.values())
            after_each(self.outcome)
            if not goes_on:
                break
        return self.outcome

    def _publish(self, batch: list[Event]) -> bool:
        """Publish one batch, and say whether to go on with the next one."""
        failures = 0
        while batch:
            try:
                content = b"[" + b",".join(event.text for event in batch) + b"]"
                answer = self._api.try_to_send("POST", self._where, content=content, headers=self._headers)
            except NotAnswered as late:
                reason, left, wait = late.message, batch, 0.0
            else:
                if answer.status_code == 200:
                    self._count_stored(batch)
                    return True
                if answer.status_code == 422 and (found := _items(answer, batch)):
                    rest = self._without_refused(batch, found)
                    if not self._keep_going:
                        self.outcome.ended_at = batch[0].number
                        return False
                    batch = rest
                    continue
                if answer.status_code == 413 and len(batch) > 1:
                    middle = len(batch) // 2
                    return self._publish(batch[:middle]) and self._publish(batch[middle:])
                reason, left, wait = self._not_stored(batch, answer)
            left_over = {event.number for event in left}
            stored = self._count_stored([event for event in batch if event.number not in left_over])
            # Each success begins anew: a batch of many partitions may need one retry for each.
            failures = 0 if stored else failures + 1
            if failures > self._retries:
                self.outcome.failed += [{"event": each.number, "reason": reason} for each in left]
                return False
            if left:
                self._pause(wait or _PAUSES.after(failures, random.random))
            batch = left
        return True

    def _count_stored(self, events: Sequence[Event]) -> int:
        self.outcome.published += len(events)
        for event in events:
            del self._left[event.number]
        return len(events)

    def _not_stored(self, batch: list[Event], answer: httpx.Response) -> tuple[str, list[Event], float]:
        """Return why what of a batch is to be sent again, and after how many seconds the broker wants it."""
        if answer.status_code == 207 and (found := _items(answer, batch)):
            left = [each for each, item in zip(batch, found, strict=True) if item.publishing_status != "submitted"]
            reasons = [item.detail for item in found if item.publishing_status == "failed" and item.detail]
            return next(iter(reasons), "not stored"), left, 0.0
        problem = refusal(answer)
        if answer.status_code in _LATER:
            return problem.message, batch, _seconds(answer.headers.get("Retry-After"))
        self.outcome.failed += [{"event": each.number, "reason": problem.message} for each in batch]
        raise problem

    def _without_refused(self, batch: list[Event], found: Sequence[ItemResult]) -> list[Event]:
        rest = []
        for event, item in zip(batch, found, strict=True):
            if item.publishing_status == "failed":
                self.outcome.refused.append({"event": event.number, "step": item.step, "reason": item.detail})
            else:
                rest.append(event)
        if len(rest) == len(batch):
            raise Refused("The broker rejected a whole batch; tombstones need a compacted event type.")
        return rest


def _items(answer: httpx.Response, batch: Sequence[Event]) -> Sequence[ItemResult] | None:
    """Return what the broker says of each event, in the order of the batch."""
    return answer_of(answer.status_code, answer.headers, answer.content).item_results(len(batch))


def _seconds(header: str | None) -> float:
    return min(retry_after(header) or 0.0, _LONGEST_PAUSE)
