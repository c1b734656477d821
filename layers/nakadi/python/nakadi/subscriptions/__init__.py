"""Subscriptions: `api` is the resource and everything its endpoints do; `stream` serves the streams that consume it.

`stream` builds on `api` and on `nakadi.streaming`; `api` depends on neither. Begin reading with `api/resource.py` and
with `stream/session.py`.
"""
