"""Partitions, distances, lags and shifts."""

from nakadi.app.http_function import http_function

handler = http_function("cursors", "cursors", tells=False)
