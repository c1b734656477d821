"""Settings: the environment, read once into a type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct


class BadSetting(Exception):
    """Raised at start when a variable cannot be understood; the message names it."""


def _number(text: str) -> int:
    return int(text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = tuple(tuple(part.strip() for part in word.split("=", 1)) for word in _words(text))
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise ValueError
    return tuple((first, second) for first, second in pairs)


# While nobody is asked who they are, everybody is an administrator anyway.
UNASKED_ADMIN = (("service", "nakadi_admin"),)


class Settings(Struct, frozen=True, kw_only=True):
    """Every field is read from the variable `NAKADI_<FIELD>`; docs/operations.md explains each."""

    # Where things are kept.
    registry: str = "memory:"
    event_log: str = "memory:"
    coordination: str = ""  # where the registry is, if nothing is said
    log_index: str = ""  # in the data file of the event log, if nothing is said; else in memory
    archive: str = ""
    archive_after_seconds: int = 60
    archive_grace_seconds: int = 86_400
    hot_retention_ms: int = 86_400_000

    # Who may ask.
    auth: str = "off"
    auth_jwks: str = ""
    auth_issuer: str = ""
    auth_audience: str = ""
    auth_algorithms: tuple[str, ...] = ("RS256", "ES256")
    auth_leeway_seconds: int = 30
    auth_subject_claim: str = "sub"
    auth_attributes: tuple[tuple[str, str], ...] = (("user", "sub"), ("service", "sub"), ("team", "teams"))
    auth_realms: tuple[str, ...] = ()
    auth_service_realms: tuple[str, ...] = ("/services", "services")
    scope_uid: str = "uid"
    scope_config_write: str = "nakadi.config.write"
    scope_event_type_write: str = "nakadi.event_type.write"
    scope_event_stream_read: str = "nakadi.event_stream.read"
    scope_event_stream_write: str = "nakadi.event_stream.write"
    default_admin: tuple[tuple[str, str], ...] = ()
    all_data_access: tuple[tuple[str, str], ...] = ()

    # What an event type may ask for.
    default_partitions: int = 1
    max_partitions: int = 8
    retention_min_ms: int = 10_800_000
    retention_default_ms: int = 172_800_000
    retention_max_ms: int = 345_600_000
    max_event_bytes: int = 999_000
    max_batch_events: int = 10_000
    max_batch_steps: int = 50_000_000
    max_request_memory_bytes: int = 1_073_741_824
    max_subscription_partitions: int = 100

    # What becomes of subscriptions.
    max_commit_timeout_seconds: int = 60
    deletable_subscription_owning_application: str = "nakadi_archiver"
    deletable_subscription_consumer_group: str = "nakadi_to_s3"
    dead_letter_queue: str = "nakadi.dead.letter.queue"
    dead_letter_redrive: str = "nakadi.dead.letter.redrive"
    dead_letter_owning_application: str = "stups_nakadi"
    dead_letter_authorization: tuple[tuple[str, str], ...] = ()

    # What the broker tells of itself.
    audit_owning_application: str = "stups_nakadi"
    audit_authorization: tuple[tuple[str, str], ...] = ()
    kpi_owning_application: str = "stups_nakadi"
    kpi_authorization: tuple[tuple[str, str], ...] = ()
    hash_salt: str = "salt"
    max_metric_names: int = 200

    # What the way to clients allows a stream; 0 leaves it to the API's own limits.
    longest_stream_seconds: int = 0
    longest_silence_seconds: int = 0

    # How long a request may wait for streams to end; 0 leaves it to the longest commit timeout.
    longest_wait_seconds: int = 0

    # What clients are told.
    data_access_warning: str = "Data access warning"
    compaction_warning: str = "Compaction warning"

    # How fresh what is remembered must be.
    cache_seconds: int = 1

    @property
    def log_index_url(self) -> str:
        """Where the log index is: unless it is said, in the data file, if there is one."""
        return self.log_index or (self.event_log if self.event_log.startswith("sqlite:") else "memory:")

    @property
    def default_admins(self) -> tuple[tuple[str, str], ...]:
        """Attributes of those who always administrate: with tokens nobody does, unless the setting names them."""
        return self.default_admin or (UNASKED_ADMIN if self.auth == "off" else ())

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Read the variables that are set; the rest have their defaults."""
        found = {
            name: _read(variable, environ, kind)
            for name, kind in cls.__annotations__.items()
            if (variable := f"NAKADI_{name.upper()}") in environ
        }
        return cls(**found)


READERS: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": _number,
    "tuple[str, ...]": _words,
    "tuple[tuple[str, str], ...]": _pairs,
}


def _read(variable: str, environ: Mapping[str, str], kind: str) -> Any:
    try:
        return READERS[kind](environ[variable])
    except ValueError as error:
        raise BadSetting(f"{variable} is not {kind}: {environ[variable]!r}") from error
