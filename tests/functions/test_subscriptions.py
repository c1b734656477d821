"""Subscriptions in the functions: the resource, its offsets, and the effect of deleting event types."""

import json

import pytest

from nakadi.app.engines import open_coordination
from nakadi.model.event_type import Position
from nakadi.model.subscription import EMPTY_ASSIGNMENT, Assignment, EventTypePartition, PartitionAssignment
from nakadi.ports.clock import SystemClock
from tests.support.aws import refusal_fault
from tests.support.coordination import a_session
from tests.support.functions import load_recorded_event

EVENT_TYPE = "shop.order-placed"
PLACE = EventTypePartition(EVENT_TYPE, "0")
OFFSET = "001-0001-000000000000000001"


@pytest.fixture
def ask(functions):
    """A function that sends a request to the function of subscriptions, as the administrator."""

    def ask(method, path, body=None, function="subscriptions", headers=None):
        event = load_recorded_event("apigateway/delete_event_type") | {
            "httpMethod": method,
            "path": path,
            "body": None if body is None else json.dumps(body),
        }
        given = {"Content-Type": "application/json", **(headers or {})}
        event["requestContext"]["authorizer"]["scopes"] = "uid nakadi.config.write nakadi.event_stream.read"
        event["headers"], event["multiValueHeaders"] = given, {name: [value] for name, value in given.items()}
        answer = functions.invoke(function, event)
        return answer["statusCode"], json.loads(answer["body"]) if answer["body"] else None

    return ask


@pytest.fixture
def subscription(functions, ask):
    assert functions.invoke("event_types", "apigateway/create_event_type")["statusCode"] == 201
    assert functions.invoke("publish", "apigateway/publish_batch")["statusCode"] == 200
    status, body = ask("POST", "/subscriptions", subscription_body())
    assert status == 201
    return body["id"]


@pytest.fixture
def coordination(broker):  # noqa: ARG001  # it is inside
    """The state that streams share with the functions."""
    opened = open_coordination("dynamodb://live")
    yield opened
    opened.close()


def subscription_body(**changes):
    return {"owning_application": "shop", "event_types": [EVENT_TYPE], "read_from": "begin", **changes}


def cursor(offset=OFFSET):
    return {"event_type": EVENT_TYPE, "partition": "0", "offset": offset, "cursor_token": "t"}


def stream_everything(coordination, subscription, session):
    """Let a session own and stream all partitions."""
    old = coordination.assignment(subscription)
    positions = {PLACE: Position(1, -1)} if old == EMPTY_ASSIGNMENT else {}
    new = Assignment(initialised=True, entries=(PartitionAssignment(PLACE, session),), sessions=(a_session(session),))
    return coordination.replace_assignment(subscription, old, new, SystemClock().now(), positions)


def test_offsets_are_set_and_read(ask, subscription):
    """Functions that share only tables create a subscription, set its offsets and show them. (S103, S134, S135)"""
    path = f"/subscriptions/{subscription}/cursors"
    assert ask("PATCH", path, {"items": []})[0] == 204
    assert [each["offset"] for each in ask("GET", path)[1]["items"]] == ["001-0001--1"]
    assert ask("PATCH", path, {"items": [cursor()]})[0] == 204
    assert [each["offset"] for each in ask("GET", path)[1]["items"]] == [OFFSET]
    status, stats = ask("GET", f"/subscriptions/{subscription}/stats")
    assert (status, stats["items"][0]["partitions"][0]["state"]) == (200, "unassigned")


def test_a_stream_commits_by_a_function(ask, subscription, coordination):
    """The session that owns a partition can commit through a function, once; other sessions cannot. (S114, S118, S123,
    S124)
    """
    stream = "4c1c9a6d-3ab4-4f5e-9a54-111111111111"
    stream_everything(coordination, subscription, stream)
    path = f"/subscriptions/{subscription}/cursors"

    def commit(session):
        return ask("POST", path, {"items": [cursor()]}, headers={"X-Nakadi-StreamId": session})

    assert commit("4c1c9a6d-3ab4-4f5e-9a54-222222222222")[0] == 422
    assert commit(stream)[0] == 204
    status, body = commit(stream)
    assert (status, body["items"][0]["result"]) == (200, "outdated")
    assert coordination.committed_offsets(subscription)[PLACE].position == Position(1, 1)


def test_a_commit_that_cannot_be_made_is_a_503(ask, broker, subscription, coordination):
    """If DynamoDB lacks capacity for a longer time, the function tells the client to retry, and commits nothing."""
    stream = "4c1c9a6d-3ab4-4f5e-9a54-111111111111"
    stream_everything(coordination, subscription, stream)
    broker.goes_wrong("UpdateItem", *[refusal_fault("ProvisionedThroughputExceededException")] * 4)
    path = f"/subscriptions/{subscription}/cursors"
    assert ask("POST", path, {"items": [cursor()]}, headers={"X-Nakadi-StreamId": stream})[0] == 503
    assert coordination.committed_offsets(subscription)[PLACE].position == Position(1, -1)


def test_a_deleted_subscription_leaves_nothing(ask, subscription, coordination):
    """Deleting a subscription also deletes the state that its streams shared. (S60, S72)"""
    stream_everything(coordination, subscription, "a")
    assert ask("DELETE", f"/subscriptions/{subscription}")[0] == 204
    assert coordination.assignment(subscription) == EMPTY_ASSIGNMENT
    assert coordination.committed_offsets(subscription) == {}


def test_what_could_not_be_cleared_is_cleared_on_schedule(ask, functions, broker, subscription, coordination):
    """A deletion that leaves something behind is finished by housekeeping. (S72)"""
    stream_everything(coordination, subscription, "a")
    broker.goes_wrong("BatchWriteItem", *[refusal_fault("ThrottlingException")] * 4)
    assert ask("DELETE", f"/subscriptions/{subscription}")[0] == 204
    assert coordination.assignment(subscription) != EMPTY_ASSIGNMENT
    functions.invoke("housekeeping", "schedule/housekeeping")
    assert coordination.assignment(subscription) == EMPTY_ASSIGNMENT


def test_an_event_type_goes_with_subscriptions_that_may(ask, subscription, coordination):
    """A subscription prevents the deletion of its event type, unless it may be deleted with it; then its offsets are
    deleted too. (S290, S291)
    """
    given_up = subscription_body(owning_application="nakadi_archiver", consumer_group="nakadi_to_s3")
    other = ask("POST", "/subscriptions", given_up)[1]["id"]
    assert ask("PATCH", f"/subscriptions/{other}/cursors", {"items": []})[0] == 204
    path = f"/event-types/{EVENT_TYPE}"

    assert ask("DELETE", path, function="event_types")[0] == 409
    assert ask("DELETE", f"/subscriptions/{subscription}")[0] == 204
    assert coordination.assignment(other).initialised
    assert ask("DELETE", path, function="event_types")[0] == 200

    assert ask("GET", f"/subscriptions/{other}")[0] == 404
    assert coordination.assignment(other) == EMPTY_ASSIGNMENT
