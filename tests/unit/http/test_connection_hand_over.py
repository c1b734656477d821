"""A process may hand over a connection to another process between two requests; here, to another server."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from nakadi.http import connection as connections
from nakadi.http.application import Application
from nakadi.http.asgi import AsgiApplication
from nakadi.http.connection import MANY_BYTES, Connection, ServerState
from nakadi.http.router import Route
from nakadi.http.server import Server
from nakadi.model.authorization import UNAUTHENTICATED
from tests.support.http_server import SlowHandler, echo
from tests.support.patience import PATIENCE


class HandedOverConnection:
    """Gives a server a connection that the test has taken out of a listening socket."""

    def __init__(self):
        self.ended = asyncio.Event()
        self.with_many_bytes = asyncio.Queue()
        self.protocols = []

    def start_serving(self, new_protocol):
        self._new_protocol = new_protocol

    def report_connection_end(self):
        self.ended.set()

    def note_large_body(self, connection):
        self.with_many_bytes.put_nowait(connection)

    def close(self):
        pass

    async def serve(self, connection, *, was_taken_over=False):
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        _, protocol = await loop.connect_accepted_socket(
            lambda: self._new_protocol(was_taken_over=was_taken_over), connection
        )
        self.protocols.append(protocol)


@asynccontextmanager
async def serving(*routes):
    source, stopping = HandedOverConnection(), asyncio.Event()
    echoes = Route(method="POST", template="/echo", handler=echo, operation="echo", accepts_any_content_type=True)
    server = Server(Application([echoes, *routes], lambda _: UNAUTHENTICATED), threads=2, grace_seconds=PATIENCE)
    task = asyncio.create_task(server.serve(source, stopping))
    await asyncio.sleep(0)
    try:
        yield source
    finally:
        stopping.set()
        await task


class Client:
    """A connection to a listening socket, and its other end."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.ours = socket.create_connection(listening.getsockname())
            self.theirs, _ = listening.accept()
        self.ours.setblocking(False)

    def close(self):
        self.ours.close()

    async def send(self, data):
        await asyncio.get_running_loop().sock_sendall(self.ours, data)

    async def receive(self):
        return await asyncio.get_running_loop().sock_recv(self.ours, 65536)

    async def length_of_echo(self, size):
        """The server's answer for a body of this size."""
        await self.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        answer = b""
        while not answer.endswith(b"}"):
            received = await self.receive()
            assert received, answer
            answer += received
        return json.loads(answer.partition(b"\r\n\r\n")[2])["length"]


def run_with_servers(work, *routes):
    """Run a test with a client and two servers, within a time limit."""

    async def run():
        async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
            client = Client()
            stack.callback(client.close)
            first, second = [await stack.enter_async_context(serving(*routes)) for _ in range(2)]
            await work(client, first, second)

    asyncio.run(run())


async def wait_until_busy(connection):
    while connection._is_resting():  # noqa: ASYNC110  # the awaited change notifies nobody
        await asyncio.sleep(0.001)


def test_a_connection_goes_on_in_another_server():
    """After a long request, the first server may hand over the connection. The client notices nothing."""

    async def work(client, first, second):
        await first.serve(client.theirs)
        assert await client.length_of_echo(MANY_BYTES - 1) == MANY_BYTES - 1
        assert first.with_many_bytes.empty()
        assert await client.length_of_echo(MANY_BYTES) == MANY_BYTES
        given = await first.with_many_bytes.get()
        copies = []
        given.hand_over(lambda copy: copies.append(copy) or True)
        await first.ended.wait()

        await second.serve(*copies, was_taken_over=True)
        for size in (3, MANY_BYTES):
            assert await client.length_of_echo(size) == size
        assert not second.ended.is_set()

    run_with_servers(work)


def test_a_connection_stays_if_nobody_takes_it():
    """If nobody takes the connection, the first server continues to serve it."""

    async def work(client, first, _):
        await first.serve(client.theirs)
        assert await client.length_of_echo(MANY_BYTES) == MANY_BYTES
        given = await first.with_many_bytes.get()
        given.hand_over(lambda _: False)
        assert await client.length_of_echo(3) == 3
        assert not first.ended.is_set()

    run_with_servers(work)


@pytest.mark.parametrize(
    "sent", [b"P", b"POST /echo HTTP/1.1\r\n", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{"]
)
def test_a_request_that_has_begun_to_arrive_is_not_torn_apart(sent):
    """Bytes that one server has read are not available to another, so the first server answers the request itself."""

    async def work(client, first, _):
        await first.serve(client.theirs)
        assert await client.length_of_echo(3) == 3
        [connection] = first.protocols
        await client.send(sent)
        await wait_until_busy(connection)
        handed_over = []
        connection.hand_over(handed_over.append)
        assert not handed_over
        rest = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"[len(sent) :]
        await client.send(rest)
        assert (await client.receive()).startswith(b"HTTP/1.1 200")

    run_with_servers(work)


def test_a_request_that_is_being_answered_stays():
    """A connection is not handed over during an answer."""
    slow = SlowHandler()

    async def work(client, first, _):
        await first.serve(client.theirs)
        await client.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        [connection] = first.protocols
        await wait_until_busy(connection)
        handed_over = []
        connection.hand_over(handed_over.append)
        assert not handed_over
        slow.freed.set()
        assert (await client.receive()).startswith(b"HTTP/1.1 200")

    run_with_servers(work, Route(method="GET", template="/slow", handler=slow, operation="slow"))


class HalfWrittenTransport(asyncio.Transport):
    """A transport with bytes that the client has not read yet."""

    unwritten = 1

    def get_write_buffer_size(self):
        return self.unwritten

    def is_closing(self):
        return False

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


def test_an_answer_that_is_not_written_yet_is_not_lost():
    """A connection is not handed over while the server still has bytes for the client."""

    async def run():
        edge = AsgiApplication(Application([], lambda _: UNAUTHENTICATED), threads=1)
        connection = Connection(ServerState(edge, 75, lambda: None), edge.quick_answerer)
        with socket.socket() as of_client:
            transport = HalfWrittenTransport({"socket": of_client})
            connection.connection_made(transport)
            handed_over = []

            def refuse(copy):
                handed_over.append(copy)
                return False

            connection.hand_over(refuse)
            assert not handed_over
            transport.unwritten = 0
            connection.hand_over(refuse)
            assert len(handed_over) == 1
            connection.connection_lost(None)
            connection.hand_over(refuse)
            assert len(handed_over) == 1
        edge.shut_down_threads()

    asyncio.run(run())


def test_a_connection_that_goes_on_may_rest(monkeypatch):
    """After a hand-over, a connection may be idle as long as between two requests, and not just as long as a new
    connection before its first request.
    """
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_SECONDS", 0.0)

    async def work(client, first, second):
        other = Client()
        await second.serve(client.theirs, was_taken_over=True)
        await first.serve(other.theirs)
        assert await other.receive() == b""
        other.close()
        monkeypatch.undo()
        assert await client.length_of_echo(3) == 3

    run_with_servers(work)
