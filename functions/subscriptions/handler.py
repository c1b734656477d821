"""Subscriptions: making, finding and changing them, their cursors and statistics."""

import nakadi.engines.dynamodb.coordination  # noqa: F401  # loaded while the function starts
from nakadi.app.functions import http_function

handler = http_function("subscriptions", "subscriptions")
