"""Positions in partitions, as users write them: `begin`, `end`, a time, an age, or offsets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from nakadi_cli.api import Api, path
from nakadi_cli.failures import BadInput

_AGO = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DATE_PATTERN = re.compile(r"\d{4}-\d\d-\d\d")
_OFFSET = re.compile(r"-?\d+|\d{3}-[0-9a-fA-F]{4}-(?:-1|\d+)")


@dataclass(frozen=True)
class Start:
    """A position in every partition, or in the named ones. `offset` is `BEGIN`, a time or an offset; None means the
    end. `by_partition` names offsets of single partitions, by `partition` or by `event type:partition`.
    """

    offset: str | None = None
    by_partition: Mapping[str, str] | None = None


def parse_start(text: str, now: datetime) -> Start:
    """Parse the position at which a user wants to start."""
    if text.lower() == "begin":
        return Start("BEGIN")
    if text.lower() == "end":
        return Start()
    if ago := _AGO.fullmatch(text):
        return Start(_format_moment(now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})))
    if _DATE_PATTERN.match(text):
        return Start(_format_moment(_time(text)))
    if "=" in text:
        pairs = [pair.rpartition("=")[::2] for pair in text.split(",")]
        if all(partition and _OFFSET.fullmatch(offset) for partition, offset in pairs):
            _check_that_each_is_named_once(pairs)
            return Start(by_partition=dict(pairs))
    elif _OFFSET.fullmatch(text):
        return Start(text)
    raise BadInput(
        f"{text!r} is not a place to start: use begin, end, a time such as 2026-11-21T12:00:00Z, an age such as 15m or "
        "2h, an offset, or offsets by partition such as 0=001-0001-000000000000000012,1=001-0001-000000000000000034."
    )


def _check_that_each_is_named_once(pairs: Sequence[tuple[str, str]]) -> None:
    named = [partition for partition, _ in pairs]
    for partition in named:
        if named.count(partition) > 1:
            raise BadInput(f"Partition {partition} has two offsets: give each partition one.")


def fetch_partitions(api: Api, event_type: str) -> list[dict[str, Any]]:
    """Return the partitions of an event type in their order, with their oldest and newest offsets."""
    found: list[dict[str, Any]] = api.get(path("event-types", event_type, "partitions"))
    return sorted(found, key=lambda each: (len(each["partition"]), each["partition"]))


def chosen_partitions(api: Api, event_type: str, only: str | None = None) -> list[str]:
    """Return the partitions of an event type in their order: all, or those that a list with commas names."""
    found = [each["partition"] for each in fetch_partitions(api, event_type)]
    if only is None:
        return found
    named = [partition.strip() for partition in only.split(",")]
    if missing := [partition for partition in named if partition not in found]:
        raise BadInput(f"{event_type} has no partition {missing[0]}.")
    return named


def cursors_of_newest(api: Api, event_type: str, count: int) -> dict[str, str]:
    """Return for each partition the offset after which its newest `count` events are."""
    found = fetch_partitions(api, event_type)
    pairs = [
        {
            "initial_cursor": {"partition": each["partition"], "offset": each["oldest_available_offset"]},
            "final_cursor": {"partition": each["partition"], "offset": each["newest_available_offset"]},
        }
        for each in found
    ]
    distances = api.post(path("event-types", event_type, "cursor-distances"), pairs)
    have_more = [each["final_cursor"] for each in distances if each["distance"] >= count]
    shifted = api.post(
        path("event-types", event_type, "shifted-cursors"), [{**each, "shift": -count} for each in have_more]
    )
    return {each["partition"]: "BEGIN" for each in found} | {each["partition"]: each["offset"] for each in shifted}


def fetch_cursors(api: Api, event_type: str, start: Start, partitions: Sequence[str]) -> list[dict[str, str]]:
    """Return a cursor for each of the partitions."""
    offsets = dict(_offsets(api, event_type, start, partitions))
    return [{"partition": each, "offset": offsets[each]} for each in partitions if each in offsets]


def _offsets(api: Api, event_type: str, start: Start, partitions: Sequence[str]) -> Mapping[str, str]:
    if start.by_partition is not None:
        named = {
            partition: start.by_partition.get(f"{event_type}:{partition}", start.by_partition.get(partition))
            for partition in partitions
        }
        return {partition: offset for partition, offset in named.items() if offset is not None}
    if start.offset is None:
        found = fetch_partitions(api, event_type)
        return {each["partition"]: each["newest_available_offset"] for each in found}
    if _OFFSET.fullmatch(start.offset) and len(partitions) > 1:
        raise BadInput(
            f"An offset belongs to one partition, and {event_type} has {len(partitions)}. Name the partition."
        )
    return dict.fromkeys(partitions, start.offset)


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{text!r} is not a time; write one such as 2026-11-21T12:00:00Z.") from None
    return moment if moment.tzinfo else moment.astimezone()


def _format_moment(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
