"""Rules that invoke functions every so often."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from infra.laptop.functions import Failed, Function
from infra.laptop.templates import ACCOUNT, REGION, Properties

log = logging.getLogger(__name__)

SECONDS = {"minute": 60, "hour": 3600, "day": 86400}


class NotUnderstood(Exception):
    """Raised for a schedule of another kind than `rate(5 minutes)`; the message is the schedule."""


class Schedule:
    """One rule, in a thread of its own until it is closed. A round that fails is not tried again."""

    def __init__(self, name: str, rule: Properties, functions: Mapping[str, Function]) -> None:
        self._name = name
        self._seconds = seconds_of(rule["ScheduleExpression"])
        self._targets = [(functions[target["Arn"]], target.get("Input")) for target in rule["Targets"]]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"rule-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closing.wait(self._seconds):
            for function, told in self._targets:
                self._invoke(function, json.loads(told) if told else event_of(self._name))

    def _invoke(self, function: Function, event: Mapping[str, Any]) -> None:
        try:
            function.invoke(event)
        except Failed as failed:
            if not self._closing.is_set():
                log.warning("%s: %s", function.described.name, failed)


def seconds_of(expression: str) -> int:
    found = re.fullmatch(r"rate\(([0-9]+) (minute|hour|day)s?\)", expression)
    if not found:
        raise NotUnderstood(expression)
    return int(found[1]) * SECONDS[found[2]]


def event_of(rule: str) -> dict[str, Any]:
    return {
        "version": "0",
        "id": str(uuid4()),
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": ACCOUNT,
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": REGION,
        "resources": [f"arn:aws:events:{REGION}:{ACCOUNT}:rule/{rule}"],
        "detail": {},
    }
