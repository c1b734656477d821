"""The header by which a producer has a batch seen by one subscription alone."""

from __future__ import annotations

import re

from nakadi.model.outcomes import Invalid

SUBSCRIPTION = "CONSUMER_SUBSCRIPTION_ID"
NOT_FOR_PRODUCERS = "DEBUG_PUBLISHER_TOPIC_ID"

_BLANKS = re.compile(r"\s+")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def directed_to(header: str | None) -> str | None:
    """The id of the subscription that a batch is meant for, None when it is for everybody."""
    if header is None:
        return None
    text = _BLANKS.sub("", header)
    if not text:
        raise Invalid("X-CONSUMER-TAG: is empty!")
    tags: dict[str, str] = {}
    entries = text.rstrip(",").split(",")
    for entry in entries:
        name, value = _pair(entry, len(entries))
        if name in tags:
            raise Invalid(f"duplicate header tag: {name}")
        tags[name] = value
    return tags[SUBSCRIPTION]


def _pair(entry: str, entries: int) -> tuple[str, str]:
    parts = entry.split("=")
    if len(parts) != 2 or not parts[1]:
        raise Invalid(f"header tag parameter is imbalanced, expected: 2 but provided {entries}")
    name, value = parts[0].upper(), parts[1]
    if name == NOT_FOR_PRODUCERS:
        raise Invalid(f"header tag unsupported: {name}")
    if name != SUBSCRIPTION:
        raise Invalid(f"invalid header tag: {parts[0]}")
    if _UUID.fullmatch(value) is None:
        raise Invalid(f"header tag value: {value} is not an UUID")
    return name, value.lower()
