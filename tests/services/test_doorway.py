"""The reports of the streaming service about itself."""

import asyncio
import io
import json

import pytest

from nakadi.common.metrics import Metrics
from nakadi.http.message import Request, Response
from services.streaming.doorway import Doorway, metric_line, report_figures


@pytest.mark.parametrize("target", ["/api/health/streams", "/health/streams", "/api/health"])
def test_the_gateway_can_ask_whether_it_is_well(target):
    """The request that keeps the gateway's link active gets the same answer as the load balancer's health check."""
    asked = []

    class Notes:
        def admit_and_begin_answer(self, request):
            asked.append((request.path, request.target))
            return Response(200, {}, b"OK")

    Doorway(Notes(), "/api").admit_and_begin_answer(Request(method="GET", path=target, target=target))

    assert asked == [("/health", "/health")]


def test_the_stage_of_the_gateway_makes_no_request_slower():
    """The path that the client sent, without the gateway's stage, decides whether a request is answered at once."""
    asked = []

    class Notes:
        def is_quick(self, method, target):
            return asked.append((method, target)) is None

    assert Doorway(Notes(), "/api").is_quick("POST", "/api/subscriptions/1/cursors?a=b")
    assert Doorway(Notes(), "").is_quick("POST", "/api/subscriptions")
    assert asked == [("POST", "/subscriptions/1/cursors?a=b"), ("POST", "/api/subscriptions")]


def test_a_metric_is_a_line():
    """CloudWatch reads figures from a line of JSON."""
    line = metric_line("nakadi-dev-streaming", {"OpenStreams": 7, "ArchiveUnreadable": 1}, 1_700_000_000.5)

    directive = line["_aws"]["CloudWatchMetrics"][0]
    assert line["_aws"]["Timestamp"] == 1_700_000_000_500
    assert directive["Dimensions"] == [["service"]]
    assert [line[metric["Name"]] for metric in directive["Metrics"]] == [7, 1]
    assert line["service"] == "nakadi-dev-streaming"


def test_a_service_reports_its_streams_until_it_is_cancelled():
    """Until it is cancelled, a service reports its number of streams in whole lines, and each newly damaged object
    once.
    """
    told = []
    metrics = Metrics()
    metrics.open_streams.add(2, "low-level")
    metrics.open_streams.add(3, "subscription")

    class ThreeLines(io.StringIO):
        def flush(self):
            told.append(self.getvalue().splitlines()[-1])
            if len(told) == 1:
                metrics.archive_unreadable.add(2)
            if len(told) == 2:
                metrics.archive_read_failures.add()
            if len(told) == 3:
                asyncio.current_task().cancel()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(report_figures(metrics, "s", every_seconds=0, to=ThreeLines()))

    assert [json.loads(line)["OpenStreams"] for line in told] == [5, 5, 5]
    assert [json.loads(line).get("ArchiveUnreadable") for line in told] == [None, 2, None]
    assert [json.loads(line).get("ArchiveReadFailures") for line in told] == [None, None, 1]
