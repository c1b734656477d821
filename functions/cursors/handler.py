"""Partitions, distances, lags and shifts."""

from nakadi.doorways.http import http_function

handler = http_function("cursors", "cursors", tells=False)
