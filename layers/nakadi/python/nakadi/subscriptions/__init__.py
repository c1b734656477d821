"""Subscriptions: the resource, its cursors, and how streams share it."""
