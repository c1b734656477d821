"""Deliveries: the broker itself reads the stream of each subscription that has a sink, and sends the events to the
sink.

This package depends on the streams of subscriptions and on the registry, which stores the sinks, but not on requests of
the API. Begin reading with `lanes.py`, which decides what to send and when, then `courier.py`, which carries that out
for one sink, and `dispatcher.py`, which finds the sinks that this process delivers to.
"""
