"""The subscription resource: it creates and lists subscriptions, and handles cursors, commits, statistics, resets and
parked events.

It also has the rules that streams and requests share: how sessions get partitions (`assignments.py`), and
when a lease has expired (`lease_watch.py`). It
knows event types, the registry and coordination, but no streams. Begin reading with `resource.py` and `cursors.py`.
"""
