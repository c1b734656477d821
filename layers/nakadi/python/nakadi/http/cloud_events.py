"""CloudEvents in requests: the content mode of a request, and the attributes in headers of the binary mode."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto

from nakadi.http.problem import UnsupportedMediaType
from nakadi.model.cloud_events import BATCH_MEDIA_TYPE, EVENT_MEDIA_TYPE
from nakadi.model.outcomes import Invalid
from nakadi.publishing.cloud_events import is_json_media_type

HEADER_PREFIX = "ce-"

# Only a request with one of these attributes in its headers is a CloudEvent: proxies may have added other headers with
# the prefix.
_REQUIRED_ATTRIBUTES = frozenset(("id", "source", "specversion", "type"))

_PERCENT_WITHOUT_CODE = re.compile("%(?![0-9A-Fa-f]{2})")
_PERCENT_CODE = re.compile(rb"%([0-9A-Fa-f]{2})")
_QUOTED_CHARACTER = re.compile(r"\\(.)")


class ContentMode(Enum):
    """The form of CloudEvents in a request: the body is the data of one CloudEvent, a whole CloudEvent, or a list of
    them.
    """

    BINARY = auto()
    STRUCTURED = auto()
    BATCHED = auto()


def content_mode(content_type: str, attributes: Mapping[str, str]) -> ContentMode | None:
    """The mode of a request with CloudEvents; None for a request without. `attributes` are those in its headers.

    Raises `UnsupportedMediaType` for a form of CloudEvents that the broker does not read.
    """
    media = content_type.partition(";")[0].strip().lower()
    if media == BATCH_MEDIA_TYPE:
        return ContentMode.BATCHED
    if media == EVENT_MEDIA_TYPE:
        return ContentMode.STRUCTURED
    if media.startswith("application/cloudevents"):
        raise UnsupportedMediaType(f"Content type '{media[:100]}' not supported: CloudEvents are published as JSON")
    if _REQUIRED_ATTRIBUTES.isdisjoint(attributes):
        return None
    if media and not is_json_media_type(media):
        raise UnsupportedMediaType(
            f"Content type '{media[:100]}' not supported: the data of a CloudEvent has to be a JSON object"
        )
    return ContentMode.BINARY


def decode_attributes(headers: Mapping[str, str], content_type: str) -> Mapping[str, str]:
    """The attributes in these headers, whose names have no prefix here. Raises `Invalid` for a bad escape."""
    attributes = {name: _decode_value(name, value) for name, value in headers.items()}
    return attributes | {"datacontenttype": content_type} if content_type else attributes


def _decode_value(name: str, value: str) -> str:
    header = f"The header `{HEADER_PREFIX}{name[:100]}`"
    if not value.isascii():
        raise Invalid(f"{header} has a character that is not ASCII and has to be percent-encoded")
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = _QUOTED_CHARACTER.sub(r"\1", value[1:-1])
    if _PERCENT_WITHOUT_CODE.search(value):
        raise Invalid(f"{header} has a % that two hexadecimal digits have to follow")
    try:
        return _PERCENT_CODE.sub(lambda code: bytes.fromhex(code[1].decode()), value.encode()).decode()
    except UnicodeDecodeError:
        raise Invalid(f"{header} is not UTF-8 when its percent-encoding is decoded") from None
