"""The environment of each function and of the streaming service: the settings that it reads, and no others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

from msgspec.structs import asdict

from nakadi_cdk.context import Context
from nakadi_cdk.needs import (
    BATCH_SETTINGS,
    EVENT_TYPE_SETTINGS,
    OWN_EVENT_TYPE_SETTINGS,
    PERMISSION_SETTINGS,
    QUERIES,
    SINK_SETTINGS,
    STORE_SETTINGS,
    SUBSCRIPTION_SETTINGS,
    TIERING_SETTINGS,
    TOKEN_SETTINGS,
    find_needs,
)

STREAMING_SETTINGS = frozenset(
    {
        *STORE_SETTINGS,
        *PERMISSION_SETTINGS,
        *TOKEN_SETTINGS,
        *SUBSCRIPTION_SETTINGS,
        *EVENT_TYPE_SETTINGS,
        *OWN_EVENT_TYPE_SETTINGS,
        *BATCH_SETTINGS,
        *SINK_SETTINGS,
        "hash_salt",
        "longest_stream_seconds",
        "longest_silence_seconds",
        "max_request_memory_bytes",
    }
)

# Settings that the streaming service also reads if it handles publishing and commits.
DIRECT_SETTINGS = frozenset({"longest_wait_seconds", "max_subscription_partitions"})

# API Gateway breaks off a streamed response after 15 minutes, or 5 of silence; the broker has to end it earlier.
LONGEST_STREAM_SECONDS = 14 * 60
LONGEST_SILENCE_SECONDS = 4 * 60

# API Gateway waits 29 s, including the start of the function and its requests to the stores.
LONGEST_WAIT_SECONDS = 20
LONGEST_QUERY_SECONDS = 20

# The memory in MiB of the queries' function that no query gets: for its process, and for Python and Arrow in the child.
MEMORY_BESIDE_QUERY = 1024


# The shares of a task's memory for recent events of each stream, and for request bodies.
WINDOW_SHARE, REQUEST_SHARE = 1 / 8, 1 / 4
MIB = 1 << 20


def function_environment(function: str, context: Context, locations: Mapping[str, str]) -> Mapping[str, str]:
    """The environment of a function. `locations` are the addresses of the stores."""
    if function == "housekeeping" and context.fans_out:
        # Housekeeping removes the consumers of killed tasks.
        locations = {**locations, "event_log": f"{locations['event_log']}&fan_out={context.prefix}"}
    if function == "housekeeping":
        locations = {**locations, "table_job": context.table_job, "table_minutes": str(context.table_minutes)}
        if not context.analytics:
            # Without tables, compaction has nothing to wait for.
            locations = {**locations, "compaction_wait_hours": "0"}
    fixed = {"auth": "gateway", "longest_wait_seconds": str(LONGEST_WAIT_SECONDS)}
    needs = find_needs(function, on_kafka=context.on_msk)
    return _variables(needs.settings, context, {**_shared_values(context), **locations, **fixed})


def streaming_environment(context: Context, locations: Mapping[str, str]) -> Mapping[str, str]:
    """The environment of the streaming service, which checks tokens itself, because it has no authorizer."""
    memory = context.streaming_memory * MIB
    log = locations["event_log"]
    if not context.on_msk:
        log += f"&window_bytes={int(memory * WINDOW_SHARE)}"
    bounds = {
        "event_log": f"{log}&fan_out={context.prefix}" if context.fans_out else log,
        "max_request_memory_bytes": str(min(int(memory * REQUEST_SHARE), context.chosen.max_request_memory_bytes)),
        "longest_stream_seconds": str(LONGEST_STREAM_SECONDS),
        "longest_silence_seconds": str(LONGEST_SILENCE_SECONDS),
        "longest_wait_seconds": str(LONGEST_SILENCE_SECONDS),
    }
    settings = STREAMING_SETTINGS | DIRECT_SETTINGS if context.direct_domain else STREAMING_SETTINGS
    settings |= {*TIERING_SETTINGS} if context.on_msk else set()
    return _variables(settings, context, {**_shared_values(context), **locations, **bounds, "auth": "jwt"})


def query_environment(context: Context, database: str) -> Mapping[str, str]:
    """The environment of the function that answers queries. `database` is the database of the tables."""
    fixed = {
        "auth": "gateway",
        "query_megabytes": str(context.query_memory - MEMORY_BESIDE_QUERY),
        "query_seconds": str(min(context.chosen.query_seconds, LONGEST_QUERY_SECONDS)),
        "tables": "glue",
        "tables_database": database,
    }
    return _variables(QUERIES.settings, context, fixed)


def _shared_values(context: Context) -> Mapping[str, str]:
    longest = timedelta(days=context.retention_max_days) // timedelta(milliseconds=1)
    return {
        "auth_issuer": context.auth_issuer,
        "auth_jwks": context.jwks,
        "auth_audience": context.auth_audience,
        "default_admin": context.default_admin,
        "archiver": "function",
        "sink_targets": context.sink_targets,
        "retention_max_ms": str(longest),
        "retention_default_ms": str(min(longest, context.chosen.retention_default_ms)),
    }


def _variables(settings: Collection[str], context: Context, fixed: Mapping[str, str]) -> Mapping[str, str]:
    values = {**{name: as_text(value) for name, value in asdict(context.chosen).items()}, **fixed}
    return {f"NAKADI_{name.upper()}": values[name] for name in sorted(settings)}


def as_text(value: object) -> str:
    """A setting's value in the syntax of environment variables."""
    if isinstance(value, tuple):
        return ",".join("=".join(each) if isinstance(each, tuple) else str(each) for each in value)
    return str(value)
