"""The answers of sinks, and their meaning for the batch that was sent."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum, auto

from msgspec import Struct

MAX_ANSWER_CHARACTERS = 500
"""How many characters of an answer's text are kept, for people to read."""

MAX_RETRY_AFTER_SECONDS = 3600.0

GONE = 410
LATER_STATUSES = (429, 503)


class Verdict(Enum):
    DELIVERED = auto()
    GONE = auto()
    """The sink wants no further deliveries."""
    LATER = auto()
    """The sink was not reached, or says that it has no time: no event is to blame."""
    FAILED = auto()
    """The batch failed, perhaps because of one of its events."""


class Answer(Struct, frozen=True):
    """The result of an attempt: the status, which is None if no answer came, and the beginning of the answer's text, or
    the fault.

    `was_sent` is False if the sink was not reached, and so cannot have seen the batch. `verdict` is set by senders to
    sinks whose status does not say whether they accepted the batch. If the batch failed, and the sink reports single
    events, `delivered` is the number of events at the beginning that it has certainly accepted: the next event is the
    one that failed.
    """

    status: int | None
    text: str = ""
    retry_after_seconds: float | None = None
    was_sent: bool = True
    verdict: Verdict | None = None
    delivered: int | None = None


def verdict_of(answer: Answer) -> Verdict:
    if answer.verdict is not None:
        return answer.verdict
    if answer.status is None:
        return Verdict.FAILED if answer.was_sent else Verdict.LATER
    if 200 <= answer.status < 300:
        return Verdict.DELIVERED
    if answer.status == GONE:
        return Verdict.GONE
    return Verdict.LATER if answer.status in LATER_STATUSES else Verdict.FAILED


def parse_retry_after(text: str | None, now: datetime) -> float | None:
    """The seconds that a `Retry-After` asks for, whether it is a number or a date; at most an hour."""
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), MAX_RETRY_AFTER_SECONDS)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return min(max((moment - now).total_seconds(), 0.0), MAX_RETRY_AFTER_SECONDS)
