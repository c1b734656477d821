"""On a schedule: retention, compaction, and what deleted event types left."""

import os

import nakadi.catalog.housekeeping
import nakadi.registries.dynamodb  # noqa: F401  # loaded while the function starts
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
