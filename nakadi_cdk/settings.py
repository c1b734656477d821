"""The settings of functions and the streaming service: for each those that it reads, and no others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

from msgspec.structs import asdict

from nakadi_cdk.context import Context
from nakadi_cdk.needs import ASKED, BATCHES, EVENT_TYPES, OWN, STORES, SUBSCRIPTIONS, TIERED, TOKENS, needs_of

STREAMING = frozenset(
    {
        *STORES,
        *ASKED,
        *TOKENS,
        *SUBSCRIPTIONS,
        *EVENT_TYPES,
        *OWN,
        *BATCHES,
        "hash_salt",
        "longest_stream_seconds",
        "longest_silence_seconds",
        "max_request_memory_bytes",
    }
)

# What publishing and commits read beside that.
DIRECT = frozenset({"longest_wait_seconds", "max_subscription_partitions"})

# API Gateway ends a streamed response after 15 minutes, and one that is silent for 5; there must be time for an end.
LONGEST_STREAM_SECONDS = 14 * 60
LONGEST_SILENCE_SECONDS = 4 * 60

# API Gateway waits 29 s, and a function may have to start and to ask its stores first.
LONGEST_WAIT_SECONDS = 20


# Of a task's memory, for what it remembers of each stream, and for requests.
REMEMBERED, REQUESTED = 1 / 8, 1 / 4
MIB = 1 << 20


def environment_of(function: str, context: Context, places: Mapping[str, str]) -> Mapping[str, str]:
    if function == "housekeeping" and context.fans_out:
        # It removes the consumers of tasks that were killed.
        places = {**places, "event_log": f"{places['event_log']}&fan_out={context.prefix}"}
    if function == "housekeeping":
        places = {**places, "table_job": context.table_job, "table_minutes": str(context.table_minutes)}
        if not context.analytics:
            # There are no tables that compaction could wait for.
            places = {**places, "compaction_wait_hours": "0"}
    decided = {"auth": "gateway", "longest_wait_seconds": str(LONGEST_WAIT_SECONDS)}
    needs = needs_of(function, topics=context.on_msk)
    return _variables(needs.settings, context, {**_asked(context), **places, **decided})


def streaming_environment(context: Context, places: Mapping[str, str]) -> Mapping[str, str]:
    """The load balancer has no authorizer in front of it that could be trusted: tokens are checked by the service."""
    memory = context.streaming_memory * MIB
    log = places["event_log"]
    if not context.on_msk:
        log += f"&window_bytes={int(memory * REMEMBERED)}"
    bounds = {
        "event_log": f"{log}&fan_out={context.prefix}" if context.fans_out else log,
        "max_request_memory_bytes": str(min(int(memory * REQUESTED), context.chosen.max_request_memory_bytes)),
        "longest_stream_seconds": str(LONGEST_STREAM_SECONDS),
        "longest_silence_seconds": str(LONGEST_SILENCE_SECONDS),
        "longest_wait_seconds": str(LONGEST_SILENCE_SECONDS),
    }
    settings = STREAMING | DIRECT if context.direct_domain else STREAMING
    settings |= {*TIERED} if context.on_msk else set()
    return _variables(settings, context, {**_asked(context), **places, **bounds, "auth": "jwt"})


def _asked(context: Context) -> Mapping[str, str]:
    longest = timedelta(days=context.retention_max_days) // timedelta(milliseconds=1)
    return {
        "auth_issuer": context.auth_issuer,
        "auth_jwks": context.jwks,
        "auth_audience": context.auth_audience,
        "default_admin": context.default_admin,
        "archiver": "function",
        "retention_max_ms": str(longest),
        "retention_default_ms": str(min(longest, context.chosen.retention_default_ms)),
    }


def _variables(settings: Collection[str], context: Context, decided: Mapping[str, str]) -> Mapping[str, str]:
    values = {**{name: as_text(value) for name, value in asdict(context.chosen).items()}, **decided}
    return {f"NAKADI_{name.upper()}": values[name] for name in sorted(settings)}


def as_text(value: object) -> str:
    """A default as it would be written into a variable."""
    if isinstance(value, tuple):
        return ",".join("=".join(each) if isinstance(each, tuple) else str(each) for each in value)
    return str(value)
