"""The stored data, and their protection."""

import json

import boto3
import pytest
from moto.core import DEFAULT_ACCOUNT_ID

from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.engines.dynamodb.tables import TABLES
from nakadi.local.stage_backups.stage import StageAddress, archive_bucket
from tests.support.aws import REGION
from tests.support.http import make_client
from tests.support.templates import PSEUDO, text

EVENT_TYPE = {
    "name": "kept.thing",
    "owning_application": "me",
    "category": "undefined",
    "schema": {"type": "json_schema", "schema": "{}"},
}


def tables(template):
    return {each["TableName"]: each for each in template.all("AWS::DynamoDB::Table").values()}


def buckets(template):
    return {text(each["BucketName"]): each for each in template.all("AWS::S3::Bucket").values()}


ARCHIVE = "nakadi-test-archive-123456789012-eu-central-1"
ANALYSED = "nakadi-test-tables-123456789012-eu-central-1"


def test_backups_find_the_archive(data):
    """`nakadi backup --stage` reads the bucket to which the deployment gives this name."""
    assert archive_bucket(StageAddress("nakadi-test", "eu-central-1"), "123456789012") == ARCHIVE
    assert ARCHIVE in buckets(data)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name_suffix)
def test_a_table_is_as_its_engine_uses_it(data, table):
    """The name, the keys and the billing of a table are those in the engine's own definition."""
    made = tables(data)[table.full_name("nakadi-test")]

    assert {name: made[name] for name in table.create_request("nakadi-test")} == table.create_request("nakadi-test")
    expires = made.get("TimeToLiveSpecification")
    assert expires == ({"AttributeName": table.expiry_attribute, "Enabled": True} if table.expiry_attribute else None)


def test_there_are_no_other_tables(data):
    """Tables that no engine uses do not exist."""
    assert set(tables(data)) == {table.full_name("nakadi-test") for table in TABLES}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name_suffix)
def test_a_table_can_be_brought_back(data, table):
    """Tables are encrypted, can be put back to any second of the last weeks, and are not deleted by mistake."""
    made = tables(data)[table.full_name("nakadi-test")]

    assert made["SSESpecification"] == {"SSEEnabled": True}
    assert made["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert made["DeletionProtectionEnabled"] is True


def test_nothing_goes_with_its_stack(data):
    """Tables, streams and buckets remain when the stack is deleted, and when a change would replace them."""
    kept = [
        each
        for each in data.resources.values()
        if each["Type"] in {"AWS::DynamoDB::Table", "AWS::Kinesis::Stream", "AWS::S3::Bucket"}
    ]

    assert len(kept) == len(TABLES) + 4
    assert {(each["DeletionPolicy"], each["UpdateReplacePolicy"]) for each in kept} == {("Retain", "Retain")}


def test_a_dedicated_stream_can_be_removed_again(data, serving, analytics):
    """No other stack imports anything of a stream: an export that is in use cannot be removed, and neither can its
    resource."""
    exported = json.dumps(data.content["Outputs"])

    assert not [name for name in data.all("AWS::Kinesis::Stream") if name in exported]
    for template in (serving, analytics):
        depends = json.loads((template.path.parent / "manifest.json").read_text())["artifacts"]
        assert "nakadi-test-data" in depends[template.path.name.removesuffix(".template.json")]["dependencies"]


@pytest.mark.parametrize(("name", "shards"), [("nakadi-test", 1), ("nakadi-test-orders", 2)])
def test_a_stream_is_encrypted(data, name, shards):
    """The shared stream and dedicated ones keep events for a day, encrypted at rest."""
    streams = {each["Name"]: each for each in data.all("AWS::Kinesis::Stream").values()}

    assert set(streams) == {"nakadi-test", "nakadi-test-orders"}
    assert streams[name]["ShardCount"] == shards
    assert streams[name]["RetentionPeriodHours"] == 24
    assert streams[name]["StreamEncryption"] == {"EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"}


@pytest.mark.parametrize("name", [ARCHIVE, ANALYSED])
def test_a_bucket_is_private(data, name):
    """The archive and the tables made from it are not readable from outside, nor without TLS."""
    bucket = buckets(data)[name]
    [rule] = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]

    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    for policy in data.all("AWS::S3::BucketPolicy").values():
        denied = [
            each["Condition"]
            for each in policy["PolicyDocument"]["Statement"]
            if each["Effect"] == "Deny" and each["Action"] == "s3:*" and each["Principal"] == {"AWS": "*"}
        ]
        assert {"Bool": {"aws:SecureTransport": "false"}} in denied
        assert {"NumericLessThan": {"s3:TlsVersion": 1.2}} in denied
    assert len(data.all("AWS::S3::BucketPolicy")) == 2


@pytest.mark.parametrize(("name", "storage"), [(ARCHIVE, ["INTELLIGENT_TIERING"]), (ANALYSED, [])])
def test_nothing_is_taken_out_of_a_bucket_by_its_age(data, name, storage):
    """No lifecycle rule removes events or tables by age, because only the broker knows which may go; the rules remove
    only results of queries and other temporary files.
    """
    [rule, *others] = buckets(data)[name]["LifecycleConfiguration"]["Rules"]
    assert [each["Prefix"] for each in others] == (
        [] if storage else ["athena/", "spark-logs/", "erase/", "tables/_gathered/"]
    )

    assert not any(key.startswith(("Expiration", "NoncurrentVersionExpiration")) for key in rule)
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert [each["StorageClass"] for each in rule.get("Transitions", [])] == storage


@pytest.mark.usefixtures("data_resources")
def test_the_engines_run_on_what_is_deployed(serving):
    """A broker with the environment of a function registers, publishes and reads, in the template's resources."""
    environment = {**serving.environment("event_types"), "NAKADI_AUTH": "off"}
    broker = open_broker(Settings.from_env(environment))
    try:
        with make_client(make_application(broker, "event_types", "publishing", "cursors")) as api:
            assert api.post("/event-types", json=EVENT_TYPE).status_code == 201
            assert api.post("/event-types/kept.thing/events", json=[{"n": 1}, {"n": 2}]).status_code == 200
            [partition] = api.get("/event-types/kept.thing/partitions").json()
    finally:
        broker.close()

    assert partition["newest_available_offset"].endswith("-000000000000000001")
    kept = boto3.client("dynamodb", REGION).scan(TableName="nakadi-test-documents")["Items"]
    assert "kept.thing" in {each["key"]["S"] for each in kept}


@pytest.mark.usefixtures("data_resources")
def test_the_archive_is_where_functions_look_for_it(serving):
    """The bucket that the template makes is the one in the environment of the functions."""
    made = {each["Name"] for each in boto3.client("s3", REGION).list_buckets()["Buckets"]}

    named = serving.environment("log_indexer")["NAKADI_ARCHIVE"]
    assert made == {each.replace(PSEUDO["AWS::AccountId"], DEFAULT_ACCOUNT_ID) for each in (ARCHIVE, ANALYSED)}
    assert named.startswith(f"s3://{ARCHIVE}/?")
