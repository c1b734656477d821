"""Publishing and deleting events."""

from nakadi.doorways.http import http_function

handler = http_function("publish", "publishing")
