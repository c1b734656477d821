"""The deployment on this machine, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property

from infra.laptop.cloud import Strictness
from infra.laptop.laptop import Front, Laptop
from infra.laptop.synthesis import STAGE
from infra.laptop.templates import REGION
from nakadi.app.broker import BrokerServices, open_broker
from nakadi.app.settings import Settings

TABLES = f"dynamodb://nakadi-{STAGE}?region={REGION}"
STREAM = f"kinesis://nakadi-{STAGE}?region={REGION}"

# All of them take minutes: `make test-aws-local`. Otherwise each behaviour is tried with its first example.
ALL = os.environ.get("AWS_LOCAL") == "all"

# Parts may do what their roles allow them, and nothing else. Limits take time: `make test-aws-local STRICT=1`.
STRICTNESS = Strictness(roles=True, limits=os.environ.get("AWS_LOCAL_STRICT", "") != "")

# How old a shared tip may be is what it is on AWS: what clients see of it has to be right. With all examples, nothing
# of the log is changed.
HURRY = "" if ALL else "&lease=0.05&poll=0.1&reads_per_second=10000"

HURRIED: Mapping[str, str] = {
    # Functions remember for a second, and changes wait for them, only where limits hold as well: it takes time.
    **({} if STRICTNESS.limits else {"NAKADI_CACHE_SECONDS": "0"}),
    "NAKADI_EVENT_LOG": f"{STREAM}{HURRY}",
    # As where tokens are asked for: housekeeping gives the broker's own event types to these.
    "NAKADI_DEFAULT_ADMIN": "user=the-admin",
}

# A front that asks for no tokens has the administrator of a broker whose settings say nothing.
OPEN: Mapping[str, str] = {"NAKADI_DEFAULT_ADMIN": "service=nakadi_admin"}

# What cannot hold behind a gateway, and why.
NOT_HERE: Mapping[str, str] = {
    "test_metrics_count_what_was_done": "each function counts for itself, and CloudWatch adds up",
    "test_a_client_that_leaves_while_idle_is_noticed": "it looks into the process that serves streams",
}


class OnALaptop:
    """A way in, and a broker on the same stores, for tests that do what only an insider can."""

    def __init__(self, laptop: Laptop, front: Front) -> None:
        front.warm_up()
        self.url = front.url
        self._front = front
        self._endpoints = laptop.cloud.endpoints

    @cached_property
    def services(self) -> BrokerServices:
        tables = f"{TABLES}&endpoint={self._endpoints['dynamodb']}"
        settings = Settings(
            registry=tables,
            log_index=tables,
            event_log=f"{STREAM}&endpoint={self._endpoints['kinesis']}",
        )
        return open_broker(settings)

    def close(self) -> None:
        """Close the way in too: its services go on polling otherwise, beside all tests that come after."""
        if "services" in vars(self):
            self.services.close()
        self._front.close()


def is_here(test: str) -> bool:
    return "e2e/" in test and "aws-local" in test


def chosen(names: Iterator[tuple[str, str]]) -> Iterator[bool]:
    """For each test, by its function and its whole name, whether it is tried here."""
    tried: set[str] = set()
    for function, whole in names:
        if not is_here(whole):
            yield True
            continue
        yield function.rpartition("::")[2] not in NOT_HERE and (ALL or function not in tried)
        tried.add(function)


def variables(settings: Mapping[str, object]) -> Mapping[str, str]:
    """Settings as variables; how a process is asked is the deployment's."""
    return {f"NAKADI_{name.upper()}": _text(value) for name, value in settings.items() if name != "auth"}


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join("=".join(each) if isinstance(each, tuple) else str(each) for each in value)
    return str(value)
