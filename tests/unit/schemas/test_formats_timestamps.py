"""Times in RFC 3339, and the messages about other strings."""

import pytest

from nakadi.schemas.formats import timestamp_problem


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T12:00:00Z",
        "2026-11-21t12:00:00z",
        "2026-11-21T12:00:00.1Z",
        "2026-11-21T12:00:00.123456789Z",
        "2026-11-21T00:00:00+00:00",
        "2026-11-21T23:59:59-18:00",
        "2026-11-21T23:59:59+18:00",
        "2026-11-21T12:00:00+05:30",
        "0000-01-01T00:00:00Z",
        "2024-02-29T12:00:00Z",
        "2000-02-29T12:00:00Z",
    ],
)
def test_valid_times_are_accepted(text):
    """An existing date, a time with seconds and an offset are a valid time, with T and Z in either case. (P67, R181)"""
    assert timestamp_problem(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T12:00:57.Z",
        "+12026-11-21T12:00:57Z",
        "+10004-02-29T12:00:57Z",
        "-2026-11-21T12:00:57Z",
        "-12026-11-21T12:00:57Z",
    ],
)
def test_unusual_times_are_accepted(text):
    """A decimal point without digits, years of more than four digits, and negative years are accepted. (P69)"""
    assert timestamp_problem(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2026-11-21T12:00:00", "at index 19"),
        ("2026-11-21T12:00:", "at index 16"),
        ("2026-11-21T12Z", "at index 13"),
        ("2026-11-21 12:00:00Z", "at index 10"),
        ("2026-11-21", "at index 10"),
        ("26-11-21T12:00:00Z", "at index 0"),
        ("2026-1-21T12:00:00Z", "at index 5"),
        ("12026-11-21T12:00:00Z", "at index 0"),
        ("+2026-11-21T12:00:00Z", "at index 0"),
        ("-0000-11-21T12:00:00Z", "at index 0"),
        ("2026-11-21T12:00:00+1:00", "at index 19"),
        ("2026-11-21T12:00:00.1234567890Z", "at index 29"),
        ("२०२६-11-21T12:00:00Z", "at index 0"),
        ("", "at index 0"),
        ("yesterday", "at index 0"),
    ],
)
def test_places_of_faults(text, reason):
    """A string in another format is refused with the position of the fault. (P66, P68, R181)"""
    assert timestamp_problem(text) == f"must be a valid date-time Text '{text}' could not be parsed {reason}"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-11-21T12:00:00Z ", 20),
        ("2026-11-21T12:00:00Z\n", 20),
        ("2026-11-21T12:00:00+0100", 22),
        ("2026-11-21T12:00:00.5+0100", 24),
        ("2026-11-21T12:00:00+01:60", 22),
        ("2026-11-21T12:00:00+01:00:60", 25),
    ],
)
def test_trailing_text(text, at):
    """No text may follow an offset, in particular no minutes without a colon. (P68, P72)"""
    assert timestamp_problem(text) == (
        f"must be a valid date-time Text '{text}' could not be parsed, unparsed text found at index {at}"
    )


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T12:00Z",
        "2026-11-21T12:00+01:00",
        "2026-11-21T12:00:00+01",
        "2026-11-21T12:00:00.5+01",
        "2026-11-21T12:00:00+01:00:30",
    ],
)
def test_what_is_too_short_or_too_long(text):
    """A time without seconds, and an offset without minutes or with seconds, are refused with a short message. (P68,
    P72)"""
    assert timestamp_problem(text) == "must be a valid date-time"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2026-11-21T24:00:00Z", "Invalid value for HourOfDay (valid values 0 - 23): 24"),
        ("2026-11-21T12:60:00Z", "Invalid value for MinuteOfHour (valid values 0 - 59): 60"),
        ("2026-11-21T12:00:60Z", "Invalid value for SecondOfMinute (valid values 0 - 59): 60"),
        ("2026-13-21T12:00:00Z", "Invalid value for MonthOfYear (valid values 1 - 12): 13"),
        ("2026-00-21T12:00:00Z", "Invalid value for MonthOfYear (valid values 1 - 12): 0"),
        ("2026-11-32T12:00:00Z", "Invalid value for DayOfMonth (valid values 1 - 28/31): 32"),
        ("2026-02-30T12:00:00Z", "Invalid date 'FEBRUARY 30'"),
        ("2026-11-31T12:00:00Z", "Invalid date 'NOVEMBER 31'"),
        ("2026-02-29T12:00:00Z", "Invalid date 'February 29' as '2026' is not a leap year"),
        ("1900-02-29T12:00:00Z", "Invalid date 'February 29' as '1900' is not a leap year"),
        ("2026-11-21T12:00:00+18:01", "Zone offset not in valid range: -18:00 to +18:00"),
        ("2026-11-21T12:00:00-19:00", "Zone offset not in valid range: -18:00 to +18:00"),
    ],
)
def test_values_that_do_not_exist(text, reason):
    """Days, hours, seconds and offsets that do not exist are refused, and the message says which. (P66, P68, R181)"""
    assert timestamp_problem(text) == f"must be a valid date-time Text '{text}' could not be parsed: {reason}"


def test_long_texts_are_cut():
    """A long string is not repeated in full. (P66)"""
    problem = timestamp_problem("x" * 100_000)

    assert problem == f"must be a valid date-time Text '{'x' * 64}...' could not be parsed at index 0"
