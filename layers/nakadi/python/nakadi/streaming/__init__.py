"""The streaming core: reading partitions once for all streams, limits, lines, access checks, and the low-level stream.

Knows event types and the event log; knows no subscription. Begin reading with `streams.py`, then `session.py` for what
is sent and when, and `feeds.py` for where events come from.
"""
