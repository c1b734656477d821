"""The process that serves a connection, chosen by the connection's first request and by the load of the processes."""

import pytest

from nakadi.http.connection import MANY_BYTES
from nakadi.local.placement import MAX_PUBLISHERS_OF_FEW_EVENTS, load_of_supervisor, publishes_few_events


@pytest.mark.parametrize(
    ("processes", "connections", "shares"),
    [(1, 8, [8]), (2, 1, [1, 0]), (2, 2, [1, 1]), (2, 8, [3, 5]), (4, 4, [1, 1, 1, 1]), (4, 31, [3, 9, 9, 10])],
)
def test_the_process_that_commits_serves_the_first_and_few_of_many(processes, connections, shares):
    """The process that commits serves the first connections, because they take no detour through a second process;
    it serves few of many, because commits for other processes take its time.
    """
    opened = [0] * processes
    for _ in range(connections):
        loads = [load_of_supervisor(opened[0], processes), *opened[1:]]
        opened[loads.index(min(loads))] += 1

    assert [opened[0], *sorted(opened[1:])] == shares


def test_the_process_that_commits_serves_the_publishers_of_few_events():
    """The process that commits serves clients that publish few events, until enough of them share commits; other
    connections go to the process with the least load.
    """
    for connections in range(MAX_PUBLISHERS_OF_FEW_EVENTS):
        assert load_of_supervisor(connections, 2, few_events=True) == 0
    assert load_of_supervisor(MAX_PUBLISHERS_OF_FEW_EVENTS, 2, few_events=True) == 1.5 * MAX_PUBLISHERS_OF_FEW_EVENTS
    assert load_of_supervisor(1, 2) == 1.5


def a_head(line="POST /event-types/orders/events HTTP/1.1", length="100", name="Content-Length"):
    return f"{line}\r\nHost: x\r\n{name}: {length}\r\nAccept: */*\r\n\r\n".encode()


@pytest.mark.parametrize(
    "first_bytes",
    [
        *(a_head(), a_head() + b'[{"n":1}]', a_head(name="content-length", length=str(MANY_BYTES - 1))),
        a_head("POST /event-types/orders.new-1/events?x=y HTTP/1.1"),
        b"POST /event-types/orders/events HTTP/1.1\r\nContent-Length:  100\r\n\r\n",
    ],
)
def test_publishers_of_few_events(first_bytes):
    """A first request with a small body of events is recognized by the bytes that have arrived."""
    assert publishes_few_events(first_bytes)


@pytest.mark.parametrize(
    "first_bytes",
    [
        *(b"", b"POST /event-types/orders/events HTTP/1.1\r\nHo", b"\x16\x03\x01", a_head(length=str(MANY_BYTES))),
        *(a_head(length="1234567890"), a_head(length="x"), a_head(name="X-Content-Length")),
        *(a_head("GET /event-types/orders/events HTTP/1.1"), a_head("POST /event-types HTTP/1.1")),
        *(a_head("POST /event-types/orders/deleted-events HTTP/1.1"), a_head("POST /event-types/a/b/events HTTP/1.1")),
        *(a_head("POST /subscriptions/1/cursors HTTP/1.1"), a_head("POST /event-types//events HTTP/1.1")),
        a_head(name="Transfer-Encoding", length="chunked") + b"\r\nContent-Length: 100\r\n\r\n",
    ],
)
def test_other_clients(first_bytes):
    """Every other client gets the process with the least load; so does a client that has sent too few bytes so far."""
    assert not publishes_few_events(first_bytes)
