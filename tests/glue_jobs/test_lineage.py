"""The events that an OpenLineage service gets."""

from datetime import UTC, datetime
from importlib.util import find_spec

import pytest

from nakadi.event_types.table_runs import TableRun
from tests.support.lazy_modules import LazyModule
from tests.support.lineage_service import LineageService

lineage = LazyModule("nakadi_jobs.lineage")

pytestmark = pytest.mark.skipif(find_spec("openlineage") is None, reason="openlineage-python is not installed")

NOON, LATER = datetime(2026, 11, 20, 12, tzinfo=UTC), datetime(2026, 11, 20, 12, 1, tzinfo=UTC)
RUN = TableRun(
    job="compaction",
    started_at=NOON,
    ended_at=LATER,
    row_count=9,
    missing_count=0,
    misfit_count=2,
    lag_seconds=74.2,
    seconds=9.84,
    bytes_read=800,
    bytes_written=500,
)


@pytest.mark.parametrize(
    ("table", "dataset"),
    [
        ("s3://events/tables/nakadi/order_placed", ("s3://events", "/tables/nakadi/order_placed")),
        ("file:/data/tables/nakadi/order_placed", ("file", "/data/tables/nakadi/order_placed")),
    ],
)
def test_a_service_learns_of_the_beginning_and_the_end_of_a_run(monkeypatch, table, dataset):
    """The service gets an event at the beginning of a run and one at its end, which name the event type and its table.
    (T12)
    """
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "secret")
    with LineageService() as service:
        lineage.send_lineage(service.url, "shop", [lineage.FilledTable(RUN, "order.placed", table)])
    assert [path for path, _ in service.events] == ["/api/v1/lineage"] * 2
    assert set(service.keys) == {"Bearer secret"}
    begun, ended = (event for _, event in service.events)
    assert [(each["eventType"], each["eventTime"]) for each in (begun, ended)] == [
        ("START", "2026-11-20T12:00:00+00:00"),
        ("COMPLETE", "2026-11-20T12:01:00+00:00"),
    ]
    assert begun["run"]["runId"] == ended["run"]["runId"]
    assert (ended["job"]["namespace"], ended["job"]["name"]) == ("shop", "compaction.order.placed")
    [read], [filled] = ended["inputs"], ended["outputs"]
    assert (read["namespace"], read["name"]) == ("shop", "order.placed")
    assert (filled["namespace"], filled["name"]) == dataset
    assert (filled["outputFacets"]["outputStatistics"]["rowCount"]) == 9


def test_a_service_that_refuses_is_an_error(monkeypatch):
    """If the service refuses an event, the run reports that, and its other work continues. (T12)"""
    monkeypatch.delenv("OPENLINEAGE_API_KEY", raising=False)
    with LineageService(status=400) as service, pytest.raises(Exception, match="400"):
        lineage.send_lineage(service.url, "shop", [lineage.FilledTable(RUN, "order.placed", "s3://events/t")])
    assert service.keys == [None]
