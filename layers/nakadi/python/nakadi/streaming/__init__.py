"""The streaming core: reading partitions once for all streams, limits, lines, access checks, and the low-level stream.

It knows event types and the event log, but no subscriptions. Begin reading with `streams.py`, then `session.py`, which
decides what to send and when, and `feeds.py`, which provides the events.
"""
