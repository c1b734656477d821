"""Queries on AWS: `POST /queries` through the gateway, in a function of their own, on tables in S3 and the log."""

from __future__ import annotations

import boto3
import pytest
from botocore.exceptions import ClientError

from infra.laptop.roles import OWNER
from infra.laptop.templates import ACCOUNT, REGION
from nakadi.queries.processes import TABLES_UNREADABLE_MESSAGE
from nakadi_jobs import compaction
from nakadi_jobs.places import table_name
from nakadi_jobs.session import open_spark
from nakadi_sql import FolderTables
from tests.e2e.test_jobs import Deployment, an_event, topic_of, wait_until_archived
from tests.support.api import a_business_definition, a_definition, an_authorization, create_event_type, problem
from tests.support.laptop import STREAM, TABLES
from tests.support.s3_files import buckets_in_spark
from tests.support.spark import quick_spark

__all__ = ["quick_spark"]  # the fixture for all tests of this module

STATISTIC = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 2, "write_parallelism": 2}


# Each part of this deployment has its role.
ENGINES_WITH_TOKENS = ("aws-local",)


def ask(client, sql):
    return client.post("/queries", json={"sql": sql})


def test_a_query_finds_events_with_the_rights_of_its_token(ann_client, bob_client):
    """The function finds events of the log at once, for a token that may read them. (Q4, Q8, Q11, Q12, Q18)"""
    name = create_event_type(ann_client, a_definition(authorization=an_authorization()))["name"]
    assert ann_client.post(f"/event-types/{name}/events", json=[{"n": 1}, {"n": 2}]).status_code == 200
    answer = ask(ann_client, f'select count(*) as events from "{name}"')
    assert (answer.status_code, answer.json()["rows"]) == (200, [[2]]), answer.text
    assert "denied" in problem(ask(bob_client, f'describe "{name}"'), 403)


@pytest.fixture
def with_tables(laptop, broker_with_tokens, tmp_path, monkeypatch):
    """The deployment with the settings of its jobs, whose tables are in its bucket of S3."""
    endpoints = laptop.cloud.endpoints
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, OWNER)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoints["s3"])
    names = [each["Name"] for each in boto3.client("s3").list_buckets()["Buckets"]]
    [archive], [bucket] = ([name for name in names if f"-{purpose}-" in name] for purpose in ("archive", "tables"))
    stores = f"{TABLES}&endpoint={endpoints['dynamodb']}"
    archive = f"s3://{archive}/?region={REGION}&endpoint={endpoints['s3']}"
    places = [
        *("--registry", stores, "--log-index", stores, "--archive", archive, "--data", str(tmp_path)),
        *("--tables", f"s3://{bucket}/tables", "--master", "local[2]", "--no-tidying"),
    ]
    log = f"{STREAM}&endpoint={endpoints['kinesis']}"
    deployment = Deployment(broker_with_tokens.broker.url, stores, places, log, archive)
    with buckets_in_spark(open_spark("e2e", f"file://{tmp_path}", "hadoop", "local[2]", "1g"), endpoints["s3"], bucket):
        yield deployment, FolderTables(f"s3://{bucket}/tables")


def add_to_catalog(table, tables):
    """Do what Iceberg does on Glue when a job commits: name the table's current state in Glue's catalog."""
    glue, database = boto3.client("glue"), "nakadi_laptop"
    glue.create_database(DatabaseInput={"Name": database})
    state = {"metadata_location": tables.find(table).metadata}
    glue.create_table(DatabaseName=database, TableInput={"Name": table, "Parameters": state})


@pytest.mark.long("tests/e2e/test_queries_on_aws.py::test_a_query_finds_events_with_the_rights_of_its_token")
def test_a_query_finds_each_event_once_in_tables_and_log(with_tables, ann_client, bob_client):
    """Queries find each event once: in a table in S3 that Glue's catalog names, or in the log. Whoever may not read the
    event type gets no row of its table, although the function's role may read it. (Q4, Q8, Q11, Q12, Q18)
    """
    deployment, tables = with_tables
    schema = {"properties": {"number": {"type": "integer"}}}
    definition = a_business_definition(authorization=an_authorization(), schema=schema, default_statistic=STATISTIC)
    name = create_event_type(ann_client, definition)["name"]
    sql = f'select number from "{name}" order by number'

    publish(ann_client, name, range(20))
    wait_until_archived(deployment, topic_of(deployment, name), 2, 20)
    deployment.run(compaction, "--event-types", name)
    assert problem(ask(ann_client, sql), 503) == TABLES_UNREADABLE_MESSAGE
    add_to_catalog(table_name(name), tables)
    publish(ann_client, name, range(20, 30))
    answer = ask(ann_client, sql)
    assert (answer.status_code, answer.json()["notes"]) == (200, []), answer.text
    assert answer.json()["rows"] == [[number] for number in range(30)]
    assert "denied" in problem(ask(bob_client, sql), 403)


def publish(client, name, numbers):
    events = [an_event(number) for number in numbers]
    assert client.post(f"/event-types/{name}/events", json=events).status_code == 200


def test_a_query_cannot_leave_its_database(ann_client):
    """Queries reach no keys, no file and no table that they do not name as an event type. (Q6, Q18)"""
    for sql in (
        "select getenv('AWS_SECRET_ACCESS_KEY')",
        "select current_setting('s3_secret_access_key')",
        "from duckdb_secrets()",
        "from read_text('/proc/self/environ')",
        f"from read_parquet('s3://nakadi-laptop-tables-{ACCOUNT}-{REGION}/tables/**')",
    ):
        detail = problem(ask(ann_client, sql), 422)
        assert OWNER not in detail.replace("nakadi-laptop", "")
        assert "QueriesRole" not in detail


def test_whoever_takes_over_a_query_may_only_read_tables(laptop):
    """With the keys of the function, even code that a query brings along could read tables, and nothing else: no
    archive, no document, no event of the log, no secret; and it could change nothing. (Q18)
    """
    [role] = [each for each in laptop.deployment.roles if each.startswith("QueriesRole")]
    clients = {name: laptop.cloud.client(name, role) for name in ("s3", "dynamodb", "kinesis", "glue", "kms")}
    tables, archive = (f"nakadi-laptop-{purpose}-{ACCOUNT}-{REGION}" for purpose in ("tables", "archive"))
    laptop.cloud.client("s3").put_object(Bucket=tables, Key="tables/a", Body=b"of a table")
    assert clients["s3"].get_object(Bucket=tables, Key="tables/a")["Body"].read() == b"of a table"
    key = {"kind": {"S": "admins"}, "name": {"S": "admins"}}
    for service, operation, arguments in (
        ("s3", "get_object", {"Bucket": tables, "Key": "reports/a"}),
        ("s3", "get_object", {"Bucket": archive, "Key": "a"}),
        ("s3", "put_object", {"Bucket": tables, "Key": "tables/a"}),
        ("s3", "delete_object", {"Bucket": tables, "Key": "tables/a"}),
        ("s3", "list_objects_v2", {"Bucket": tables}),
        ("dynamodb", "get_item", {"TableName": "nakadi-laptop-documents", "Key": key}),
        ("kinesis", "list_shards", {"StreamName": "nakadi-laptop"}),
        ("glue", "get_tables", {"DatabaseName": "nakadi_laptop"}),
        ("glue", "get_table", {"DatabaseName": "others", "Name": "a"}),
        ("glue", "delete_table", {"DatabaseName": "nakadi_laptop", "Name": "a"}),
        ("kms", "list_keys", {}),
    ):
        with pytest.raises(ClientError) as refused:
            getattr(clients[service], operation)(**arguments)
        assert "AccessDenied" in refused.value.response["Error"]["Code"], (service, operation)
