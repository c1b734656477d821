"""How a worker gets connections, and how it leaves without losing one."""

import asyncio
import socket

from nakadi.local.worker import (
    CONNECTION_ENDED,
    CONNECTION_FOLLOWS,
    CONNECTION_TAKEN,
    WORKER_LEAVING,
    WORKER_READY,
    HandedOverConnections,
)
from tests.support.patience import PATIENCE


async def read_message(supervisor):
    return await asyncio.get_running_loop().sock_recv(supervisor, 1)


def test_a_worker_that_leaves_serves_what_it_gets_until_the_supervisor_knows():
    """It stops only when the supervisor has closed its side: behind every connection that it handed over."""

    async def leave():
        async with asyncio.timeout(PATIENCE):
            stopped, served = asyncio.Event(), []
            supervisor, worker = socket.socketpair()
            client, connection = socket.socketpair()
            with supervisor, worker, client, connection:
                supervisor.setblocking(False)
                handed_over = HandedOverConnections(worker, stopped.set)

                class Protocol(asyncio.Protocol):
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
                assert served == [False]
                supervisor.shutdown(socket.SHUT_WR)
                await stopped.wait()

    asyncio.run(leave())
