"""Event types, their schemas and timelines."""

import nakadi.engines.dynamodb.coordination  # noqa: F401  # loaded while the function starts
from nakadi.app.functions import http_function

handler = http_function("event_types", "event_types")
