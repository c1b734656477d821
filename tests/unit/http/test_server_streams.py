"""Streams of the HTTP server, and how the server stops."""

import asyncio
import http.client
import socket
import threading
import time
import zlib
from urllib.parse import urlsplit

import pytest

from nakadi.http import connection
from nakadi.http.application import Application
from nakadi.http.asgi import RequestLimits
from nakadi.http.message import StreamingResponse
from nakadi.http.router import Route
from nakadi.http.server import Server, open_listening_socket
from nakadi.local.serving import ServerThread
from nakadi.model.authorization import UNAUTHENTICATED
from tests.support.patience import PATIENCE, until
from tests.support.wire import Wire

# Streams.


def test_headers_of_a_stream_come_alone_and_at_once(wire):
    """A stream's status and headers are sent immediately and separately, long before a batch. (L38)"""
    head = wire.send("GET /idle HTTP/1.1").once()

    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head.endswith(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert b"connection" not in head.lower()


def test_a_client_that_reads_the_socket_itself_loses_nothing(streams):
    """A client that takes the socket from its HTTP library after the headers gets every batch, and the end. Its library
    would have read bytes that came together with the headers, so no bytes may come with them. The client does not know
    the last chunk, so it treats the closing of the connection as the end.
    """
    three = Route(
        method="GET", template="/three", handler=lambda _: StreamingResponse(streams.three), operation="three"
    )
    # On a busy machine, the library may need much longer than a tenth of a second to read the headers.
    patient = RequestLimits(first_chunk_delay_seconds=2.0)
    with ServerThread(Application([three], lambda _: UNAUTHENTICATED), limits=patient) as serving:
        address = urlsplit(serving.url)
        library = http.client.HTTPConnection(address.hostname, address.port, timeout=PATIENCE)
        agent = {"User-Agent": "python-requests/2.32.5", "Accept-Encoding": "identity"}
        library.request("GET", "/three", headers=agent)
        library.getresponse()
        assert library.sock is not None, "the library has let go of the socket"
        seen = b""
        while more := library.sock.recv(4096):
            seen += more
        library.close()

        assert seen == b'8\r\n{"n":0}\n\r\n8\r\n{"n":1}\n\r\n8\r\n{"n":2}\n\r\n0\r\n\r\n'


def test_a_stream_ends_properly_and_closes_unannounced(wire):
    """A stream ends with the last chunk, and soon afterwards the connection is closed, without a header that announces
    it."""
    status, headers = wire.send("GET /three HTTP/1.1").head()

    assert (status, headers.get("connection")) == (200, None)
    assert [wire.chunk() for _ in range(4)] == [b'{"n":0}\n', b'{"n":1}\n', b'{"n":2}\n', b""]
    assert wire.closed()


def test_a_connection_can_be_used_again_behind_a_stream(wire):
    """A client that sends another request after a stream gets its answer on the same connection."""
    for _ in range(3):
        wire.send("GET /three HTTP/1.1").head()
        assert [wire.chunk() for _ in range(4)][-1] == b""

    assert wire.send("GET /three HTTP/1.1").head()[0] == 200


def test_a_connection_of_a_proxy_stays_open_behind_a_stream(streams, monkeypatch):
    """The connection of a proxy, which reuses connections, stays open after a stream: a request that the proxy sends at
    the moment of closing would be lost.
    """
    monkeypatch.setattr(connection, "CLOSE_AFTER_STREAM_TIMEOUT_SECONDS", 0.0)
    three = Route(
        method="GET", template="/three", handler=lambda _: StreamingResponse(streams.three), operation="three"
    )
    with open_listening_socket("127.0.0.1", 0) as listening:
        server = Server(Application([three], lambda _: UNAUTHENTICATED), closes_after_streams=False)

        async def serve_clients(clients):
            stopping = asyncio.Event()
            serving = asyncio.create_task(server.serve(listening, stopping))
            await asyncio.to_thread(clients, f"http://127.0.0.1:{listening.getsockname()[1]}")
            stopping.set()
            await serving

        def read_two_streams(url):
            with Wire(url) as kept, Wire(url) as other:
                for wire in (kept, other, kept):
                    # By the time that the server has served the other connection, it would have closed the first one.
                    assert wire.send("GET /three HTTP/1.1").head()[0] == 200
                    assert [wire.chunk() for _ in range(4)][-1] == b""

        asyncio.run(serve_clients(read_two_streams))


def test_a_stream_in_http_1_0_ends_with_the_connection(wire):
    """An HTTP/1.0 client, which cannot read chunks, gets a stream without them until the connection ends."""
    wire.socket.sendall(b"GET /three HTTP/1.0\r\n\r\n")
    _, headers = wire.head()

    assert "transfer-encoding" not in headers
    assert "content-length" not in headers
    assert headers["connection"] == "close"
    assert wire.until(b'{"n":2}\n') == b'{"n":0}\n{"n":1}\n{"n":2}\n'
    assert wire.closed()


def test_a_packed_stream_arrives_batch_by_batch(wire):
    """With `Accept-Encoding: gzip`, every batch can be read as soon as it arrives. (L40, R37)"""
    _, headers = wire.send("GET /three HTTP/1.1", "Accept-Encoding: gzip").head()
    reader = zlib.decompressobj(wbits=31)

    assert headers["content-encoding"] == "gzip"
    assert [reader.decompress(wire.chunk()) for _ in range(3)] == [b'{"n":0}\n', b'{"n":1}\n', b'{"n":2}\n']


def test_no_one_is_sent_gzip_unasked(wire):
    """A stream is not compressed for clients that refuse gzip. (L40)"""
    _, headers = wire.send("GET /three HTTP/1.1", "Accept-Encoding: gzip;q=0,deflate").head()

    assert "content-encoding" not in headers


def test_a_client_that_leaves_an_idle_stream_is_noticed(serving, streams):
    """If a client closes the connection while nothing is sent, the stream notices it."""
    with Wire(serving.url) as wire:
        wire.send("GET /idle HTTP/1.1").head()

    until(lambda: streams.ends == ["gone"])
    assert streams.open == 0


def test_a_client_that_closes_only_its_half_of_a_stream_is_gone(wire, streams):
    """On a stream, the server cannot distinguish the closing of one half from leaving, so it treats both as leaving."""
    wire.send("GET /idle HTTP/1.1").head()
    wire.socket.shutdown(socket.SHUT_WR)

    until(lambda: streams.ends == ["gone"])


def test_a_client_that_closed_its_half_before_the_stream_began_is_gone_too(wire, streams):
    """A client that opens a stream and leaves immediately leaves no open stream behind."""
    wire.send("GET /idle HTTP/1.1")
    wire.socket.shutdown(socket.SHUT_WR)

    try:
        while wire.socket.recv(4096):
            pass
    except ConnectionError:
        pass
    until(lambda: streams.open == 0)


def test_a_slow_reader_slows_only_itself(serving, streams):
    """A client that does not read delays only the writes to itself, while others are served."""
    with Wire(serving.url) as lazy, Wire(serving.url) as lively:
        lazy.send("GET /endless HTTP/1.1").head()
        time.sleep(0.2)

        assert lively.send("GET /echo HTTP/1.1").response()[0] == 200
        assert streams.open == 1
    until(lambda: streams.open == 0)


def test_many_streams_are_noticed_when_they_leave(serving, streams):
    """If three hundred clients leave their idle streams at once, every stream notices it."""
    wires = [Wire(serving.url) for _ in range(300)]
    for wire in wires:
        wire.send("GET /idle HTTP/1.1")
    until(lambda: streams.open == 300)
    for wire in wires:
        wire.socket.close()

    until(lambda: streams.open == 0)


# The end.


def test_open_streams_end_properly_when_the_server_stops(serving, streams):
    """When the server stops, streams may send their last data, and end as they always do."""
    with Wire(serving.url) as wire:
        wire.send("GET /until_drained HTTP/1.1").head()
        until(lambda: streams.open == 1)
        stopping = threading.Thread(target=serving.close)
        stopping.start()

        assert [wire.chunk(), wire.chunk()] == [b"bye\n", b""]
        assert wire.closed()
        stopping.join()


def test_requests_in_progress_are_answered_when_the_server_stops(serving, slow):
    """When the server stops, requests in progress are answered, idle connections are closed, and new ones are
    refused."""
    with Wire(serving.url) as busy, Wire(serving.url) as idle:
        assert idle.send("GET /echo HTTP/1.1").response()[0] == 200
        busy.send("GET /slow HTTP/1.1")
        assert slow.entered.wait(PATIENCE)
        stopping = threading.Thread(target=serving.close)
        stopping.start()

        assert idle.closed()
        slow.freed.set()
        status, headers, _ = busy.response()
        assert (status, headers["connection"]) == (200, "close")
        stopping.join()
        with pytest.raises(ConnectionError):
            Wire(serving.url)


def test_who_does_not_end_is_cut_off(streams):
    """A stream that ignores the request to end is cut off after the grace time."""
    route = Route(method="GET", template="/idle", handler=lambda _: StreamingResponse(streams.idle), operation="idle")
    serving = ServerThread(Application([route], lambda _: UNAUTHENTICATED), grace_seconds=0.1)
    with Wire(serving.url) as wire:
        wire.send("GET /idle HTTP/1.1").head()
        serving.close()

        assert wire.closed()
    assert streams.ends == ["gone"]
