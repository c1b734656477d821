"""Settings, storages, and what the broker says of itself."""

from nakadi.app.functions import http_function

handler = http_function("admin", "settings", "monitoring")
