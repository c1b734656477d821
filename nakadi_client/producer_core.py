"""The decisions of a producer, without any input or output: which events go into the next batch, and what follows
from an answer.

    core = ProducerCore(Limits(), draw=random.random)
    core.add(Delivery(b'{"n":1}', key="A-1"), now)
    step = core.step(now)                     # a Batch to send, or a Wait
    core.settle(step, answer_or_no_answer, now)

Order. The queue has the events in the order in which they were added. Events of one key are in at most one request at
a time, and events to resend return to the front of the queue, before all others of their key. While a key rests after
a failure, the others continue. Within a request the broker keeps the order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import inf

import msgspec

from nakadi_client.answers import Answer, ItemResult
from nakadi_client.deliveries import Delivered, Delivery, Lane
from nakadi_client.errors import EventRefused, NakadiError, NoAnswer, NotDelivered
from nakadi_client.pauses import Pauses

# The byte that separates an event from the next one, or from the bracket. It is counted with each event.
_COMMA = 1
# After these statuses, the broker may have stored the batch. 503, 408 and 429 mean that it did not.
_AMBIGUOUS = (207, 500, 502, 504)
_HALVE = (400, 413)


class Limits(msgspec.Struct, frozen=True):
    """How a producer batches, how much it keeps, and how long it tries.

    batch_events, batch_bytes   A batch is sent when it has this number of events or bytes.
    linger                      A batch is sent at most this number of seconds after its first event was added.
    in_flight                   Requests at the same time. Events of one key are never in two of them.
    buffer_events, buffer_bytes `send` waits while the producer keeps more than this.
    delivery_timeout            Seconds after which an event that is not acknowledged is given up, and reported.
    attempts                    Failed attempts after which an event is given up; 0 is no limit. An attempt that failed
                                because of other events of its batch does not count.
    """

    batch_events: int = 500
    batch_bytes: int = 1_000_000
    linger: float = 0.01
    in_flight: int = 1
    buffer_events: int = 10_000
    buffer_bytes: int = 32_000_000
    delivery_timeout: float = 120.0
    attempts: int = 0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < (0 if name in ("linger", "attempts") else 1e-9):
                raise ValueError(f"{name} must be greater")


class Batch(msgspec.Struct, frozen=True, eq=False):
    """Events to send in one request."""

    deliveries: tuple[Delivery, ...]

    @property
    def body(self) -> bytes:
        """The array of the events."""
        return b"[" + b",".join([each.body for each in self.deliveries]) + b"]"


class Wait(msgspec.Struct, frozen=True):
    """There is nothing to send until this moment, or until something else happens if `until` is None."""

    until: float | None = None


class ProducerCore:
    """Collects the events of one event type, and decides which batches to send. It is not thread-safe: drivers lock it.

    With `stops`, the producer sends nothing more after the first event that cannot be delivered.
    """

    def __init__(
        self, limits: Limits, draw: Callable[[], float], pauses: Pauses | None = None, *, stops: bool = False
    ) -> None:
        self.limits = limits
        self.is_stopped: bool = False
        self._stops = stops
        self._draw = draw
        self._pauses = pauses or Pauses()
        self._queue: deque[Delivery] = deque()
        # Keys in a request (until inf), and keys that rest after a failure, until their moment.
        self._held: dict[object, float] = {}
        self._requests = 0
        self._paused_until = 0.0
        self._failures = 0
        self._most_events = limits.batch_events
        self._most_bytes = limits.batch_bytes
        self._queued_bytes = 0
        self.kept_events: int = 0
        self.kept_bytes: int = 0
        # Events that are not settled, by the flush that waits for them.
        self._epoch = 0
        self._left: dict[int, int] = {0: 0}
        # The reason for giving up, once the producer has given up.
        self._given_up: str | None = None
        # The time until which senders that need to know about a new event sleep; -inf if they wait only for an answer
        # or a pause.
        self._asleep_until = -inf

    # What applications do ---------------------------------------------------------------------------------------------

    def has_room_for(self, size: int) -> bool:
        """Whether an event of this size may be added now. An event that is larger than the buffer fits into an empty
        one.
        """
        if self.kept_events == 0:
            return True
        return self.kept_events < self.limits.buffer_events and self.kept_bytes + size <= self.limits.buffer_bytes

    def add(self, delivery: Delivery, now: float) -> bool:
        """Take an event, and return whether a waiting sender has to check again."""
        size = len(delivery.body) + _COMMA
        delivery.added_at = now
        delivery.epoch = self._epoch
        self._queue.append(delivery)
        self._left[self._epoch] += 1
        self.kept_events += 1
        self.kept_bytes += size
        self._queued_bytes += size
        if now + self.limits.linger < self._asleep_until:
            return True
        return len(self._queue) == self._most_events or 0 <= self._queued_bytes - self._most_bytes < size

    def flush(self) -> int:
        """Let all events that were added be sent without lingering. Returns the argument for `is_flushed`."""
        if self._left[self._epoch]:
            self._epoch += 1
            self._left[self._epoch] = 0
        return self._epoch - 1

    def is_flushed(self, flushed: int) -> bool:
        """Whether every event that was added before that flush is settled."""
        return not any(count for epoch, count in self._left.items() if epoch <= flushed)

    def give_up(self, reason: str) -> list[Delivery]:
        """Settle the waiting events as not delivered, and return them. Batches that are being sent are settled when
        their answers come, and nothing is resent.
        """
        self._given_up = reason
        given_up = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        for each in given_up:
            each.outcome = NotDelivered(reason, maybe_stored=each.ambiguous)
        self._forget(given_up)
        return given_up

    # What senders do --------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> list[Delivery]:
        """Settle and return events that were not delivered in time."""
        expired: list[Delivery] = []
        timeout = self.limits.delivery_timeout
        while self._queue and self._queue[0].added_at + timeout <= now:
            delivery = self._queue.popleft()
            self._queued_bytes -= len(delivery.body) + _COMMA
            delivery.outcome = _late(delivery)
            expired.append(delivery)
        self._forget(expired)
        return expired + (self._stop() if expired and self._stops else [])

    def step(self, now: float) -> Batch | Wait:
        """Return a batch that is due, or the time until the next one."""
        self._asleep_until = -inf
        if self._queue and self._requests >= self.limits.in_flight:
            return Wait()
        if not self._queue:
            self._asleep_until = inf
            return Wait()
        expires = self._queue[0].added_at + self.limits.delivery_timeout
        if now < self._paused_until:
            return Wait(min(self._paused_until, expires))
        self._wake_keys(now)
        chosen, passed, full = self._choose_batch()
        rests_until = min(self._held.values(), default=inf)
        if not chosen:
            self._asleep_until = min(rests_until, expires)
            return Wait(self._asleep_until)
        due = chosen[0].added_at + self.limits.linger
        is_flushed = chosen[0].epoch < self._epoch
        if not full and not is_flushed and now < due:
            self._asleep_until = min(due, rests_until, expires)
            return Wait(self._asleep_until)
        self._take(chosen, passed)
        return Batch(tuple(chosen))

    def settle(self, batch: Batch, answer: Answer | NoAnswer, now: float) -> list[Delivery]:
        """Process the outcome of a batch, and return the events whose outcome is now known."""
        self._requests -= 1
        for key in {each.key for each in batch.deliveries}:
            self._held.pop(key, None)
        for each in batch.deliveries:
            each.attempts += 1
        verdict = _verdict(batch.deliveries, answer)
        self._learn(batch, answer, verdict, now)
        settled: list[Delivery] = []
        again: list[Delivery] = []
        for each, outcome in zip(batch.deliveries, verdict, strict=True):
            if outcome is None:
                each.outcome = Delivered(each.eid, each.attempts, each.ambiguous)
            elif not isinstance(outcome, _Again):
                each.outcome = outcome
            else:
                each.ambiguous |= outcome.maybe_stored
                if outcome.is_failure:
                    each.failures += 1
                    each.reason = outcome.reason
                each.outcome = self._end_of(each, now)
            (again if each.outcome is None else settled).append(each)
        self._forget(settled)
        self._queue.extendleft(reversed(again))
        self._queued_bytes += _size_of(again)
        if self._stops and any(isinstance(each.outcome, NakadiError) for each in settled):
            settled += self._stop()
        return settled

    # ------------------------------------------------------------------------------------------------------------------

    def _end_of(self, delivery: Delivery, now: float) -> NotDelivered | None:
        """Return the outcome of an event whose time or attempts are used up; None if the event is resent."""
        if self._given_up is not None:
            return NotDelivered(self._given_up, maybe_stored=delivery.ambiguous)
        if delivery.added_at + self.limits.delivery_timeout <= now:
            return _late(delivery)
        if 0 < self.limits.attempts <= delivery.failures:
            told = f"The event was not stored in {delivery.failures} attempts."
            return NotDelivered(told, maybe_stored=delivery.ambiguous, reason=delivery.reason)
        return None

    def _stop(self) -> list[Delivery]:
        """Send nothing more. Open requests are settled when their answers come, and not repeated."""
        self.is_stopped = True
        return self.give_up("An earlier event was not delivered.")

    def _wake_keys(self, now: float) -> None:
        if self._held:
            self._held = {key: until for key, until in self._held.items() if until > now}

    def _choose_batch(self) -> tuple[list[Delivery], list[Delivery], bool]:
        """Return the events for a batch, the earlier ones that have to wait, and whether the batch is full."""
        held = self._held
        chosen: list[Delivery] = []
        passed: list[Delivery] = []
        size = 0
        for each in self._queue:
            if held and each.key in held:
                passed.append(each)
                continue
            if len(chosen) >= self._most_events:
                return chosen, passed, True
            size += len(each.body) + _COMMA
            if chosen and size > self._most_bytes:
                return chosen, passed, True
            chosen.append(each)
        return chosen, passed, len(chosen) >= self._most_events or size >= self._most_bytes

    def _take(self, chosen: Sequence[Delivery], passed: Sequence[Delivery]) -> None:
        if passed:
            taken = set(map(id, chosen))
            self._queue = deque(each for each in self._queue if id(each) not in taken)
        else:
            for _ in chosen:
                self._queue.popleft()
        self._queued_bytes -= _size_of(chosen)
        self._requests += 1
        self._held.update(dict.fromkeys({each.key for each in chosen} - {Lane.NONE}, inf))

    def _learn(self, batch: Batch, answer: Answer | NoAnswer, verdict: Sequence[_Verdict], now: float) -> None:
        """Pause, let keys rest, and change the size of batches, as an answer suggests."""
        status = answer.status if isinstance(answer, Answer) else 0
        count = len(verdict)
        if None in verdict:
            self._failures = 0
            self._most_events = min(self.limits.batch_events, self._most_events * 2)
        if status == 207:
            for each, outcome in zip(batch.deliveries, verdict, strict=True):
                if isinstance(outcome, _Again):
                    self._let_rest(each, now + self._pauses.after(each.attempts, self._draw))
        elif status == 422:
            # The broker names one event at a time. Consecutive bad events must not cause the good events after them to
            # be resent each time.
            first = next((place for place, each in enumerate(verdict) if isinstance(each, NakadiError)), 0)
            self._most_events = max(1, min(self._most_events, 2 * first))
        elif status in _HALVE:
            self._most_events = max(1, count // 2)
            if status == 413:
                self._most_bytes = max(1, _size_of(batch.deliveries) // 2) if count > 1 else self.limits.batch_bytes
        elif isinstance(verdict[0], _Again):
            # Without items, the answer applies to all events.
            self._failures += 1
            asked = answer.retry_after if isinstance(answer, Answer) else None
            self._paused_until = max(self._paused_until, now + self._pauses.after(self._failures, self._draw, asked))

    def _let_rest(self, delivery: Delivery, until: float) -> None:
        if delivery.key is Lane.NONE:
            self._paused_until = max(self._paused_until, until)
        else:
            self._held[delivery.key] = until

    def _forget(self, settled: Sequence[Delivery]) -> None:
        """Release the buffer space of events whose outcome is known."""
        self.kept_events -= len(settled)
        self.kept_bytes -= _size_of(settled)
        for each in settled:
            self._left[each.epoch] -= 1
            each.body = b""
        self._left = {epoch: count for epoch, count in self._left.items() if count or epoch == self._epoch}


class _Again(msgspec.Struct, frozen=True):
    """Marks an event to resend. `is_failure` is false if only other events of its batch failed."""

    maybe_stored: bool
    reason: NakadiError | None = None
    is_failure: bool = True


# None means stored; an error means permanently rejected.
_Verdict = None | NakadiError | _Again


def _verdict(deliveries: Sequence[Delivery], answer: Answer | NoAnswer) -> Sequence[_Verdict]:
    """The meaning of an answer for each event of a batch."""
    count = len(deliveries)
    if isinstance(answer, NoAnswer):
        return [_Again(maybe_stored=answer.sent, reason=answer)] * count
    status = answer.status
    if status in (207, 422) and (items := answer.item_results(count)) is not None:
        return list(_verdicts_of_items(status, items))
    return [_verdict_of_status(status, count, answer)] * count


def _verdict_of_status(status: int, count: int, answer: Answer) -> _Verdict:
    if status == 200:
        return None
    if status in _HALVE and count > 1:
        return _Again(maybe_stored=False, is_failure=False)
    if status in (207, 401, 408, 429) or status >= 500:
        return _Again(maybe_stored=status in _AMBIGUOUS, reason=answer.refusal())
    return answer.refusal()


def _verdicts_of_items(status: int, items: Sequence[ItemResult]) -> Iterable[_Verdict]:
    # If the broker rejects a batch without naming an event, resending it would change nothing.
    names_one = any(item.publishing_status == "failed" for item in items)
    for item in items:
        if item.publishing_status == "submitted":
            yield None
        elif status == 207:
            # A write that failed may have been carried out, such as one that timed out. An aborted one was not begun.
            failed = item.publishing_status == "failed"
            yield _Again(maybe_stored=failed, reason=NakadiError(item.detail or "The broker did not store it."))
        elif item.publishing_status == "failed" or not names_one:
            yield EventRefused(item.detail or "The broker refused the batch as a whole.", step=item.step or "none")
        else:
            yield _Again(maybe_stored=False, is_failure=False)


def _size_of(deliveries: Sequence[Delivery]) -> int:
    return sum([len(each.body) for each in deliveries]) + _COMMA * len(deliveries)


def _late(delivery: Delivery) -> NotDelivered:
    told = "The event was not acknowledged in time."
    return NotDelivered(told, maybe_stored=delivery.ambiguous, reason=delivery.reason)
