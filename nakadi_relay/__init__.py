"""Publishes events that an application wrote into its own PostgreSQL database, in one transaction with its other data.

    from nakadi_relay import Relay

    with Relay("postgresql://app@db/shop", "https://events.example.org") as relay:
        relay.run()

The application inserts rows into an outbox table. The relay publishes them in order by key, and deletes them when the
broker has acknowledged them. It uses only the broker's HTTP API. Begin reading with `relay`; `verdicts` decides without
input or output what happens to rows, `schema` has the SQL that creates tables, and `outbox` has all other SQL.
"""

from nakadi_relay.feed import Feed, FeedUnusable
from nakadi_relay.outbox import RefusedRow
from nakadi_relay.relay import Relay, Status
from nakadi_relay.schema import OutboxNames, outbox_schema

__all__ = ["Feed", "FeedUnusable", "OutboxNames", "RefusedRow", "Relay", "Status", "outbox_schema"]
