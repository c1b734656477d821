"""Publishing and deleting events."""

from nakadi.app.functions import http_function

handler = http_function("publish", "publishing")
