"""Event types, their schemas and timelines."""

from nakadi.doorways.http import http_function

handler = http_function("event_types", "event_types", "schemas", "timelines", "registry")
