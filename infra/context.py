"""What differs between deployments: read once from the CDK's context, into a type."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from constructs import Node


class BadContext(Exception):
    """Raised for a value that cannot be; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Every field is given by `-c field=value`; docs/deploy.md explains each."""

    stage: str = "dev"

    # How clients reach it.
    domain: str = ""
    certificate_arn: str = ""

    # Who may ask. The defaults let nobody in, for no token has this issuer.
    auth_issuer: str = "https://issuer.invalid"
    auth_jwks: str = ""  # the issuer's usual place, if nothing is said
    auth_audience: str = ""
    default_admin: str = "service=nakadi_admin"
    authorizer_cache_seconds: int = 60

    # Where events are kept, and for how long.
    storage: str = "kinesis"
    stream_mode: str = "provisioned"
    shards: int = 1
    stream_retention_hours: int = 24
    retention_max_days: int = 4

    # How much of everything.
    publish_memory: int = 1024
    function_memory: int = 512
    streaming_cpu: int = 512
    streaming_memory: int = 1024
    streaming_min_tasks: int = 1
    streaming_max_tasks: int = 10
    streams_per_task: int = 2000
    requests_per_second: int = 1000
    requests_burst: int = 2000
    log_days: int = 30

    # Whom alarms are sent to.
    alarm_email: str = ""

    def __post_init__(self) -> None:
        _check(re.fullmatch(r"[a-z][a-z0-9-]{0,19}", self.stage), "stage is a short word of a-z, 0-9 and -")
        _check(self.storage == "kinesis", "storage can only be kinesis")
        _check(self.stream_mode in {"provisioned", "on-demand"}, "stream_mode is provisioned or on-demand")
        _check(bool(self.domain) == bool(self.certificate_arn), "domain and certificate_arn belong together")
        _check(self.auth_issuer.startswith("https://"), "auth_issuer is an https:// URL")
        _check(24 <= self.stream_retention_hours <= 8760, "stream_retention_hours is from 24 to 8760")
        _check(1 <= self.streaming_min_tasks <= self.streaming_max_tasks, "streaming_min_tasks <= streaming_max_tasks")

    @property
    def prefix(self) -> str:
        """What everything with a name of its own begins with."""
        return f"nakadi-{self.stage}"

    @property
    def jwks(self) -> str:
        return self.auth_jwks or f"{self.auth_issuer.rstrip('/')}/.well-known/jwks.json"

    @classmethod
    def of(cls, node: Node) -> Context:
        given = {each.name: node.try_get_context(each.name) for each in fields(cls)}
        return cls(
            **{
                each.name: _read(each.name, str(each.type), given[each.name])
                for each in fields(cls)
                if given[each.name] is not None
            }
        )


READERS: Mapping[str, Callable[[Any], Any]] = {"str": str, "int": int}


def _read(name: str, kind: str, value: Any) -> Any:
    try:
        return READERS[kind](value)
    except ValueError as error:
        raise BadContext(f"{name} is not {kind}: {value!r}") from error


def _check(holds: object, otherwise: str) -> None:
    if not holds:
        raise BadContext(otherwise)
