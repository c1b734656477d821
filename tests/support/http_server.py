"""Handlers for tests of the HTTP server: an echo, streams, and requests that wait."""

import hashlib
import threading

from nakadi.http.message import empty_response, json_response
from tests.support.patience import PATIENCE

# The headers that the HTTP client of the JDK sends with every request.
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA")
JSON = "Content-Type: application/json"


class StreamHandlers:
    """Streams that tests feed, and of which tests see how many are open, and how each ended."""

    def __init__(self):
        self.open = 0
        self.ends = []

    async def three(self, outlet):
        for number in range(3):
            await outlet.write(b'{"n":%d}\n' % number)

    async def idle(self, outlet):
        self.open += 1
        try:
            await outlet.when_client_gone()
            self.ends.append("gone")
        finally:
            self.open -= 1

    async def endless(self, outlet):
        self.open += 1
        try:
            while True:
                await outlet.write(b"x" * 65536)
        finally:
            self.open -= 1

    async def until_drained(self, outlet):
        self.open += 1
        await outlet.when_shutting_down()
        await outlet.write(b"bye\n")
        self.open -= 1


def echo(request):
    return json_response(
        {
            "length": len(request.body),
            "digest": hashlib.sha256(request.body).hexdigest(),
            "headers": dict(request.headers),
            "query": request.query,
        }
    )


class SlowHandler:
    """A handler that lets requests wait until a test releases them."""

    def __init__(self):
        self.entered = threading.Event()
        self.freed = threading.Event()

    def __call__(self, _request):
        self.entered.set()
        assert self.freed.wait(PATIENCE)
        return empty_response()

    def free_in_a_moment(self):
        threading.Timer(0.1, self.freed.set).start()


def digest(body):
    return hashlib.sha256(body).hexdigest()
