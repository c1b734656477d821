"""The subscription resource: creates and lists subscriptions, and handles cursors, commits, statistics, resets and
parked events.

This package also has the rules that streams and requests share: how sessions get partitions (`assignments.py`), and
when a lease has expired (`lease_watch.py`). It depends on event types, the registry and coordination, but not on
streams. Begin reading with `resource.py` and `cursors.py`.
"""
