"""Whether an alert would fire for a broker that runs."""

from __future__ import annotations

import httpx

from nakadi_cli.monitoring.alerts import ALERTS
from tests.support.metrics import scrape
from tests.support.promql import evaluate

SCRAPE_INTERVAL_SECONDS = 60.0

_EXPRESSIONS = {each.name: each.expression for each in ALERTS}


class AlertWatch:
    """Compares a broker as it was when the watch began with how it is now, as if that had been a minute ago."""

    def __init__(self, api: httpx.Client) -> None:
        self.api = api
        self._before = scrape(api)

    def fires(self, alert: str) -> bool:
        history = [(0.0, self._before), (SCRAPE_INTERVAL_SECONDS, scrape(self.api))]
        return bool(evaluate(_EXPRESSIONS[alert], history))
