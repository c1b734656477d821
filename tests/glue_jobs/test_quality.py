"""The quality of what runs add to tables, as they store it in the registry."""

from nakadi.event_types.table_runs import TABLE_RUNS_KIND, MisfitReason
from tests.support.jobs import order


def runs_of(data, event_type):
    return data.event_types.table_runs(event_type).runs


def test_a_run_reports_what_it_added(jobs, data):
    """Rows, misfits with their reasons, missing events, lag and cost; a run without news reports nothing. (T1, T2,
    T3)"""
    orders, paid = data.event_type("order.placed"), data.event_type("order.paid")
    members = [
        data.archive_events(orders, [order(1), order(2, total="much"), order(3, total="more"), b"{broken"]),
        data.archive_events(orders, [order(4), order(5)]),
    ]
    data.path(members[1]).unlink()

    assert jobs.compact().code == 3
    [run] = runs_of(data, orders)
    assert (run.job, run.row_count, run.misfit_count, run.missing_count) == ("compaction", 4, 3, 2)
    assert run.misfit_reasons == [MisfitReason("double", "total", 2), MisfitReason("json", "", 1)]
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
