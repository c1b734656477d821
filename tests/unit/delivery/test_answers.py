"""The meaning of a sink's answers."""

from datetime import UTC, datetime

import pytest

from nakadi.delivery.answers import Answer, Verdict, parse_retry_after, verdict_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        *((Answer(status), Verdict.DELIVERED) for status in (200, 202, 204, 299)),
        *((Answer(status), Verdict.LATER) for status in (429, 503)),
        *((Answer(status), Verdict.FAILED) for status in (100, 301, 302, 400, 401, 404, 422, 500, 502)),
        (Answer(410), Verdict.GONE),
        (Answer(None, was_sent=True), Verdict.FAILED),
        (Answer(None, was_sent=False), Verdict.LATER),
    ],
)
def test_verdicts(answer, verdict):
    """The status of an answer decides what becomes of the batch; a redirect is not a success. (X15, X18)"""
    assert verdict_of(answer) is verdict


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("120", 120),
        ("999999999999999999999", 3600),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 30),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0),
        ("Sat, 21 Nov 2099 11:00:00 GMT", 3600),
    ],
)
def test_retry_after(text, seconds):
    """`Retry-After` has a number of seconds or a date, and is limited to an hour. (X14)"""
    assert parse_retry_after(text, NOW) == seconds
