"""Partitions, distances, lags and shifts."""

from nakadi.app.functions import make_http_function

handler = make_http_function("cursors", "cursors", collects_kpis=False)
