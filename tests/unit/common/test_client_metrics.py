"""Metrics of each client, with little memory."""

import pytest

from nakadi.common.client_metrics import ClientMetrics


@pytest.fixture
def clients():
    """The metrics of a process that keeps three rows."""
    return ClientMetrics(max_rows=3)


def test_requests_are_timed_by_client_method_and_path(clients):
    clients.count_request("billing", "GET", "/event-types", 0.5)
    clients.count_request("billing", "GET", "/event-types", 0.25)
    clients.count_request("billing", "POST", "/event-types", 1.0)

    counted = {key: list(row.recent_values) for key, row in clients.requests().items()}
    assert counted == {("billing", "GET", "/event-types"): [0.5, 0.25], ("billing", "POST", "/event-types"): [1.0]}


def test_sent_bytes_add_up(clients):
    clients.count_sent_bytes(("hila", "billing", "s"), 10)
    clients.count_sent_bytes(("hila", "billing", "s"), 5)
    clients.count_sent_bytes(("lola", "billing", "s"), 1)

    assert clients.sent_bytes() == {("hila", "billing", "s"): 15, ("lola", "billing", "s"): 1}


def test_the_rows_that_were_used_last_are_kept(clients):
    """A client that keeps requesting new paths displaces its own rows, and not those that are in use. (R246)"""
    for number in range(10):
        clients.count_request("billing", "GET", "/used", 0.1)
        clients.count_request("stray", "GET", f"/{number}", 0.1)

    assert list(clients.requests()) == [("stray", "GET", "/8"), ("billing", "GET", "/used"), ("stray", "GET", "/9")]
    assert clients.requests()["billing", "GET", "/used"].value_count == 10


def test_a_copy_does_not_change_any_more(clients):
    """A copy of the metrics does not change any more, so it can be added to the metrics of other processes."""
    clients.count_request("billing", "GET", "/", 0.1)
    copied = clients.requests()
    clients.count_request("billing", "GET", "/", 0.1)

    assert copied["billing", "GET", "/"].value_count == 1
