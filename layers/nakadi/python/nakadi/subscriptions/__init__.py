"""Subscriptions: `api` implements the endpoints of subscriptions; `stream` serves the streams that consume a
subscription.

`stream` builds on `api` and on `nakadi.streaming`; `api` depends on neither. Begin reading with `api/resource.py` and
with `stream/session.py`.
"""
