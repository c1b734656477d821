"""Copies event types, events and subscriptions from one broker to another while both run.

`definitions` makes the target's event types, `events` copies events from where `state` says, `positions` finds the
cursors for subscriptions that move, and `verifying` compares the two brokers. Begin with `events`.
"""
