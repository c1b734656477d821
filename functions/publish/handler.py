"""Publishing and deleting events."""

from nakadi.app.functions import make_http_function

handler = make_http_function("publish", "publishing")
