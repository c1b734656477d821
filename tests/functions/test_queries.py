"""The function that answers queries, called with recorded invocations."""

import json

import pytest

from nakadi.queries.processes import QueryProcesses
from tests.support.functions import load_recorded_event


@pytest.fixture
def orders(monkeypatch):
    """What the function asks of the processes of queries: the URL of the broker, and the token."""
    asked = []

    async def answer(self, sql, token, _is_client_gone):
        asked.append((self._broker_url, token, sql))
        return b"{}"

    monkeypatch.setattr(QueryProcesses, "answer", answer)
    return asked


@pytest.mark.usefixtures("environment")
def test_a_query_runs_in_a_process_of_its_own(functions):
    """The function answers like a broker on a server. (Q11)"""
    answer = functions.invoke("queries", "apigateway/run_query")

    assert answer["statusCode"] == 200
    told = json.loads(answer["body"])
    assert (told["columns"], told["rows"]) == ([{"name": "answer", "type": "INTEGER"}], [[42]])


@pytest.mark.usefixtures("environment")
def test_an_answer_fits_into_lambdas(functions):
    """Lambda delivers 6 MB. A longer result is cut, however many of its characters are escaped on the way. (Q18)"""
    event = load_recorded_event("apigateway/run_query")
    event["multiValueHeaders"].pop("Accept-Encoding")
    event["body"] = json.dumps({"sql": "select repeat('\u00e9', 10_000) from range(1000)"})
    answer = functions.invoke("queries", event)

    assert answer["statusCode"] == 200
    assert 5_000_000 < len(json.dumps(answer)) < 6_291_556
    assert json.loads(answer["body"])["cut"] is True


@pytest.mark.usefixtures("environment")
def test_the_stage_says_where_the_broker_is(functions, orders):
    """A query is a client of the API with the token of its caller. The request cannot choose another broker.
    (Q12, Q18)
    """
    event = load_recorded_event("apigateway/run_query")
    for headers in (event["headers"], event["multiValueHeaders"]):
        headers |= {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
    event["requestContext"]["domainName"] = "evil.example"

    assert functions.invoke("queries", event)["statusCode"] == 200
    assert orders == [("https://events.shop.example", "a-token-of-ann", "select 6 * 7 as answer")]


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("scopes", ["uid", "nakadi.event_stream.read"])
def test_a_query_needs_both_scopes(functions, orders, scopes):
    """The function itself checks the scopes, before it starts a process. (Q12)"""
    event = load_recorded_event("apigateway/run_query")
    event["requestContext"]["authorizer"]["scopes"] = scopes
    assert functions.invoke("queries", event)["statusCode"] == 403
    assert orders == []
