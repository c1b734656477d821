"""Schedule rules that invoke functions at fixed intervals."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from infra.laptop.functions import Function, InvocationFailed
from infra.laptop.templates import ACCOUNT, REGION, Properties

log = logging.getLogger(__name__)

UNIT_SECONDS = {"minute": 60, "hour": 3600, "day": 86400}


class UnsupportedSchedule(Exception):
    """Raised for a schedule that is not of the form `rate(5 minutes)`; the message is the schedule."""


class Schedule:
    """A rule with its own thread. It does not retry failed invocations."""

    def __init__(self, name: str, rule: Properties, functions: Mapping[str, Function]) -> None:
        self._name = name
        self._seconds = parse_rate(rule["ScheduleExpression"])
        self._targets = [(functions[target["Arn"]], target.get("Input")) for target in rule["Targets"]]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"rule-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._seconds):
            for function, input_json in self._targets:
                self._invoke(function, json.loads(input_json) if input_json else scheduled_event(self._name))

    def _invoke(self, function: Function, event: Mapping[str, Any]) -> None:
        try:
            function.invoke(event)
        except InvocationFailed as failed:
            if not self._closing.is_set():
                log.warning("%s: %s", function.definition.name, failed)


def parse_rate(expression: str) -> int:
    found = re.fullmatch(r"rate\(([0-9]+) (minute|hour|day)s?\)", expression)
    if not found:
        raise UnsupportedSchedule(expression)
    return int(found[1]) * UNIT_SECONDS[found[2]]


def scheduled_event(rule: str) -> dict[str, Any]:
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
