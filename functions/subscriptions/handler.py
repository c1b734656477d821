"""Subscriptions, their cursors and their statistics."""

import nakadi.engines.dynamodb.coordination  # noqa: F401  # loaded while the function starts
from nakadi.app.functions import make_http_function

handler = make_http_function("subscriptions", "subscriptions")
