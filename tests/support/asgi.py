"""A client of the ASGI edge, and applications for it."""

import asyncio

from nakadi.http.application import Application
from nakadi.http.asgi import AsgiApplication, RequestLimits
from nakadi.http.message import StreamingResponse
from nakadi.http.router import Route
from nakadi.model.authorization import UNAUTHENTICATED
from tests.support.patience import PATIENCE

NO_HEAD_START = RequestLimits(first_chunk_delay_seconds=0)


def a_scope(method="GET", target="/x", headers=(), **more):
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "method": method,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        "state": {},
        **more,
    }


def an_application(handler, method="GET"):
    return Application(
        [Route(method=method, template="/x", handler=handler, operation="x", accepts_any_content_type=True)],
        lambda _: UNAUTHENTICATED,
    )


class Client:
    """Plays the ASGI server: provides the body of a request in pieces, and notes the messages that the application
    sends.
    """

    def __init__(self, *pieces, leaves_after_body=False):
        self.sent = []
        self.pieces = list(pieces) or [b""]
        self._leaves = asyncio.Event()
        if leaves_after_body:
            self._leaves.set()

    async def receive(self):
        if self.pieces:
            piece = self.pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}
        await self._leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)

    def leave(self):
        self._leaves.set()

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def headers(self):
        return {name.decode(): value.decode("latin-1") for name, value in self.sent[0]["headers"]}

    @property
    def body(self):
        return b"".join(each["body"] for each in self.sent[1:] if "body" in each)

    @property
    def complete(self):
        return not self.sent[-1].get("more_body", False)


def get_response(handler, scope=None, client=None, limits=NO_HEAD_START):
    """Send one request to a handler, and return the response."""

    async def run():
        seen = client or Client()
        asked = scope or a_scope()
        edge = AsgiApplication(an_application(handler, asked["method"]), threads=2, limits=limits)
        async with asyncio.timeout(PATIENCE):
            await edge(asked, seen.receive, seen.send)
        edge.shut_down_threads()
        return seen

    return asyncio.run(run())


def get_application_response(application, scope, client):
    """Send one request to an ASGI application, and return the response."""

    async def run():
        edge = AsgiApplication(
            application, threads=2, limits=RequestLimits(first_chunk_delay_seconds=0, linger_timeout_seconds=0)
        )
        async with asyncio.timeout(PATIENCE):
            await edge(scope, client.receive, client.send)
        edge.shut_down_threads()
        return client

    return asyncio.run(run())


def streaming(serve):
    return lambda _request: StreamingResponse(serve, {"content-type": "application/x-json-stream"})
