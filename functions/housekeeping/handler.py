"""On a schedule: retention, compaction, what deleted things left, redriven dead letters, and stalled subscriptions."""

import os

import nakadi.bootstrap_subscription_care
import nakadi.catalog.housekeeping
import nakadi.coordination.dynamodb
import nakadi.registries.dynamodb  # noqa: F401  # all four are loaded while the function starts
from nakadi.bootstrap import open_broker
from nakadi.chores import failures
from nakadi.doorways.function import Function
from nakadi.doorways.telling import Counts, Handle
from nakadi.settings import Settings


def opened(counts: Counts) -> Handle:
    broker = open_broker(Settings.from_env(os.environ))

    def run(_event: object, _context: object) -> None:
        before = sum(failures().values())
        broker.housekeeping.run()
        counts.one("Rounds")
        counts.number("FailedChores", sum(failures().values()) - before)
        counts.number("StalledSubscriptions", len(broker.subscription_care.stall_watch.stalled))
        lag = broker.index_lag()
        if lag is not None:
            counts.number("IndexLag", round(lag.total_seconds()))

    return run


handler = Function("housekeeping", opened)
