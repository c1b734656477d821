"""On a schedule: retention, compaction, what deleted things left, redriven dead letters, and stalled subscriptions."""

import os
from contextlib import suppress
from urllib.error import HTTPError
from urllib.request import urlopen

from nakadi.app.broker import open_broker
from nakadi.app.engines import load_engines_on_aws
from nakadi.app.functions import FunctionMetrics, Handle, LambdaFunction
from nakadi.app.settings import Settings
from nakadi.common.work import failures

# More than the gateway itself waits.
PATIENCE = 60.0


def ask(url: str) -> None:
    """Keep the gateway's way to the streaming service open: any answer is one, and none is a fault."""
    with suppress(HTTPError):
        urlopen(url, timeout=PATIENCE).close()  # noqa: S310  # the address of our own API, which the deployment tells


def opened(counts: FunctionMetrics) -> Handle:
    broker = open_broker(Settings.from_env(os.environ))

    def run(event: object, _context: object) -> None:
        if isinstance(event, dict) and "ask" in event:
            ask(str(event["ask"]))
            return
        before = sum(failures().values())
        lag = broker.keep_house()
        # A metric is paid for as soon as it is told, so that there is nothing is told by silence.
        for name, count in (
            ("FailedChores", sum(failures().values()) - before),
            ("StalledSubscriptions", len(broker.subscription_maintenance.stall_watch.stalled)),
            ("GapsFound", broker.lost_events.found),
        ):
            if count:
                counts.number(name, count)
        if lag is not None:
            counts.number("IndexLag", round(lag.total_seconds()))

    return run


load_engines_on_aws()
handler = LambdaFunction("housekeeping", opened)
