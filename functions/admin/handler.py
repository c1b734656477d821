"""Administration: settings, storages, health, metrics and the description of the API."""

from nakadi.app.functions import make_http_function

handler = make_http_function("admin", "settings", "monitoring")
