"""Calls the functions behind API Gateway with recorded invocations."""

import json

import pytest

from tests.support.aws import no_connection, refusal_fault
from tests.support.functions import load_recorded_event


@pytest.fixture
def event_type(functions):
    answer = functions.invoke("event_types", "apigateway/create_event_type")
    assert answer["statusCode"] == 201
    return "shop.order-placed"


def logged_lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.usefixtures("event_type")
@pytest.mark.parametrize(
    ("function", "event", "status"),
    [
        ("publish", "publish_batch", 200),
        ("publish", "publish_gzip_batch", 200),
        ("event_types", "read_event_type_without_token", 401),
        ("event_types", "create_event_type", 409),
        ("cursors", "shift_cursors", 200),
        ("subscriptions", "list_subscriptions_by_event_types", 401),
        ("admin", "switch_feature", 204),
        ("admin", "console_test_invocation", 200),
    ],
)
def test_invocations_are_answered(functions, function, event, status):
    """Each function answers the gateway's invocations like the broker on one machine. (R38)"""
    answer = functions.invoke(function, f"apigateway/{event}")

    assert answer["statusCode"] == status
    assert answer["multiValueHeaders"]["x-flow-id"]


@pytest.mark.usefixtures("event_type")
def test_functions_share_what_they_know(functions):
    """A function sees what another one has written: an event type in the tables, and its events in the log."""
    assert functions.invoke("publish", "apigateway/publish_batch")["statusCode"] == 200

    shifted = load_recorded_event("apigateway/shift_cursors")
    shifted["body"] = '[{"partition": "0", "offset": "BEGIN", "shift": 2}]'
    answer = functions.invoke("cursors", shifted)

    assert answer["statusCode"] == 200
    assert json.loads(answer["body"])[0]["offset"].endswith("000000000000000001")


@pytest.mark.parametrize(
    ("function", "event"),
    [("publish", "create_event_type"), ("cursors", "switch_feature"), ("admin", "publish_batch")],
)
def test_a_function_has_its_own_routes_only(functions, function, event):
    """A function answers 404 to the paths of other functions."""
    assert functions.invoke(function, f"apigateway/{event}")["statusCode"] == 404


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"scopes": "uid"}, 403),
        ({"scopes": "nakadi.event_stream.write", "realm": "/customers"}, 403),
        (None, 401),
    ],
)
def test_the_authorizers_word_is_taken_and_no_other(functions, environment, event_type, change, status):
    """A function takes the subject, scopes and realm from the authorizer; without them, it accepts no request.
    (R43)"""
    assert event_type
    environment.setenv("NAKADI_AUTH_REALMS", "/employees")
    event = load_recorded_event("apigateway/publish_batch")
    if change is None:
        del event["requestContext"]["authorizer"]
    else:
        event["requestContext"]["authorizer"] |= change

    assert functions.invoke("publish", event)["statusCode"] == status


def test_the_registrys_absence_is_a_503(functions, broker, event_type):
    """When DynamoDB does not answer, the function tells the client to come back, and publishes nothing."""
    assert event_type
    functions.invoke("publish", "apigateway/publish_batch")
    broker.goes_wrong("GetItem", refusal_fault("AccessDeniedException"))

    answer = functions.invoke("publish", "apigateway/publish_batch")

    assert answer["statusCode"] == 503
    assert answer["multiValueHeaders"]["retry-after"] == ["1"]


def test_the_next_invocation_tries_again_what_failed_to_open(functions, environment):
    """If an execution environment could not open the broker, the next invocation tries again."""
    environment.setenv("NAKADI_AUTH", "perhaps")
    with pytest.raises(Exception, match="NAKADI_AUTH"):
        functions.invoke("admin", "apigateway/console_test_invocation")
    environment.setenv("NAKADI_AUTH", "off")

    assert functions.invoke("admin", "apigateway/console_test_invocation")["statusCode"] == 200


def test_a_broker_is_opened_once(functions, broker, event_type):
    """The first invocation opens the broker; later ones find it open, and send few requests to the registry."""
    assert event_type
    functions.invoke("publish", "apigateway/publish_batch")
    broker.calls.clear()
    functions.invoke("publish", "apigateway/publish_batch")

    assert set(broker.calls) <= {"GetItem"}


@pytest.mark.usefixtures("event_type")
class TestLogsOfFunctions:
    def test_metrics_are_reported_in_the_embedded_format(self, functions, capsys):
        """The function reports the number and duration of answers to CloudWatch, with the function as the only
        dimension.
        """
        capsys.readouterr()
        functions.invoke("publish", "apigateway/publish_batch")
        (told,) = [line for line in logged_lines(capsys) if "_aws" in line]

        (metrics,) = told["_aws"]["CloudWatchMetrics"]
        assert metrics["Namespace"] == "Nakadi"
        assert metrics["Dimensions"] == [["service"]]
        assert (told["service"], told["Answers"], told["Faults"], told["Refusals"]) == ("publish", [1], [0], [0])
        assert told["Duration"][0] > 0
        assert (told["operation"], told["status"], told["flow_id"]) == ("publish_events", 200, "checkout-4711")

    def test_every_line_bears_the_flow_id(self, functions, broker, capsys):
        """Lines that a function logs during a request have the request's flow id and the function's name. (R38)"""
        capsys.readouterr()
        broker.goes_wrong("GetItem", refusal_fault("AccessDeniedException"))
        functions.invoke("publish", "apigateway/publish_batch")
        told = [line for line in logged_lines(capsys) if "_aws" not in line]

        assert told
        assert all(line["flow_id"] == "checkout-4711" for line in told)
        assert all(line["function_name"] == "nakadi-live-function" for line in told)
        assert told[0]["level"] == "ERROR"
        assert "Unavailable" in told[0]["exception"]

    def test_no_line_says_a_token(self, functions, broker, capsys, monkeypatch):
        """A token in the text of an error is not written to the log."""
        secret = "Bearer eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"
        capsys.readouterr()
        functions.invoke("publish", "apigateway/publish_batch")

        def fails(*_, **__):
            raise RuntimeError(f"cannot send Authorization: {secret}")

        monkeypatch.setattr("nakadi.publishing.publisher.Publisher.publishing_task", fails)
        assert functions.invoke("publish", "apigateway/publish_batch")["statusCode"] == 500
        out = capsys.readouterr().out

        assert "cannot send" in out
        assert "eyJ" not in out
        assert broker.calls

    def test_faults_are_counted(self, functions, broker, capsys):
        """An answer that is the broker's fault counts as a fault."""
        capsys.readouterr()
        broker.goes_wrong("GetItem", *[no_connection] * 4)
        functions.invoke("publish", "apigateway/publish_batch")
        (told,) = [line for line in logged_lines(capsys) if "_aws" in line]

        assert (told["Faults"], told["Refusals"]) == ([1], [0])
