"""Event types as clients send them, and as JSON documents of the registry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace

from nakadi.auth import permissions
from nakadi.auth.permissions import check_no_duplicates_in_lists
from nakadi.common.converting import Converter
from nakadi.model.authorization import Attribute, AttributeDraft, Authorization, AuthorizationDraft
from nakadi.model.event_type import (
    Deduplication,
    DeduplicationDraft,
    EventType,
    EventTypeDraft,
    OwnerSelector,
    OwnerSelectorDraft,
    OwnerSelectorType,
    Schema,
    Statistics,
    StatisticsDraft,
    Version,
)
from nakadi.model.events import TopicPartition
from nakadi.model.outcomes import MAX_ANNOTATIONS_OR_LABELS, Violation, size_limit_violations
from nakadi.openapi.checks import NULL_REFUSED_MESSAGE, openapi_violations
from nakadi.ports.clock import Clock
from nakadi.ports.registry import Document

# Documents of the registry --------------------------------------------------------------------------------------------


DocumentBody = Mapping[str, Any]

_event_types = Converter(EventType)
_schemas = Converter(Schema)


def event_type_body(event_type: EventType) -> DocumentBody:
    body = to_builtins(event_type, str_keys=True)
    # A document has its key and its revision beside its body.
    del body["name"], body["revision"]
    return {**body, "schema": schema_body(event_type.schema)}


def event_type_from_document(document: Document) -> EventType:
    schema = schema_from_body(document.body["schema"])
    return _event_types.from_builtins(
        {**document.body, "name": document.key, "schema": schema, "revision": document.revision}
    )


def schema_body(schema: Schema) -> DocumentBody:
    return {**to_builtins(schema), "version": str(schema.version)}


def schema_from_body(body: DocumentBody) -> Schema:
    return _schemas.from_builtins({**body, "version": Version.parse(body["version"])})


# Measured statistics --------------------------------------------------------------------------------------------------


MEASURED_STATISTICS_KIND = "measured-statistics"
"""These documents are keyed by the ids of event types: an event type that is created again starts without."""


class MeasuredStatistics(
    Struct, frozen=True, kw_only=True, rename={"measured_since": "since", "measured_until": "until"}
):
    """The measured traffic of an event type between two times, and the number of partitions that it needs."""

    statistic: Statistics
    recommended_partitions: int
    measured_since: datetime
    measured_until: datetime


_measured_statistics = Converter(MeasuredStatistics)


def measured_statistics_body(measured: MeasuredStatistics) -> DocumentBody:
    body: DocumentBody = to_builtins(measured)
    return body


def measured_statistics_from_body(body: DocumentBody) -> MeasuredStatistics:
    return _measured_statistics.from_builtins(body)


# Tables of events ----------------------------------------------------------------------------------------------------

TABLE_STATES_KIND = "tables"
"""Documents by the id of the event type."""


_STORED_TABLE_STATE_NAMES = {
    "table_name": "table",
    "next_offsets": "next",
    "row_count": "rows",
    "latency_seconds": "latency",
    "misfit_count": "misfits",
    "acknowledged_misfits": "known_misfits",
    "unreadable_count": "missing",
    "acknowledged_unreadable": "known_missing",
}


class TableState(Struct, frozen=True, kw_only=True, rename=_STORED_TABLE_STATE_NAMES):
    """A table of an event type, as the last job that changed it left it.

    `next_offsets` has for each partition the offset up to which the table has its events. Misfits are events that do
    not fit the columns, as far as jobs counted them, and unreadable ones could not be read; so many of them an operator
    has acknowledged. `latency_seconds` is how long the oldest event of the last commit had waited since it was
    published; None if that is not known.
    """

    table_name: str
    next_offsets: Mapping[TopicPartition, int]
    row_count: int
    misfit_count: int
    unreadable_count: int
    updated_at: datetime
    latency_seconds: float | None = None
    acknowledged_misfits: int = 0
    acknowledged_unreadable: int = 0


_table_states = Converter(TableState)


def table_state_body(state: TableState) -> DocumentBody:
    offsets = {f"{topic}/{partition}": offset for (topic, partition), offset in state.next_offsets.items()}
    body = to_builtins(replace(state, next_offsets={}))
    return {**body, "next": offsets}


def table_state_from_body(body: DocumentBody) -> TableState:
    places = ((name.rpartition("/"), offset) for name, offset in body["next"].items())
    next_offsets = {(topic, int(partition)): offset for (topic, _, partition), offset in places}
    return replace(_table_states.from_builtins({**body, "next": {}}), next_offsets=next_offsets)


# Times ----------------------------------------------------------------------------------------------------------------


def now_in_milliseconds(clock: Clock) -> datetime:
    """The time now, cut to milliseconds as in responses: what is stored and what clients read are equal."""
    now = clock.now()
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


# Event types as clients send them: checks of the single fields, and the values that are stored ------------------------


_FIELDS_STORED_AS_SENT = (
    *("name", "owning_application", "category", "enrichment_strategies", "partition_key_fields"),
    *("ordering_key_fields", "ordering_instance_ids", "cleanup_policy", "compatibility_mode"),
)


def fields_stored_as_sent(draft: EventTypeDraft) -> dict[str, Any]:
    """The fields that are stored as the client sends them."""
    return {
        **{name: getattr(draft, name) for name in (*_FIELDS_STORED_AS_SENT, "audience")},
        "authorization": authorization_from_draft(draft.authorization),
        "event_owner_selector": owner_selector_from_draft(draft.event_owner_selector),
    }


def deduplication_from_draft(draft: DeduplicationDraft | None) -> Deduplication | None:
    if draft is None:
        return None
    assert draft.window_seconds is not None
    return Deduplication(window_seconds=draft.window_seconds)


def statistics_from_draft(draft: StatisticsDraft | None) -> Statistics | None:
    return None if draft is None else Statistics(**asdict(draft))


def owner_selector_from_draft(draft: OwnerSelectorDraft | None) -> OwnerSelector | None:
    if draft is None:
        return None
    assert draft.type is not None
    assert draft.name is not None
    return OwnerSelector(type=draft.type, name=draft.name, value=draft.value)


def authorization_from_draft(draft: AuthorizationDraft | None) -> Authorization | None:
    if draft is None:
        return None
    return Authorization(
        admins=attributes_from_drafts(draft.admins),
        readers=attributes_from_drafts(draft.readers),
        writers=attributes_from_drafts(draft.writers),
    )


def attributes_from_drafts(drafts: tuple[AttributeDraft, ...] | None) -> tuple[Attribute, ...]:
    return tuple(Attribute(each.data_type or "", each.value or "") for each in drafts or ())


def check_no_duplicate_attributes(draft: AuthorizationDraft | None) -> None:
    requested = authorization_from_draft(draft)
    if requested is not None:
        check_no_duplicates_in_lists(requested)


# Violations -----------------------------------------------------------------------------------------------------------


AUTHORIZATION_MANDATORY_MESSAGE = "Authorization section is mandatory"


def rule_violations(draft: EventTypeDraft) -> tuple[Violation, ...]:
    """All violations in the fields of the draft, as far as they show without anything else than the draft."""
    return (
        *openapi_violations("EventTypeDraft", _body_from_draft(draft)),
        *_owner_violations(draft.event_owner_selector),
        *annotation_violations(draft.annotations or {}),
        *label_violations(draft.labels or {}),
    )


def _body_from_draft(draft: EventTypeDraft) -> dict[str, Any]:
    """The draft as its description has it. Of the strategy for partitions, rules say more than a description can."""
    schema, statistic, selector = draft.schema, draft.default_statistic, draft.event_owner_selector
    return {
        **{name: getattr(draft, name) for name in _FIELDS_STORED_AS_SENT},
        "schema": None if schema is None else {"type": schema.type, "schema": schema.text},
        "default_statistic": None if statistic is None else asdict(statistic),
        "authorization": permissions.authorization_body(draft.authorization),
        "event_owner_selector": None if selector is None else asdict(selector),
        "deduplication": asdict(draft.deduplication) if draft.deduplication else None,
    }


def _owner_violations(selector: OwnerSelectorDraft | None) -> Iterator[Violation]:
    """An owner that the metadata of events names needs no value."""
    if selector is not None and selector.value is None and selector.type is not OwnerSelectorType.METADATA:
        yield Violation("event_owner_selector.value", NULL_REFUSED_MESSAGE)


# Annotations and labels, on event types and subscriptions alike -------------------------------------------------------


MAX_ANNOTATION_KEY_PREFIX_CHARACTERS = 253
MAX_ANNOTATION_KEY_NAME_CHARACTERS = 63
MAX_ANNOTATION_CHARACTERS = 1000
MAX_LABEL_CHARACTERS = 63
# Keys are cut to this length in messages. It is more than a key may have, so that one that is too long is still known.
MAX_ANNOTATION_KEY_CHARACTERS_SHOWN = 500

_HOST_NAME_PART_PATTERN = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_NAME_PATTERN = "[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
_LABEL_VALUE_PATTERN = re.compile(_LABEL_NAME_PATTERN)

# Each pattern describes the whole key, so a wrong character before the slash violates three of them.
_ANNOTATION_KEY_RULES = tuple(
    (re.compile(pattern), message)
    for pattern, message in (
        (
            rf"({_HOST_NAME_PART_PATTERN}(\.{_HOST_NAME_PART_PATTERN})*/)?[^/]*",
            "Key name should be an optional lowercase domain name with path",
        ),
        (
            rf"([-.a-z0-9]{{0,{MAX_ANNOTATION_KEY_PREFIX_CHARACTERS}}}/)?[^/]*",
            f"Key prefix cannot be more than {MAX_ANNOTATION_KEY_PREFIX_CHARACTERS} characters.",
        ),
        (
            rf"([-.a-z0-9]+/)?[^/]{{0,{MAX_ANNOTATION_KEY_NAME_CHARACTERS}}}",
            f"Key name cannot be more than {MAX_ANNOTATION_KEY_NAME_CHARACTERS} characters.",
        ),
        (f"([^/]+/)?{_LABEL_NAME_PATTERN}", "Key name should start and end with a letter or a digit"),
    )
)


def annotation_violations(annotations: Mapping[str, str | None]) -> Iterator[Violation]:
    yield from size_limit_violations("annotations", annotations, MAX_ANNOTATIONS_OR_LABELS)
    for key, value in islice(annotations.items(), MAX_ANNOTATIONS_OR_LABELS):
        path = f"annotations[{key[:MAX_ANNOTATION_KEY_CHARACTERS_SHOWN]}]"
        yield from _annotation_key_violations(path, key[:MAX_ANNOTATION_KEY_CHARACTERS_SHOWN])
        yield from size_limit_violations(path, value, MAX_ANNOTATION_CHARACTERS)


def label_violations(labels: Mapping[str, str | None]) -> Iterator[Violation]:
    yield from size_limit_violations("labels", labels, MAX_ANNOTATIONS_OR_LABELS)
    for key, value in islice(labels.items(), MAX_ANNOTATIONS_OR_LABELS):
        path = f"labels[{key[:MAX_ANNOTATION_KEY_CHARACTERS_SHOWN]}]"
        yield from _annotation_key_violations(path, key[:MAX_ANNOTATION_KEY_CHARACTERS_SHOWN])
        yield from size_limit_violations(path, value, MAX_LABEL_CHARACTERS)
        if value and not _LABEL_VALUE_PATTERN.fullmatch(value):
            yield Violation(path, "Should contain only allowed symbols")


def _annotation_key_violations(path: str, key: str) -> Iterator[Violation]:
    if not key:
        yield Violation(path, "Key cannot be empty")
    for rule, message in _ANNOTATION_KEY_RULES:
        if not rule.fullmatch(key):
            yield Violation(path, message)
