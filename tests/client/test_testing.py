"""The broker for tests, where something about it fails."""

from __future__ import annotations

import httpx
import pytest

from nakadi.local import Broker
from nakadi_client.testing import LocalNakadi
from tests.support.patience import PATIENCE


def test_a_broker_whose_client_cannot_be_made_is_closed(monkeypatch):
    """An environment with a proxy that httpx does not know ends in an error, without leaving a broker open."""
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
    """A fixture may close a broker that a test has closed."""
    nakadi = LocalNakadi()
    nakadi.close()
    nakadi.close()
