"""Tests the ASGI edge without a server."""

import asyncio
import gzip
import json

import pytest

from nakadi.common.metrics import Metrics
from nakadi.http.application import Application
from nakadi.http.asgi import AsgiApplication, RequestLimits
from nakadi.http.asgi_requests import request_from_scope
from nakadi.http.message import Response, StreamingResponse, empty_response, json_response
from nakadi.http.router import Route
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.outcomes import NotAuthenticated
from tests.support.asgi import NO_HEAD_START, Client, a_scope, an_application, get_application_response, get_response

# Requests.


def test_headers_are_found_in_any_case_and_joined():
    """Header names may be in any case; repeated headers are joined with a comma."""
    request = request_from_scope(a_scope(headers=[("X-Nakadi-Cursors", "[1]"), ("ACCEPT", "a/b"), ("accept", "c/d")]))

    assert request.headers == {"x-nakadi-cursors": "[1]", "accept": "a/b, c/d"}


def test_queries_keep_blanks_and_every_value():
    """Every value of a parameter is kept in order, including blank ones, and escapes are undone."""
    request = request_from_scope(a_scope(target="/x?a=1&b=&a=2&c&d=%2B+%C3%BC"))

    assert request.query == {"a": ("1", "2"), "b": ("",), "c": ("",), "d": ("+ ü",)}
    assert request.target == "/x?a=1&b=&a=2&c&d=%2B+%C3%BC"


@pytest.mark.parametrize(
    ("raw", "target"),
    [("http://host:80/x", "/x"), ("HTTPS://host/x%20y", "/x%20y"), ("http://host", "/"), ("/http://x", "/http://x")],
)
def test_a_whole_url_as_target_is_understood(raw, target):
    """Proxies request a whole URL; scheme and host are not part of the path."""
    assert request_from_scope(a_scope(target=raw)).target == target


@pytest.mark.parametrize("value", ["f", "Ümläut", "\xff\xfe"])
def test_header_values_are_given_back_unchanged(value):
    """The response has exactly the bytes of the flow id. (R38)"""
    client = get_response(lambda _: empty_response(), a_scope(headers=[("x-flow-id", value)]))

    assert client.headers["x-flow-id"] == value


def test_bodies_arrive_whole():
    """A body that arrives in many pieces reaches the handler as one."""
    client = get_response(lambda r: json_response(r.body.decode()), a_scope("POST"), Client(b"ab", b"", b"cd", b"e"))

    assert json.loads(client.body) == "abcde"


@pytest.mark.parametrize(
    ("headers", "pieces"), [([("content-length", "11")], [b""]), ([], [b"123456", b"78901", b"2", b"3"])]
)
def test_a_body_that_is_too_long_is_refused(headers, pieces):
    """A body beyond the limit, whether announced or received, is answered with 413, and the connection is closed."""
    client = get_response(
        lambda _: pytest.fail("it was handled"),
        a_scope("POST", headers=headers),
        Client(*pieces),
        RequestLimits(max_body_bytes=10),
    )

    assert (client.status, client.headers["connection"], client.complete) == (413, "close", True)
    assert json.loads(client.body)["detail"] == "The body is longer than 10 bytes"


def test_a_refused_client_that_goes_on_and_on_is_not_read_for_ever():
    """If a client continues to send after its request was refused, the server reads on for only a short time."""

    class EndlessClient(Client):
        async def receive(self):
            await asyncio.sleep(0.01)
            return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    client = get_response(
        lambda _: None, a_scope("POST"), EndlessClient(), RequestLimits(max_body_bytes=10, linger_timeout_seconds=0.1)
    )

    assert (client.status, client.complete) == (413, True)


def test_a_body_that_does_not_come_is_given_up():
    """A client that sends its body too slowly is answered with 408; the server does not wait for the rest of the
    body.
    """

    class SlowClient(Client):
        async def receive(self):
            await asyncio.sleep(60)

    limits = RequestLimits(body_timeout_seconds=0.05, linger_timeout_seconds=0.05)
    client = get_response(lambda _: pytest.fail("it was handled"), a_scope("POST"), SlowClient(), limits)

    assert client.status == 408


class LeavingClient(Client):
    async def receive(self):
        return await super().receive() if self.pieces else {"type": "http.disconnect"}


def test_who_leaves_before_the_body_is_complete_is_not_answered():
    """An incomplete request is neither handled nor answered."""
    client = LeavingClient()
    client.pieces = []

    assert get_response(lambda _: pytest.fail("it was handled"), a_scope("POST"), client).sent == []


# Checks before a body is read.


class WaitingClient(Client):
    """Announces a body, and sends it only if the server asks for it, or after the answer."""

    def __init__(self):
        super().__init__()
        self.asked_before_the_answer = False

    async def receive(self):
        self.asked_before_the_answer |= not self.sent
        return {"type": "http.disconnect"}


def refuse(_request):
    raise NotAuthenticated("Not a token")


@pytest.mark.parametrize(
    ("target", "headers", "authenticate", "status"),
    [
        ("/x", [], refuse, 401),
        ("/nothing", [], lambda _: UNAUTHENTICATED, 404),
        ("//x", [], lambda _: UNAUTHENTICATED, 400),
        ("/x", [("content-length", "3000000")], lambda _: UNAUTHENTICATED, 413),
    ],
)
def test_nothing_of_a_body_is_read_for_who_is_refused_by_the_head(target, headers, authenticate, status):
    """The URL, the token, the path and the announced size are checked before any of the body is read. (R48)"""
    route = Route(method="POST", template="/x", handler=lambda _: pytest.fail("it was handled"), operation="x")
    scope = a_scope("POST", target, headers or [("transfer-encoding", "chunked")])
    client = get_application_response(Application([route], authenticate), scope, WaitingClient())

    assert (client.status, client.headers["connection"]) == (status, "close")
    assert not client.asked_before_the_answer


@pytest.mark.parametrize("whole", [False, True])
def test_a_token_is_verified_only_once(whole):
    """However its body arrives, a request is authenticated once."""
    tokens = []

    def authenticate(request):
        tokens.append(request.headers["authorization"])
        return UNAUTHENTICATED

    class Connection:
        is_half_closed = is_lost = False

    Connection.has_whole_body = whole
    route = Route(
        method="POST",
        template="/x",
        handler=lambda r: json_response(r.body.decode()),
        operation="x",
        accepts_any_content_type=True,
    )
    scope = a_scope(
        "POST", headers=[("authorization", "Bearer it"), ("content-length", "3")], state={"connection": Connection()}
    )
    client = get_application_response(Application([route], authenticate), scope, Client(b"a", b"bc"))

    assert (client.status, client.body, tokens) == (200, b'"abc"', ["Bearer it"])


# Memory.


def gzip_of_size(size):
    return gzip.compress(b"x" * size)


def handler_taking(size):
    def handler(request):
        request.memory.take(size)
        return empty_response()

    return handler


PACKED = [("content-encoding", "gzip")]


@pytest.mark.parametrize(
    ("handler", "headers", "pieces", "status"),
    [
        (handler_taking(0), [], [b"x" * 600, b"x" * 300], 200),
        (handler_taking(0), [], [b"x" * 600, b"x" * 500], 413),
        (handler_taking(0), PACKED, [gzip_of_size(900)], 200),
        (handler_taking(0), PACKED, [gzip_of_size(1_000)], 413),
        (handler_taking(800), [], [b"x" * 100], 200),
        (handler_taking(950), [], [b"x" * 100], 413),
    ],
)
def test_a_request_takes_its_memory_as_it_needs_it(handler, headers, pieces, status):
    """The memory for a body as sent, decompressed and parsed is counted together."""
    client = get_response(
        handler, a_scope("POST", headers=headers), Client(*pieces), RequestLimits(max_memory_bytes=1_000)
    )

    assert client.status == status


def test_memory_that_others_have_is_503():
    """A body that would take too much memory together with the others is refused, and may be sent again; no request
    waits."""

    async def run():
        edge = AsgiApplication(
            an_application(handler_taking(0), "POST"),
            threads=2,
            limits=RequestLimits(max_memory_bytes=1_000, linger_timeout_seconds=0),
        )
        waiting = Client(b"x" * 900, b"x")
        arrived, go_on = asyncio.Event(), asyncio.Event()
        first_receive = waiting.receive

        async def receive():
            if waiting.pieces == [b"x"]:
                arrived.set()
                await go_on.wait()
            return await first_receive()

        slow = asyncio.create_task(edge(a_scope("POST"), receive, waiting.send))
        await arrived.wait()
        refused = Client(b"x" * 200)
        await edge(a_scope("POST"), refused.receive, refused.send)
        go_on.set()
        await slow
        afterwards = Client(b"x" * 1_000)
        await edge(a_scope("POST"), afterwards.receive, afterwards.send)
        edge.shut_down_threads()
        return refused, waiting, afterwards

    refused, waiting, afterwards = asyncio.run(run())
    assert (refused.status, refused.headers["retry-after"], refused.headers["connection"]) == (503, "1", "close")
    assert (waiting.status, afterwards.status) == (200, 200)


def fail(_request):
    raise RuntimeError


async def serving_nothing(_outlet):
    pass


WAYS_OUT = {
    "an answer": (handler_taking(10), Client(b"x" * 500), {}),
    "a stream": (lambda _: StreamingResponse(serving_nothing), Client(b"x" * 500), {}),
    "a bug": (fail, Client(b"x" * 500), {}),
    "too much": (handler_taking(10_000), Client(b"x" * 500), {}),
    "too long": (handler_taking(0), Client(b"x" * 500, b"x" * 400), {"max_body": 600}),
    "gone": (handler_taking(0), LeavingClient(b"x" * 500, b""), {}),
    "bad encoding": (handler_taking(0), Client(b"x" * 500), {"headers": PACKED}),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_memory_is_given_back_whatever_happens(way):
    """However a request ends, its memory becomes available to others."""
    handler, client, options = WAYS_OUT[way]

    async def run():
        limits = RequestLimits(
            max_memory_bytes=1_000,
            linger_timeout_seconds=0,
            first_chunk_delay_seconds=0,
            max_body_bytes=options.get("max_body", 1_000),
        )
        metrics = Metrics()
        edge = AsgiApplication(an_application(handler, "POST"), threads=2, limits=limits, metrics=metrics)
        await edge(a_scope("POST", headers=options.get("headers", [])), client.receive, client.send)
        edge.shut_down_threads()
        return metrics.request_memory.rows()

    assert asyncio.run(run()) == {(): 0}


def test_an_open_stream_keeps_no_memory():
    """A stream's request releases its memory when the stream begins, not when it ends."""
    seen, metrics = [], Metrics()

    def handler(_request):
        seen.append(metrics.request_memory.rows())

        async def serve(_outlet):
            seen.append(metrics.request_memory.rows())

        return StreamingResponse(serve)

    async def run():
        edge = AsgiApplication(an_application(handler, "POST"), threads=2, limits=NO_HEAD_START, metrics=metrics)
        client = Client(b"x" * 500)
        await edge(a_scope("POST"), client.receive, client.send)
        edge.shut_down_threads()

    asyncio.run(run())

    assert seen == [{(): 500}, {(): 0}]


# Responses.


def test_a_response_has_its_length():
    """A response states its length."""
    client = get_response(lambda _: json_response({"a": 1}))

    assert (client.status, client.headers["content-length"], client.body) == (200, "7", b'{"a":1}')


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body(status):
    """Responses with 204 and 304 have neither a body nor a length."""
    client = get_response(lambda _: Response(status, {}, b"never sent"))

    assert client.body == b""
    assert "content-length" not in client.headers


@pytest.mark.parametrize("size", [2_000, 200_000])
def test_long_responses_are_packed_for_those_who_ask(size):
    """The answer to a GET is compressed if the client wants that; very long ones are compressed outside the loop.
    (R37)"""
    text = "x" * size
    client = get_response(lambda _: json_response(text), a_scope(headers=[("accept-encoding", "gzip")]))

    assert client.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(client.body)) == text
    assert client.headers["content-length"] == str(len(client.body))


def test_lifespan_is_answered():
    """The application answers a server that starts and ends applications by ASGI's lifespan protocol."""

    async def run():
        edge = AsgiApplication(an_application(lambda _: empty_response()), threads=1)
        messages = iter(["lifespan.startup", "lifespan.shutdown"])
        sent = []

        async def receive():
            return {"type": next(messages)}

        async def send(message):
            sent.append(message["type"])

        await edge({"type": "lifespan"}, receive, send)
        return sent

    assert asyncio.run(run()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
