"""The quality of what runs add to tables, as they store it in the registry."""

from datetime import timedelta

from nakadi.event_types.table_runs import TABLE_RUNS_KIND, ExpectationCount, MisfitReason
from nakadi.model.event_type import Category, EnrichmentStrategy
from nakadi_jobs import compaction
from tests.support.jobs import STORED_AT, order

EXPECTED = {
    "nakadi.io/expect": "total >= 0.5",
    "nakadi.io/expect-number": "order_number",
    "nakadi.io/expect-wrong": "total >",
}


def runs_of(data, event_type):
    return data.event_types.table_runs(event_type).runs


def test_a_run_reports_what_it_added(jobs, data):
    """A run reports rows, misfits with their reasons, unmet expectations, missing events, lag and cost; a run
    without new events reports nothing. (T1, T2, T3, T6)
    """
    orders, paid = data.event_type("order.placed", annotations=EXPECTED), data.event_type("order.paid")
    members = [
        data.archive_events(orders, [order(1), order(2, total="much"), order(3, total="more"), b"{broken"]),
        data.archive_events(orders, [order(4), order(5)]),
    ]
    data.path(members[1]).unlink()

    first = jobs.compact()
    assert first.code == 3
    assert "Annotation nakadi.io/expect-wrong is not valid" in first.told
    [run] = runs_of(data, orders)
    assert (run.job, run.row_count, run.misfit_count, run.missing_count) == ("compaction", 4, 3, 2)
    assert run.misfit_reasons == [MisfitReason("double", "total", 2), MisfitReason("json", "", 1)]
    assert run.expectations == [
        ExpectationCount("nakadi.io/expect", "total >= 0.5", 4),
        ExpectationCount("nakadi.io/expect-number", "order_number", 1),
    ]
    assert run.started_at < run.ended_at
    assert run.bytes_read == members[0].location.length
    assert (run.lag_seconds > 3600, run.seconds > 0, run.bytes_written > 0) == (True, True, True)
    assert runs_of(data, paid) == ()

    data.archive_events(orders, [order(6)])
    jobs.compact()
    jobs.compact()
    assert [(each.row_count, each.misfit_count) for each in runs_of(data, orders)] == [(1, 0), (4, 3)]

    data.delete("order.placed")
    jobs.compact()
    assert data.registry.list(TABLE_RUNS_KIND) == []


def an_event(number, *, occurred_before=timedelta(), at=STORED_AT):
    occurred_at = (at - occurred_before).isoformat().replace("+00:00", "Z")
    return order(number) | {"metadata": {"eid": f"00000000-0000-4000-8000-{number:012d}", "occurred_at": occurred_at}}


def test_a_run_counts_late_events_and_duplicates(jobs, data):
    """An event is a duplicate of one in the run, or in the hour before. Each run is a row of nakadi__runs.

    If the service for lineage does not answer, the run only warns. (T7, T8, T12)"""
    metadata = {"category": Category.BUSINESS, "enrichment_strategies": (EnrichmentStrategy.METADATA,)}
    orders = data.event_type("order.placed", partitions=2, **metadata)
    late = {"occurred_before": timedelta(minutes=90)}
    data.archive_events(orders, [an_event(1), an_event(2, **late), an_event(2), None])
    data.archive_events(orders, [an_event(1), an_event(3)], partition=1)
    plain = data.event_type("plain")
    data.archive_events(plain, [order(1), order(1)])

    assert jobs.run(compaction.main, "--no-tidying").code == 0
    later = STORED_AT + timedelta(minutes=59)
    data.archive_events(
        orders, [an_event(3, at=later), an_event(4, at=later), {"order_number": "no metadata"}], at=later
    )
    assert jobs.run(compaction.main, "--no-tidying", "--late-after-minutes", "0.001").code == 0
    much_later = STORED_AT + timedelta(minutes=130)
    data.archive_events(orders, [an_event(1, at=much_later)], at=much_later)
    told = jobs.run(compaction.main, "--no-tidying", "--lineage-url", "http://127.0.0.1:1")
    assert told.code == 0
    assert "Warning: lineage: http://127.0.0.1:1 did not get all events." in told.told

    counts = [(each.row_count, each.late_count, each.duplicate_count) for each in runs_of(data, orders)]
    assert counts == [(1, 0, 0), (3, 1, 1), (6, 1, 2)]
    assert [(each.late_count, each.duplicate_count) for each in runs_of(data, plain)] == [(None, None)]
    columns = ("event_type", "rows", "late_events", "duplicates", "misfits", "misfit_reasons")
    rows = jobs.table("nakadi__runs").orderBy("event_type", "ended_at").select(*columns).collect()
    assert [tuple(row) for row in rows] == [
        ("order.placed", 6, 1, 2, 0, "[]"),
        ("order.placed", 3, 1, 1, 0, "[]"),
        ("order.placed", 1, 0, 0, 0, "[]"),
        ("plain", 2, None, None, 0, "[]"),
    ]
