"""CloudEvents as events: the `data` of each becomes an event whose metadata has the attributes.

    parse_cloud_events(b'[{"specversion": "1.0", "id": "7", "source": "/shop", "type": "paid", "data": {"n": 1}}]', …)

The result is the body of a batch, which is published like any other. `model/cloud_events.py` has the mapping of
attributes; `streaming/cloud_events.py` converts events back.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid5

import orjson
from msgspec import Struct

from nakadi.model.cloud_events import (
    ATTRIBUTES_MEMBER,
    PARTITION_KEY_ATTRIBUTE,
    POSITION_ATTRIBUTES,
    SPECIFICATION_VERSION,
    TRACE_ATTRIBUTES,
    TRACE_MEMBER,
    find_control_character,
    is_attribute_name,
)
from nakadi.model.outcomes import Invalid, Malformed, TooLarge
from nakadi.publishing.batch import ARRAY_DECODER, DEFAULT_LIMITS, BatchLimits, json_array_of
from nakadi.publishing.enrichment import WRITTEN_BY_BROKER, timestamp_text
from nakadi.publishing.records import member_bounds
from nakadi.publishing.validation import read_batch
from nakadi.schemas.document import COMPACTION_KEY, EID_PATTERN
from nakadi.schemas.formats import FORMAT_CHECKS, timestamp_problem

JSON_MEDIA_TYPE = "application/json"

MAX_ATTRIBUTES = 100
MAX_ATTRIBUTE_CHARACTERS = 8192

_REQUIRED = ("specversion", "id", "source", "type")
_TEXTS = frozenset((*_REQUIRED, "subject", "time", "datacontenttype", "dataschema", *TRACE_ATTRIBUTES))
_DATA_MEMBERS = ("data", "data_base64")
# Attributes that are not kept in `cloudevent`, because another member of the metadata has them, or the broker sets them
# itself.
_KEPT_ELSEWHERE = frozenset(("specversion", "id", "time", "partition", *TRACE_ATTRIBUTES, *POSITION_ATTRIBUTES))

_IDS_NAMESPACE = UUID("a3f4e1d2-6c0b-5c8e-9d53-2f0a8f1f6f5e")

_is_eid = re.compile(EID_PATTERN).search
_is_json_media_type = re.compile(r"[a-z]+/([a-z0-9!#$&^_.+-]+\+)?json\s*(;.*)?", re.IGNORECASE | re.DOTALL).fullmatch

Attributes = Mapping[str, str]


class Publication(Struct, frozen=True):
    """The body of a batch, and the ids of its events if they are CloudEvents."""

    body: bytes
    ids: Sequence[str] = ()


class CloudEventReader(Struct, frozen=True, kw_only=True):
    """Makes events of CloudEvents that arrived at `now`; `is_compacted` is whether their event type has keys.

    Reading a long body takes a second, so do it in a turn at long work. All methods raise `Invalid` for a CloudEvent
    that breaks a rule, `Malformed` for a text that cannot be read, and `TooLarge`.
    """

    now: datetime
    is_compacted: bool = False
    limits: BatchLimits = DEFAULT_LIMITS

    def read_batch(self, body: bytes) -> Publication:
        """The CloudEvents of a JSON array."""
        return self._publication(_number_objects(self._objects(body)))

    def read_event(self, body: bytes) -> Publication:
        """A single CloudEvent, which is a JSON object."""
        return self._publication(("The CloudEvent", *each) for each in self._single(body))

    def read_parts(self, attributes: Attributes, data: bytes) -> Publication:
        """A single CloudEvent whose attributes are beside its data."""
        where = "The CloudEvent"
        _check_attributes(where, attributes)
        [(event, text)] = self._single(data) if data.strip() else [({}, b"{}")]
        return Publication(json_array_of([self._event(where, attributes, event, text)]), [attributes["id"]])

    def _single(self, body: bytes) -> Sequence[tuple[dict[str, Any], bytes]]:
        found = list(self._objects(b"[%b]" % body))
        if len(found) != 1:
            raise Malformed("Error occurred when parsing event(s). The body is not a single JSON object")
        return found

    def _objects(self, body: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Each object of an array, and its text without blanks."""
        for piece in read_batch(body, self.limits).in_pieces():
            yield from zip(piece.events, map(bytes, ARRAY_DECODER.decode(piece.text)), strict=True)

    def _publication(self, placed: Iterable[tuple[str, dict[str, Any], bytes]]) -> Publication:
        ids, texts = [], []
        for where, members, text in placed:
            attributes = dict(_read_attributes(where, members))
            _check_attributes(where, attributes)
            _check_content_type(where, attributes)
            ids.append(attributes["id"])
            texts.append(self._event(where, attributes, *self._data(where, members, text)))
        return Publication(json_array_of(texts), ids)

    def _data(self, where: str, members: Mapping[str, Any], text: bytes) -> tuple[dict[str, Any], bytes]:
        """The data of a CloudEvent, and its text."""
        data, encoded = (members.get(name) for name in _DATA_MEMBERS)
        if data is not None and encoded is not None:
            raise Invalid(f"{where} has both `data` and `data_base64`")
        if encoded is not None:
            return self._decoded_data(where, encoded)
        if data is None:
            return {}, b"{}"
        if not isinstance(data, dict):
            raise Invalid(f"{where} has `data` that is not a JSON object, and cannot be an event")
        start, end = member_bounds(text, "data")
        return data, text[start:end]

    def _decoded_data(self, where: str, encoded: Any) -> tuple[dict[str, Any], bytes]:
        try:
            [decoded] = self._single(b64decode(encoded, validate=True))
        except (Malformed, TypeError, ValueError):
            raise Invalid(f"{where} has `data_base64` that is not a JSON object in Base64") from None
        return decoded

    def _event(self, where: str, attributes: Attributes, data: Mapping[str, Any], text: bytes) -> bytes:
        if "metadata" not in data:
            metadata = orjson.dumps(self._metadata(attributes, {}))
            return b'{"metadata":%b%b%b' % (metadata, b"," if data else b"", text[1:])
        own = data["metadata"]
        if not isinstance(own, dict):
            raise Invalid(f"{where} has `data` with `metadata` that is not a JSON object")
        start, end = member_bounds(text, "metadata")
        return text[:start] + orjson.dumps(self._metadata(attributes, own)) + text[end:]

    def _metadata(self, attributes: Attributes, own: Mapping[str, Any]) -> dict[str, Any]:
        """The metadata of an event. Members of the metadata in its data are kept, unless an attribute provides the
        same.
        """
        metadata = {name: value for name, value in own.items() if name not in WRITTEN_BY_BROKER}
        beside = {name: value for name, value in attributes.items() if name not in _KEPT_ELSEWHERE}
        if beside.get("datacontenttype") == JSON_MEDIA_TYPE:
            del beside["datacontenttype"]
        metadata["eid"] = attributes["id"]
        if not _is_eid(attributes["id"]):
            metadata["eid"] = str(uuid5(_IDS_NAMESPACE, f"{attributes['source']}\n{attributes['id']}"))
            beside["id"] = attributes["id"]
        metadata["occurred_at"] = attributes.get("time") or own.get("occurred_at") or timestamp_text(self.now)
        if "partition" in attributes:
            metadata["partition"] = attributes["partition"]
        if self.is_compacted and PARTITION_KEY_ATTRIBUTE in beside:
            metadata[COMPACTION_KEY] = beside.pop(PARTITION_KEY_ATTRIBUTE)
        trace = {name: attributes[name] for name in TRACE_ATTRIBUTES if name in attributes}
        if trace:
            known = own.get(TRACE_MEMBER)
            metadata[TRACE_MEMBER] = {**known, **trace} if isinstance(known, dict) else trace
        metadata[ATTRIBUTES_MEMBER] = beside
        return metadata


def _number_objects(objects: Iterable[tuple[dict[str, Any], bytes]]) -> Iterator[tuple[str, dict[str, Any], bytes]]:
    for index, (members, text) in enumerate(objects):
        yield f"The CloudEvent at index {index}", members, text


def _read_attributes(where: str, members: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The attributes as texts. A null counts as missing."""
    for name, value in members.items():
        if name in _DATA_MEMBERS or value is None:
            continue
        match value:
            case str():
                yield name, value
            case bool() if name not in _TEXTS:
                yield name, str(value).lower()
            case int() if name not in _TEXTS and -(2**31) <= value < 2**31:
                yield name, str(value)
            case _ if name in _TEXTS:
                raise Invalid(f"{where} has `{name}` that is not a text")
            case _:
                raise Invalid(
                    f"{where} has `{_shorten(name)}` that is neither a text, a truth value nor an integer of 32 bits"
                )


def _check_attributes(where: str, attributes: Attributes) -> None:
    for name in _REQUIRED:
        if not attributes.get(name):
            raise Invalid(f"{where} has no `{name}`")
    if attributes["specversion"] != SPECIFICATION_VERSION:
        raise Invalid(
            f"{where} has the `specversion` '{_shorten(attributes['specversion'])}', and the broker reads"
            f" {SPECIFICATION_VERSION}"
        )
    if len(attributes) > MAX_ATTRIBUTES:
        raise TooLarge(f"{where} has more than {MAX_ATTRIBUTES} attributes")
    for name, value in attributes.items():
        if len(value) > MAX_ATTRIBUTE_CHARACTERS:
            raise TooLarge(f"{where} has `{_shorten(name)}` with more than {MAX_ATTRIBUTE_CHARACTERS} characters")
        problem = _problem_of(name, value)
        if problem:
            raise Invalid(f"{where} has {problem}")


def _problem_of(name: str, value: str) -> str | None:
    if not is_attribute_name(name) or name == "data":
        return f"an attribute `{_shorten(name)}`: names are lower-case letters and digits"
    if not value and name in _TEXTS:
        return f"an empty `{name}`"
    if find_control_character(value):
        return f"`{name}` with a control character"
    check = _CHECKS.get(name)
    problem = None if check is None else check(value)
    return problem and f"a wrong `{name}`: {problem}"


def _uri_problem(text: str) -> str | None:
    return None if FORMAT_CHECKS["uri"](text) is None else "it is no URI"


_CHECKS: Mapping[str, Callable[[str], str | None]] = {
    "time": timestamp_problem,
    "source": _uri_problem,
    "dataschema": _uri_problem,
}


def _check_content_type(where: str, attributes: Attributes) -> None:
    media = attributes.get("datacontenttype", JSON_MEDIA_TYPE)
    if not is_json_media_type(media):
        raise Invalid(f"{where} has `datacontenttype` '{_shorten(media)}', and events are JSON objects")


def is_json_media_type(media: str) -> bool:
    return _is_json_media_type(media) is not None


def _shorten(text: str) -> str:
    return text[:100]
