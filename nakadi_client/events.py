"""Converts an event of the application into the JSON that is published, and adds missing metadata."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

import msgspec

from nakadi_client.errors import BadEvent

Eid = str


def new_eid() -> Eid:
    """Create a random UUID (version 4). `uuid.uuid4` does the same, but takes three times as long."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


class Metadata(msgspec.Struct, frozen=True):
    """Adds `metadata` to events of the categories `business` and `data`, and fills in `eid` and `occurred_at`.

    `traceparent` returns the trace that an event belongs to, in the form of W3C's header, or None; it becomes
    `metadata.span_ctx`. `flow_id` likewise returns a flow id or None.
    """

    traceparent: Callable[[], str | None] | None = None
    flow_id: Callable[[], str | None] | None = None

    def missing(self) -> dict[str, Any]:
        """Create the metadata of an event that has none."""
        found: dict[str, Any] = {"eid": new_eid(), "occurred_at": datetime.now(timezone.utc).isoformat()}
        if self.traceparent and (trace := self.traceparent()):
            found["span_ctx"] = {"traceparent": trace}
        if self.flow_id and (flow := self.flow_id()):
            found["flow_id"] = flow
        return found


def encode(event: Any, metadata: Metadata | None) -> tuple[bytes, Eid | None]:
    """Write an event as JSON, and return the JSON with its `eid`.

    `event` is a mapping, a model of msgspec or pydantic, a dataclass, or JSON as bytes, which stays unchanged.
    """
    if isinstance(event, bytes):
        return event, None
    if metadata is None:
        return _encode(event), None
    if not isinstance(event, Mapping):
        if getattr(event, "metadata", None) is None and not hasattr(type(event), "metadata"):
            return _with_metadata(_encode(event), metadata.missing())
        event = _as_dict(event)
    given = event.get("metadata")
    if given is None:
        made = metadata.missing()
        return _encode({**event, "metadata": made}), made["eid"]
    if not isinstance(given, Mapping):
        given = _as_dict(given)
    if "eid" in given and "occurred_at" in given:
        return _encode(event), str(given["eid"])
    # The application's metadata take precedence over generated ones.
    whole = {**metadata.missing(), **{name: value for name, value in given.items() if value is not None}}
    return _encode({**event, "metadata": whole}), str(whole["eid"])


def _with_metadata(body: bytes, made: dict[str, Any]) -> tuple[bytes, Eid]:
    rest = body[1:].lstrip()
    comma = b"" if rest.startswith(b"}") else b","
    return b'{"metadata":' + _ENCODE(made) + comma + rest, made["eid"]


def _encode(event: Any) -> bytes:
    try:
        body = _ENCODE(event)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise BadEvent(f"The event cannot be written as JSON: {error}") from error
    if not body.startswith(b"{"):
        raise BadEvent(f"An event is a JSON object, and {type(event).__name__} becomes something else.")
    return body


def _as_dict(model: Any) -> dict[str, Any]:
    found = msgspec.json.decode(_encode(model))
    return found if isinstance(found, dict) else {}


def _encodable(value: Any) -> Any:
    # Models of pydantic write themselves; this package does not import pydantic.
    if hasattr(value, "model_dump_json"):
        return msgspec.Raw(value.model_dump_json(by_alias=True).encode())
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_ENCODE = msgspec.json.Encoder(enc_hook=_encodable).encode
