"""Publishing and deleting events."""

from nakadi.app.http_function import http_function

handler = http_function("publish", "publishing")
