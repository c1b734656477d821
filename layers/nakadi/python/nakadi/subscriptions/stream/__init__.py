"""The streams of subscriptions, on top of the streaming core.

A pure session decides what to send and when the stream ends. A driver passes events to it, and carries out its actions
and calls. Members join and leave the assignment that the streams of a subscription share. Begin reading with
`session.py`, then `streams.py`.
"""
