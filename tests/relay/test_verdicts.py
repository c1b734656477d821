"""Decides what becomes of rows after an answer."""

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest

from nakadi_client.answers import Answer
from nakadi_client.errors import NoAnswer
from nakadi_relay.rows import Row
from nakadi_relay.verdicts import judge


def row(number: int, key: str | None = None) -> Row:
    return Row(number, "order.placed", key, f'{{"n": {number}}}', UUID(int=number), datetime(2026, 11, 21, tzinfo=UTC))


ROWS = [row(number) for number in range(1, 5)]


def items(*statuses: str) -> bytes:
    return json.dumps([{"publishing_status": each, "step": "validating", "detail": "no"} for each in statuses]).encode()


def test_an_acknowledged_batch_is_stored():
    """Status 200 means that every row is in the log."""
    assert judge(ROWS, Answer(200)).stored == ROWS


@pytest.mark.parametrize(
    "answer", [NoAnswer("gone"), Answer(503, b"{}"), Answer(401, b"{}"), Answer(404, b"{}"), Answer(302)]
)
def test_rows_wait_for_a_broker_that_cannot(answer):
    """If an answer says nothing about the events, every row waits, and the verdict has the reason for the log."""
    verdict = judge(ROWS, answer)
    assert verdict.failure
    assert [*verdict.stored, *verdict.refused, *verdict.again] == []


def test_the_broker_says_how_long_to_wait():
    """The relay pauses for at least the seconds in `Retry-After`."""
    assert judge(ROWS, Answer(429, b"{}", retry_after=7.0)).pause == 7.0


def test_refused_events_are_named_and_the_others_go_again():
    """A response with 422 refuses the invalid events with their reasons. The others were only aborted, so the relay
    publishes them again.
    """
    verdict = judge(ROWS, Answer(422, items("aborted", "failed", "aborted", "aborted")))
    assert verdict.refused == [(ROWS[1], "validating: no")]
    assert verdict.again == [[ROWS[0], ROWS[2], ROWS[3]]]
    assert verdict.failure is None


def test_a_partial_failure_keeps_what_failed():
    """In a 207, submitted events are stored, and the other rows wait."""
    verdict = judge(ROWS, Answer(207, items("submitted", "failed", "submitted", "failed")))
    assert verdict.stored == [ROWS[0], ROWS[2]]
    assert verdict.failure
    assert not verdict.refused


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_batch_that_is_refused_as_a_whole_is_halved(status):
    """If the answer has no results for each event, halving the batch finds the invalid event."""
    assert judge(ROWS, Answer(status, b"{}")).again == [ROWS[:2], ROWS[2:]]
    [(refused, reason)] = judge(ROWS[:1], Answer(status, b'{"detail": "too large"}')).refused
    assert refused == ROWS[0]
    assert "too large" in reason


def test_results_that_fit_nothing_lose_no_row():
    """A 422 with fewer results than events counts as one without results."""
    assert judge(ROWS, Answer(422, items("failed"))).again == [ROWS[:2], ROWS[2:]]
    assert judge(ROWS, Answer(422, items(*["aborted"] * 4))).failure
