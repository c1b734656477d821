"""From a publisher to a table, and back to the client that reads an event type's traffic."""

import json
import os
import runpy
from collections.abc import Mapping
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import StringIO
from unittest.mock import patch

import boto3
import httpx
import pytest
import yaml

from infra.laptop.templates import REGION
from nakadi.app.broker import open_broker
from nakadi.app.engines import open_log_index, open_registry
from nakadi.app.settings import Settings
from nakadi.common.caching import Cache
from nakadi.event_types.repository import EventTypes
from nakadi.local import Broker
from nakadi.ports.clock import SystemClock
from nakadi.queries.processes import TABLES_UNREADABLE_MESSAGE
from nakadi_cli.__main__ import main as nakadi
from nakadi_jobs import compaction, statistics
from nakadi_jobs.places import table_name
from nakadi_jobs.session import open_spark
from tests.e2e.conftest import open_laptop_broker
from tests.support import kafka
from tests.support.api import a_business_definition, create_event_type, problem
from tests.support.laptop import STREAM, TABLES
from tests.support.lineage_service import LineageService
from tests.support.metrics import collect_samples
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE, until
from tests.support.spark import quick_spark

__all__ = ["quick_spark"]  # the fixture for all tests of this module


@dataclass(frozen=True)
class Deployment:
    """A deployment with the settings of its jobs. On AWS, it also has the jobs' roles, whose names serve as access
    keys here.
    """

    url: str
    index: str
    arguments: list[str]
    event_log: str
    archive: str
    roles: Mapping[str, str] = field(default_factory=dict)

    def run(self, job, *arguments):
        with self.as_role_of(job.main), redirect_stderr(StringIO()) as told, redirect_stdout(StringIO()):
            assert job.main([*self.arguments, *arguments]) == 0, told.getvalue()

    def as_role_of(self, main):
        """Inside the block, this process calls AWS with the role of a job."""
        name = main.__module__.rpartition(".")[2]
        return patch.dict(os.environ, {"AWS_ACCESS_KEY_ID": self.roles[name]} if self.roles else {})


@pytest.fixture
def tables(tmp_path, tmp_path_factory):
    """The folder of all tests' tables, and the test's own database."""
    return tmp_path_factory.getbasetemp() / "e2e-tables", table_name(tmp_path.name)


@pytest.fixture(params=["sqlite", "aws-local", pytest.param("kafka", marks=pytest.mark.long)])
def deployed(request, tables, tmp_path, monkeypatch):
    """A broker with an archive, and the settings with which jobs find it."""
    if request.param == "aws-local":
        laptop = request.getfixturevalue("laptop")
        endpoints = laptop.cloud.endpoints
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "laptop")
        stores = f"{TABLES}&endpoint={endpoints['dynamodb']}"
        s3 = boto3.client("s3", region_name=REGION, endpoint_url=endpoints["s3"])
        [bucket] = [each["Name"] for each in s3.list_buckets()["Buckets"] if "-archive-" in each["Name"]]
        archive = f"s3://{bucket}/?region={REGION}&endpoint={endpoints['s3']}"
        places = ["--registry", stores, "--log-index", stores, "--archive", archive, "--data", str(tmp_path)]
        prefix = "AnalyticsRole"
        roles = {each.removeprefix(prefix)[:-8]: each for each in laptop.deployment.roles if each.startswith(prefix)}
        for broker in open_laptop_broker(laptop, authorizes=False):
            yield Deployment(broker.url, stores, places, f"{STREAM}&endpoint={endpoints['kinesis']}", archive, roles)
        return
    file = f"sqlite:///{tmp_path / 'nakadi.db'}"
    # Kafka delivers erased events until they expire.
    log, more = (kafka.url(), {"hot_retention_ms": 1000}) if request.param == "kafka" else (file, {})
    places = {"registry": file, "event_log": log, "log_index": file, "archive": str(tmp_path / "archive")}
    folder, database = tables
    with Broker(**places, archive_after_seconds=1, tables=str(folder), tables_database=database, **more) as broker:
        yield Deployment(broker.url, file, ["--data", str(tmp_path)], log, places["archive"])


def wait_until_archived(deployed, topic, partitions, count):
    """Wait until this number of events is in the archive."""
    places = [(topic, number) for number in range(partitions)]
    with closing(open_log_index(deployed.index)) as index:
        until(lambda: sum(head.state.next_offset for head in index.index_heads(places).values()) >= count)


def an_event(number, occurred_at=None):
    """An event that occurred now, unless the test says otherwise."""
    eid, now = f"00000000-0000-4000-8000-{number:012d}", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return {"metadata": {"eid": eid, "occurred_at": occurred_at or now}, "number": number}


def read_stream(api, name, count):
    """The events that a client reads, by (partition, offset), with their exact bytes."""
    partitions = [each["partition"] for each in api.get(f"/event-types/{name}/partitions").json()]
    cursors = json.dumps([{"partition": each, "offset": "BEGIN"} for each in partitions])
    found, sizes = {}, {}
    parameters = {"stream_limit": count, "batch_limit": 1, "batch_flush_timeout": 1}
    headers = {"X-Nakadi-Cursors": cursors}
    with api.stream("GET", f"/event-types/{name}/events", params=parameters, headers=headers) as answer:
        for line in answer.iter_lines():
            batch = json.loads(line)
            for event in batch.get("events", ()):
                place = int(batch["cursor"]["partition"]), int(batch["cursor"]["offset"].rpartition("-")[2])
                found[place] = event
                # Each line has one event, after its cursor, and nothing else after it.
                sizes[place] = len(line[line.index('"events":[') : line.rindex("]")].encode()) - len('"events":[')
    return found, sizes


def test_from_publisher_to_table(deployed, tables):
    """Published events are in the table with the same offsets and sizes as in streams. The broker returns their
    traffic, the cost of the run, how soon they were in the table, and how many are late, doubled or unexpected.
    Columns have comments. Queries find later events, too. (T1, T2, T6, T7, T9, T14, T15, Q4, Q11, Q16)
    """
    folder, database = tables
    places = ["--tables", str(folder), "--database", database, "--master", "local[2]"]
    schema = {"properties": {"number": {"type": "integer", "description": "One after the other"}}}
    statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 2, "write_parallelism": 2}
    annotations = {"nakadi.io/table-objective": "99.9% within 1 hour", "nakadi.io/expect": "number < 18"}
    definition = a_business_definition(schema=schema, default_statistic=statistic, annotations=annotations)
    name = definition["name"]
    with httpx.Client(base_url=deployed.url, timeout=PATIENCE) as api, LineageService() as lineage:
        assert {"measured_statistic", "table"}.isdisjoint(create_event_type(api, definition))
        assert "slowest_partition" not in api.get(f"/event-types/{name}").json()["table_objective"]
        events = [*map(an_event, range(20)), an_event(0, "2020-01-01T00:00:00Z")]
        assert api.post(f"/event-types/{name}/events", json=events).status_code == 200
        read, sizes = read_stream(api, name, len(events))
        spark = open_spark("e2e", f"file://{folder}", "hadoop", "local[2]", "1g")
        wait_until_archived(deployed, topic_of(deployed, name), 2, len(events))
        assert api.get(f"/event-types/{name}").json()["table_objective"]["slowest_partition"]["lag_seconds"] < 3600

        deployed.run(compaction, *places, "--event-types", name, "--no-tidying", "--lineage-url", lineage.url)
        deployed.run(statistics, *places, "--event-types", name)

        table = spark.read.format("iceberg").load(str(folder / database / table_name(name)))
        assert table.schema["number"].metadata["comment"] == "One after the other"
        rows = table.collect()
        assert {(row["nakadi_partition"], row["nakadi_offset"]): comparable_values(row) for row in rows} == {
            place: comparable_values(event) for place, event in read.items()
        }
        assert {(row["nakadi_partition"], row["nakadi_offset"]): row["nakadi_size"] for row in rows} == sizes
        told = api.get(f"/event-types/{name}").json()
        [run] = api.get(f"/event-types/{name}/table-runs").json()["items"]
        assert api.post(f"/event-types/{name}/events", json=[an_event(20)]).status_code == 200
        query = f'select count(*) as events, sum(number)::int as total from "{name}"'
        asked = api.post("/queries", json={"sql": query})
    if deployed.roles:
        # On AWS, queries look for tables in Glue's catalog.
        assert problem(asked, 503) == TABLES_UNREADABLE_MESSAGE
    else:
        assert (asked.status_code, asked.json()["rows"]) == (200, [[22, 210]]), asked.text
    answer = call_nakadi(deployed, "sql", "--tables", str(folder), "--database", database, query, "--json")
    assert json.loads(answer) == {"events": 22, "total": 210}
    assert told["default_statistic"] == statistic
    assert told["measured_statistic"]["write_parallelism"] == 1
    assert told["measured_statistic"]["recommended_partitions"] == 1
    assert told["measured_statistic"]["message_size"] == round(sum(sizes.values()) / len(sizes))
    assert told["table_objective"] == {
        "percent": 99.9,
        "within_seconds": 3600,
        "windows": [{"minutes": minutes, "events": 21, "late": 0, "burn_rate": 0} for minutes in (60, 1440)],
        "pressure": 0,
    }
    state = told["table"]
    assert (state["name"], state["rows"], state["misfits"], state["missing_events"]) == (table_name(name), 21, 0, 0)
    assert 0 < state["latency_seconds"] < 3600
    assert (run["job"], run["rows"], run["missing_events"]) == ("compaction", 21, 0)
    assert (run["late_events"], run["duplicates"], run["misfits"]) == (1, 1, 0)
    assert [(each["condition"], each["unmet"]) for each in run["expectations"]] == [("number < 18", 2)]
    assert run["lag_seconds"] == state["latency_seconds"]
    assert min(run["cost"].values()) > 0
    runs = spark.read.format("iceberg").load(str(folder / database / "nakadi__runs"))
    check_what_others_learn(deployed, name, lineage, table, runs)


@pytest.mark.long("tests/sql/test_tables.py::test_the_newest_event_of_a_key_is_found_at_once")
def test_the_newest_event_of_each_key(deployed, tables, tmp_path, monkeypatch):
    """A query finds the newest event of each key, in the table or in the log, and no key that a job saw deleted. It
    also finds all events in the stores, without the broker. (Q4, Q10, Q17)
    """
    folder, database = tables
    definition = a_business_definition(cleanup_policy="compact", schema={"properties": {"number": {"type": "integer"}}})
    name, places = definition["name"], ["--tables", str(folder), "--database", database]

    def publish(operation, **numbers):
        events = [an_event(n) for n in numbers.values()]
        for key, event in zip(numbers, events, strict=True):
            event["metadata"]["partition_compaction_key"] = key
        assert api.post(f"/event-types/{name}/{operation}", json=events).status_code == 200

    def ask(columns):
        query = f"select nakadi_key, number from {columns} order by all"
        answer = call_nakadi(deployed, "sql", *places, query, "--json")
        return [(row["nakadi_key"], row["number"]) for row in map(json.loads, answer.splitlines())]

    with httpx.Client(base_url=deployed.url, timeout=PATIENCE) as api:
        create_event_type(api, definition)
        publish("events", a=1, b=2, c=3)
        publish("deleted-events", b=4)
        wait_until_archived(deployed, topic_of(deployed, name), 1, 4)
        deployed.run(compaction, *places, "--master", "local[2]", "--event-types", name, "--no-tidying")
        publish("events", a=5, d=6)
    assert ask(f'"{name}__latest"') == [("a", 5), ("c", 3), ("d", 6)]
    every = [("a", 1), ("a", 5), ("b", 2), ("c", 3), ("d", 6)]
    assert ask(f'"{name}"') == every
    if not deployed.roles:
        # The command finds the registry and the archive in the data folder, and the log wherever the broker has it.
        monkeypatch.setenv("NAKADI_EVENT_LOG", deployed.event_log)
        places += ["--data", str(tmp_path)]
        assert ask(f'"{name}"') == every


def comparable_values(event):
    """The values that a row and an event have in common."""
    return event["number"], event["metadata"]["eid"], event["metadata"]["received_at"]


def check_what_others_learn(deployed, name, lineage, table, runs):
    """The table of runs, metrics and a lineage service have the figures of the run, and dbt has the columns. (T8, T11,
    T12)
    """
    [row] = runs.collect()
    assert (row.event_type, row.rows, row.late_events, row.duplicates) == (name, 21, 1, 1)
    assert (row.misfits, row.unmet_expectations) == (0, 2)
    assert defects_in_metrics(deployed, name) == {"late": 1, "duplicate": 1, "unmet": 2}
    begun, ended = (event for _, event in lineage.events)
    assert (begun["eventType"], ended["eventType"]) == ("START", "COMPLETE")
    [read], [filled] = ended["inputs"], ended["outputs"]
    assert (ended["job"]["name"], read["name"]) == (f"compaction.{name}", name)
    assert filled["name"].endswith(f"/{table_name(name)}")
    assert filled["outputFacets"]["outputStatistics"]["rowCount"] == 21
    [source] = yaml.safe_load(call_nakadi(deployed, "tables", "dbt", name))["sources"]
    [described] = source["tables"]
    assert described["name"] == table_name(name)
    columns = {column.pop("name"): column for column in described["columns"]}
    assert columns.keys() == set(table.columns)
    assert columns["number"] == {"description": "One after the other", "data_type": "bigint"}


def call_nakadi(deployed, *arguments):
    """What a command prints."""
    with patch.dict(os.environ, {"NAKADI_URL": deployed.url}), redirect_stdout(StringIO()) as shown:
        assert nakadi(arguments) == 0
    return shown.getvalue()


def defects_in_metrics(deployed, name):
    """What the metrics of a broker on the same stores say about the table after a round of housekeeping, by kind."""
    stores = {"registry": deployed.index, "log_index": deployed.index, "event_log": deployed.event_log}
    with closing(open_broker(Settings(**stores, archive=deployed.archive, archiver="function"))) as broker:
        broker.table_lag_monitor.measure()
        samples = collect_samples(broker.metrics)
    return {
        dict(labels)["kind"]: value
        for (metric, labels), value in samples.items()
        if metric == "nakadi_table_defects" and dict(labels)["event_type"] == name and value
    }


def topic_of(deployed, name):
    clock = SystemClock()
    with closing(open_registry(deployed.index)) as registry:
        return EventTypes(registry, Cache(clock, 1)).get(name).timeline.topic


@pytest.mark.long
def test_a_small_companys_day(deployed, tables, tmp_path):
    """Orders, payments and shipments, among them late, wrong, repeated and personal ones: whatever SQL, Spark, reports
    of jobs and streams say about them is true, while they are published, in tables, and after an erasure. (Q4, K1, T1)
    """
    folder, database = tables
    example = runpy.run_path(str(ROOT / "docs/examples/company_day"))
    run = example["Company"].run

    def run_with_role(self, job, *arguments):
        with deployed.as_role_of(job):
            run(self, job, *arguments)

    places = ["--url", deployed.url, "--data", str(tmp_path), "--tables", str(folder), "--database", database]
    with redirect_stdout(StringIO()) as shown, patch.object(example["Company"], "run", run_with_role):
        example["main"]([*places, "--event-log", deployed.event_log, "--orders", "60", "--", *deployed.arguments])
    assert shown.getvalue().endswith("all of them are true.\n")
