"""Subscriptions: making, finding and changing them, their cursors and statistics."""

from nakadi.doorways.http import http_function

handler = http_function("subscriptions", "subscriptions")
