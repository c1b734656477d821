"""The streams of subscriptions, on top of the streaming core.

A session decides, purely, what is sent and when the stream ends; a driver carries events, actions and calls; members
join and leave the assignment that the streams of a subscription share. Begin reading with `session.py`, then
`streams.py`.
"""
