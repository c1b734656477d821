"""Reads answers in all their forms."""

from datetime import UTC, datetime

import httpx
import pytest

from nakadi_client.answers import Answer, answer_of, retry_after

NOW = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("Sat, 21 Nov 2026 10:00:30 GMT", 30.0),
        ("Sat, 21 Nov 2026 09:00:00 GMT", 0.0),
        ("Sat, 21 Nov 2026 10:00:05 -0000", 5.0),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header, seconds):
    assert retry_after(header, NOW) == seconds


def test_items_are_those_of_the_batch():
    """Only a list with one item for each event counts as the outcomes of a batch."""
    items = b'[{"publishing_status":"failed","step":null,"detail":"no","eid":""}]'
    assert Answer(422, items).item_results(1)[0].detail == "no"
    assert Answer(422, items).item_results(2) is None
    assert Answer(422, b'{"title":"no"}').item_results(1) is None
    assert Answer(422, b"<html>").item_results(1) is None


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"title":"Bad","detail":"No such thing"}', "No such thing (400, flow id f1)"),
        (b'{"error_description":"Expired"}', "Expired (400, flow id f1)"),
        (b"Bad Gateway", "Bad Gateway (400, flow id f1)"),
        (b"", "refused (400, flow id f1)"),
        (b"[1]", "[1] (400, flow id f1)"),
    ],
)
def test_a_refusal_says_what_the_broker_said(body, told):
    answer = answer_of(400, httpx.Headers({"x-flow-id": "f1"}), body)
    assert str(answer.refusal()) == told
