"""How a worker gets connections, and how it stops without losing one."""

import asyncio
import socket

from nakadi.local.worker import (
    CONNECTION_ENDED,
    CONNECTION_FOLLOWS,
    CONNECTION_IN_USE_FOLLOWS,
    CONNECTION_TAKEN,
    WORKER_BEAT,
    WORKER_LEAVING,
    WORKER_READY,
    HandedOverConnections,
)
from tests.support.patience import PATIENCE


async def read_message(supervisor):
    return await asyncio.get_running_loop().sock_recv(supervisor, 1)


def test_a_worker_that_leaves_serves_what_it_gets_until_the_supervisor_knows():
    """A worker that stops serves the connections that it still gets, until the supervisor has closed its side."""

    async def leave():
        async with asyncio.timeout(PATIENCE):
            stopped, served, kinds = asyncio.Event(), [], []
            supervisor, worker = socket.socketpair()
            client, connection = socket.socketpair()
            with supervisor, worker, client, connection:
                supervisor.setblocking(False)
                handed_over = HandedOverConnections(worker, stopped.set)

                class Protocol(asyncio.Protocol):
                    def __init__(self, *, was_taken_over):
                        kinds.append(was_taken_over)

                    def connection_made(self, transport):
                        served.append(stopped.is_set())
                        transport.close()

                    def connection_lost(self, _):
                        handed_over.report_connection_end()

                handed_over.start_serving(Protocol)
                assert await read_message(supervisor) == WORKER_READY
                handed_over.announce_leaving()
                assert await read_message(supervisor) == WORKER_LEAVING
                socket.send_fds(supervisor, [CONNECTION_FOLLOWS], [connection.fileno()])
                assert await read_message(supervisor) == CONNECTION_TAKEN
                assert await read_message(supervisor) == CONNECTION_ENDED
                assert served == kinds == [False]
                supervisor.shutdown(socket.SHUT_WR)
                await stopped.wait()

    asyncio.run(leave())


def test_a_connection_that_the_supervisor_has_served_is_known_as_such():
    """The supervisor marks a connection that it has already served with a different byte than a new one."""

    async def serve():
        async with asyncio.timeout(PATIENCE):
            kinds = []
            supervisor, worker = socket.socketpair()
            pairs = [socket.socketpair() for _ in range(3)]
            with supervisor, worker:
                supervisor.setblocking(False)
                handed_over = HandedOverConnections(worker, lambda: None)

                class Protocol(asyncio.Protocol):
                    def __init__(self, *, was_taken_over):
                        kinds.append(was_taken_over)

                    def connection_made(self, transport):
                        transport.close()

                handed_over.start_serving(Protocol)
                assert await read_message(supervisor) == WORKER_READY
                for kind, (_, connection) in zip(
                    (CONNECTION_FOLLOWS, CONNECTION_IN_USE_FOLLOWS, CONNECTION_FOLLOWS), pairs, strict=True
                ):
                    socket.send_fds(supervisor, [kind], [connection.fileno()])
                for client, connection in pairs:
                    connection.close()
                    client.setblocking(False)
                    assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
                    client.close()
                handed_over.close()
            assert kinds == [False, True, False]

    asyncio.run(serve())


def test_a_worker_beats():
    """A worker tells the supervisor again and again that its event loop runs, without being asked."""

    async def beat():
        async with asyncio.timeout(PATIENCE):
            supervisor, worker = socket.socketpair()
            with supervisor, worker:
                supervisor.setblocking(False)
                beating = asyncio.create_task(HandedOverConnections(worker, lambda: None).beat_regularly())
                assert [await read_message(supervisor) for _ in range(3)] == [WORKER_BEAT] * 3
                beating.cancel()

    asyncio.run(beat())
