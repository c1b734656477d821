"""An application that a thread of this process serves."""

import threading

import httpx
import pytest

from nakadi.http.application import Application
from nakadi.http.message import json_response
from nakadi.http.router import Route
from nakadi.local.serving import ServerThread, server_url
from nakadi.model.authorization import UNAUTHENTICATED
from tests.support import http
from tests.support.patience import PATIENCE, started_threads, until

APPLICATION = Application(
    [Route(method="GET", template="/hello", handler=lambda _: json_response("hello"), operation="hello")],
    lambda _: UNAUTHENTICATED,
)


def test_a_server_thread_serves_immediately():
    """The first request may come immediately, on a port that was free."""
    with ServerThread(APPLICATION) as serving:
        assert http.get(f"{serving.url}/hello").json() == "hello"


def test_a_server_thread_stops_without_waiting_for_idle_clients():
    """If no request is in progress, a connected client does not delay the end, so every test may have its own
    server."""
    with httpx.Client(timeout=PATIENCE) as client:
        serving = ServerThread(APPLICATION, grace_seconds=10 * PATIENCE)
        assert client.get(f"{serving.url}/hello").json() == "hello"
        stopping = threading.Thread(target=serving.close, daemon=True)
        stopping.start()
        stopping.join(PATIENCE)

        assert not stopping.is_alive()


def test_nothing_is_left_behind():
    """After a server is closed, its port is free, its threads have ended, and closing again changes nothing."""
    with started_threads() as started:
        serving = ServerThread(APPLICATION)
        http.get(f"{serving.url}/hello")
        serving.close()
        serving.close()
        until(lambda: not started())

    with ServerThread(APPLICATION, port=serving.port) as again:
        assert http.get(f"{again.url}/hello").status_code == 200


def test_a_port_that_is_taken_is_an_error():
    """A second server on a port that is taken is refused, because only one process can use a port."""
    with ServerThread(APPLICATION) as serving, pytest.raises(OSError, match="in use"):
        ServerThread(APPLICATION, port=serving.port)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("::1", "http://[::1]:1"),
        ("my.host", "http://my.host:1"),
    ],
)
def test_an_address_that_can_be_asked_is_reported(host, url):
    """A server that listens on all addresses is reached at this machine's own address."""
    assert server_url(host, 1) == url
