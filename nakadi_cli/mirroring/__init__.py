"""Copies event types, events and subscriptions from one broker to another while both run.

`definitions` makes the target's event types with all versions of their schemas, `events` copies events from the
position in `state` (`avro_publishing` copies those in Avro), `removals` deletes what the source has removed,
`positions` finds the cursors for subscriptions that move, and `verifying` compares the two brokers. Begin with
`events`.
"""
