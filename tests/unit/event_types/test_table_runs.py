"""The reports of runs that filled a table."""

from contextlib import closing

from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.event_types.table_runs import (
    MAX_KEPT_RUNS,
    TABLE_RUNS_KIND,
    ExpectationCount,
    MisfitReason,
    TableRun,
    TableRuns,
    table_runs_body,
)
from nakadi.http.views import timestamp
from nakadi.ports.registry import PutDocument
from tests.support.api import a_definition, create_event_type
from tests.support.builders import A_MOMENT
from tests.support.http import make_client


def a_run(**changes):
    counts = {"row_count": 4, "missing_count": 0, "misfit_count": 0, "lag_seconds": 74.2, "seconds": 1.5}
    times = {"started_at": A_MOMENT, "ended_at": A_MOMENT}
    return TableRun(job="compaction", bytes_read=800, bytes_written=500, **times, **(counts | changes))


def test_the_newest_runs_are_kept():
    """The list has at most 50 runs, and the newest is the first. (T1)"""
    runs = TableRuns()
    for number in range(MAX_KEPT_RUNS + 3):
        runs = runs.with_run(a_run(row_count=number))
    assert [each.row_count for each in runs.runs] == list(range(MAX_KEPT_RUNS + 2, 2, -1))


def test_a_client_lists_the_runs_of_a_table():
    """Without a table, the list is empty; a run has counts, reasons and costs, and null for what it did not count. (T1,
    T2, T3, T4)"""
    with closing(open_broker(Settings())) as broker, make_client(make_application(broker)) as api:
        name = create_event_type(api)["name"]
        path = f"/event-types/{name}/table-runs"
        assert api.get(path).json() == {"items": []}
        assert api.get("/event-types/unknown/table-runs").status_code == 404

        run = a_run(
            misfit_count=2,
            misfit_reasons=[MisfitReason("bigint", "items[].quantity", 2)],
            missing_count=3,
            expectations=[ExpectationCount("nakadi.io/expect", "total >= 0", 1)],
        )
        runs = table_runs_body(TableRuns([run]))
        broker.registry.write(PutDocument(TABLE_RUNS_KIND, broker.event_types.get(name).id, runs))

        [told] = api.get(path).json()["items"]
        assert told == {
            "job": "compaction",
            "started_at": timestamp(A_MOMENT),
            "ended_at": timestamp(A_MOMENT),
            "rows": 4,
            "late_events": None,
            "duplicates": None,
            "missing_events": 3,
            "misfits": 2,
            "misfit_reasons": [{"rule": "bigint", "path": "items[].quantity", "events": 2}],
            "expectations": [{"annotation": "nakadi.io/expect", "condition": "total >= 0", "unmet": 1}],
            "lag_seconds": 74.2,
            "cost": {"seconds": 1.5, "bytes_read": 800, "bytes_written": 500},
        }
        assert api.delete(f"/event-types/{name}").status_code == 200
        create_event_type(api, a_definition(name=name))
        assert api.get(path).json() == {"items": []}, "those of the deleted event type are not its own"
