"""Moments as RFC 3339 writes them, told apart by the same rules as a strict parser of ISO 8601 in Java would.

`2026-11-21T12:00:00.123Z` and `2026-11-21t13:00:00+01:00` are moments. Seconds and offset must be there, the day must
exist, there is no second 60 and no hour 24. Some oddities are let through because producers rely on them: a decimal
point without digits, years beyond 9999 behind a plus sign, and years before the first behind a minus sign.
"""

from __future__ import annotations

import calendar
import re

_USUAL = re.compile(
    r"\d{4}-"
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    r"[Tt](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{0,9})?"
    r"(?:[Zz]|[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00))",
    re.ASCII,
).fullmatch

_PARTS = tuple(
    (name, re.compile(pattern, re.ASCII))
    for name, pattern in (
        ("year", r"\+\d{5,9}|-(?!0+-)\d{4,9}|\d{4}(?!\d)"),
        ("", "-"),
        ("month", r"\d\d"),
        ("", "-"),
        ("day", r"\d\d"),
        ("", "[Tt]"),
        ("hour", r"\d\d"),
        ("", ":"),
        ("minute", r"\d\d"),
        # What ISO 8601 lets be left out is found missing only when all else is in order.
        ("second", r"(?::\d\d(?:\.\d{0,9})?)?"),
        ("offset", r"[Zz]|[+-]\d\d(?::[0-5]\d(?::[0-5]\d)?)?"),
    )
)
_WHOLE_OFFSET = re.compile(r"[Zz]|[+-]\d\d:\d\d", re.ASCII).fullmatch

_RANGES = (
    ("month", "MonthOfYear", range(1, 13), "1 - 12"),
    ("day", "DayOfMonth", range(1, 32), "1 - 28/31"),
    ("hour", "HourOfDay", range(24), "0 - 23"),
    ("minute", "MinuteOfHour", range(60), "0 - 59"),
    ("second", "SecondOfMinute", range(60), "0 - 59"),
)

_MONTHS = tuple(name.upper() for name in calendar.month_name)
_LONGEST_QUOTE = 64


def problem_with(text: str) -> str | None:
    """Why this is not a moment, in the words that clients are told, or None if it is one."""
    if _USUAL(text) is not None:
        return None
    found: dict[str, str] = {}
    reason = _unreadable(text, found) or _out_of_range(found)
    if reason is not None:
        return f"must be a valid date-time Text '{_quoted(text)}' could not be parsed{reason}"
    return None if found["second"] and _WHOLE_OFFSET(found["offset"]) else "must be a valid date-time"


def _quoted(text: str) -> str:
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."


def _unreadable(text: str, found: dict[str, str]) -> str | None:
    """The place where a text leaves the form of a moment; its parts are put into `found`."""
    at = 0
    for name, pattern in _PARTS:
        part = pattern.match(text, at)
        if part is None:
            return f" at index {at}"
        found[name] = part.group()
        at = part.end()
    return f", unparsed text found at index {at}" if at < len(text) else None


def _out_of_range(found: dict[str, str]) -> str | None:
    for name, field, values, told in _RANGES:
        # A second comes with its colon and its fraction.
        value = int(found[name].removeprefix(":").partition(".")[0] or 0)
        if value not in values:
            return f": Invalid value for {field} (valid values {told}): {value}"
    return _no_such_day(int(found["year"]), int(found["month"]), int(found["day"])) or _too_far(found["offset"])


def _no_such_day(year: int, month: int, day: int) -> str | None:
    if month == 2 and day == 29:
        return None if calendar.isleap(year) else f": Invalid date 'February 29' as '{year}' is not a leap year"
    # Any year that is not a leap year will do: the 29th of February is settled.
    return None if day <= calendar.monthrange(2001, month)[1] else f": Invalid date '{_MONTHS[month]} {day}'"


def _too_far(offset: str) -> str | None:
    if offset in "Zz" or offset[1:] <= "18:00":
        return None
    return ": Zone offset not in valid range: -18:00 to +18:00"
