"""The layer between the server and the application on AWS: the gateway's path prefix, and metrics for CloudWatch."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from msgspec.structs import replace

from nakadi.common.metrics import Metrics
from nakadi.http.application import AdmittedRequest, Application
from nakadi.http.message import Answer, Request, UnfinishedAnswer
from nakadi.http.router import Lane
from nakadi.model.outcomes import Outcome

NAMESPACE = "Nakadi"

# The gateway itself answers `/health`, and forwards this path to the streaming service.
ASKED_BY_THE_GATEWAY, HEALTH = "/health/streams", "/health"
REPORT_INTERVAL_SECONDS = 60.0


class Doorway:
    """An application behind a gateway, which may add the name of its stage to the path."""

    def __init__(self, application: Application, prefix: str) -> None:
        self._application = application
        self._prefix = prefix

    def is_quick(self, method: str, target: str) -> bool:
        return self._application.is_quick(method, self._without_stage(target))

    def admit_and_begin_answer(self, request: Request) -> Answer | UnfinishedAnswer:
        return self._application.admit_and_begin_answer(self._as_sent(request))

    def admit(self, request: Request) -> AdmittedRequest | Answer:
        return self._application.admit(self._as_sent(request))

    def begin_answer(self, admitted: AdmittedRequest, body: bytes) -> Answer | UnfinishedAnswer:
        return self._application.begin_answer(admitted, body)

    def lane_of(self, request: Request) -> Lane:
        return self._application.lane_of(self._as_sent(request))

    def refuse(self, request: Request, outcome: Outcome) -> Answer:
        return self._application.refuse(self._as_sent(request), outcome)

    def _as_sent(self, request: Request) -> Request:
        path, target = self._without_stage(request.path), self._without_stage(request.target)
        if target == ASKED_BY_THE_GATEWAY:
            path = target = HEALTH
        return request if target == request.target else replace(request, path=path, target=target)

    def _without_stage(self, target: str) -> str:
        return target.removeprefix(self._prefix) if target.startswith(f"{self._prefix}/") else target


async def report_figures(
    metrics: Metrics, name: str, *, every_seconds: float = REPORT_INTERVAL_SECONDS, to: TextIO = sys.stdout
) -> None:
    """Write figures until cancelled, in the format from which CloudWatch makes metrics: the number of open streams and,
    if they are not zero, how often damage to the archive was found, and how often it could not be read, since the
    previous line. AWS charges for each metric.
    """
    counters = {"ArchiveUnreadable": metrics.archive_unreadable, "ArchiveReadFailures": metrics.archive_read_failures}
    reported = dict.fromkeys(counters, 0)
    while True:
        figures = {"OpenStreams": round(sum(metrics.open_streams.rows().values()))}
        for figure, counter in counters.items():
            count = round(sum(counter.rows().values()))
            if count > reported[figure]:
                figures[figure] = count - reported[figure]
                reported[figure] = count
        to.write(json.dumps(metric_line(name, figures, time.time())) + "\n")
        to.flush()
        await asyncio.sleep(every_seconds)


def metric_line(name: str, figures: Mapping[str, int], now: float) -> dict[str, object]:
    metrics = [{"Name": each, "Unit": "Count"} for each in figures]
    directive = {"Namespace": NAMESPACE, "Dimensions": [["service"]], "Metrics": metrics}
    return {"_aws": {"Timestamp": int(now * 1000), "CloudWatchMetrics": [directive]}, "service": name, **figures}
