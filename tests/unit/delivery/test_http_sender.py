"""Requests to sinks that behave in many ways."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from nakadi.delivery.addresses import parse_address_rules
from nakadi.delivery.answers import MAX_ANSWER_CHARACTERS, Answer
from nakadi.delivery.http_sender import MAX_ANSWER_BYTES, HttpSender
from services.streaming.certificate import tls

LOOPBACK = ("127.0.0.0/8", "::1/128")

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def a_sink(serve: Serve):
    """A server on this machine, and the number of connections to it so far."""
    connections = []

    async def count_and_serve(reader, writer):
        connections.append(writer)
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(count_and_serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook", connections
    finally:
        server.close()
        for each in connections:
            each.close()


@asynccontextmanager
async def a_sender(*networks: str):
    sender = HttpSender(parse_address_rules(networks), lambda: datetime.now(UTC))
    try:
        yield sender
    finally:
        await sender.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    [length] = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    return head + await reader.readexactly(length)


def answering_server(*answers: bytes, requests: list[bytes] | None = None) -> Serve:
    """A sink that gives these answers to the requests on each connection, one after another, and then no more."""

    async def serve(reader, writer):
        for answer in answers:
            request = await read_request(reader)
            if requests is not None:
                requests.append(request)
            writer.write(answer)
            await writer.drain()
        await reader.read()

    return serve


def send(serve: Serve, *, timeout_seconds: float = 20.0, headers=None, times: int = 1) -> tuple[list[Answer], int]:
    async def run():
        async with a_sink(serve) as (url, connections), a_sender(*LOOPBACK) as sender:
            answers = [await sender.send(url, b'{"a":1}', headers or {}, timeout_seconds) for _ in range(times)]
            return answers, len(connections)

    return asyncio.run(run())


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def test_a_delivery_is_one_request_with_its_headers_and_nothing_else():
    """(X23)"""
    requests: list[bytes] = []
    answers, _ = send(answering_server(OK, requests=requests), headers={"x-a": "b", "content-type": "application/json"})
    assert answers == [Answer(200, "ok")]
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert body == b'{"a":1}'
    names = {line.split(b":")[0].lower() for line in head.split(b"\r\n")[1:]}
    assert names == {b"host", b"user-agent", b"x-a", b"content-type", b"content-length"}


def test_connections_are_kept():
    answers, connections = send(answering_server(*[OK] * 5), times=5)
    assert [each.status for each in answers] == [200] * 5
    assert connections == 1


def test_redirects_are_not_followed():
    """(X23)"""
    requests: list[bytes] = []
    redirect = b"HTTP/1.1 307 Go\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n"
    answers, _ = send(answering_server(redirect, OK, requests=requests))
    assert answers == [Answer(307, "")]
    assert len(requests) == 1


def test_cookies_and_proxies_are_ignored(monkeypatch):
    """Neither cookies that a sink sets nor the environment of the broker change a delivery. (X23)"""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    requests: list[bytes] = []
    cookie = b"HTTP/1.1 204 No Content\r\nset-cookie: a=b\r\n\r\n"
    answers, _ = send(answering_server(cookie, cookie, requests=requests), times=2)
    assert [each.status for each in answers] == [204, 204]
    assert not any(b"cookie" in each.lower() for each in requests)


def test_retry_after_is_read():
    """(X14)"""
    busy = b"HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nbusy"
    assert send(answering_server(busy))[0] == [Answer(503, "busy", 7.0)]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 No\r\ncontent-length: 100000000\r\n\r\n" + b"x" * 100_000,
        b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n" + b"1000\r\n" + b"x" * 0x1000 + b"\r\n",
    ],
    ids=["huge", "endless"],
)
def test_only_the_beginning_of_a_long_answer_is_read(answer):
    """(X24)"""
    [found] = send(answering_server(answer))[0]
    assert (found.status, found.text) == (500, "x" * MAX_ANSWER_CHARACTERS)


def test_a_compressed_answer_is_not_expanded():
    """(X24)"""
    bomb = gzip.compress(b"x" * 50_000_000)
    answer = b"HTTP/1.1 500 No\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb) + bomb
    [found] = send(answering_server(answer))[0]
    assert found.status == 500
    assert "xx" not in found.text
    assert len(found.text) <= MAX_ANSWER_CHARACTERS < MAX_ANSWER_BYTES


def test_a_status_counts_whatever_follows():
    """(X24)"""

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhal")

    assert [each.status for each in send(serve)[0]] == [200]


def test_a_sink_that_says_nothing_costs_its_time():
    """(X24)"""

    async def serve(reader, _writer):
        await reader.read()
        await asyncio.sleep(60)

    assert send(serve, timeout_seconds=0.2)[0] == [Answer(None, "It did not answer within 0.2 s")]


@pytest.mark.parametrize(
    "answer",
    [b"", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n"],
    ids=["none", "no", "long"],
)
def test_what_is_no_answer_is_a_failure(answer):
    """If a sink's response is not valid HTTP, the sink has received the batch, so the batch may be to blame. (X24)"""

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(answer)

    [found] = send(serve)[0]
    assert (found.status, found.was_sent) == (None, True)


def test_a_sink_that_is_not_there_has_seen_nothing():
    """(X15)"""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]

    async def run():
        async with a_sender(*LOOPBACK) as sender:
            unreachable = await sender.send(f"http://127.0.0.1:{port}/", b"", {}, 5.0)
            unknown = await sender.send("http://nowhere.invalid/", b"", {}, 5.0)
            return unreachable, unknown

    for found in asyncio.run(run()):
        assert (found.status, found.was_sent) == (None, False)
        assert found.text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0"])
def test_the_address_is_checked_where_the_connection_is_made(host):
    """The sender checks the address to which it connects, and opens no socket to an internal one, whatever a name
    resolves to. (X21)
    """

    async def run():
        async with a_sink(answering_server(OK)) as (url, connections), a_sender() as sender:
            port = url.rpartition(":")[2].partition("/")[0]
            return await sender.send(f"http://{host}:{port}/", b"", {}, 5.0), list(connections)

    found, connections = asyncio.run(run())
    assert (found.status, found.was_sent) == (None, False)
    assert not connections


def test_a_name_that_changes_between_two_looks_does_not_matter(monkeypatch):
    """The name is resolved once per connection, and the resolved address is checked. (X21)"""
    looks = []
    real = socket.getaddrinfo

    def rebinding(host, *args, **more):
        if host == "rebind.example":
            looks.append(host)
            host = "127.0.0.1"
        return real(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)

    async def run():
        async with a_sink(answering_server(OK)) as (url, connections), a_sender() as sender:
            port = url.rpartition(":")[2].partition("/")[0]
            return await sender.send(f"http://rebind.example:{port}/", b"", {}, 5.0), list(connections)

    found, connections = asyncio.run(run())
    assert (found.was_sent, connections, looks) == (False, [], ["rebind.example"])


def test_a_certificate_that_nobody_signed_is_refused():
    """A sink with a certificate that nobody has signed does not get the batch. (X20)"""
    requests: list[bytes] = []

    async def run():
        server = await asyncio.start_server(answering_server(OK, requests=requests), "127.0.0.1", 0, ssl=tls())
        async with server, a_sender(*LOOPBACK) as sender:
            return await sender.send(f"https://localhost:{server.sockets[0].getsockname()[1]}/", b"", {}, 5.0)

    found = asyncio.run(run())
    assert (found.status, found.was_sent, requests) == (None, False, [])
    assert "certificate" in found.text.lower()


def test_broken_tls_is_refused():
    """(X24)"""

    async def serve(reader, writer):
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 What\r\n\r\n")

    async def run():
        async with a_sink(serve) as (url, _), a_sender(*LOOPBACK) as sender:
            return await sender.send(url.replace("http:", "https:"), b"", {}, 5.0)

    found = asyncio.run(run())
    assert (found.status, found.was_sent) == (None, False)
