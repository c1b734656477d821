"""Publishes and deletes events."""

from nakadi.app.functions import make_http_function

handler = make_http_function("publish", "publishing")
