"""The edge to ASGI, without a server."""

import asyncio
import contextlib
import gzip
import json
import threading
import zlib

import pytest

from nakadi.http.application import Application
from nakadi.http.asgi import Limits, asgi_application, request_of
from nakadi.http.message import ClientGone, Response, Streaming, empty_response, json_response
from nakadi.http.routing import Lane, Route
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.outcomes import NotAuthenticated
from tests.support.patience import PATIENCE, effort

NO_HEAD_START = Limits(head_start_seconds=0)


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
        [Route(method=method, template="/x", handler=handler, operation="x", any_body=True)], lambda _: UNAUTHENTICATED
    )


class Client:
    """Plays the server's part: gives the body in pieces, and notes what is sent."""

    def __init__(self, *pieces, leaves_after_body=False):
        self.sent = []
        self._pieces = list(pieces) or [b""]
        self._leaves = asyncio.Event()
        if leaves_after_body:
            self._leaves.set()

    async def receive(self):
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
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


def answered(handler, scope=None, client=None, limits=NO_HEAD_START):
    """What a client sees of one request."""

    async def run():
        seen = client or Client()
        asked = scope or a_scope()
        edge = asgi_application(an_application(handler, asked["method"]), threads=2, limits=limits)
        async with asyncio.timeout(PATIENCE):
            await edge(asked, seen.receive, seen.send)
        edge.close()
        return seen

    return asyncio.run(run())


def asked_of(application, scope, client):
    """What a client sees of one request to an application of its own."""

    async def run():
        edge = asgi_application(application, threads=2, limits=Limits(head_start_seconds=0, linger_seconds=0))
        async with asyncio.timeout(PATIENCE):
            await edge(scope, client.receive, client.send)
        edge.close()
        return client

    return asyncio.run(run())


def streaming(serve):
    return lambda _request: Streaming(serve, {"content-type": "application/x-json-stream"})


# Requests.


def test_headers_are_found_in_any_case_and_joined():
    """Header names come in any case; what comes twice is joined by a comma."""
    request = request_of(a_scope(headers=[("X-Nakadi-Cursors", "[1]"), ("ACCEPT", "a/b"), ("accept", "c/d")]))

    assert request.headers == {"x-nakadi-cursors": "[1]", "accept": "a/b, c/d"}


def test_queries_keep_blanks_and_every_value():
    """Every value of a parameter is kept in its order, blank ones too, and escapes are undone."""
    request = request_of(a_scope(target="/x?a=1&b=&a=2&c&d=%2B+%C3%BC"))

    assert request.query == {"a": ("1", "2"), "b": ("",), "c": ("",), "d": ("+ ü",)}
    assert request.target == "/x?a=1&b=&a=2&c&d=%2B+%C3%BC"


@pytest.mark.parametrize(
    ("raw", "target"),
    [("http://host:80/x", "/x"), ("HTTPS://host/x%20y", "/x%20y"), ("http://host", "/"), ("/http://x", "/http://x")],
)
def test_a_whole_url_as_target_is_understood(raw, target):
    """Proxies ask with a whole URL; scheme and host are no part of the path."""
    assert request_of(a_scope(target=raw)).target == target


@pytest.mark.parametrize("value", ["f", "Ümläut", "\xff\xfe"])
def test_header_values_are_given_back_unchanged(value):
    """Whatever bytes a flow id has, the response has the same. (R38)"""
    client = answered(lambda _: empty_response(), a_scope(headers=[("x-flow-id", value)]))

    assert client.headers["x-flow-id"] == value


def test_bodies_arrive_whole():
    """A body in many pieces reaches the handler in one."""
    client = answered(lambda r: json_response(r.body.decode()), a_scope("POST"), Client(b"ab", b"", b"cd", b"e"))

    assert json.loads(client.body) == "abcde"


@pytest.mark.parametrize(
    ("headers", "pieces"), [([("content-length", "11")], [b""]), ([], [b"123456", b"78901", b"2", b"3"])]
)
def test_a_body_that_is_too_long_is_refused(headers, pieces):
    """A body beyond the bound, as announced or as it arrives, is 413, and the connection is given up."""
    client = answered(
        lambda _: pytest.fail("it was handled"), a_scope("POST", headers=headers), Client(*pieces), Limits(max_body=10)
    )

    assert (client.status, client.headers["connection"], client.complete) == (413, "close", True)
    assert json.loads(client.body)["detail"] == "The body is longer than 10 bytes"


def test_a_refused_client_that_goes_on_and_on_is_not_read_for_ever():
    """What a refused client still sends is taken in for a moment only."""

    class Endless(Client):
        async def receive(self):
            await asyncio.sleep(0.01)
            return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    client = answered(lambda _: None, a_scope("POST"), Endless(), Limits(max_body=10, linger_seconds=0.1))

    assert (client.status, client.complete) == (413, True)


def test_a_body_that_does_not_come_is_given_up():
    """A client that is too slow with its body is told so, instead of being waited for."""

    class Slow(Client):
        async def receive(self):
            await asyncio.sleep(60)

    limits = Limits(body_seconds=0.05, linger_seconds=0.05)
    client = answered(lambda _: pytest.fail("it was handled"), a_scope("POST"), Slow(), limits)

    assert client.status == 408


class Leaving(Client):
    async def receive(self):
        return await super().receive() if self._pieces else {"type": "http.disconnect"}


def test_who_leaves_before_the_body_is_complete_is_not_answered():
    """Half a request is not handled."""
    client = Leaving()
    client._pieces = []

    assert answered(lambda _: pytest.fail("it was handled"), a_scope("POST"), client).sent == []


# What is judged before a body is read.


class Silent(Client):
    """Announces a body, and sends it only to those who ask for it after they have answered."""

    def __init__(self):
        super().__init__()
        self.asked_before_the_answer = False

    async def receive(self):
        self.asked_before_the_answer |= not self.sent
        return {"type": "http.disconnect"}


def refusing(_request):
    raise NotAuthenticated("Not a token")


@pytest.mark.parametrize(
    ("target", "headers", "authenticate", "status"),
    [
        ("/x", [], refusing, 401),
        ("/nothing", [], lambda _: UNAUTHENTICATED, 404),
        ("//x", [], lambda _: UNAUTHENTICATED, 400),
        ("/x", [("content-length", "3000000")], lambda _: UNAUTHENTICATED, 413),
    ],
)
def test_nothing_of_a_body_is_read_for_who_is_refused_by_the_head(target, headers, authenticate, status):
    """URL, token, path and announced size are judged before any of the body is read. (R48)"""
    route = Route(method="POST", template="/x", handler=lambda _: pytest.fail("it was handled"), operation="x")
    scope = a_scope("POST", target, headers or [("transfer-encoding", "chunked")])
    client = asked_of(Application([route], authenticate), scope, Silent())

    assert (client.status, client.headers["connection"]) == (status, "close")
    assert not client.asked_before_the_answer


@pytest.mark.parametrize("whole", [False, True])
def test_a_token_is_looked_at_once(whole):
    """However its body arrives, a request is authenticated once."""
    tokens = []

    def authenticate(request):
        tokens.append(request.headers["authorization"])
        return UNAUTHENTICATED

    class Connection:
        half_closed = lost = False

    Connection.whole = whole
    route = Route(
        method="POST", template="/x", handler=lambda r: json_response(r.body.decode()), operation="x", any_body=True
    )
    scope = a_scope(
        "POST", headers=[("authorization", "Bearer it"), ("content-length", "3")], state={"connection": Connection()}
    )
    client = asked_of(Application([route], authenticate), scope, Client(b"a", b"bc"))

    assert (client.status, client.body, tokens) == (200, b'"abc"', ["Bearer it"])


# Memory.


def gzipped(size):
    return gzip.compress(b"x" * size)


def taking(size):
    def handler(request):
        request.memory.take(size)
        return empty_response()

    return handler


PACKED = [("content-encoding", "gzip")]


@pytest.mark.parametrize(
    ("handler", "headers", "pieces", "status"),
    [
        (taking(0), [], [b"x" * 600, b"x" * 300], 200),
        (taking(0), [], [b"x" * 600, b"x" * 500], 413),
        (taking(0), PACKED, [gzipped(900)], 200),
        (taking(0), PACKED, [gzipped(1_000)], 413),
        (taking(800), [], [b"x" * 100], 200),
        (taking(950), [], [b"x" * 100], 413),
    ],
)
def test_a_request_takes_its_memory_as_it_needs_it(handler, headers, pieces, status):
    """What a body takes as it was sent, unpacked and worked on is counted together."""
    client = answered(handler, a_scope("POST", headers=headers), Client(*pieces), Limits(memory=1_000))

    assert client.status == status


def test_memory_that_others_have_is_503():
    """A body that would be too much together with the others is refused, may be sent again, and nobody waits."""

    async def run():
        edge = asgi_application(
            an_application(taking(0), "POST"), threads=2, limits=Limits(memory=1_000, linger_seconds=0)
        )
        waiting = Client(b"x" * 900, b"x")
        arrived, go_on = asyncio.Event(), asyncio.Event()
        first_receive = waiting.receive

        async def receive():
            if waiting._pieces == [b"x"]:
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
        edge.close()
        return refused, waiting, afterwards

    refused, waiting, afterwards = asyncio.run(run())
    assert (refused.status, refused.headers["retry-after"], refused.headers["connection"]) == (503, "1", "close")
    assert (waiting.status, afterwards.status) == (200, 200)


def failing(_request):
    raise RuntimeError


async def serving_nothing(_outlet):
    pass


WAYS_OUT = {
    "an answer": (taking(10), Client(b"x" * 500), {}),
    "a stream": (lambda _: Streaming(serving_nothing), Client(b"x" * 500), {}),
    "a bug": (failing, Client(b"x" * 500), {}),
    "too much": (taking(10_000), Client(b"x" * 500), {}),
    "too long": (taking(0), Client(b"x" * 500, b"x" * 400), {"max_body": 600}),
    "gone": (taking(0), Leaving(b"x" * 500, b""), {}),
    "bad encoding": (taking(0), Client(b"x" * 500), {"headers": PACKED}),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_memory_is_given_back_whatever_happens(way):
    """When a request is over, however it ended, its memory is there for others."""
    handler, client, options = WAYS_OUT[way]

    async def run():
        limits = Limits(memory=1_000, linger_seconds=0, head_start_seconds=0, max_body=options.get("max_body", 1_000))
        edge = asgi_application(an_application(handler, "POST"), threads=2, limits=limits)
        await edge(a_scope("POST", headers=options.get("headers", [])), client.receive, client.send)
        edge.close()
        return edge._memory.taken

    assert asyncio.run(run()) == 0


def test_an_open_stream_keeps_no_memory():
    """A stream's request gives its memory back when the stream begins, and not when it ends."""
    seen = []

    def handler(request):
        async def serve(_outlet):
            seen.append(request.memory._memory.taken)

        return Streaming(serve)

    answered(handler, a_scope("POST"), Client(b"x" * 500))

    assert seen == [0]


# Responses.


def test_a_response_has_its_length():
    """A response says how long it is."""
    client = answered(lambda _: json_response({"a": 1}))

    assert (client.status, client.headers["content-length"], client.body) == (200, "7", b'{"a":1}')


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body(status):
    """204 and 304 come without body and length."""
    client = answered(lambda _: Response(status, {}, b"never sent"))

    assert client.body == b""
    assert "content-length" not in client.headers


@pytest.mark.parametrize("size", [2_000, 200_000])
def test_long_responses_are_packed_for_those_who_ask(size):
    """A GET's answer is packed when the client wants it, the very long ones aside from the loop. (R37)"""
    text = "x" * size
    client = answered(lambda _: json_response(text), a_scope(headers=[("accept-encoding", "gzip")]))

    assert client.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(client.body)) == text
    assert client.headers["content-length"] == str(len(client.body))


def test_lifespan_is_answered():
    """A server that starts and ends applications by ASGI's lifespan is answered."""

    async def run():
        edge = asgi_application(an_application(lambda _: empty_response()), threads=1)
        messages = iter(["lifespan.startup", "lifespan.shutdown"])
        sent = []

        async def receive():
            return {"type": next(messages)}

        async def send(message):
            sent.append(message["type"])

        await edge({"type": "lifespan"}, receive, send)
        return sent

    assert asyncio.run(run()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


# Lanes.


def a_route(lane, handler, method="GET"):
    return Route(method=method, template=f"/{lane}", handler=handler, operation=lane, any_body=True, lane=lane)


class Stuck:
    """A handler that has its threads wait, as a registry that does not answer would."""

    def __init__(self):
        self.entered = threading.Semaphore(0)
        self.freed = threading.Event()

    def __call__(self, _request):
        self.entered.release()
        assert self.freed.wait(PATIENCE)
        return empty_response()


async def asked(edge, target, method="GET", **more):
    client = more.pop("client", None) or Client()
    async with asyncio.timeout(PATIENCE):
        await edge(a_scope(method, target, **more), client.receive, client.send)
    return client


def with_a_stuck_registry(steps, limits=NO_HEAD_START, requests=3):
    """Carry out some steps on an edge while requests of the registry's lane have taken its only thread."""
    stuck = Stuck()
    quick = [a_route(lane, lambda _: empty_response()) for lane in Lane if lane is not Lane.REGISTRY]
    application = Application([a_route(Lane.REGISTRY, stuck), *quick], lambda _: UNAUTHENTICATED)

    async def run():
        edge = asgi_application(application, threads=1, limits=limits)
        waiting = [asyncio.create_task(asked(edge, "/registry")) for _ in range(requests)]
        try:
            await asyncio.to_thread(stuck.entered.acquire)
            return await steps(edge)
        finally:
            stuck.freed.set()
            assert [(await each).status for each in waiting] == [200] * requests
            edge.close()

    return asyncio.run(run())


@pytest.mark.parametrize("lane", [lane for lane in Lane if lane is not Lane.REGISTRY])
def test_requests_that_are_stuck_hold_up_no_other_lane(lane):
    """While every thread of one lane waits for something, requests of the other lanes are answered."""
    assert with_a_stuck_registry(lambda edge: asked(edge, f"/{lane}")).status == 200


@pytest.mark.parametrize(
    ("method", "target", "status", "detail"),
    [
        ("GET", "/immediate", 200, ""),
        ("GET", "/immediate/", 200, ""),
        ("HEAD", "/immediate", 200, ""),
        ("POST", "/immediate", 405, "Request method 'POST' not supported"),
    ],
)
def test_every_answer_of_a_path_that_waits_for_nothing_is_immediate(method, target, status, detail):
    """HEAD, and the Problem of another method, need no thread either, and bear the flow id. (R27, R38)"""
    headers = [("x-flow-id", "f-1")]
    client = with_a_stuck_registry(lambda edge: asked(edge, target, method, headers=headers))

    assert (client.status, client.headers["x-flow-id"]) == (status, "f-1")
    assert detail == (json.loads(client.body)["detail"] if client.body else "")


def test_a_lane_has_a_limited_number_of_requests_that_wait():
    """What comes beyond it is 503 and may come again in a moment."""
    client = with_a_stuck_registry(
        lambda edge: asked(edge, "/registry"), Limits(waiting=1, head_start_seconds=0), requests=2
    )

    assert (client.status, client.headers["retry-after"]) == (503, "1")


def test_a_request_whose_client_has_gone_meanwhile_is_not_worked_on():
    """A client that leaves while its request waits for a thread has nothing done for it."""

    class Connection:
        half_closed, lost, whole = False, False, True

    connection, done = Connection(), []
    stuck = Stuck()
    routes = [a_route(Lane.REGISTRY, stuck), a_route(Lane.REGISTRY, done.append, "POST")]
    application = Application(routes, lambda _: UNAUTHENTICATED)

    async def run():
        edge = asgi_application(application, threads=1, limits=NO_HEAD_START)
        first = asyncio.create_task(asked(edge, "/registry"))
        await asyncio.to_thread(stuck.entered.acquire)
        late = Client()
        state = {"connection": connection}
        second = asyncio.create_task(asked(edge, "/registry", "POST", state=state, client=late))
        await asyncio.sleep(0)
        connection.lost = True
        stuck.freed.set()
        await asyncio.gather(first, second)
        edge.close()
        return late

    assert asyncio.run(run()).sent == []
    assert done == []


def test_a_request_knows_whether_its_client_may_have_gone():
    """A lost connection says so, and one whose client has closed its half."""

    class Connection:
        half_closed, lost = False, False

    connection = Connection()
    request = request_of(a_scope(state={"connection": connection}))
    assert not request.gone()
    connection.half_closed = True
    assert request.gone()
    connection.half_closed, connection.lost = False, True
    assert request.gone()
    assert not request_of(a_scope()).gone()


# Streams.


def test_a_stream_begins_before_its_first_batch():
    """Status and headers of a stream are sent before anything else happens. (L38)"""
    seen = []

    async def serve(_outlet):
        seen.extend(client.sent)

    client = Client()
    answered(streaming(serve), client=client)

    assert [each["type"] for each in seen] == ["http.response.start", "http.response.body"]
    assert seen[1] == {"type": "http.response.body", "body": b"", "more_body": True}
    assert client.headers["content-type"] == "application/x-json-stream"
    assert not {"content-length", "connection", "content-encoding"} & set(client.headers)


def test_every_write_is_sent_on_its_own():
    """Each write is a message of its own, and the end is one too. (L46)"""

    async def serve(outlet):
        await outlet.write(b"one\n")
        await outlet.write(b"two\n")

    client = answered(streaming(serve))

    assert [each["body"] for each in client.sent[2:]] == [b"one\n", b"two\n", b""]
    assert client.complete


def test_a_stream_is_packed_write_by_write():
    """A packed stream can be unpacked as far as it was written. (L40, R37)"""

    async def serve(outlet):
        await outlet.write(b"one\n")
        await outlet.write(b"x" * 100_000)

    client = answered(streaming(serve), a_scope(headers=[("accept-encoding", "gzip")]))
    reader = zlib.decompressobj(wbits=31)

    assert client.headers["content-encoding"] == "gzip"
    assert [reader.decompress(each["body"]) for each in client.sent[2:]] == [b"one\n", b"x" * 100_000, b""]
    assert reader.eof


def test_the_first_batch_keeps_its_distance_from_the_headers():
    """The first write waits a moment behind the headers, for clients who lose what comes with them.

    Packed streams do not wait: who asks for gzip reads through a decoder.
    """
    times = {}

    async def serve(outlet):
        began = asyncio.get_running_loop().time()
        await outlet.write(b"one\n")
        times.setdefault("first", []).append(asyncio.get_running_loop().time() - began)

    answered(streaming(serve), limits=Limits(head_start_seconds=0.05))
    answered(
        streaming(serve),
        a_scope(headers=[("accept-encoding", "gzip")]),
        limits=Limits(head_start_seconds=10 * PATIENCE),
    )

    plain, packed = times["first"]
    assert plain >= 0.05
    assert packed < PATIENCE


def test_a_stream_learns_that_its_client_is_gone_while_it_is_idle():
    """A client that leaves is noticed although nothing is being written, and writing to it is no more possible."""

    async def serve(outlet):
        client.leave()
        await outlet.gone()
        with pytest.raises(ClientGone):
            await outlet.write(b"x")
        done.append(True)

    client, done = Client(), []
    answered(streaming(serve), client=client)

    assert done == [True]


def test_a_client_that_takes_nothing_is_given_up():
    """A write that nobody takes for too long ends the stream, and the connection is cut."""

    class Stuck(Client):
        async def send(self, message):
            if message.get("body"):
                await asyncio.sleep(60)
            await super().send(message)

    class Connection:
        half_closed = lost = False
        did = None

        def close(self):
            self.did = "close"

        def abort(self):
            self.did = "abort"
            client.leave()

    async def serve(outlet):
        await outlet.write(b"x")

    client, connection = Stuck(), Connection()
    limits = Limits(stalled_seconds=0.05, head_start_seconds=0)
    answered(streaming(serve), a_scope(state={"connection": connection}), client, limits)

    assert connection.did == "abort"


def test_a_write_that_is_given_up_cuts_the_connection():
    """A stream that ends before its client took what it was sent is cut off: its end would have to wait for room."""

    class Stuck(Client):
        async def send(self, message):
            if message.get("body"):
                await asyncio.Event().wait()
            await super().send(message)

    class Connection:
        half_closed = lost = False
        did = None

        def close_soon(self):
            self.did = "close"

        def abort(self):
            self.did = "abort"
            client.leave()

    async def serve(outlet):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await outlet.write(b"x")

    client, connection = Stuck(), Connection()
    answered(streaming(serve), a_scope(state={"connection": connection}), client, Limits(head_start_seconds=0))

    assert connection.did == "abort"


def test_a_stream_that_fails_is_cut_off(caplog):
    """A fault within a stream is logged, and the client sees no proper end."""

    async def serve(outlet):
        await outlet.write(b"one\n")
        raise RuntimeError("broken")

    client = answered(streaming(serve))

    assert not client.complete
    assert "RuntimeError: broken" in caplog.text


def test_streams_are_told_to_end():
    """Once the process is about to end, every stream learns of it, also one that begins only then."""

    opened = asyncio.Event()

    async def serve(outlet):
        opened.set()
        await outlet.draining()
        await outlet.write(b"bye\n")

    async def run():
        edge = asgi_application(an_application(streaming(serve)), threads=1, limits=NO_HEAD_START)
        early, late = Client(), Client()
        first = asyncio.create_task(edge(a_scope(), early.receive, early.send))
        await opened.wait()
        edge.drain()
        await first
        await edge(a_scope(), late.receive, late.send)
        edge.close()
        return early, late

    for client in asyncio.run(run()):
        assert (client.body, client.complete) == (b"bye\n", True)


def test_a_stream_for_a_client_that_has_gone_is_given_up():
    """What a stream holds already is given back when its client has left before it began."""

    class Connection:
        half_closed, lost = True, False

        def close(self):
            """Never called: there is nothing more to send."""

        def abort(self):
            client.leave()

    given_up = []
    client = Client()
    stream = Streaming(nothing, given_up=lambda: given_up.append(True))
    answered(lambda _: stream, a_scope(state={"connection": Connection()}), client)
    assert given_up == [True]


async def nothing(_outlet):
    raise AssertionError("this is not to be served")


def effort_of_saying(times):
    """The processor's effort for a request that names a parameter and a header so many times."""
    scope = a_scope(target="/x?" + "a&" * times, headers=[("a", "b")] * times)
    request = request_of(scope)
    assert (len(request.query["a"]), len(request.headers["a"])) == (times, 3 * times - 2)
    return min(effort(lambda: request_of(scope)) for _ in range(3))


def test_what_is_said_again_and_again_costs_no_more_each_time():
    """A request with 64 times as many parameters and headers takes about 64 times as long, not its square."""
    assert effort_of_saying(64_000) < 64 * 10 * effort_of_saying(1_000)


def test_an_answer_that_cannot_be_sent_becomes_a_problem(caplog):
    """Servers would answer in their own way when an answer is not fit to be sent."""

    class Unsendable(Application):
        def answer(self, _request):
            return Response(200, {"x": 5})

    edge = asgi_application(Unsendable([], lambda _: UNAUTHENTICATED), threads=1)
    client = Client()
    asyncio.run(edge(a_scope(), client.receive, client.send))

    assert client.sent[0]["status"] == 500
    assert json.loads(client.sent[1]["body"])["status"] == 500
    assert "Answering GET failed" in caplog.text
