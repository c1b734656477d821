"""Reads JSON bodies leniently, and makes drafts of them, field by field.

Unknown members are ignored, and scalars are converted to the type that is expected. Unreadable values are
`Malformed`, with their place: `authorization.readers[0].value`. The inner rooms decide whether the values make sense.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from enum import StrEnum
from math import isfinite
from typing import Any, TypeVar

import orjson
from msgspec import UNSET

from nakadi.auth.permissions import authorization_body
from nakadi.event_types.documents import attributes_from_drafts
from nakadi.http.message import Request
from nakadi.http.parameters import TextParameter, fits_bits, parse_integer
from nakadi.model.authorization import Attribute, AttributeDraft, Authorization, AuthorizationDraft
from nakadi.model.event_type import (
    Audience,
    Category,
    CleanupPolicy,
    CompatibilityMode,
    DeduplicationDraft,
    EnrichmentStrategy,
    EventTypeDraft,
    OwnerSelectorDraft,
    OwnerSelectorType,
    SchemaDraft,
    SchemaType,
    StatisticsDraft,
)
from nakadi.model.outcomes import Malformed, Violations
from nakadi.model.subscription import ReadFrom, SubscriptionCursorDraft, SubscriptionDraft
from nakadi.openapi.checks import openapi_violations

EnumType = TypeVar("EnumType", bound=StrEnum)
Item = TypeVar("Item")


def json_body(request: Request) -> Any:
    """The body of a request that must have one; null is none."""
    try:
        body = orjson.loads(request.body) if request.body else None
    except orjson.JSONDecodeError:
        body = json_document(request.body)
    if body is None:
        raise Malformed(f"Required request body is missing: {request.method} {request.path}")
    return body


def json_document(text: bytes) -> Any:
    """The JSON document that a text begins with, whether or not a byte order mark stands before it."""
    text = text.removeprefix(BOM_UTF8)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return _decode_first_document(text, error)


def object_body(request: Request) -> ObjectReader:
    return ObjectReader.from_value(json_body(request))


def list_body(request: Request) -> list[Any]:
    body = json_body(request)
    if not isinstance(body, list):
        raise unreadable_value_error(body, "a list")
    return body


def _decode_first_document(body: bytes, first_error: Exception) -> Any:
    """The first document of the body: what follows it is passed over."""
    try:
        text = body.decode().lstrip(" \t\r\n")
        value, _ = json.JSONDecoder(parse_constant=_refuse_nan_or_infinity).raw_decode(text)
        orjson.dumps(value)  # half a surrogate pair could not be written down again
    except (ValueError, TypeError, RecursionError):
        raise Malformed(f"JSON parse error: {first_error}") from first_error
    return value


def _refuse_nan_or_infinity(name: str) -> None:
    raise ValueError(name)


def unreadable_value_error(value: Any, expected: str, path: str = "") -> Malformed:
    return Malformed(f"JSON parse error: Cannot read {expected} from {_json_type_with_article(value)}{_at_path(path)}")


def unknown_enum_value_error(value: str, enum_type: type[EnumType], path: str = "") -> Malformed:
    return Malformed(f"Illegal enum value: '{value}'. Possible values: [{', '.join(enum_type)}]{_at_path(path)}")


def _at_path(path: str) -> str:
    return f" (at {path})" if path else ""


def _json_type_with_article(value: Any) -> str:
    return {dict: "an object", list: "a list", type(None): "null"}.get(type(value), "a value")


class ObjectReader:
    """The members of a JSON object, each read as what it should be. A missing one reads as None, like null.

    `path` is where in the body the object stands.
    """

    def __init__(self, raw: Mapping[str, Any], path: str = "") -> None:
        self._raw = raw
        self._path = path

    @classmethod
    def from_value(cls, value: Any, path: str = "") -> ObjectReader:
        if not isinstance(value, dict):
            raise unreadable_value_error(value, "an object", path)
        return cls(value, path)

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def raw_value(self, name: str) -> Any:
        return self._raw.get(name)

    def path_of(self, name: str) -> str:
        """Where in the body a member of this object stands."""
        return f"{self._path}.{name}" if self._path else name

    def text(self, name: str) -> str | None:
        return _as_text(self._raw.get(name), self.path_of(name))

    def integer(self, name: str, *, bits: int = 64) -> int | None:
        """A number without its fraction, of so many bits at most; a text of digits is one too."""
        return _as_integer(self._raw.get(name), bits, self.path_of(name))

    def boolean(self, name: str) -> bool | None:
        """A truth value; as a number, 0 is false and every other one true."""
        value = self._raw.get(name)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if value is None or isinstance(value, int):
            return None if value is None else bool(value)
        raise unreadable_value_error(value, "true or false", self.path_of(name))

    def enum_value(self, name: str, enum_type: type[EnumType]) -> EnumType | None:
        """A value of an enumeration, in any letter case."""
        return _as_enum_value(self._raw.get(name), enum_type, self.path_of(name))

    def exact_enum_value(self, name: str, enum_type: type[EnumType]) -> EnumType | None:
        """A value of an enumeration, to the letter."""
        value = self.text(name)
        if value is None or value in set(enum_type):
            return None if value is None else enum_type(value)
        raise unknown_enum_value_error(value, enum_type, self.path_of(name))

    def enum_values(self, name: str, enum_type: type[EnumType]) -> tuple[EnumType | None, ...] | None:
        return self._read_items(name, lambda value, at: _as_enum_value(value, enum_type, at))

    def texts(self, name: str) -> tuple[str | None, ...] | None:
        return self._read_items(name, _as_text)

    def integers(self, name: str) -> tuple[int | None, ...] | None:
        return self._read_items(name, lambda value, at: _as_integer(value, 64, at))

    def object(self, name: str) -> ObjectReader | None:
        value = self._raw.get(name)
        return None if value is None else ObjectReader.from_value(value, self.path_of(name))

    def objects(self, name: str) -> tuple[ObjectReader, ...] | None:
        return self._read_items(name, ObjectReader.from_value)

    def text_mapping(self, name: str) -> dict[str, str | None] | None:
        """An object all of whose values are texts or null."""
        value = self._raw.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise unreadable_value_error(value, "an object", self.path_of(name))
        return {key: _as_text(each, f"{self.path_of(name)}.{key}") for key, each in value.items()}

    def _read_items(self, name: str, read: Callable[[Any, str], Item]) -> tuple[Item, ...] | None:
        """The items of a list, read one by one."""
        value = self._raw.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise unreadable_value_error(value, "a list", self.path_of(name))
        return tuple(read(each, f"{self.path_of(name)}[{index}]") for index, each in enumerate(value))


def _as_text(value: Any, path: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise unreadable_value_error(value, "a text", path)


def _as_integer(value: Any, bits: int, path: str) -> int | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise unreadable_value_error(value, "a number", path)
    if isinstance(value, float) and not isfinite(value):  # 1e999, read by the parser that passes over what follows
        raise unreadable_value_error(value, "a number", path)
    number = parse_integer(value.strip()) if isinstance(value, str) else int(value)
    if number is None:
        raise unreadable_value_error(value, "a number", path)
    if not fits_bits(number, bits):
        raise Malformed(f"JSON parse error: {number} does not fit {bits} bits{_at_path(path)}")
    return number


def _as_enum_value(value: Any, enum_type: type[EnumType], path: str) -> EnumType | None:
    text = _as_text(value, path)
    if text is None:
        return None
    try:
        return enum_type(text.lower())
    except ValueError:
        raise unknown_enum_value_error(text, enum_type, path) from None


# Drafts ---------------------------------------------------------------------------------------------------------------


AUTHORIZATION_LISTS = ("admins", "readers", "writers")


def attribute_parameter(request: Request, parameter: TextParameter) -> Attribute | None:
    """The attribute that a query parameter names, None when it is missing."""
    text = parameter.read(request)
    if text is None:
        return None
    if not text:
        raise Malformed("Authorization query is empty")
    parts = text.split(":")
    if len(parts) != 2 or not parts[1]:
        raise Malformed("Authorization format is incorrect. Should be data_type:value")
    return Attribute(*parts)


def authorization_draft(body: ObjectReader) -> AuthorizationDraft:
    return AuthorizationDraft(**{name: _attribute_drafts(body, name) for name in AUTHORIZATION_LISTS})


def require_admins(draft: AuthorizationDraft) -> Authorization:
    """The lists of the broker's administrators, none of which may be missing or empty."""
    found = openapi_violations("AdminLists", authorization_body(draft) or {})
    if found:
        raise Violations(found)
    return Authorization(
        admins=attributes_from_drafts(draft.admins),
        readers=attributes_from_drafts(draft.readers),
        writers=attributes_from_drafts(draft.writers),
    )


def _attribute_drafts(body: ObjectReader, name: str) -> tuple[AttributeDraft, ...] | None:
    members = body.objects(name)
    if members is None:
        return None
    return tuple(AttributeDraft(each.text("data_type"), each.text("value")) for each in members)


STATISTICS_FIELDS = ("messages_per_minute", "message_size", "read_parallelism", "write_parallelism")


def event_type_draft(body: ObjectReader) -> EventTypeDraft:
    schema, authorization = body.object("schema"), body.object("authorization")
    options, selector = body.object("options"), body.object("event_owner_selector")
    statistic = body.object("default_statistic")
    return EventTypeDraft(
        name=body.text("name"),
        owning_application=body.text("owning_application"),
        category=body.enum_value("category", Category),
        schema=None if schema is None else schema_draft(schema),
        partition_key_fields=body.texts("partition_key_fields") or (),
        ordering_key_fields=_schema_field_paths(body, "ordering_key_fields"),
        ordering_instance_ids=_schema_field_paths(body, "ordering_instance_ids"),
        default_statistic=None if statistic is None else _statistics_draft(statistic),
        retention_time=None if options is None else options.integer("retention_time"),
        authorization=None if authorization is None else authorization_draft(authorization),
        audience=body.exact_enum_value("audience", Audience),
        event_owner_selector=None if selector is None else _owner_selector_draft(selector),
        deduplication=_deduplication_draft(body) if "deduplication" in body else UNSET,
        annotations=body.text_mapping("annotations"),
        labels=body.text_mapping("labels"),
        **_defaultable_fields(body),
    )


def _deduplication_draft(body: ObjectReader) -> DeduplicationDraft | None:
    deduplication = body.object("deduplication")
    if deduplication is None:
        return None
    return DeduplicationDraft(window_seconds=deduplication.integer("window_seconds", bits=32))


def _schema_field_paths(body: ObjectReader, name: str) -> tuple[str, ...]:
    """Paths that have to be in the schema, where null is as little as the empty one."""
    return tuple(each or "" for each in body.texts(name) or ())


def _defaultable_fields(body: ObjectReader) -> dict[str, Any]:
    """The fields that have a default of their own when they are left out, and are null when they are null."""
    readers: Mapping[str, Callable[[str], Any]] = {
        "enrichment_strategies": lambda name: body.enum_values(name, EnrichmentStrategy),
        "partition_strategy": body.text,
        "cleanup_policy": lambda name: body.enum_value(name, CleanupPolicy),
        "compatibility_mode": lambda name: body.enum_value(name, CompatibilityMode),
    }
    return {name: read(name) for name, read in readers.items() if name in body}


def schema_draft(body: ObjectReader) -> SchemaDraft:
    return SchemaDraft(type=_schema_type(body), text=body.text("schema"))


def _schema_type(body: ObjectReader) -> SchemaType | None:
    """In any letter case; the oldest documents wrote it with a hyphen."""
    text = body.text("type")
    if text is None:
        return None
    word = text.lower().replace("-", "_")
    if word not in set(SchemaType):
        raise unknown_enum_value_error(text, SchemaType, body.path_of("type"))
    return SchemaType(word)


def _statistics_draft(body: ObjectReader) -> StatisticsDraft:
    return StatisticsDraft(**{name: body.integer(name, bits=32) for name in STATISTICS_FIELDS})


def _owner_selector_draft(body: ObjectReader) -> OwnerSelectorDraft:
    return OwnerSelectorDraft(
        type=body.enum_value("type", OwnerSelectorType), name=body.text("name"), value=body.text("value")
    )


def subscription_draft(body: ObjectReader) -> SubscriptionDraft:
    authorization = body.object("authorization")
    given: dict[str, Any] = {}
    if "consumer_group" in body:
        given["consumer_group"] = body.text("consumer_group")
    if "read_from" in body:
        given["read_from"] = body.enum_value("read_from", ReadFrom)
    return SubscriptionDraft(
        owning_application=body.text("owning_application"),
        event_types=_event_type_names(body),
        initial_cursors=tuple(cursor_draft(each) for each in body.objects("initial_cursors") or ()),
        authorization=None if authorization is None else authorization_draft(authorization),
        annotations=body.text_mapping("annotations"),
        labels=body.text_mapping("labels"),
        **given,
    )


def _event_type_names(body: ObjectReader) -> tuple[str, ...] | None:
    """The event types of a subscription: a set, whose order and repetitions mean nothing."""
    if "event_types" not in body:
        return None
    names = body.texts("event_types")
    if names is None:
        raise unreadable_value_error(None, "a list", body.path_of("event_types"))
    known = {name for name in names if name is not None}
    if None in names:
        raise unreadable_value_error(None, "a text", body.path_of("event_types"))
    return tuple(sorted(known))


def cursor_draft(body: ObjectReader) -> SubscriptionCursorDraft:
    return SubscriptionCursorDraft(body.text("event_type"), body.text("partition"), body.text("offset"))
