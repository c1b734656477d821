"""The routes that each function serves and the settings that it reads. The deployment passes no other settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCOPE_SETTINGS = (
    "scope_uid",
    "scope_config_write",
    "scope_event_type_write",
    "scope_event_stream_read",
    "scope_event_stream_write",
)
# Every broker process reads the locations of the stores, and the limits of its caches and metrics.
STORE_SETTINGS = ("registry", "event_log", "log_index", "archive", "archiver", "cache_seconds", "max_metric_names")

# Functions and tasks send metrics and logs to CloudWatch, so these keep their defaults there.
TELEMETRY_SETTINGS = frozenset({"metrics", "logs"})

# The authorizer identifies the caller; each function checks the caller's permissions.
PERMISSION_SETTINGS = ("auth", "auth_realms", "default_admin", "all_data_access", *SCOPE_SETTINGS)

TOKEN_SETTINGS = (
    "auth_jwks",
    "auth_issuer",
    "auth_audience",
    "auth_algorithms",
    "auth_leeway_seconds",
    "auth_subject_claim",
    "auth_attributes",
    "auth_service_realms",
)
EVENT_TYPE_SETTINGS = (
    "default_partitions",
    "max_partitions",
    "retention_min_ms",
    "retention_default_ms",
    "retention_max_ms",
)
SUBSCRIPTION_SETTINGS = ("coordination", "max_commit_timeout_seconds")

# Without a key, there are no sinks, and the other settings are not read.
SINK_SETTINGS = ("sink_key", "sink_schemes", "sink_networks", "sink_targets")

# A request that waits for streams to end must finish before the gateway's timeout.
WAIT_SETTINGS = ("longest_wait_seconds",)

# Deleting an event type also deletes the subscriptions that these settings name.
DELETION_SETTINGS = ("deletable_subscription_owning_application", "deletable_subscription_consumer_group")

BATCH_SETTINGS = ("hash_orders", "max_batch_events", "max_batch_steps", "max_event_bytes")

# The options of the broker's own event types. The first process that needs such an event type creates it.
OWN_EVENT_TYPE_SETTINGS = (
    "dead_letter_queue",
    "dead_letter_redrive",
    "dead_letter_owning_application",
    "dead_letter_authorization",
    "audit_owning_application",
    "audit_authorization",
    "kpi_owning_application",
    "kpi_authorization",
)

# Every change may write to the audit log, which publishes its events like any other publisher.
AUDIT_SETTINGS = (*EVENT_TYPE_SETTINGS, *OWN_EVENT_TYPE_SETTINGS, "hash_salt", *BATCH_SETTINGS)


@dataclass(frozen=True, slots=True)
class Needs:
    """The settings that a function reads and the areas of routes that it serves."""

    settings: frozenset[str]
    areas: tuple[str, ...] = ()

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(f"NAKADI_{setting.upper()}" for setting in self.settings)


def _needs(*settings: str, areas: tuple[str, ...] = ()) -> Needs:
    return Needs(frozenset(settings), areas)


# Read only with Kafka, which numbers events itself: when to archive events, and how long Kafka keeps them afterwards.
TIERING_SETTINGS = ("archive_after_seconds", "archive_grace_seconds", "hot_retention_ms")


NEEDS: Mapping[str, Needs] = {
    "publish": _needs(*STORE_SETTINGS, *PERMISSION_SETTINGS, *BATCH_SETTINGS, "hash_salt", areas=("publishing",)),
    "event_types": _needs(
        *STORE_SETTINGS,
        *PERMISSION_SETTINGS,
        *AUDIT_SETTINGS,
        *SUBSCRIPTION_SETTINGS,
        *WAIT_SETTINGS,
        *DELETION_SETTINGS,
        "data_access_warning",
        "compaction_warning",
        areas=("event_types",),
    ),
    "cursors": _needs(*STORE_SETTINGS, *PERMISSION_SETTINGS, areas=("cursors",)),
    "subscriptions": _needs(
        *STORE_SETTINGS,
        *PERMISSION_SETTINGS,
        *AUDIT_SETTINGS,
        *SUBSCRIPTION_SETTINGS,
        *WAIT_SETTINGS,
        *SINK_SETTINGS,
        "max_subscription_partitions",
        areas=("subscriptions",),
    ),
    "admin": _needs(*STORE_SETTINGS, *PERMISSION_SETTINGS, *AUDIT_SETTINGS, areas=("settings", "monitoring")),
    "authorizer": _needs(*TOKEN_SETTINGS),
    "log_indexer": _needs("event_log", "log_index", "archive"),
    "housekeeping": _needs(
        *STORE_SETTINGS,
        *AUDIT_SETTINGS,
        *SUBSCRIPTION_SETTINGS,
        "auth",
        "default_admin",
        "all_data_access",
        "table_job",
        "table_minutes",
        "compaction_wait_hours",
    ),
}

# The log indexer's needs with Kafka, where it archives topics instead of indexing streams.
TOPIC_ARCHIVER = _needs(*STORE_SETTINGS, *TIERING_SETTINGS, "auth", "default_admin", "all_data_access")


# The function that answers queries exists only if the deployment offers them. It is a client of the broker, so it needs
# no store.
QUERIES = _needs(
    "auth",
    "auth_realms",
    *SCOPE_SETTINGS,
    "query_megabytes",
    "query_rows",
    "query_seconds",
    "tables",
    "tables_database",
    areas=("queries",),
)


def find_needs(function: str, *, on_kafka: bool) -> Needs:
    """The needs of a function, with Kafka or without it."""
    needs = NEEDS[function]
    if not on_kafka or "event_log" not in needs.settings:
        return needs
    return TOPIC_ARCHIVER if function == "log_indexer" else Needs(needs.settings | {*TIERING_SETTINGS}, needs.areas)
