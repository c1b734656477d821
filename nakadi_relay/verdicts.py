"""Decides what happens to rows after the broker's answer to their batch, without input or output."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nakadi_client.answers import Answer, ItemResult
from nakadi_client.errors import NoAnswer
from nakadi_relay.rows import Row

# With these statuses, the broker refuses the batch as a whole, or because of an event that it does not name.
_SPLITTING_STATUSES = frozenset({400, 413, 422})


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result for the rows of a batch.

    stored   The rows that are in the log.
    refused  The rows that the broker would refuse again, each with the reason.
    again    The rows that failed only because of others in their batch. They can be sent at once, in these batches.
    failure  The reason why all other rows have to wait; None if there are no others.
    pause    For how many seconds at least they have to wait, if the broker says so.
    """

    stored: Sequence[Row] = ()
    refused: Sequence[tuple[Row, str]] = ()
    again: Sequence[list[Row]] = ()
    failure: str | None = None
    pause: float | None = None


def judge(rows: list[Row], answer: Answer | NoAnswer) -> Verdict:
    """Decide what happens to each row. A row that is in none of the verdict's lists waits."""
    if isinstance(answer, NoAnswer):
        return Verdict(failure=str(answer))
    if answer.status == 200:
        return Verdict(stored=rows)
    items = answer.item_results(len(rows)) if answer.status in (207, 422) else None
    if items is not None:
        return _verdict_by_items(rows, items, answer)
    if answer.status not in _SPLITTING_STATUSES:
        return Verdict(failure=str(answer.refusal()), pause=answer.retry_after)
    if len(rows) == 1:
        return Verdict(refused=[(rows[0], str(answer.refusal()))])
    middle = len(rows) // 2
    return Verdict(again=[rows[:middle], rows[middle:]])


def _verdict_by_items(rows: list[Row], items: Sequence[ItemResult], answer: Answer) -> Verdict:
    """Judge an answer that has a result for each event. With 207, the log did not store some events. With 422, the
    broker refuses some events, and did not check the others.
    """
    results = list(zip(rows, items, strict=True))
    stored = [row for row, item in results if item.publishing_status == "submitted"]
    failed = [(row, item) for row, item in results if item.publishing_status == "failed"]
    if answer.status == 207 or not failed:
        return Verdict(stored=stored, failure="the log did not store all events", pause=answer.retry_after)
    refused = [(row, f"{item.step}: {item.detail}" if item.step else item.detail or "refused") for row, item in failed]
    again = [row for row, item in results if item.publishing_status == "aborted"]
    return Verdict(stored=stored, refused=refused, again=[again] if again else ())
