"""Partitions, distances, lags and shifts."""

from nakadi.app.functions import http_function

handler = http_function("cursors", "cursors", collects_kpis=False)
