"""Settings, storages, and what the broker says of itself."""

from nakadi.app.functions import make_http_function

handler = make_http_function("admin", "settings", "monitoring")
