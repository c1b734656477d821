"""Drafts: what a request asks for, field by field, before it is decided whether that makes sense."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nakadi.auth.permissions import authorization_body
from nakadi.event_types.drafts import attributes
from nakadi.http.bodies import Members, cannot_read, illegal_word
from nakadi.http.message import Request
from nakadi.model.administration import AdminLists
from nakadi.model.authorization import Attribute, AttributeDraft, AuthorizationDraft
from nakadi.model.event_type import (
    Audience,
    Category,
    CleanupPolicy,
    CompatibilityMode,
    EnrichmentStrategy,
    EventTypeDraft,
    OwnerSelectorDraft,
    OwnerSelectorType,
    StatisticsDraft,
)
from nakadi.model.outcomes import Malformed, Violations
from nakadi.model.schema import SchemaDraft, SchemaType
from nakadi.model.subscription import ReadFrom, SubscriptionCursorDraft, SubscriptionDraft
from nakadi.openapi.checks import body_violations

AUTHORIZATION_LISTS = ("admins", "readers", "writers")


def attribute_parameter(request: Request, name: str) -> Attribute | None:
    """The attribute that a query parameter names, None when it is missing."""
    text = request.parameter(name)
    if text is None:
        return None
    if not text:
        raise Malformed("Authorization query is empty")
    parts = text.split(":")
    if len(parts) != 2 or not parts[1]:
        raise Malformed("Authorization format is incorrect. Should be data_type:value")
    return Attribute(*parts)


def authorization_draft(body: Members) -> AuthorizationDraft:
    return AuthorizationDraft(**{name: _attributes(body, name) for name in AUTHORIZATION_LISTS})


def admin_lists(draft: AuthorizationDraft) -> AdminLists:
    """The lists of the broker's administrators, none of which may be missing or empty."""
    found = body_violations("AdminLists", authorization_body(draft) or {})
    if found:
        raise Violations(found)
    return AdminLists(
        admins=attributes(draft.admins), readers=attributes(draft.readers), writers=attributes(draft.writers)
    )


def _attributes(body: Members, name: str) -> tuple[AttributeDraft, ...] | None:
    members = body.objects(name)
    if members is None:
        return None
    return tuple(AttributeDraft(each.text("data_type"), each.text("value")) for each in members)


STATISTICS = ("messages_per_minute", "message_size", "read_parallelism", "write_parallelism")


def event_type_draft(body: Members) -> EventTypeDraft:
    schema, authorization = body.object("schema"), body.object("authorization")
    options, selector = body.object("options"), body.object("event_owner_selector")
    statistic = body.object("default_statistic")
    return EventTypeDraft(
        name=body.text("name"),
        owning_application=body.text("owning_application"),
        category=body.word("category", Category),
        schema=None if schema is None else schema_draft(schema),
        partition_key_fields=body.texts("partition_key_fields") or (),
        ordering_key_fields=_field_paths(body, "ordering_key_fields"),
        ordering_instance_ids=_field_paths(body, "ordering_instance_ids"),
        default_statistic=None if statistic is None else _statistics_draft(statistic),
        retention_time=None if options is None else options.integer("retention_time"),
        authorization=None if authorization is None else authorization_draft(authorization),
        audience=body.exact_word("audience", Audience),
        event_owner_selector=None if selector is None else _owner_selector_draft(selector),
        annotations=body.mapping("annotations"),
        labels=body.mapping("labels"),
        **_with_defaults(body),
    )


def _field_paths(body: Members, name: str) -> tuple[str, ...]:
    """Paths that have to be in the schema, where null is as little as the empty one."""
    return tuple(each or "" for each in body.texts(name) or ())


def _with_defaults(body: Members) -> dict[str, Any]:
    """The fields that have a default of their own when they are left out, and are null when they are null."""
    readers: Mapping[str, Callable[[str], Any]] = {
        "enrichment_strategies": lambda name: body.words(name, EnrichmentStrategy),
        "partition_strategy": body.text,
        "cleanup_policy": lambda name: body.word(name, CleanupPolicy),
        "compatibility_mode": lambda name: body.word(name, CompatibilityMode),
    }
    return {name: read(name) for name, read in readers.items() if name in body}


def schema_draft(body: Members) -> SchemaDraft:
    return SchemaDraft(type=_schema_type(body), text=body.text("schema"))


def _schema_type(body: Members) -> SchemaType | None:
    """In any letter case; the oldest documents wrote it with a hyphen."""
    text = body.text("type")
    if text is None:
        return None
    word = text.lower().replace("-", "_")
    if word not in set(SchemaType):
        raise illegal_word(text, SchemaType, body.at("type"))
    return SchemaType(word)


def _statistics_draft(body: Members) -> StatisticsDraft:
    return StatisticsDraft(**{name: body.integer(name, bits=32) for name in STATISTICS})


def _owner_selector_draft(body: Members) -> OwnerSelectorDraft:
    return OwnerSelectorDraft(
        type=body.word("type", OwnerSelectorType),
        name=body.text("name"),
        value=body.text("value"),
    )


def subscription_draft(body: Members) -> SubscriptionDraft:
    authorization = body.object("authorization")
    given: dict[str, Any] = {}
    if "consumer_group" in body:
        given["consumer_group"] = body.text("consumer_group")
    if "read_from" in body:
        given["read_from"] = body.word("read_from", ReadFrom)
    return SubscriptionDraft(
        owning_application=body.text("owning_application"),
        event_types=_event_type_names(body),
        initial_cursors=tuple(cursor_draft(each) for each in body.objects("initial_cursors") or ()),
        authorization=None if authorization is None else authorization_draft(authorization),
        annotations=body.mapping("annotations"),
        labels=body.mapping("labels"),
        **given,
    )


def _event_type_names(body: Members) -> tuple[str, ...] | None:
    """The event types of a subscription: a set, whose order and repetitions mean nothing."""
    if "event_types" not in body:
        return None
    names = body.texts("event_types")
    if names is None:
        raise cannot_read(None, "a list", body.at("event_types"))
    known = {name for name in names if name is not None}
    if None in names:
        raise cannot_read(None, "a text", body.at("event_types"))
    return tuple(sorted(known))


def cursor_draft(body: Members) -> SubscriptionCursorDraft:
    return SubscriptionCursorDraft(body.text("event_type"), body.text("partition"), body.text("offset"))
