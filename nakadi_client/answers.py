"""Answers of a broker as values, without the HTTP library that brought them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from nakadi_client.errors import Refused

_LONGEST_REASON = 1_000


class ItemResult(msgspec.Struct, frozen=True):
    """The outcome of one event of a batch, as 207 and 422 report it."""

    publishing_status: str
    step: str | None = None
    detail: str | None = None
    eid: str | None = None
    partition: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """A complete answer.

    `retry_after` is in seconds, whether the header `Retry-After` had seconds or a date. `warning` is the text of the
    header `Warning`.
    """

    status: int
    body: bytes = b""
    retry_after: float | None = None
    flow_id: str | None = None
    warning: str | None = None

    def item_results(self, count: int) -> list[ItemResult] | None:
        """Return the outcome of each event in the order of the batch, or None if the body has another form."""
        try:
            found = _ITEMS.decode(self.body)
        except msgspec.DecodeError:
            return None
        return found if len(found) == count else None

    def refusal(self) -> Refused:
        """Turn a rejecting answer into an exception."""
        return Refused(_reason(self.body) or "refused", status=self.status, flow_id=self.flow_id)


def answer_of(status: int, headers: Mapping[str, str], body: bytes, now: datetime | None = None) -> Answer:
    """Make an `Answer` of a response's parts. `headers` is case-insensitive."""
    seconds = retry_after(headers.get("Retry-After"), now)
    return Answer(status, body, seconds, headers.get("X-Flow-Id"), headers.get("Warning"))


def retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds that a `Retry-After` header asks for, as a number or by a date. Returns None if there is no
    header, or if it has another form.
    """
    if not header:
        return None
    if header.strip().isdigit():
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=timezone.utc)
    return max(0.0, (date - (now or datetime.now(timezone.utc))).total_seconds())


_ITEMS = msgspec.json.Decoder(list[ItemResult])
_ANY = msgspec.json.Decoder()


def _reason(body: bytes) -> str:
    try:
        problem: Any = _ANY.decode(body)
    except msgspec.DecodeError:
        problem = None
    if not isinstance(problem, dict):
        return body[:_LONGEST_REASON].decode(errors="replace").strip()
    found = problem.get("detail") or problem.get("error_description") or problem.get("error") or problem.get("title")
    return str(found or "")[:_LONGEST_REASON]
