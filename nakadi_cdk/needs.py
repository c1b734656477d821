"""What each function serves and which settings it reads: the deployment gives it these, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCOPES = (
    "scope_uid",
    "scope_config_write",
    "scope_event_type_write",
    "scope_event_stream_read",
    "scope_event_stream_write",
)
# What every process reads that is a broker: where things are, and what it remembers and counts of them.
STORES = ("registry", "event_log", "log_index", "archive", "archiver", "cache_seconds", "max_metric_names")

# Who asks was found out by the authorizer; whether they may is decided in every function.
ASKED = ("auth", "auth_realms", "default_admin", "all_data_access", *SCOPES)

TOKENS = (
    "auth_jwks",
    "auth_issuer",
    "auth_audience",
    "auth_algorithms",
    "auth_leeway_seconds",
    "auth_subject_claim",
    "auth_attributes",
    "auth_service_realms",
)
EVENT_TYPES = (
    "default_partitions",
    "max_partitions",
    "retention_min_ms",
    "retention_default_ms",
    "retention_max_ms",
)
SUBSCRIPTIONS = ("coordination", "max_commit_timeout_seconds")

# A request that waits for streams to end has to be answered before the gateway answers in its place.
WAITING = ("longest_wait_seconds",)

# An event type goes with the subscriptions that may go with it.
DELETABLE = ("deletable_subscription_owning_application", "deletable_subscription_consumer_group")

BATCHES = ("max_batch_events", "max_batch_steps", "max_event_bytes")

# What the event types of the broker's own are like; each is made by the process that needs it first.
OWN = (
    "dead_letter_queue",
    "dead_letter_redrive",
    "dead_letter_owning_application",
    "dead_letter_authorization",
    "audit_owning_application",
    "audit_authorization",
    "kpi_owning_application",
    "kpi_authorization",
)

# Whatever changes something can tell the audit log, whose events are published like others.
AUDIT = (*EVENT_TYPES, *OWN, "hash_salt", *BATCHES)


@dataclass(frozen=True, slots=True)
class Needs:
    settings: frozenset[str]
    areas: tuple[str, ...] = ()

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(f"NAKADI_{setting.upper()}" for setting in self.settings)


def _needs(*settings: str, areas: tuple[str, ...] = ()) -> Needs:
    return Needs(frozenset(settings), areas)


# Beside a log that numbers events itself: when they are archived, and how long the log keeps them then.
TIERED = ("archive_after_seconds", "archive_grace_seconds", "hot_retention_ms")


NEEDS: Mapping[str, Needs] = {
    "publish": _needs(*STORES, *ASKED, *BATCHES, "hash_salt", areas=("publishing",)),
    "event_types": _needs(
        *STORES,
        *ASKED,
        *AUDIT,
        *SUBSCRIPTIONS,
        *WAITING,
        *DELETABLE,
        "data_access_warning",
        "compaction_warning",
        areas=("event_types",),
    ),
    "cursors": _needs(*STORES, *ASKED, areas=("cursors",)),
    "subscriptions": _needs(
        *STORES, *ASKED, *AUDIT, *SUBSCRIPTIONS, *WAITING, "max_subscription_partitions", areas=("subscriptions",)
    ),
    "admin": _needs(*STORES, *ASKED, *AUDIT, areas=("settings", "monitoring")),
    "authorizer": _needs(*TOKENS),
    "log_indexer": _needs("event_log", "log_index", "archive"),
    "housekeeping": _needs(
        *STORES,
        *AUDIT,
        "coordination",
        "auth",
        "default_admin",
        "all_data_access",
        "table_job",
        "table_minutes",
        "compaction_wait_hours",
    ),
}

# The function of the log indexer, where it archives topics instead of indexing streams.
TOPIC_ARCHIVER = _needs(*STORES, *TIERED, "auth")


def needs_of(function: str, *, topics: bool) -> Needs:
    """`topics`: events are in Kafka."""
    needs = NEEDS[function]
    if not topics or "event_log" not in needs.settings:
        return needs
    return TOPIC_ARCHIVER if function == "log_indexer" else Needs(needs.settings | {*TIERED}, needs.areas)
