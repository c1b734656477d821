"""Drafts of event types and subscriptions, read from JSON bodies field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET

from nakadi.auth.authorization import authorization_body
from nakadi.event_types.drafts import attributes_from_drafts
from nakadi.http.bodies import ObjectReader, unknown_enum_value_error, unreadable_value_error
from nakadi.http.message import Request
from nakadi.http.parameters import TextParameter
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
from nakadi.model.subscription import ObjectiveDraft, ReadFrom, SubscriptionCursorDraft, SubscriptionDraft
from nakadi.openapi.checks import openapi_violations

AUTHORIZATION_LISTS = ("admins", "readers", "writers")


def attribute_parameter(request: Request, parameter: TextParameter) -> Attribute | None:
    """The attribute in a query parameter; None if it is missing."""
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
    """The lists of the broker's administrators. No list may be missing or empty."""
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
        ordering_key_fields=_read_paths_into_schema(body, "ordering_key_fields"),
        ordering_instance_ids=_read_paths_into_schema(body, "ordering_instance_ids"),
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


def _read_paths_into_schema(body: ObjectReader, name: str) -> tuple[str, ...]:
    """Paths that must be in the schema. Null is as invalid as an empty path."""
    return tuple(each or "" for each in body.texts(name) or ())


def _defaultable_fields(body: ObjectReader) -> dict[str, Any]:
    """The fields with defaults for missing members. A null member stays null."""
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
    """The type, in upper or lower case. The oldest documents wrote it with a hyphen."""
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
    authorization, objective = body.object("authorization"), body.object("objective")
    given: dict[str, Any] = {}
    if "consumer_group" in body:
        given["consumer_group"] = body.text("consumer_group")
    if "read_from" in body:
        given["read_from"] = body.enum_value("read_from", ReadFrom)
    if "reads" in body:
        given["reads"] = body.texts("reads")
    if "projection" in body:
        given["projection"] = body.boolean("projection")
    return SubscriptionDraft(
        owning_application=body.text("owning_application"),
        event_types=_event_type_names(body),
        initial_cursors=tuple(cursor_draft(each) for each in body.objects("initial_cursors") or ()),
        authorization=None if authorization is None else authorization_draft(authorization),
        annotations=body.text_mapping("annotations"),
        labels=body.text_mapping("labels"),
        objective=None if objective is None else objective_draft(objective),
        **given,
    )


def objective_draft(body: ObjectReader) -> ObjectiveDraft:
    return ObjectiveDraft(body.number("percent"), body.integer("within_seconds"))


def _event_type_names(body: ObjectReader) -> tuple[str, ...] | None:
    """The event types of a subscription: a set, so order and repetitions do not matter."""
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
