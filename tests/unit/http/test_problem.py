"""Expected failures and internal errors as Problems."""

import json
import re

import pytest

from nakadi.http import problem
from nakadi.model import outcomes
from nakadi.model.outcomes import Violation
from nakadi.ports.coordination import AssignmentChanged
from nakadi.ports.event_log import SealedTopic, UnknownTopic
from nakadi.ports.registry import ChangedMeanwhile, PutDocument
from tests.support.clock import HandMovedClock
from tests.support.logs import records_of_this_thread


def body_of(response):
    return json.loads(response.body)


@pytest.mark.parametrize(
    ("error", "status", "title"),
    [
        (outcomes.Malformed("x"), 400, "Bad Request"),
        (outcomes.NotPermitted("x"), 403, "Forbidden"),
        (outcomes.NotFound("x"), 404, "Not Found"),
        (problem.MethodNotAllowed("PUT", "GET"), 405, "Method Not Allowed"),
        (problem.NotAcceptable("x"), 406, "Not Acceptable"),
        (problem.RequestTooSlow("x"), 408, "Request Timeout"),
        (outcomes.Conflict("x"), 409, "Conflict"),
        (outcomes.UnusableCursor("x"), 412, "Precondition Failed"),
        (outcomes.TooLarge("x"), 413, "Request Entity Too Large"),
        (problem.UnsupportedMediaType("x"), 415, "Unsupported Media Type"),
        (outcomes.Invalid("x"), 422, "Unprocessable Entity"),
        (outcomes.FeatureSwitchedOff("x"), 501, "Not Implemented"),
        (outcomes.TryLater("x"), 503, "Service Unavailable"),
        (outcomes.Unavailable("y", public="x"), 503, "Service Unavailable"),
    ],
)
def test_every_outcome_has_its_status(error, status, title):
    """A Problem is JSON with a title, the status and the detail, in a media type of its own. (R16)"""
    response = problem.problem_of_error(error)

    assert response.status == status
    assert response.headers["content-type"] == "application/problem+json"
    assert body_of(response)["title"] == title
    assert body_of(response)["status"] == status
    assert body_of(response)["detail"] == getattr(error, "public", str(error))
    assert "instance" not in body_of(response)


def test_problems_have_a_type():
    """Every Problem has a type that is an absolute URI, because some clients need one. (R17: a deviation)"""
    assert body_of(problem.problem_of_error(outcomes.NotFound("x")))["type"] == "http://httpstatus.es/404"


def test_a_problem_without_detail_has_no_such_member():
    """`detail` is left out when there is none. (R16)"""
    assert "detail" not in body_of(problem.problem_of_error(outcomes.Malformed("")))


def test_violations_are_reported_line_by_line():
    """Violations are answered with 422 and one line each, with a line break after each line, and with the fields' paths
    as clients spell them.

    (R18, R19, R20)
    """
    error = outcomes.Violations(
        (
            Violation("authorization.readers[0].data_type", "must not be null"),
            Violation("annotations[My-Key]", "size must be between 0 and 1000"),
        )
    )

    assert body_of(problem.problem_of_error(error)) == {
        "type": "http://httpstatus.es/422",
        "title": "Unprocessable Entity",
        "status": 422,
        "detail": 'Field "authorization.readers[0].data_type" must not be null\n'
        'Field "annotations[My-Key]" size must be between 0 and 1000\n',
    }


def test_malformed_fields_are_answered_with_a_list_of_violations():
    """Two operations answer violations with 400 and a sorted list. (R22)"""
    response = problem.problem_of_error(
        outcomes.MalformedFields((Violation("type", "must not be null"), Violation("schema", "x")))
    )

    assert response.status == 400
    assert body_of(response) == {
        "type": "https://zalando.github.io/problem/constraint-violation",
        "title": "Constraint Violation",
        "status": 400,
        "violations": [{"field": "schema", "message": "x"}, {"field": "type", "message": "must not be null"}],
    }


@pytest.mark.parametrize(
    ("error", "status"), [(outcomes.NotAuthenticated("who?"), 401), (outcomes.NotPermitted("no scope"), 403)]
)
def test_the_token_layer_has_a_form_of_its_own(error, status):
    """Errors of the token layer are plain JSON, with members in a fixed order. (R23)"""
    response = problem.token_problem(error)

    assert response.status == status
    assert response.headers["content-type"] == "application/json"
    assert list(body_of(response)) == ["type", "title", "status", "detail"]
    assert body_of(response)["type"] == f"https://httpstatus.es/{status}"


def test_a_missing_token_is_asked_for():
    """A 401 tells the client how to authenticate."""
    assert problem.token_problem(outcomes.NotAuthenticated("x")).headers["www-authenticate"] == "Bearer"


def test_a_fault_keeps_its_secrets():
    """An internal error is answered with 500 and a ticket, without internal details. (R24)"""
    response = problem.problem_of_error(RuntimeError("password=hunter2"))

    assert response.status == 500
    assert re.fullmatch(
        r"An internal error happened\. Please report it\. \(ETI[a-zA-Z0-9]{24}\)", body_of(response)["detail"]
    )


def test_a_store_that_does_not_answer_keeps_its_secrets():
    """An error of a store is answered with 503 and a ticket, without files, statements and tables, which do not concern
    clients."""
    response = problem.problem_of_error(outcomes.Unavailable("/var/nakadi.db: no such table: documents"))

    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert re.fullmatch(
        r"A part of the broker does not answer at the moment, please repeat request \(ETI[a-zA-Z0-9]{24}\)",
        body_of(response)["detail"],
    )


def test_a_fault_may_have_words_for_clients():
    """A Problem about an error of a store shows only the text that is written for clients."""
    fault = outcomes.Unavailable("arn:aws:kinesis:eu-central-1:1:stream/x", public="The storage x cannot be reached")

    assert body_of(problem.problem_of_error(fault))["detail"] == "The storage x cannot be reached"


@pytest.mark.parametrize("error", [RuntimeError("hunter2"), outcomes.Unavailable("hunter2")])
def test_the_log_has_the_cause_beside_the_ticket(error, caplog):
    """The log has the cause of an error together with the ticket of its Problem."""
    response = problem.make_and_log_problem(error, "GET /x")

    [record] = records_of_this_thread(caplog)
    assert body_of(response)["detail"] in record.getMessage()
    assert "hunter2" in caplog.text


def test_an_outcome_is_not_logged(caplog):
    """An expected failure is not logged, because it concerns the client and not the operators."""
    problem.make_and_log_problem(outcomes.TryLater("x"), "GET /x")

    assert records_of_this_thread(caplog) == []


def test_what_a_client_sent_can_always_be_repeated_back():
    """If the detail contains half a surrogate pair, the Problem can still be sent."""
    assert json.loads(problem.problem_of_error(outcomes.Invalid("no \ud800")).body)["detail"] == "no \ud800"


@pytest.mark.parametrize(
    "lost",
    [
        ChangedMeanwhile(PutDocument("event-types", "secret", {}, expected_revision=3)),
        AssignmentChanged("secret"),
        UnknownTopic("secret"),
        SealedTopic("secret"),
    ],
)
def test_a_race_that_was_lost_can_be_repeated(lost):
    """If a change happens between a read and a write, the answer tells the client to repeat the request, and does not
    mention the store."""
    response = problem.problem_of_error(lost)

    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert body_of(response)["detail"] == "This was changed by others meanwhile, please repeat request"


def test_a_client_that_should_try_again_learns_when():
    """A 503 contains the number of seconds after which to try again."""
    assert problem.problem_of_error(outcomes.TryLater("x")).headers["retry-after"] == "1"


def test_a_refused_schema_comes_with_reasons():
    """The reasons for refusing a schema change are reported rule by rule, beside the text that clients match on."""
    reason = outcomes.IncompatibilityReason("rule", "#/properties/a", "Because.")

    reasons = body_of(problem.problem_of_error(outcomes.IncompatibleSchema("Invalid schema", (reason,))))["reasons"]

    assert reasons == [{"rule": "rule", "path": "#/properties/a", "explanation": "Because."}]


def test_faults_with_the_same_cause_share_a_ticket_for_a_minute():
    """For a minute, faults with the same cause share a ticket, so one line of the log explains all of them. Another
    cause, and a later minute, have tickets of their own.
    """
    clock = HandMovedClock()
    tickets = problem.Tickets(clock.monotonic)
    full, locked = outcomes.Unavailable("database or disk is full"), outcomes.Unavailable("database is locked")
    first = tickets.ticket_of(full)
    clock.move(59)

    assert tickets.ticket_of(outcomes.Unavailable("database or disk is full")) == first
    assert tickets.ticket_of(locked) != first
    clock.move(1)
    assert tickets.ticket_of(full) != first


def test_many_causes_take_bounded_memory(monkeypatch):
    """If causes differ from fault to fault, the oldest causes are forgotten; a forgotten cause gets a new ticket."""
    monkeypatch.setattr(problem, "MAX_CAUSES_WITH_TICKETS", 3)
    tickets = problem.Tickets(HandMovedClock().monotonic)
    first = tickets.ticket_of(outcomes.Unavailable("0"))
    last = [tickets.ticket_of(outcomes.Unavailable(str(number))) for number in range(1, 4)]

    assert [tickets.ticket_of(outcomes.Unavailable(str(number))) for number in range(1, 4)] == last
    assert tickets.ticket_of(outcomes.Unavailable("0")) != first
