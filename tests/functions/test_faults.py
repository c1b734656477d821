"""The answers of the functions while Kinesis, DynamoDB or S3 fail."""

import json

import boto3
import pytest

from nakadi.engines.kinesis import tails
from tests.support.aws import REGION, EmulatedAws, error_before_effect, refusal_fault, timeout_before_effect
from tests.support.functions import load_recorded_event
from tests.support.kinesis import ON_MOTO, create_stream

EXPIRED = refusal_fault("ExpiredTokenException")
THROTTLED = refusal_fault("ThrottlingException")
SOME = pytest.mark.parametrize("fault", [THROTTLED, EXPIRED], ids=["throttled", "expired credentials"])


@pytest.fixture
def kinesis_event_type(broker: EmulatedAws, environment, functions, monkeypatch):
    """Create an event type whose events go to a stream, and return the emulated AWS."""
    stream = create_stream(boto3.client("kinesis", region_name=REGION), shards=1)
    bucket = {"CreateBucketConfiguration": {"LocationConstraint": REGION}}
    boto3.client("s3", region_name=REGION).create_bucket(Bucket="archive", **bucket)
    environment.setenv("NAKADI_EVENT_LOG", f"{ON_MOTO.format(stream=stream)}&give_up_after=0.5")
    environment.setenv("NAKADI_LOG_INDEX", f"dynamodb://live?region={REGION}")
    environment.setenv("NAKADI_ARCHIVE", f"s3://archive/?region={REGION}")
    monkeypatch.setattr(tails, "RETRY_AFTER_REFUSAL_SECONDS", 0.0)  # in this test, "soon" means at once
    assert functions.invoke("event_types", "apigateway/create_event_type")["statusCode"] == 201
    assert functions.invoke("publish", "apigateway/publish_batch")["statusCode"] == 200
    assert functions.invoke("cursors", partition_ends_request())["statusCode"] == 200
    return broker


def partition_ends_request() -> dict:
    """A request that shows where the partitions begin and end."""
    event = load_recorded_event("apigateway/shift_cursors")
    name = load_recorded_event("apigateway/publish_batch")["path"].split("/")[2]
    return {**event, "httpMethod": "GET", "path": f"/event-types/{name}/partitions", "body": None}


def unavailable_problem(answer: dict) -> dict:
    """Check that an answer is a 503 that says when to retry and reveals no internals, and return its Problem."""
    assert answer["statusCode"] == 503
    assert answer["multiValueHeaders"]["retry-after"] == ["1"]
    assert answer["multiValueHeaders"]["content-type"] == ["application/problem+json"]
    told = json.loads(answer["body"])
    assert told["status"] == 503
    assert "Token" not in answer["body"]
    return told


def inject_faults(broker: EmulatedAws, operations: list[str], fault) -> None:
    for operation in operations:
        broker.goes_wrong(operation, *[fault] * 60)


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        ("GetRecords", THROTTLED),
        ("GetRecords", EXPIRED),
        ("GetRecords", error_before_effect),
        ("BatchGetItem", timeout_before_effect),
    ],
)
def test_readers_are_asked_to_come_again(functions, kinesis_event_type, monkeypatch, operation, fault):
    """While the newest events are unknown, no client gets an answer about them; soon after the outage, all requests
    succeed.
    """
    functions._handlers.pop("cursors")
    with monkeypatch.context() as patch:
        # The limit applies only here, because a success may take longer on a busy machine.
        patch.setattr(tails, "RETRY_TIMEOUT_SECONDS", 0.5)
        inject_faults(kinesis_event_type, [operation], fault)
        unavailable_problem(functions.invoke("cursors", partition_ends_request()))
    kinesis_event_type.goes_right()
    told = functions.invoke("cursors", partition_ends_request())
    assert told["statusCode"] == 200
    assert json.loads(told["body"])[0]["newest_available_offset"].endswith("01")


@SOME
def test_publishers_get_the_outcome_of_every_event(functions, kinesis_event_type, fault):
    """While Kinesis accepts nothing, the answer has an outcome for each event, and none is stored; after the outage,
    all events are stored. (P111)
    """
    inject_faults(kinesis_event_type, ["PutRecords"], fault)
    answer = functions.invoke("publish", "apigateway/publish_batch")
    assert answer["statusCode"] in {207, 422}
    assert {each["publishing_status"] for each in json.loads(answer["body"])} == {"failed"}
    kinesis_event_type.goes_right()
    assert functions.invoke("publish", "apigateway/publish_batch")["statusCode"] == 200


@SOME
def test_changes_of_the_registry_are_to_be_repeated(functions, kinesis_event_type, fault):
    """While DynamoDB accepts nothing, nothing changes, and a later retry succeeds."""
    event = load_recorded_event("apigateway/create_event_type")
    event["body"] = event["body"].replace(json.loads(event["body"])["name"], "another.type")
    inject_faults(kinesis_event_type, ["TransactWriteItems", "PutItem"], fault)
    unavailable_problem(functions.invoke("event_types", event))
    kinesis_event_type.goes_right()
    assert functions.invoke("event_types", event)["statusCode"] == 201
