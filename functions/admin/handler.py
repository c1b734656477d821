"""Settings, storages, and what the broker says of itself."""

from nakadi.doorways.http import http_function

handler = http_function("admin", "settings", "monitoring")
