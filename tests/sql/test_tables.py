"""Queries over tables that Spark has made, and over the newer events in the log."""

import json
import sys
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import boto3
import httpx
import pytest
from moto import mock_aws
from msgspec.structs import replace

from nakadi.app.engines import open_log_index
from nakadi.queries.processes import TABLES_UNREADABLE_MESSAGE
from nakadi_client import Connection
from nakadi_jobs import compaction
from nakadi_sql import BadQuery, FolderTables, HttpSource, ask, open_tables
from nakadi_sql.errors import NoTable, PackageMissing, TablesUnreadable
from nakadi_sql.tables import TableFiles
from tests.sql.conftest import LIMITS
from tests.support.api import a_business_definition, an_authorization, create_event_type, problem
from tests.support.dynamodb_service import PREFIX, a_bucket
from tests.support.jobs import open_reading_session
from tests.support.patience import PATIENCE, until
from tests.support.rest_catalog import rest_catalog
from tests.support.s3_files import buckets_in_spark
from tests.support.served import ServedBroker
from tests.support.spark import quick_spark
from tests.support.tokens import Issuer

__all__ = ["quick_spark"]  # the fixture for all tests of this module

NAME = "order.placed"
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "price": {"type": "number", "multipleOf": 0.01},
        "share": {"type": "number"},
        "customer": {"type": "object", "properties": {"id": {"type": "string"}}},
        "items": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "open": {"type": "object"},
        "texts": {"type": "object", "additionalProperties": {"type": "string"}},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}
STATISTIC = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 2, "write_parallelism": 2}
MEMBERS = [
    '"at":"2026-11-20T12:00:00.123456+02:00","price":12345678901234567890.10,"share":0.1',
    '"customer":{"id":"c\\u00f8"},"items":[{"sku":"a"},{"sku":"b"}],"open":{"x":[1.10,{"y":"z"}]}',
    '"texts":{"a":"b"},"tags":["x","y"],"share":1e2',
    '"share":0.12345678901234567890,"unknown":{"deep":[1]}',
    '"customer":{"id":"c","more":1},"items":[{"sku":"a","more":1}]',
    '"at":"2026-11-20T12:00:00.1234567Z","price":1,"share":12345',
    '"customer":{},"items":[],"tags":[],"open":{"x":{}}',
]


def an_event(number):
    metadata = {"eid": f"00000000-0000-4000-8000-{number:012d}", "occurred_at": "2026-11-20T10:00:00Z"}
    return f'{{"n":{number},{MEMBERS[number % len(MEMBERS)]},"metadata":{json.dumps(metadata)}}}'


def publish(api, numbers, name=NAME):
    body = "[" + ",".join(map(an_event, numbers)) + "]"
    answer = api.post(f"/event-types/{name}/events", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text


KEYED = {
    "state.compacted": {
        "cleanup_policy": "compact",
        "schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
    "state.data": {
        "category": "data",
        "partition_strategy": "hash",
        "partition_key_fields": ["key"],
        "authorization": an_authorization(),
        "schema": {"type": "object", "properties": {"key": {"type": "string"}, "n": {"type": "integer"}}},
    },
}
"""Event types whose newest event for a key is the key's current state."""


def publish_changes(api, name, changes):
    """Publish changes of keys: `a:1` sets the key `a` to 1, and `a:-` deletes it."""
    for key, value in (change.split(":") for change in changes.split()):
        metadata = {"eid": str(uuid4()), "occurred_at": "2026-11-20T10:00:00Z"}
        where, number = "events", {} if value == "-" else {"n": int(value)}
        if name == "state.data":
            event = {"data_type": "x", "data_op": "U" if number else "D", "data": {"key": key, **number}}
        else:
            metadata["partition_compaction_key"] = key
            where, event = "events" if number else "deleted-events", number
        answer = api.post(f"/event-types/{name}/{where}", json=[{"metadata": metadata, **event}])
        assert answer.status_code == 200, answer.text


def rows(query, source, tables):
    with ask(query, source, tables, LIMITS) as answer:
        return [dict(zip(answer.names, row, strict=True)) for row in answer.rows()]


def wait_until_archived(broker, name, count):
    timeline = broker.services.event_types.get(name).timeline
    with closing(open_log_index(broker.services.settings.log_index)) as index:
        places = [(timeline.topic, number) for number in range(timeline.partitions)]
        until(lambda: sum(head.state.next_offset for head in index.index_heads(places).values()) >= count)


def make_tables(folder, *arguments):
    """Let a job put the archived events into tables, and do nothing else."""
    messages = StringIO()
    with redirect_stderr(messages), redirect_stdout(messages):
        places = ["--data", str(folder), "--master", "local[2]", "--memory", "1g", "--no-tidying", "--no-quality"]
        assert compaction.main([*places, *arguments]) == 0, messages.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The data folder of all brokers."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def stores(folder):
    """The settings with which several brokers have the same events."""
    file = f"sqlite:///{folder / 'nakadi.db'}"
    return {"registry": file, "event_log": file, "log_index": file, "archive": str(folder / "archive")}


@pytest.fixture(scope="module")
def served(stores):
    """The broker that archives."""
    with ServedBroker(**stores, archive_after_seconds=0) as broker:
        yield broker


@pytest.fixture(scope="module")
def broker_with_tables(folder, served):
    """A client of the broker, a source for its log, its tables, and the rows of twenty events as they were before these
    tables existed.
    """
    with (
        httpx.Client(base_url=served.url, timeout=PATIENCE) as api,
        HttpSource(Connection(served.url), print) as source,
    ):
        create_event_type(api, a_business_definition(name=NAME, schema=SCHEMA, default_statistic=STATISTIC))
        for name, definition in KEYED.items():
            create_event_type(api, a_business_definition(name=name, **definition))
            publish_changes(api, name, "a:1 b:1 c:1 b:-")
            wait_until_archived(served, name, 4)
        publish(api, range(20))
        before = rows("from order_placed order by n", source, None)
        wait_until_archived(served, NAME, 20)
        make_tables(folder, "--event-types", ",".join((NAME, *KEYED)))
        yield api, source, FolderTables(str(folder / "tables")), before


class OtherSeam:
    """A source that gives other positions as the end of the table than the broker does."""

    def __init__(self, source, seam):
        self._source, self._seam = source, seam
        self.names, self.events = source.names, source.events

    def find(self, name):
        found = self._source.find(name)
        return found and replace(found, seam=self._seam(found.seam))


def test_rows_are_the_same_before_and_after_a_job(broker_with_tables):
    """The rows from the log and from the table are the same, value by value, except for the microseconds of
    `nakadi_time`. (Q4, Q5)
    """
    _, source, tables, before = broker_with_tables
    after = rows("from order_placed order by n", source, tables)
    for row in (*before, *after):
        row["nakadi_time"] = row["nakadi_time"].replace(microsecond=0)
    assert [row["n"] for row in after] == [*range(20)]
    assert after == before


def test_each_event_is_there_once_wherever_the_table_ends(broker_with_tables):
    """Events that are newer than the table come from the log at once. None is doubled, even if the table has more than
    its state says, because another job has just added it. (Q4)
    """
    api, source, tables, _ = broker_with_tables
    publish(api, range(20, 25))
    every = [{"n": n} for n in range(25)]
    query = "select n from order_placed order by n"
    assert rows(query, source, tables) == every
    for shift in (1, 3, 100):
        moved = OtherSeam(
            source,
            lambda seam, shift=shift: {
                partition: {timeline: max(0, end - shift) for timeline, end in known.items()}
                for partition, known in seam.items()
            },
        )
        assert rows(query, moved, tables) == every
    assert rows(query, source, None) == every


@pytest.mark.parametrize(("name", "number"), [("state.compacted", "n"), ("state.data", "data.n")])
def test_the_newest_event_of_a_key_is_found_at_once(broker_with_tables, name, number):
    """`…__latest` has the newest event of each key, wherever it is, and no deleted key. Deletions in a compacted event
    type count once a job has seen them. (Q10)
    """
    api, source, tables, _ = broker_with_tables
    query = f"select nakadi_key as k, {number} as n from {name.replace('.', '_')}__latest order by 1"
    assert rows(query, source, tables) == [{"k": "a", "n": 1}, {"k": "c", "n": 1}]
    publish_changes(api, name, "a:2 d:1 a:3 b:2")
    found = [{"k": "a", "n": 3}, {"k": "b", "n": 2}, {"k": "c", "n": 1}, {"k": "d", "n": 1}]
    assert rows(query, source, tables) == found
    publish_changes(api, name, "c:-")
    gone = "c" if name == "state.data" else ""
    assert rows(query, source, tables) == [row for row in found if row["k"] != gone]


def test_only_keys_have_a_newest_event(broker_with_tables):
    """An event type whose events are not the state of a key has no `…__latest`. (Q10)"""
    _, source, tables, _ = broker_with_tables
    with pytest.raises(BadQuery, match=f"{NAME} is neither compacted nor data by key"):
        rows("from order_placed__latest", source, tables)


def test_a_newer_schema_has_its_columns_over_an_older_table(broker_with_tables):
    """Columns that the table lacks are NULL in its rows, as are new members of objects and lists. (Q5)"""
    api, source, tables, _ = broker_with_tables
    definition = api.get(f"/event-types/{NAME}").json()
    schema = json.loads(definition["schema"]["schema"])
    schema["properties"] |= {"more": {"type": "boolean"}}
    schema["properties"]["items"]["items"]["properties"]["more"] = {"type": "integer"}
    definition["schema"]["schema"] = json.dumps(schema)
    assert api.put(f"/event-types/{NAME}", json=definition).status_code == 200
    publish(api, [25])
    found = rows("select n, more, items, metadata.eid from order_placed where n in (1, 25) order by n", source, tables)
    assert found[0]["items"] == [{"sku": "a", "more": None}, {"sku": "b", "more": None}]
    assert [(row["n"], row["more"], row["eid"][-2:]) for row in found] == [(1, None, "01"), (25, None, "25")]


def test_a_table_that_is_elsewhere_is_named(broker_with_tables, tmp_path, monkeypatch):
    """If the broker knows a table that is not where the query looks for it, the answer names the folder. If the place
    of a table does not answer, the answer says so. (Q4)
    """
    _, source, _, _ = broker_with_tables
    with pytest.raises(NoTable, match=str(tmp_path)):
        rows("from order_placed", source, FolderTables(str(tmp_path)))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for place in ("s3://events/tables", "gs://events/tables"):
        with pytest.raises(TablesUnreadable, match=f"in {place} cannot be read"):
            rows("from order_placed", source, FolderTables(place))


def test_a_table_with_owners_is_not_read(broker_with_tables):
    """Only the broker decides whether somebody may read an event with an owner, so all events of such an event type
    come from the log. (Q8)
    """
    _, source, tables, _ = broker_with_tables

    class WithOwners(OtherSeam):
        def find(self, name):
            found = super().find(name)
            return found and replace(found, has_owners=True)

    found = WithOwners(source, lambda seam: seam)
    assert len(rows("from order_placed", found, FolderTables(tables.folder, "nowhere"))) == 26


@contextmanager
def asking(stores, **settings):
    """Ask queries of a broker on the same stores, over HTTP."""
    with (
        ServedBroker(**stores, **settings) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        yield lambda sql, headers=None: api.post("/queries", json={"sql": sql}, headers=headers)


def publish_and_check(api, source, ask_broker, headers=None):
    """Publish another event, and check that `POST /queries` finds every event once."""
    [last] = rows("select count(*) as number from order_placed", source, None)
    publish(api, [last["number"]])
    answer = ask_broker("select n from order_placed order by n", headers)
    assert (answer.status_code, answer.json()["notes"]) == (200, []), answer.text
    assert answer.json()["rows"] == [[n] for n in range(last["number"] + 1)]


def test_queries_over_http_find_the_rows_of_tables_and_log(broker_with_tables, stores, tmp_path):
    """`POST /queries` finds each event once, in the table or in the log, with the rights of streams: a caller who may
    read one of two event types gets its rows, but not those of the other. (Q4, Q8, Q11, Q12)
    """
    api, source, tables, _ = broker_with_tables
    issuer = Issuer(tmp_path)
    with asking(stores, tables=tables.folder, **issuer.settings) as ask_broker:
        publish_and_check(api, source, ask_broker, issuer.bearer("bob"))
        refused = ask_broker("select count(*) from order_placed, state_data", issuer.bearer("bob"))
        assert "event-type:state.data denied" in problem(refused, 403)


def test_tables_are_found_in_a_rest_catalog(broker_with_tables, stores, monkeypatch, caplog):
    """With the URL of a REST catalog, its database and its token, a query finds the same tables, also over HTTP. If the
    table is not there, the caller reads that the tables cannot be read, and the log says why. (Q4, Q11)
    """
    api, source, tables, _ = broker_with_tables
    monkeypatch.setenv("NAKADI_CATALOG_TOKEN", "secret")
    spark = open_reading_session(f"file://{tables.folder}")
    with rest_catalog(spark, Path(tables.folder), "secret") as (catalog, url):
        found = open_tables(f"{url}?warehouse=events", "nakadi", "secret")
        assert found.find("order_placed") == tables.find("order_placed")
        with pytest.raises(TablesUnreadable, match="does not say"):
            open_tables(url, "nakadi", "wrong").find("order_placed")
        with pytest.raises(NoTable, match="does not say"):
            open_tables(url, "nowhere", "secret").find("order_placed")
        with asking(stores, tables=f"{url}?warehouse=events") as ask_broker:
            publish_and_check(api, source, ask_broker)
        assert ("GET", "/v1/namespaces/nakadi/tables/order_placed") in catalog.asked
        with asking(stores, tables=url, tables_database="nowhere") as ask_broker:
            assert problem(ask_broker("from order_placed"), 503) == TABLES_UNREADABLE_MESSAGE
        assert "does not say where the table order_placed is" in caplog.text
    with pytest.raises(TablesUnreadable, match="does not say"):
        found.find("order_placed")


def test_tables_are_found_in_glues_catalog(broker_with_tables, monkeypatch):
    """With `glue`, a query finds the tables in Glue's catalog, which names the file that describes a table. (Q4)"""
    _, _, tables, _ = broker_with_tables
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with mock_aws():
        glue = boto3.client("glue")
        glue.create_database(DatabaseInput={"Name": "events"})
        place = f"file://{tables.find('order_placed').metadata}"
        made_there = {"Name": "order_placed", "Parameters": {"metadata_location": place}}
        glue.create_table(DatabaseName="events", TableInput=made_there)
        found = open_tables("glue", "events")
        assert found.find("order_placed") == tables.find("order_placed")
        with pytest.raises(NoTable, match="does not say"):
            found.find("nothing")


@pytest.fixture(scope="module")
def tables_in_bucket(broker_with_tables, folder, served):
    """The tables of another event type, in a bucket; then the log gets more of its events."""
    api, *_ = broker_with_tables
    spark = open_reading_session(f"file://{folder}/tables")
    with a_bucket() as (url, _), pytest.MonkeyPatch.context() as patched:
        [endpoint] = parse_qs(urlsplit(url).query)["endpoint"]
        patched.setenv("AWS_ENDPOINT_URL", endpoint)
        place = f"s3://{PREFIX}/tables"
        schema = {"properties": {"n": {"type": "integer"}}}
        definition = a_business_definition(name="order.shipped", schema=schema, default_statistic=STATISTIC)
        create_event_type(api, definition)
        publish(api, range(10), "order.shipped")
        with buckets_in_spark(spark, endpoint, PREFIX):
            wait_until_archived(served, "order.shipped", 10)
            make_tables(folder, "--tables", place, "--event-types", "order.shipped")
        publish(api, range(10, 15), "order.shipped")
        yield place


@pytest.mark.long("tests/sql/test_tables.py::test_queries_over_http_find_the_rows_of_tables_and_log")
def test_tables_in_a_bucket_are_asked_over_http(tables_in_bucket, stores):
    """`POST /queries` reads tables in S3, directly or by Glue's catalog, with the broker's credentials. (Q4, Q11)"""
    query = "select n from order_shipped order by n"
    every = [[n] for n in range(15)]
    with asking(stores, tables=tables_in_bucket) as ask_broker:
        answer = ask_broker(query)
        assert (answer.status_code, answer.json()["rows"], answer.json()["notes"]) == (200, every, []), answer.text
    glue = boto3.client("glue")
    glue.create_database(DatabaseInput={"Name": "events"})
    place = FolderTables(tables_in_bucket).find("order_shipped").metadata
    table = {"Name": "order_shipped", "Parameters": {"metadata_location": place}}
    glue.create_table(DatabaseName="events", TableInput=table)
    with asking(stores, tables="glue", tables_database="events") as ask_broker:
        answer = ask_broker(query)
        assert (answer.status_code, answer.json()["rows"]) == (200, every), answer.text


def test_a_bucket_needs_one_more_package(broker_with_tables, monkeypatch):
    """If the package that reads buckets is missing, the answer names it. (Q4)"""
    _, source, _, _ = broker_with_tables
    monkeypatch.setitem(sys.modules, "duckdb_extension_httpfs", None)

    class InBucket:
        def find(self, name):
            return TableFiles(f"s3://events/{name}/metadata/v1.metadata.json", f"s3://events/{name}")

    with pytest.raises(PackageMissing, match=r"duckdb-extension-httpfs==1\.5\.5"):
        rows("from order_placed", source, InBucket())
