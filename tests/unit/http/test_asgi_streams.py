"""The ASGI edge: the threads that requests wait for, and streams."""

import asyncio
import contextlib
import json
import threading
import zlib

import pytest

from nakadi.http.application import Application
from nakadi.http.asgi import AsgiApplication, RequestLimits
from nakadi.http.asgi_requests import request_from_scope
from nakadi.http.message import ClientGone, Response, StreamingResponse, empty_response
from nakadi.http.router import Lane, Route
from nakadi.model.authorization import UNAUTHENTICATED
from tests.support.asgi import NO_HEAD_START, Client, a_scope, an_application, get_response, streaming
from tests.support.patience import PATIENCE, measure_cpu

# Lanes.


def a_route(lane, handler, method="GET"):
    return Route(
        method=method, template=f"/{lane}", handler=handler, operation=lane, accepts_any_content_type=True, lane=lane
    )


class StuckClient:
    """A client whose handler blocks its thread, like a registry that does not answer."""

    def __init__(self):
        self.entered = threading.Semaphore(0)
        self.freed = threading.Event()

    def __call__(self, _request):
        self.entered.release()
        assert self.freed.wait(PATIENCE)
        return empty_response()


async def open_client(edge, target, method="GET", **more):
    client = more.pop("client", None) or Client()
    async with asyncio.timeout(PATIENCE):
        await edge(a_scope(method, target, **more), client.receive, client.send)
    return client


def with_a_stuck_registry(steps, limits=NO_HEAD_START, requests=3):
    """Run steps on an edge while requests of the registry's lane occupy that lane's only thread."""
    stuck = StuckClient()
    quick = [a_route(lane, lambda _: empty_response()) for lane in Lane if lane is not Lane.REGISTRY]
    application = Application([a_route(Lane.REGISTRY, stuck), *quick], lambda _: UNAUTHENTICATED)

    async def run():
        edge = AsgiApplication(application, threads=1, limits=limits)
        waiting = [asyncio.create_task(open_client(edge, "/registry")) for _ in range(requests)]
        try:
            await asyncio.to_thread(stuck.entered.acquire)
            return await steps(edge)
        finally:
            stuck.freed.set()
            assert [(await each).status for each in waiting] == [200] * requests
            edge.shut_down_threads()

    return asyncio.run(run())


@pytest.mark.parametrize("lane", [lane for lane in Lane if lane is not Lane.REGISTRY])
def test_requests_that_are_stuck_hold_up_no_other_lane(lane):
    """While every thread of one lane waits for something, requests in the other lanes are answered."""
    assert with_a_stuck_registry(lambda edge: open_client(edge, f"/{lane}")).status == 200


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
    """Neither HEAD nor the Problem for an unsupported method needs a thread, and both have the flow id. (R27, R38)"""
    headers = [("x-flow-id", "f-1")]
    client = with_a_stuck_registry(lambda edge: open_client(edge, target, method, headers=headers))

    assert (client.status, client.headers["x-flow-id"]) == (status, "f-1")
    assert detail == (json.loads(client.body)["detail"] if client.body else "")


def test_a_lane_has_a_limited_number_of_requests_that_wait():
    """Requests beyond the limit get 503, and may be repeated shortly."""
    client = with_a_stuck_registry(
        lambda edge: open_client(edge, "/registry"),
        RequestLimits(max_waiting_requests=1, first_chunk_delay_seconds=0),
        requests=2,
    )

    assert (client.status, client.headers["retry-after"]) == (503, "1")


def test_a_request_whose_client_has_gone_meanwhile_is_not_worked_on():
    """If a client leaves while its request waits for a thread, the request is not handled."""

    class Connection:
        is_half_closed, is_lost, has_whole_body = False, False, True

    connection, done = Connection(), []
    stuck = StuckClient()
    routes = [a_route(Lane.REGISTRY, stuck), a_route(Lane.REGISTRY, done.append, "POST")]
    application = Application(routes, lambda _: UNAUTHENTICATED)

    async def run():
        edge = AsgiApplication(application, threads=1, limits=NO_HEAD_START)
        first = asyncio.create_task(open_client(edge, "/registry"))
        await asyncio.to_thread(stuck.entered.acquire)
        late = Client()
        state = {"connection": connection}
        second = asyncio.create_task(open_client(edge, "/registry", "POST", state=state, client=late))
        await asyncio.sleep(0)
        connection.is_lost = True
        stuck.freed.set()
        await asyncio.gather(first, second)
        edge.shut_down_threads()
        return late

    assert asyncio.run(run()).sent == []
    assert done == []


def test_a_request_knows_whether_its_client_may_have_gone():
    """A request knows that its connection is lost, or that the client has closed its half."""

    class Connection:
        is_half_closed, is_lost = False, False

    connection = Connection()
    request = request_from_scope(a_scope(state={"connection": connection}))
    assert not request.is_client_gone()
    connection.is_half_closed = True
    assert request.is_client_gone()
    connection.is_half_closed, connection.is_lost = False, True
    assert request.is_client_gone()
    assert not request_from_scope(a_scope()).is_client_gone()


# Streams.


def test_a_stream_begins_before_its_first_batch():
    """Status and headers of a stream are sent before anything else happens. (L38)"""
    seen = []

    async def serve(_outlet):
        seen.extend(client.sent)

    client = Client()
    get_response(streaming(serve), client=client)

    assert [each["type"] for each in seen] == ["http.response.start", "http.response.body"]
    assert seen[1] == {"type": "http.response.body", "body": b"", "more_body": True}
    assert client.headers["content-type"] == "application/x-json-stream"
    assert not {"content-length", "connection", "content-encoding"} & set(client.headers)


def test_every_write_is_sent_on_its_own():
    """Each write is sent as a separate message, and so is the end. (L46)"""

    async def serve(outlet):
        await outlet.write(b"one\n")
        await outlet.write(b"two\n")

    client = get_response(streaming(serve))

    assert [each["body"] for each in client.sent[2:]] == [b"one\n", b"two\n", b""]
    assert client.complete


def test_a_stream_is_packed_write_by_write():
    """A client can decompress a compressed stream up to the last write. (L40, R37)"""

    async def serve(outlet):
        await outlet.write(b"one\n")
        await outlet.write(b"x" * 100_000)

    client = get_response(streaming(serve), a_scope(headers=[("accept-encoding", "gzip")]))
    reader = zlib.decompressobj(wbits=31)

    assert client.headers["content-encoding"] == "gzip"
    assert [reader.decompress(each["body"]) for each in client.sent[2:]] == [b"one\n", b"x" * 100_000, b""]
    assert reader.eof


def test_the_first_batch_keeps_its_distance_from_the_headers():
    """After the headers, the first write waits a moment for a client that may read the socket itself, as pynakadi does.

    Other clients do not wait, and neither do those that request gzip, because they read through a decoder. (trap 3)
    """
    times = []

    async def serve(outlet):
        began = asyncio.get_running_loop().time()
        await outlet.write(b"one\n")
        times.append(asyncio.get_running_loop().time() - began)

    by_requests = ("user-agent", "python-requests/2.32.3")
    never = RequestLimits(first_chunk_delay_seconds=10 * PATIENCE)
    get_response(streaming(serve), a_scope(headers=[by_requests]), limits=RequestLimits(first_chunk_delay_seconds=0.05))
    get_response(streaming(serve), a_scope(headers=[by_requests, ("accept-encoding", "gzip")]), limits=never)
    get_response(streaming(serve), a_scope(headers=[("user-agent", "Go-http-client/1.1")]), limits=never)
    get_response(streaming(serve), limits=never)

    assert times[0] >= 0.05
    assert max(times[1:]) < PATIENCE


def test_a_stream_learns_that_its_client_is_gone_while_it_is_idle():
    """The server notices that a client has left although nothing is being written, and further writes fail."""

    async def serve(outlet):
        client.leave()
        await outlet.when_client_gone()
        with pytest.raises(ClientGone):
            await outlet.write(b"x")
        done.append(True)

    client, done = Client(), []
    get_response(streaming(serve), client=client)

    assert done == [True]


def test_a_client_that_takes_nothing_is_given_up():
    """If a write is not read for too long, the stream ends, and the connection is cut."""

    class StuckClient(Client):
        async def send(self, message):
            if message.get("body"):
                await asyncio.sleep(60)
            await super().send(message)

    class Connection:
        is_half_closed = is_lost = False
        did = None

        def close(self):
            self.did = "close"

        def abort(self):
            self.did = "abort"
            client.leave()

    async def serve(outlet):
        await outlet.write(b"x")

    client, connection = StuckClient(), Connection()
    limits = RequestLimits(stalled_client_timeout_seconds=0.05, first_chunk_delay_seconds=0)
    get_response(streaming(serve), a_scope(state={"connection": connection}), client, limits)

    assert connection.did == "abort"


def test_a_write_that_is_given_up_cuts_the_connection():
    """The connection of a stream that ends before its client has read everything is cut: a proper end would have to
    wait for room."""

    class StuckClient(Client):
        async def send(self, message):
            if message.get("body"):
                await asyncio.Event().wait()
            await super().send(message)

    class Connection:
        is_half_closed = is_lost = False
        did = None

        def close_unless_reused(self):
            self.did = "close"

        def abort(self):
            self.did = "abort"
            client.leave()

    async def serve(outlet):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await outlet.write(b"x")

    client, connection = StuckClient(), Connection()
    get_response(
        streaming(serve), a_scope(state={"connection": connection}), client, RequestLimits(first_chunk_delay_seconds=0)
    )

    assert connection.did == "abort"


def test_a_stream_that_fails_is_cut_off(caplog):
    """An error within a stream is logged, and the client sees no proper end."""

    async def serve(outlet):
        await outlet.write(b"one\n")
        raise RuntimeError("broken")

    client = get_response(streaming(serve))

    assert not client.complete
    assert "RuntimeError: broken" in caplog.text


def test_streams_are_asked_to_end():
    """Once the process is about to end, every stream is asked to end, even one that only begins then."""

    opened = asyncio.Event()

    async def serve(outlet):
        opened.set()
        await outlet.when_shutting_down()
        await outlet.write(b"bye\n")

    async def run():
        edge = AsgiApplication(an_application(streaming(serve)), threads=1, limits=NO_HEAD_START)
        early, late = Client(), Client()
        first = asyncio.create_task(edge(a_scope(), early.receive, early.send))
        await opened.wait()
        edge.announce_shutdown()
        await first
        await edge(a_scope(), late.receive, late.send)
        edge.shut_down_threads()
        return early, late

    for client in asyncio.run(run()):
        assert (client.body, client.complete) == (b"bye\n", True)


def test_a_stream_for_a_client_that_has_gone_is_given_up():
    """If a client leaves before its stream begins, the stream releases its resources."""

    class Connection:
        is_half_closed, is_lost = True, False

        def close(self):
            """Never called, because nothing is left to send."""

        def abort(self):
            client.leave()

    given_up = []
    client = Client()
    stream = StreamingResponse(serve_nothing, release_if_never_served=lambda: given_up.append(True))
    get_response(lambda _: stream, a_scope(state={"connection": Connection()}), client)
    assert given_up == [True]


async def serve_nothing(_outlet):
    raise AssertionError("this is not to be served")


def effort_of_saying(times):
    """The CPU time for a request with a number of parameters and headers."""
    scope = a_scope(target="/x?" + "a&" * times, headers=[("a", "b")] * times)
    request = request_from_scope(scope)
    assert (len(request.query["a"]), len(request.headers["a"])) == (times, 3 * times - 2)
    return min(measure_cpu(lambda: request_from_scope(scope)) for _ in range(3))


def test_what_is_said_again_and_again_costs_no_more_each_time():
    """A request with 64 times as many parameters and headers takes about 64 times as long, not the square of 64."""
    assert effort_of_saying(64_000) < 64 * 10 * effort_of_saying(1_000)


def test_an_answer_that_cannot_be_sent_becomes_a_problem(caplog):
    """An answer that cannot be sent becomes a Problem; otherwise, the server would give an answer of its own."""

    class UnsendableApplication(Application):
        def admit_and_begin_answer(self, _request):
            return Response(200, {"x": 5})

    edge = AsgiApplication(UnsendableApplication([], lambda _: UNAUTHENTICATED), threads=1)
    client = Client()
    asyncio.run(edge(a_scope(), client.receive, client.send))

    assert client.sent[0]["status"] == 500
    assert json.loads(client.sent[1]["body"])["status"] == 500
    assert "Answering GET failed" in caplog.text
