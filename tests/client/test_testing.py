"""The broker for users' tests: it closes properly after failures, and shows every event; its network really breaks."""

from __future__ import annotations

import socket

import httpx
import pytest

from nakadi.local import Broker
from nakadi_client.testing import LocalNakadi, Network
from tests.support.patience import PATIENCE


def test_a_broker_whose_client_cannot_be_made_is_closed(monkeypatch):
    """If the environment names a kind of proxy that httpx does not know, creating the client fails, and the broker
    is closed.
    """
    urls = []

    class UrlRecordingBroker(Broker):
        def __init__(self, **settings):
            super().__init__(**settings)
            urls.append(self.url)

    monkeypatch.setattr("nakadi.local.broker.Broker", UrlRecordingBroker)
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://proxy.test")
    with pytest.raises(ValueError, match="nonsense"):
        LocalNakadi()
    monkeypatch.undo()

    with pytest.raises(httpx.ConnectError):
        httpx.get(urls[0], timeout=PATIENCE)


def test_a_broker_is_closed_twice_without_harm():
    """A fixture may close a broker that a test has already closed."""
    nakadi = LocalNakadi()
    nakadi.close()
    nakadi.close()


def test_events_of_all_timelines_are_read():
    """After a change of timelines, offsets begin again at 0, and the earlier events are still read."""
    with LocalNakadi() as nakadi, httpx.Client(base_url=nakadi.url, timeout=PATIENCE) as client:
        nakadi.create_event_type("order.placed")
        publish(client, 0, 3)
        client.post("/event-types/order.placed/timelines", json={"storage_id": "default"}).raise_for_status()
        publish(client, 3, 5)
        assert [event["number"] for event in nakadi.events("order.placed")] == [0, 1, 2, 3, 4]


def test_a_network_that_goes_down_breaks_connections_that_are_being_made(monkeypatch):
    """A connection that is being made when the network goes down also breaks."""
    with socket.create_server(("127.0.0.1", 0)) as broker:
        connect = socket.create_connection
        with Network(f"http://127.0.0.1:{broker.getsockname()[1]}") as network:

            def connect_while_going_down(*place, **options):
                network.go_down()
                return connect(*place, **options)

            with monkeypatch.context() as patched:
                patched.setattr("nakadi_client.testing.socket.create_connection", connect_while_going_down)
                with connect(("127.0.0.1", httpx.URL(network.url).port), timeout=PATIENCE) as client:
                    assert client.recv(1) == b""


def publish(client, first, end):
    events = [
        {
            "number": number,
            "metadata": {"eid": f"00000000-0000-4000-8000-{number:012}", "occurred_at": "2026-11-28T12:00:00Z"},
        }
        for number in range(first, end)
    ]
    client.post("/event-types/order.placed/events", json=events).raise_for_status()
