"""`nakadi tables`."""

import json

import httpx
import pytest
import yaml

from nakadi.event_types.table_objective import TableFreshness
from nakadi.event_types.table_runs import (
    TABLE_RUNS_KIND,
    ExpectationCount,
    MisfitReason,
    TableRun,
    TableRuns,
    table_runs_body,
)
from nakadi.event_types.table_states import TABLE_STATES_KIND, TableState, table_state_body
from nakadi.model.objective import MinuteCounts, minute_of
from nakadi.ports.registry import PutDocument
from tests.support.builders import A_MOMENT
from tests.support.clock import HandMovedClock
from tests.support.patience import PATIENCE
from tests.support.served import ServedBroker

SCHEMA = {
    "description": "An order",
    "properties": {
        "customer": {"type": "object", "properties": {"id": {"type": "string"}, "email": {"type": "string"}}},
        "total": {"type": "number", "description": "With taxes: 19 %"},
    },
}
WITH_NOTE = {**SCHEMA, "properties": {**SCHEMA["properties"], "note": {"type": "string"}}}
DEFINITION = {
    "name": "order.placed",
    "owning_application": "shop",
    "category": "business",
    "enrichment_strategies": ["metadata_enrichment"],
    "annotations": {
        "nakadi.io/personal-data": "customer.email, customer.id",
        "nakadi.io/table-objective": "99.9% within 1 hour",
    },
}
A_STATE = TableState(
    table_name="order_placed",
    next_offsets={},
    row_count=9,
    misfit_count=0,
    unreadable_count=0,
    updated_at=A_MOMENT,
    freshness=TableFreshness(3600, A_MOMENT, (MinuteCounts(minute_of(A_MOMENT), 999, 1),)),
)
A_RUN = TableRun(
    job="compaction",
    started_at=A_MOMENT,
    ended_at=A_MOMENT,
    row_count=9,
    missing_count=0,
    misfit_count=2,
    misfit_reasons=[MisfitReason("double", "total", 2)],
    expectations=[ExpectationCount("nakadi.io/expect", "total > 0", 3), ExpectationCount("nakadi.io/expect-b", "b", 4)],
    lag_seconds=74.2,
    seconds=9.84,
    bytes_read=800,
    bytes_written=500,
)


@pytest.fixture(scope="module")
def url_of_broker_with_tables(tmp_path_factory):
    """The URL of a broker whose registry contains the documents of jobs for one of two event types."""
    file = f"sqlite:///{tmp_path_factory.mktemp('tables') / 'nakadi.db'}"
    clock = HandMovedClock(A_MOMENT)
    with (
        ServedBroker(clock=clock, registry=file, event_log=file) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        for name in ("order.placed", "order.paid"):
            definition = {**DEFINITION, "name": name, "schema": {"type": "json_schema", "schema": json.dumps(SCHEMA)}}
            assert api.post("/event-types", json=definition).status_code == 201
        identity = broker.services.event_types.get("order.placed").id
        broker.services.registry.write(
            PutDocument(TABLE_STATES_KIND, identity, table_state_body(A_STATE)),
            PutDocument(TABLE_RUNS_KIND, identity, table_runs_body(TableRuns([A_RUN]))),
        )
        later = {"type": "json_schema", "schema": json.dumps(WITH_NOTE)}
        assert api.post("/event-types/order.placed/schemas", json=later).status_code == 200
        yield broker.url


def test_runs_are_listed(run, url_of_broker_with_tables):
    """Each run is a line; in YAML, a run also says why events did not fit the table. (T1, T2)"""
    head, line = (
        row.split() for row in run("tables", "runs", "order.placed", url=url_of_broker_with_tables).out.splitlines()
    )
    assert head == ["ENDED", "JOB", "ROWS", "LATE", "DUPLICATES", "MISSING", "MISFITS", "UNMET", "LAG", "TOOK"]
    assert line[1:3] == ["compaction", "9"]
    assert line[-7:] == ["0", "2", "7", "74", "s", "9.8", "s"]
    [told] = yaml.safe_load(run("tables", "runs", "order.placed", "-o", "yaml", url=url_of_broker_with_tables).out)
    assert told["misfit_reasons"] == [{"rule": "double", "path": "total", "events": 2}]
    assert run("tables", "runs", "order.paid", "-o", "json", url=url_of_broker_with_tables).json == []


def test_objectives_are_listed(run, url_of_broker_with_tables):
    """Each table is a line with its objective, and the burn rates of an hour and of a day; a pattern selects tables.
    (T15)
    """
    head, first, second = run("tables", "objectives", "order.p*", url=url_of_broker_with_tables).out.splitlines()
    columns = ["EVENT TYPE", "OBJECTIVE", "BURN 1 H", "BURN 1 D", "PRESSURE", "SLOWEST", "LAG"]
    assert head.split() == " ".join(columns).split()
    assert first.split() == ["order.paid", *["99.9", "%", "within", "3600", "s", "0.0", "0.0", "0.0"]]
    assert second.split() == ["order.placed", *["99.9", "%", "within", "3600", "s", "1.0", "1.0", "0.0"]]
    [told] = run("tables", "objectives", "order.placed", "-o", "json", url=url_of_broker_with_tables).json
    assert told["windows"][0] == {"minutes": 60, "events": 1000, "late": 1, "burn_rate": 1.0}


def test_a_source_of_dbt_is_written(run, url_of_broker_with_tables, tmp_path):
    """The dbt source has each table with its columns, their descriptions, and which have personal data. (T11)"""
    file = tmp_path / "nakadi.yml"
    assert (
        run("tables", "dbt", "--database", "events", "--to", str(file), url=url_of_broker_with_tables).err
        == f"Wrote {file}.\n"
    )
    written = yaml.safe_load(file.read_text())
    [source] = written["sources"]
    [table] = source.pop("tables")
    assert (written["version"], source["name"], source["schema"], source["config"]["loaded_at_field"]) == (
        2,
        "nakadi",
        "events",
        "nakadi_time",
    )
    assert (table["name"], table["description"], table["config"]["meta"]) == (
        "order_placed",
        "An order",
        {"event_type": "order.placed", "owner": "shop", "personal_data": ["customer.email", "customer.id"]},
    )
    columns = {column.pop("name"): column for column in table["columns"]}
    assert columns["nakadi_partition"] == {"description": "the partition", "data_type": "int"}
    assert columns["total"] == {"description": "With taxes: 19 %", "data_type": "double"}
    assert columns["customer"] == {
        "data_type": "struct<id:string,email:string>",
        "config": {"meta": {"personal_data": ["customer.email", "customer.id"]}},
    }
    assert columns["note"] == {"data_type": "string"}
    assert columns["metadata"]["data_type"].startswith("struct<eid:string,")

    assert (
        yaml.safe_load(run("tables", "dbt", "order.pa*", url=url_of_broker_with_tables).out)["sources"][0]["tables"]
        == []
    )
    refused = run("tables", "dbt", "--to", str(tmp_path / "none" / "nakadi.yml"), url=url_of_broker_with_tables)
    assert refused.code == 2
    assert "cannot be written: No such file" in refused.err
