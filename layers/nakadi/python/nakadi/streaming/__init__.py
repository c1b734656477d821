"""The streaming core: reading partitions once for all streams, limits, lines, access checks, and the low-level stream.

It depends on event types and the event log, but not on subscriptions. Begin reading with `streams.py`, then
`session.py`, which decides what to send and when, and `feeds.py`, which provides the events.
"""
