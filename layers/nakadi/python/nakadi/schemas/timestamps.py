"""Moments as RFC 3339 writes them, told apart by the same rules as a strict parser of ISO 8601 in Java would.

`2026-11-21T12:00:00.123Z` and `2026-11-21t13:00:00+01:00` are moments. Seconds and offset must be there, the day must
exist, there is no second 60 and no hour 24. Two oddities are let through because producers rely on them: a decimal
point without digits, and years beyond 9999 behind a plus sign.
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
        ("year", r"\+\d{5,9}|\d{4}"),
        ("", "-"),
        ("month", r"\d\d"),
        ("", "-"),
        ("day", r"\d\d"),
        ("", "[Tt]"),
        ("hour", r"\d\d"),
        ("", ":"),
        ("minute", r"\d\d"),
        ("", ":"),
        ("second", r"\d\d"),
        ("", r"(?:\.\d{0,9})?"),
        ("offset", r"[Zz]|[+-]\d\d:[0-5]\d"),
    )
)

_RANGES = (
    ("month", "MonthOfYear", 1, 12),
    ("day", "DayOfMonth", 1, 31),
    ("hour", "HourOfDay", 0, 23),
    ("minute", "MinuteOfHour", 0, 59),
    ("second", "SecondOfMinute", 0, 59),
)

_MONTHS = tuple(name.upper() for name in calendar.month_name)
_LONGEST_QUOTE = 64


def problem_with(text: str) -> str | None:
    """Why this is not a moment, in the words that clients are told, or None if it is one."""
    if _USUAL(text) is not None:
        return None
    reason = _unusual(text)
    return None if reason is None else f"must be a valid date-time Text '{_quoted(text)}' could not be parsed{reason}"


def _quoted(text: str) -> str:
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."


def _unusual(text: str) -> str | None:
    found: dict[str, str] = {}
    at = 0
    for name, pattern in _PARTS:
        part = pattern.match(text, at)
        if part is None:
            return f" at index {at}"
        found[name] = part.group()
        at = part.end()
    if at < len(text):
        return f", unparsed text found at index {at}"
    return _out_of_range(found)


def _out_of_range(found: dict[str, str]) -> str | None:
    for name, field, lowest, highest in _RANGES:
        if not lowest <= int(found[name]) <= highest:
            return f": Invalid value for {field} (valid values {lowest} - {highest}): {int(found[name])}"
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
