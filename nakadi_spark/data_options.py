"""Parses the options of `format("nakadi")`, which a Spark job writes as texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from nakadi_client.tokens import TokenFile
from nakadi_spark.errors import BadRead
from nakadi_spark.shares import as_utc
from nakadi_spark.sources import Broker, Source, Stores


class Options(msgspec.Struct, frozen=True):
    """The parsed options of a source or target."""

    source: Source
    event_type: str
    columns: Sequence[str] | None
    since: datetime | None
    until: datetime | None
    key: Sequence[str]
    max_events: int | None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> Options:
        """Parse the options of a job, and ignore those for Spark itself, such as the checkpoint. Raises `BadRead`."""
        source = read_source(options)
        if not options.get("event_type"):
            raise BadRead("The option event_type is missing.")
        columns = options.get("columns")
        return cls(
            source,
            options["event_type"],
            None if columns is None else _split(columns),
            _read_time("from", options.get("from")),
            _read_time("until", options.get("until")),
            _split(options.get("key", "")),
            _read_number("max_events", options.get("max_events")),
        )


def read_source(options: Mapping[str, str]) -> Source:
    if url := options.get("url"):
        token: Any = options.get("token")
        if file := options.get("token_file"):
            token = TokenFile(file)
        return Broker(url, token)
    if folder := options.get("data"):
        return Stores.in_folder(folder)
    if options.get("registry") and options.get("event_log"):
        names = ("registry", "event_log", "log_index", "archive", "kafka_properties")
        return Stores(**{name: options[name] for name in names if options.get(name)})
    raise BadRead("The option url is missing; or data, or registry and event_log, for the stores of a broker.")


def _split(text: str) -> Sequence[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _read_time(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return as_utc(datetime.fromisoformat(text))
    except ValueError:
        raise BadRead(f"The option {name} is no time such as 2026-11-27T10:00:00Z: {text}") from None


def _read_number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not int(text):
        raise BadRead(f"The option {name} is no number of events: {text}")
    return int(text)
