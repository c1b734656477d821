"""Subscriptions: `api` has the subscription resource and what its endpoints do; `stream` serves the streams that
consume a subscription.

`stream` builds on `api` and on `nakadi.streaming`; `api` depends on neither. Begin reading with `api/resource.py` and
with `stream/session.py`.
"""
