"""Finds out whether an alert would fire for a running broker."""

from __future__ import annotations

import httpx

from nakadi_cli.monitoring.alerts import ALERTS
from tests.support.metrics import scrape
from tests.support.promql import evaluate

SCRAPE_INTERVAL_SECONDS = 60.0

_EXPRESSIONS = {each.name: each.expression for each in ALERTS}


class AlertWatch:
    """Evaluates alerts on two scrapes of a broker: one when the watch begins and one now, as if a minute had passed
    between them.
    """

    def __init__(self, api: httpx.Client) -> None:
        self.api = api
        self._before = scrape(api)

    def fires(self, alert: str) -> bool:
        history = [(0.0, self._before), (SCRAPE_INTERVAL_SECONDS, scrape(self.api))]
        return bool(evaluate(_EXPRESSIONS[alert], history))
