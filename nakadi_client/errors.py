"""The errors that the client raises. Every exception is a `NakadiError`."""

from __future__ import annotations


class NakadiError(Exception):
    """The base of every exception of this package."""


class NoAnswer(NakadiError):
    """The broker cannot be reached, or the connection broke before an answer.

    `sent` says whether the request may have reached the broker.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Refused(NakadiError):
    """The broker refused a request. `status` and `flow_id` help its operators to find it in their logs."""

    def __init__(self, message: str, *, status: int, flow_id: str | None = None) -> None:
        told = f"{message} ({status}{f', flow id {flow_id}' if flow_id else ''})"
        super().__init__(told)
        self.status = status
        self.flow_id = flow_id


class EventRefused(NakadiError):
    """The broker refused this event, and would refuse it again. `step` names the step that failed, such as `validating`
    or `partitioning`.
    """

    def __init__(self, message: str, *, step: str = "none") -> None:
        super().__init__(message)
        self.step = step


class EventsUnreadable(NakadiError):
    """The broker cannot read the next events of a partition, because its archive is damaged there.

    The message has the event type, the partition and the offsets. Reading continues once an operator has repaired the
    archive.
    """

    def __init__(self, message: str, *, partition: str) -> None:
        super().__init__(message)
        self.partition = partition


class NotDelivered(NakadiError):
    """An event was not acknowledged in time, or the producer closed first.

    If `maybe_stored` is true, an attempt ended without a clear answer, so the broker may have stored the event.
    `reason` is the error of the last failed attempt: a `NoAnswer`, a `Refused`, or a `NakadiError` with the detail of
    a 207. It is None if no attempt failed, or if the producer was closed.
    """

    def __init__(self, message: str, *, maybe_stored: bool, reason: NakadiError | None = None) -> None:
        super().__init__(f"{message} {reason}" if reason else message)
        self.maybe_stored = maybe_stored
        self.reason = reason


class BufferFull(NakadiError):
    """The producer's buffer had no room for an event within the timeout."""


class Closed(NakadiError):
    """The producer or the consumer is closed."""


class BadEvent(NakadiError):
    """An event cannot be written as a JSON object."""


class Poison(NakadiError):
    """An event that does not fit the model, or that the handler failed at."""
