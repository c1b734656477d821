"""The HTTP server over real sockets, used by clients of every kind."""

import asyncio
import json
import socket
import threading
import time

import pytest

from nakadi.http import asgi, server
from nakadi.http.application import Application
from nakadi.http.asgi import AsgiApplication
from nakadi.http.connection import Connection, ServerState
from nakadi.http.message import empty_response
from nakadi.http.router import Route
from nakadi.local.serving import ServerThread
from nakadi.model.authorization import UNAUTHENTICATED
from tests.support.http_server import H2C, JSON, digest
from tests.support.logs import records_of
from tests.support.patience import PATIENCE, until
from tests.support.wire import Wire

# Bodies.


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "GET"])
@pytest.mark.parametrize("size", [1, 1000, 300_000])
def test_bodies_survive_an_upgrade_that_is_declined(wire, method, size):
    """A body is read completely even if its request offers an upgrade to h2c, as the JDK's client always does."""
    body = bytes(range(256)) * (size // 256 + 1)
    for _ in range(2):
        wire.send(f"{method} /echo HTTP/1.1", JSON, *H2C, f"Content-Length: {len(body)}", body=body)

        status, _, answer = wire.response()
        assert status == 200
        assert json.loads(answer)["digest"] == digest(body)


def test_bodies_in_chunks_survive_it_too(wire):
    """A chunked body after an offer to upgrade is read completely, in any pieces."""
    wire.send("POST /echo HTTP/1.1", *H2C, "Transfer-Encoding: chunked")
    for piece in (b"3\r", b"\nab", b"c\r\n", b"4\r\ndefg\r\n0\r", b"\n\r\n"):
        time.sleep(0.01)
        wire.socket.sendall(piece)

    assert json.loads(wire.response()[2])["digest"] == digest(b"abcdefg")


def test_requests_with_upgrades_may_follow_each_other_at_once(wire):
    """Requests that are sent without waiting for answers are answered in order, whether they offer an upgrade or
    not."""
    for number in range(5):
        wire.send("POST /echo HTTP/1.1", *H2C, f"Content-Length: {number}", body=b"x" * number)

    assert [json.loads(wire.response()[2])["length"] for _ in range(5)] == [0, 1, 2, 3, 4]


def test_a_stream_may_begin_with_an_upgrade(wire):
    """A request that offers an upgrade opens a stream like any other."""
    wire.send("GET /three HTTP/1.1", *H2C).head()

    assert [wire.chunk() for _ in range(4)] == [b'{"n":0}\n', b'{"n":1}\n', b'{"n":2}\n', b""]


def test_a_get_may_have_a_body(wire):
    """The body of a `GET` is read, and the connection stays usable."""
    wire.send("GET /echo HTTP/1.1", JSON, "Content-Length: 2", body=b"{}")
    assert json.loads(wire.response()[2])["length"] == 2

    wire.send("GET /echo HTTP/1.1", "content-length: 0")
    assert wire.response()[0] == 200


def test_who_waits_for_a_go_ahead_gets_it(wire):
    """`Expect: 100-continue` is answered before the body is sent."""
    wire.send("POST /echo HTTP/1.1", "Expect: 100-continue", "Content-Length: 3")
    assert wire.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"

    wire.socket.sendall(b"abc")
    assert json.loads(wire.response()[2])["length"] == 3


def test_a_body_announced_too_long_is_refused_at_once(wire):
    """A body beyond the limit is refused with 413 before it is sent, and the connection is closed."""
    wire.send("POST /echo HTTP/1.1", "Expect: 100-continue", "Content-Length: 99999999999")

    status, headers, body = wire.response()
    assert (status, headers["connection"]) == (413, "close")
    assert json.loads(body)["status"] == 413


# Headers.


def test_headers_may_be_long(wire):
    """A header of 11 KB with the cursors of a hundred partitions is accepted."""
    cursors = json.dumps(
        [{"partition": str(n), "offset": f"001-0001-{n:018}", "event_type": "a" * 60} for n in range(100)]
    )
    wire.send("GET /echo HTTP/1.1", f"X-nakadi-cursors: {cursors}")

    assert json.loads(wire.response()[2])["headers"]["x-nakadi-cursors"] == cursors


def test_blanks_around_the_value_of_a_header_do_not_belong_to_it(wire):
    """A flow id has neither the blanks before it nor those after it. (R38)"""
    wire.send("GET /echo HTTP/1.1", "X-Flow-Id: \t a b \t ")

    assert json.loads(wire.response()[2])["headers"]["x-flow-id"] == "a b"


def test_a_repeated_header_counts_as_one(wire):
    """The values of a repeated header are joined with commas. (R38)"""
    wire.send("GET /echo HTTP/1.1", "X-Flow-Id: a", "X-Flow-Id: b ")

    assert json.loads(wire.response()[2])["headers"]["x-flow-id"] == "a, b"


def a_head(size):
    """The head of a request, with exactly this number of bytes."""
    beginning = b"GET /echo HTTP/1.1\r\nHost: x\r\nX: "
    return beginning + b"x" * (size - len(beginning) - 4) + b"\r\n\r\n"


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_head_may_have_a_quarter_of_a_megabyte(wire, pieces):
    """A head of exactly 256 KB is accepted, on a used and on a new connection."""
    head = a_head(256 * 1024)
    for _ in range(2):
        for at in range(pieces):
            wire.socket.sendall(head[len(head) * at // pieces : len(head) * (at + 1) // pieces])

        assert wire.response()[0] == 200


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("used", [False, True])
def test_a_head_may_not_have_a_byte_more(wire, pieces, used):
    """A head of 256 KB and one byte is refused with a Problem, however many pieces it arrives in."""
    if used:
        wire.send("POST /echo HTTP/1.1", JSON, "Content-Length: 2", body=b"{}").response()
    head = a_head(256 * 1024 + 1)
    for at in range(pieces):
        wire.socket.sendall(head[len(head) * at // pieces : len(head) * (at + 1) // pieces])

    status, _, body = wire.response()
    assert (status, json.loads(body)["status"]) == (431, 431)
    assert wire.closed()


def test_requests_without_a_pause_are_not_taken_for_one_long_head(wire):
    """The limit holds for each head: many requests that are sent at once may be longer."""
    request = b"GET /echo HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 4096 + b"\r\n\r\n"
    threading.Thread(target=wire.socket.sendall, args=(request * 100,)).start()

    assert [wire.response()[0] for _ in range(100)] == [200] * 100


@pytest.mark.parametrize(("headers", "status"), [(999, 200), (1000, 431)])
def test_headers_may_not_be_countless(wire, headers, status):
    """A request may have at most 1000 headers, including `Host`."""
    wire.send("GET /echo HTTP/1.1", *(f"X-{number}: x" for number in range(headers)))

    assert wire.response()[0] == status


@pytest.mark.parametrize("endless", [b"x: y\r\n", b"x"])
def test_trailers_may_not_be_endless(wire, endless):
    """The trailers after a chunked body have the same limit as the headers before it."""
    wire.send("POST /echo HTTP/1.1", "Transfer-Encoding: chunked", body=b"1\r\nx\r\n0\r\n")
    wire.socket.sendall(endless * (600_000 // len(endless)))

    assert wire.response()[0] == 400
    assert wire.closed()


def test_responses_are_dated(wire):
    """A response has a `Date` header."""
    assert "date" in wire.send("GET /echo HTTP/1.1").response()[1]


def test_head_has_a_length_and_no_body(wire):
    """`HEAD` has the length of the body that it does not send, and the connection stays usable. (R27)"""
    wire.send("HEAD /echo HTTP/1.1")
    status, headers = wire.head()
    assert status == 200
    assert int(headers["content-length"]) > 0

    assert wire.send("GET /echo HTTP/1.1").response()[0] == 200


# Malformed requests


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nX\x00: y\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /echo\r\n\r\n",
        b"GET /echo HTTP/0.9\r\nHost: x\r\n\r\n",
        b"GET /echo HTTP/2.0\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /echo HTTP/1.1\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: a/b?\r\n\r\n",
        b"GET /echo HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
    ],
)
def test_what_is_not_http_is_a_problem(wire, rubbish):
    """The server answers bytes that are not HTTP with a Problem, and closes the connection. (R16)"""
    wire.socket.sendall(rubbish)

    status, headers, body = wire.response()
    assert (status, headers["content-type"]) == (400, "application/problem+json")
    assert json.loads(body)["status"] == 400
    assert wire.closed()


POST = b"POST /echo HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 5", b"0\r\n\r\n"),
        (b"Content-Length: 2\r\nContent-Length: 2", b"{}"),
        (b"Content-Length: 2\r\nContent-Length: 3", b"{}"),
        (b"Content-Length: 2, 2", b"{}"),
        (b"Content-Length: +2", b"{}"),
        (b"Content-Length: 0x2", b"{}"),
        (b"Content-Length:", b"{}"),
        (b"Content-Length : 2", b"{}"),
        (b"Content-Length: 99999999999999999999999", b"{}"),
        (b"Transfer-Encoding: identity", b""),
        (b"Transfer-Encoding: xchunked", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked, identity", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", b"0\r\n\r\n"),
        (b"Transfer-Encoding:\r\n chunked", b"0\r\n\r\n"),
        (b"Transfer-Encoding: \x0bchunked", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"0x2\r\n{}\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"+2\r\n{}\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"-2\r\n{}\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"2 \r\n{}\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"2\n{}\n0\n\n"),
        (b"Transfer-Encoding: chunked", b"2;a\nb\r\n{}\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"\r\n{}\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"1\r\n{}\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"0\r\nContent-Length: 7\r\n\r\n"),
        (b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked", b"0x2\r\n{}\r\n0\r\n\r\n"),
        (b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\nContent-Length: 2", b"{}"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_bodies_that_two_readers_could_cut_differently_are_refused(wire, head, body, at_once):
    """A request whose body has a doubtful length is refused with 400, and nothing after it counts as a request."""
    hidden = b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"
    if at_once:
        wire.socket.sendall(POST + head + b"\r\n\r\n" + body + hidden)
    else:
        wire.socket.sendall(POST + head + b"\r\n\r\n")
        wire.socket.sendall(body + hidden)

    assert json.loads(wire.response()[2])["status"] == 400
    assert wire.closed()


def test_http_1_0_has_no_chunks(wire):
    """A chunked body in HTTP/1.0, which has no chunks, is refused with 400."""
    wire.socket.sendall(b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")

    assert wire.response()[0] == 400


def test_trailers_do_not_become_headers(wire):
    """Fields after a body are ignored, so no client can add a token to a request unnoticed by a proxy."""
    wire.send("POST /echo HTTP/1.1", "Transfer-Encoding: chunked", body=b"1\r\nx\r\n0\r\nAuthorization: evil\r\n\r\n")

    assert "authorization" not in json.loads(wire.response()[2])["headers"]


@pytest.mark.parametrize("method", ["BREW", "GETS", "get", "X-Y!"])
def test_unknown_methods_are_not_implemented(wire, method):
    """A method that HTTP does not know is answered with 501, and the connection is closed."""
    wire.send(f"{method} /echo HTTP/1.1")

    assert json.loads(wire.response()[2])["status"] == 501
    assert wire.closed()


def test_the_broker_is_no_proxy(wire):
    """`CONNECT` is answered with 501."""
    wire.send("CONNECT nowhere:443 HTTP/1.1")

    assert json.loads(wire.response()[2])["status"] == 501


@pytest.mark.parametrize("method", ["PROPFIND", "TRACE", "M-SEARCH", "QUERY"])
def test_methods_of_others_are_not_allowed(wire, method):
    """A method that HTTP knows, but the path does not support, is answered with 405, and the connection stays usable.
    (R26)"""
    assert wire.send(f"{method} /echo HTTP/1.1").response()[0] == 405
    assert wire.send("GET /echo HTTP/1.1").response()[0] == 200


def test_a_refusal_reaches_a_client_that_is_still_sending(wire):
    """If the server refuses a request before it has arrived completely, the client can still read the refusal."""
    wire.socket.sendall(POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n")
    for _ in range(20):
        wire.socket.sendall(b"x" * 100_000)

    assert wire.response()[0] == 400


def test_a_refused_request_is_answered_in_its_turn(wire, slow):
    """Requests before a refused one are answered, and each answer belongs to its own request."""
    wire.socket.sendall(
        b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n" + POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"
    )
    slow.free_in_a_moment()

    assert wire.response()[0] == 200
    assert wire.closed()


def test_rubbish_behind_a_request_does_not_hurt_it(wire):
    """A valid request is answered even if malformed bytes follow it; then the connection is closed."""
    wire.send("POST /echo HTTP/1.1", "Content-Length: 3", body=b"abc\r\nRUBBISH\r\n\r\n")

    status, headers, _ = wire.response()
    assert (status, headers["connection"]) == (200, "close")
    assert wire.closed()


@pytest.mark.parametrize("target", ["/echo/%zz", "/echo?x=%ff", "//echo", "/echo%00"])
def test_bad_urls_are_problems(wire, target):
    """A URL that cannot be parsed is answered with 400, and the connection stays usable. (R31)"""
    wire.send(f"GET {target} HTTP/1.1")
    assert json.loads(wire.response()[2])["status"] == 400

    assert wire.send("GET /echo HTTP/1.1").response()[0] == 200


def test_memory_is_returned_to_the_system_again_and_again(monkeypatch):
    """A running server returns the memory that its process has freed, without waiting for a large request."""
    trimmed = []
    monkeypatch.setattr(asgi, "trim_memory", lambda: trimmed.append(threading.current_thread().name))
    monkeypatch.setattr(server, "MEMORY_TRIM_INTERVAL_SECONDS", 0.001)
    with ServerThread(Application([], lambda _: UNAUTHENTICATED)):
        until(lambda: len(trimmed) >= 3)
    assert "nakadi-server" not in trimmed


def test_a_head_that_does_not_come_is_given_up(serving, monkeypatch):
    """A connection whose request is never completed is closed after a while, and so is a silent one."""
    monkeypatch.setattr("nakadi.http.connection.HEAD_TIMEOUT_SECONDS", 0.1)
    for beginning in (b"", b"GET /echo HTTP/1.1\r\nHost:", b"\r\n"):
        with Wire(serving.url) as wire:
            wire.socket.sendall(beginning)
            assert wire.closed()


def test_a_client_that_closes_its_half_is_answered(wire, slow):
    """A client that has sent everything may close its half of the connection, and still gets its answer."""
    wire.send("GET /slow HTTP/1.1")
    wire.socket.shutdown(socket.SHUT_WR)
    slow.free_in_a_moment()

    assert wire.response()[0] == 200
    assert wire.closed()


def test_half_a_body_and_then_nothing_is_no_request(wire, caplog):
    """If a client leaves in the middle of its body, the connection is closed without an answer, and nothing is
    logged.
    """
    wire.send("POST /echo HTTP/1.1", "Content-Length: 100", body=b"half")
    wire.socket.shutdown(socket.SHUT_WR)

    assert wire.closed()
    assert [*records_of("nakadi.http", caplog), *records_of("asyncio", caplog)] == []


class UnreadTransport(asyncio.Transport):
    """A transport whose other end reads nothing."""

    def __init__(self):
        super().__init__()
        self.answers = 0
        self.reads = True

    def write(self, data):
        self.answers += data.count(b"HTTP/1.1 200")

    def is_closing(self):
        return False

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True


@pytest.mark.parametrize("quick", [True, False])
def test_who_does_not_read_is_not_answered_without_end(quick):
    """While a client reads nothing, none of its further requests are begun, and soon none are read."""

    async def run():
        route = Route(method="GET", template="/x", handler=lambda _: empty_response(), operation="x", quick=quick)
        edge = AsgiApplication(Application([route], lambda _: UNAUTHENTICATED), threads=2)
        connection = Connection(ServerState(edge, 75, lambda: None), edge.quick_answerer)
        transport = UnreadTransport()
        connection.connection_made(transport)
        connection.pause_writing()
        for _ in range(3):
            connection.data_received(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(100):
            await asyncio.sleep(0)
        seen = transport.answers, transport.reads
        connection.resume_writing()
        async with asyncio.timeout(PATIENCE):
            while transport.answers < 3:  # noqa: ASYNC110  # the awaited change notifies nobody
                await asyncio.sleep(0.001)
        connection.connection_lost(None)
        edge.shut_down_threads()
        return seen, transport.reads

    assert asyncio.run(run()) == ((0, False), True)
