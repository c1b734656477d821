"""The subscription resource: creating and listing, cursors and commits, statistics, resets, and parked events.

Also the rules that streams and requests share: how partitions are assigned to sessions, and when a lease has run out.
Knows event types, the registry and coordination; knows no stream. Begin reading with `resource.py` and `cursors.py`.
"""
