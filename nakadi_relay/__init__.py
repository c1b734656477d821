"""Publishes events that an application wrote into its own PostgreSQL database, in the same transaction as its data.

    from nakadi_relay import Relay

    with Relay("postgresql://app@db/shop", "https://events.example.org") as relay:
        relay.run()

The application inserts rows into an outbox table. The relay publishes them in order by key, and deletes them when the
broker has acknowledged them. It knows nothing of the broker but its HTTP API. Begin reading with `relay`; `verdicts`
decides without input or output on the fate of rows, and `outbox` has all SQL but the tables', which is in `schema`.
"""

from nakadi_relay.feed import Feed, FeedUnusable
from nakadi_relay.outbox import RefusedRow
from nakadi_relay.relay import Relay, Status
from nakadi_relay.schema import OutboxNames, outbox_schema

__all__ = ["Feed", "FeedUnusable", "OutboxNames", "RefusedRow", "Relay", "Status", "outbox_schema"]
