"""The broker for users' tests closes properly after failures."""

from __future__ import annotations

import httpx
import pytest

from nakadi.local import Broker
from nakadi_client.testing import LocalNakadi
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
