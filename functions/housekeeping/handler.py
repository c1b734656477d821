"""On a schedule: retention, compaction, and what deleted event types and subscriptions left."""

import os

import nakadi.catalog.housekeeping
import nakadi.coordination.dynamodb
import nakadi.registries.dynamodb
import nakadi.subscriptions.leftovers  # noqa: F401  # all four are loaded while the function starts
from nakadi.bootstrap import open_broker
from nakadi.doorways.function import Function
from nakadi.doorways.telling import Counts, Handle
from nakadi.settings import Settings


def opened(counts: Counts) -> Handle:
    broker = open_broker(Settings.from_env(os.environ))

    def run(_event: object, _context: object) -> None:
        broker.housekeeping.run()
        counts.one("Rounds")

    return run


handler = Function("housekeeping", opened)
