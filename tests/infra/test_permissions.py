"""The permissions: every role with its actions, and whether they are enough."""

import base64
import json
import re
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO

import boto3
import httpx
import pytest

from nakadi.app import log_indexer
from nakadi.app.broker import open_broker
from nakadi.app.routes import STREAMING_AREAS, make_application
from nakadi.app.settings import Settings
from nakadi.engines.archive.stores import open_archive
from nakadi.local.serving import ServerThread
from nakadi.model.log_index import ArchiveLocation
from nakadi.ports.archive_store import ArchiveObjectGone
from nakadi_cdk.needs import NEEDS
from nakadi_jobs import compaction, dead_members, failed_events, old_versions, retention, statistics
from tests.support.aws import REGION
from tests.support.http import make_client
from tests.support.patience import PATIENCE
from tests.support.policies import Permission, Policy, permission_for_missing, required_permissions
from tests.support.spark import quick_spark
from tests.support.templates import as_list, text

__all__ = ["quick_spark"]  # a fixture for the jobs

LOGS = {"logs:CreateLogStream", "logs:PutLogEvents"}
TRACES = {"xray:PutTraceSegments", "xray:PutTelemetryRecords"}
LAMBDA = LOGS | TRACES
LOOK_UP = {"dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:Query"}
CHANGE = LOOK_UP | {
    "dynamodb:BatchWriteItem",
    "dynamodb:ConditionCheckItem",
    "dynamodb:DeleteItem",
    "dynamodb:PutItem",
    "dynamodb:UpdateItem",
}
READ = {"kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:ListShards"}
WRITE = READ | {"kinesis:PutRecords"}
# Without permission to list a bucket, a missing key looks like a refusal.
FETCH = {"s3:GetObject", "s3:ListBucket"}
OLD_VERSIONS = {"s3:DeleteObjectVersion", "s3:GetObjectVersion", "s3:ListBucketVersions"}
JOB = {
    *("glue:CreateDatabase", "glue:CreateTable", "glue:DeleteTable", "glue:GetDatabase"),
    *("glue:GetTable", "glue:GetTables", "glue:UpdateTable"),
    *("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:ListBucket", "s3:PutObject"),
    *("logs:CreateLogGroup", "cloudwatch:PutMetricData"),
    *LOGS,
}

# Every role of every stack, by its place in the code.
MAY = {
    "FunctionsRolepublish": LAMBDA | CHANGE | WRITE,
    "FunctionsRoleeventtypes": LAMBDA | CHANGE | WRITE | FETCH,
    "FunctionsRolecursors": LAMBDA | LOOK_UP | READ | FETCH,
    "FunctionsRolesubscriptions": LAMBDA | CHANGE | WRITE | FETCH,
    "FunctionsRoleadmin": LAMBDA | CHANGE | WRITE,
    "FunctionsRoleauthorizer": LAMBDA,
    "FunctionsRolelogindexer": LAMBDA
    | CHANGE
    | READ
    | {"kinesis:DescribeStream", "kinesis:DescribeStreamSummary"}
    | {"s3:PutObject"}
    | {"sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"},
    "FunctionsRolehousekeeping": LAMBDA | CHANGE | WRITE | FETCH | {"s3:DeleteObject", "s3:PutObject"},
    "StreamingRole": CHANGE | WRITE | FETCH,
    # To start the task, this role fetches the image, and opens the log.
    "StreamingTaskExecutionRole": LOGS
    | {"ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetAuthorizationToken"}
    | {"ecr:GetDownloadUrlForLayer"},
    "StreamingNetworkRefusedIAMRole": LOGS | {"logs:DescribeLogStreams"},
    "ApiRestCloudWatchRole": set(),
    "ApiPagesRole": {"s3:GetObject"},
    "AnalyticsRolestatistics": JOB | CHANGE,
    "AnalyticsRolecompaction": JOB | CHANGE,
    "AnalyticsRoleretention": JOB | CHANGE | {"dynamodb:Scan"} | OLD_VERSIONS,
}

# These actions do not support resources.
NARROWER_IS_NOT_POSSIBLE = [TRACES, {"ecr:GetAuthorizationToken"}, {"cloudwatch:PutMetricData"}]


@pytest.fixture(scope="session")
def roles(deployment):
    """The roles of all stacks, without the generated parts of their names: template and reference."""
    return {
        re.sub(r"[0-9A-F]{8}$", "", name): (template, {"Ref": name})
        for template in (deployment.data, deployment.serving, deployment.analytics)
        for name in template.all("AWS::IAM::Role")
    }


def test_every_role_is_looked_at(roles):
    """The list above has all roles."""
    assert set(roles) == set(MAY)


@pytest.mark.parametrize("name", MAY)
def test_a_role_may_do_what_it_has_to_and_no_more(roles, name):
    """Every action of every role is listed above."""
    template, role = roles[name]

    assert template.actions(role) == MAY[name]


@pytest.mark.parametrize("name", MAY)
def test_no_one_may_do_it_to_everything(roles, name):
    """No statement has a wildcard as its action. It has one as its resource only if the action supports no
    resources.
    """
    template, role = roles[name]
    for statement in template.statements(role):
        actions = set(as_list(statement["Action"]))
        assert not any("*" in action for action in actions)
        if "*" in as_list(statement["Resource"]):
            assert any(actions <= known for known in NARROWER_IS_NOT_POSSIBLE), actions


def test_no_one_has_a_policy_of_awss_own(roles):
    """Policies that AWS changes are not used, except for the one role that all gateways of an account share."""
    managed = {
        name: template.resources[role["Ref"]]["Properties"]["ManagedPolicyArns"]
        for name, (template, role) in roles.items()
        if "ManagedPolicyArns" in template.resources[role["Ref"]]["Properties"]
    }

    assert set(managed) == {"ApiRestCloudWatchRole"}
    assert text(managed["ApiRestCloudWatchRole"][0]).endswith("/AmazonAPIGatewayPushToCloudWatchLogs")


# The permissions are enough

EVENT_TYPE = {
    "name": "kept.thing",
    "owning_application": "me",
    "category": "undefined",
    "schema": {"type": "json_schema", "schema": "{}"},
}
SUBSCRIPTION = {"owning_application": "me", "event_types": ["kept.thing"], "read_from": "begin"}
EVENTS = "/event-types/kept.thing/events"


class RoleGuard:
    """Calls AWS in the roles of the deployment's parts, one after another. It records actions that the role lacks, but
    still executes them.
    """

    def __init__(self, emulated, roles, data):
        self.denied = set()
        self._policies = {name: Policy(template, role, data) for name, (template, role) in roles.items()}
        self._role = None
        self._answer = emulated.answer
        emulated.answer = self._intercept

    @contextmanager
    def assume_role(self, name):
        self._role = name
        try:
            yield
        finally:
            self._role = None

    def _intercept(self, request, effect):
        role = self._role
        if role:
            self.denied |= {
                (role, *each) for each in required_permissions(request) if not self._policies[role].allows(each)
            }
        answer = self._answer(request, effect)
        if role and answer is not None and answer.status_code == 404:
            # S3 says that an object is missing only to those who may list the bucket.
            listing = permission_for_missing(request)
            self.denied |= {(role, *listing)} if listing and not self._policies[role].allows(listing) else set()
        return answer


@pytest.fixture
def guarded_broker(data_resources, roles, data):
    return RoleGuard(data_resources, roles, data)


@pytest.fixture
def part(guarded_broker, serving):
    """A function that opens a part of the deployment with the part's own environment, under its own role."""

    @contextmanager
    def open_as(name):
        environment = {**serving.environment(name), "NAKADI_AUTH": "off"}
        with guarded_broker.assume_role(f"FunctionsRole{name.replace('_', '')}"):
            broker = open_broker(Settings.from_env(environment))
            try:
                with make_client(make_application(broker, *NEEDS[name].areas)) as api:
                    yield api
            finally:
                broker.close()

    return open_as


def test_every_role_is_enough(guarded_broker, part, serving):
    """During the life of an event type, from creation to deletion, no part needs more than its role allows."""
    with part("admin") as api:
        assert api.post("/settings/features", json={"feature": "audit_log_collection", "enabled": True}).is_success
        assert api.get("/storages").is_success
    with part("event_types") as api:
        assert api.post("/event-types", json=EVENT_TYPE).status_code == 201
        assert api.put("/event-types/kept.thing", json={**EVENT_TYPE, "owning_application": "you"}).is_success
        assert api.get("/event-types").is_success
        assert api.get("/event-types/kept.thing/schemas").is_success
    with part("publish") as api:
        assert api.post(EVENTS, json=[{"n": 1}, {"n": 2}]).status_code == 200
    _index_batch(guarded_broker, serving)
    with part("cursors") as api:
        [partition] = api.get("/event-types/kept.thing/partitions").json()
        cursor = {"partition": "0", "offset": partition["newest_available_offset"]}
        assert api.post("/event-types/kept.thing/cursors-lag", json=[cursor]).is_success
    with part("subscriptions") as api:
        subscription = api.post("/subscriptions", json=SUBSCRIPTION).json()["id"]
        assert api.get("/subscriptions").is_success
        assert api.get(f"/subscriptions/{subscription}/stats").is_success
    _stream_and_commit(guarded_broker, serving, subscription)
    with part("subscriptions") as api:
        assert api.get(f"/subscriptions/{subscription}/cursors").is_success
        assert api.delete(f"/subscriptions/{subscription}").is_success
    with part("event_types") as api:
        assert api.delete("/event-types/kept.thing").is_success
    _run_housekeeping(guarded_broker, serving)

    assert guarded_broker.denied == set()


JOBS = {
    "statistics": (statistics.main, []),
    "compaction": (compaction.main, ["--no-tidying"]),
    "retention": (retention.main, []),
    "erasure": (retention.main, ["--do", "erase", "--event-type", "kept.thing", "--path", "n", "--value", "1"]),
}


@pytest.mark.long
def test_the_role_of_every_job_is_enough(guarded_broker, part, serving, analytics, tmp_path, monkeypatch):
    """Jobs measure, compact, remove and erase archived events, and none needs more permissions than its role has."""
    # The emulation is in this process, and Spark's tasks are in others.
    for module in (retention, dead_members, failed_events, old_versions):
        monkeypatch.setattr(module, "run_in_tasks", lambda _, parts, job: job(parts))
    with part("event_types") as api:
        assert api.post("/event-types", json=EVENT_TYPE).status_code == 201
    with part("publish") as api:
        assert api.post(EVENTS, json=[{"n": 1}, {"n": 2}]).status_code == 200
    _index_batch(guarded_broker, serving)

    for name, (main, more) in JOBS.items():
        role = "retention" if name == "erasure" else name
        with (
            guarded_broker.assume_role(f"AnalyticsRole{role}"),
            redirect_stderr(StringIO()) as told,
            redirect_stdout(StringIO()),
        ):
            code = main([*_job_arguments(analytics, role), "--tables", str(tmp_path), "--master", "local[2]", *more])
        assert code == 0, told.getvalue()

    assert guarded_broker.denied == set()
    written = boto3.client("s3", REGION).list_objects_v2(Bucket=f"nakadi-test-tables-123456789012-{REGION}")
    assert {each["Key"].split("/")[1] for each in written["Contents"] if each["Key"].startswith("reports/")} == {
        "statistics",
        "compaction",
        "retention",
    }


def _job_arguments(analytics, job):
    """The arguments of a job that the deployment gives it, except for its tables: Spark cannot reach an emulation."""
    [made] = [each for each in analytics.all("AWS::Glue::Job").values() if each["Name"].endswith(f"-{job}")]
    given = made["DefaultArguments"]
    wanted = ("--registry", "--log-index", "--archive", "--report", "--plots", "--event-log")
    return [part for name in wanted if name in given for part in (name, text(given[name]))]


@pytest.mark.parametrize(
    ("role", "table", "key"),
    [
        ("AnalyticsRolestatistics", "documents", "admins"),
        ("AnalyticsRolestatistics", "documents", "event-type"),
        ("AnalyticsRoleretention", "log-index", "stream#nakadi-test"),
        ("AnalyticsRoleretention", "documents", "event-type"),
        ("AnalyticsRolecompaction", "log-index", "topic#t"),
        ("AnalyticsRolecompaction", "documents", "event-type"),
    ],
)
def test_a_job_changes_only_what_it_owns(roles, data, role, table, key):
    """The documents of administrators and the progress of the indexer are out of the reach of jobs."""
    policy = Policy(*roles[role], data)
    resource = f"arn:aws:dynamodb:{REGION}:123456789012:table/nakadi-test-{table}"

    for action in CHANGE - LOOK_UP:
        assert not policy.allows(Permission(action, resource, key))


def test_a_reader_of_the_archive_learns_that_an_object_is_missing(guarded_broker, serving):
    """A role that may get objects may list the bucket too; otherwise S3 would refuse instead of reporting a missing
    object."""
    store = open_archive(serving.environment("cursors")["NAKADI_ARCHIVE"])
    with closing(store), guarded_broker.assume_role("FunctionsRolecursors"), pytest.raises(ArchiveObjectGone):
        store.read_range(ArchiveLocation("log/none.json.gz", 0, 1))

    assert guarded_broker.denied == set()


def _index_batch(guarded_broker, serving):
    """Let the indexer process a batch as the event source mapping would pass it."""
    client = boto3.client("kinesis", REGION)
    [shard] = client.list_shards(StreamName="nakadi-test")["Shards"]
    iterator = client.get_shard_iterator(
        StreamName="nakadi-test", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    records = [
        {
            "eventID": f"{shard['ShardId']}:{each['SequenceNumber']}",
            "eventSourceARN": "arn:aws:kinesis:eu-central-1:123456789012:stream/nakadi-test",
            "kinesis": {
                "sequenceNumber": each["SequenceNumber"],
                "partitionKey": each["PartitionKey"],
                "approximateArrivalTimestamp": each["ApproximateArrivalTimestamp"].timestamp(),
                "data": base64.b64encode(each["Data"]).decode(),
            },
        }
        for each in client.get_records(ShardIterator=iterator)["Records"]
    ]
    with guarded_broker.assume_role("FunctionsRolelogindexer"):
        indexers = log_indexer.IndexersByStream(Settings.from_env(serving.environment("log_indexer")))
        event = {"Records": records}
        assert log_indexer.index_batch(indexers.indexer_of_event(event), event) == {"batchItemFailures": []}


def _stream_and_commit(guarded_broker, serving, subscription):
    """Read an event through the service, without a subscription and with one, and commit it."""
    [container] = serving.one("AWS::ECS::TaskDefinition")["ContainerDefinitions"]
    environment = {each["Name"]: text(each["Value"]) for each in container["Environment"]}
    with guarded_broker.assume_role("StreamingRole"):
        broker = open_broker(Settings.from_env({**environment, "NAKADI_AUTH": "off"}))
        with (
            ServerThread(make_application(broker, *STREAMING_AREAS)) as serves,
            httpx.Client(base_url=serves.url, timeout=PATIENCE) as api,
        ):
            begin = {"X-Nakadi-Cursors": '[{"partition":"0","offset":"BEGIN"}]'}
            low_level = api.get(EVENTS, params={"stream_limit": 1, "batch_limit": 1}, headers=begin)
            assert json.loads(low_level.text.splitlines()[0])["events"]
            with api.stream("GET", f"/subscriptions/{subscription}/events", params={"batch_limit": 1}) as stream:
                batch = json.loads(next(line for line in stream.iter_lines() if '"events"' in line))
                assert batch["events"]
            rehearsal = {"schema": {"type": "json_schema", "schema": "{}"}, "events": 1}
            found = api.post(f"{EVENTS.removesuffix('events')}schemas/rehearsals", json=rehearsal)
            assert found.json()["events_seen"] == 1, found.text
            assert api.delete(found.headers["location"]).status_code == 204
        broker.close()


def _run_housekeeping(guarded_broker, serving):
    with guarded_broker.assume_role("FunctionsRolehousekeeping"):
        broker = open_broker(Settings.from_env({**serving.environment("housekeeping"), "NAKADI_AUTH": "off"}))
        broker.housekeeping.run()
        broker.close()
