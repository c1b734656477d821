"""Event logs that let another log commit their appends, as processes of a broker do; here the other log is in a
thread.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.engines.sqlite.sharing import AppendService
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLog


@contextmanager
def commit_for(log: EventLog, number: int = 1) -> Iterator[list[socket.socket]]:
    """Serve a log that commits for other processes, and yield a connection for each of `number` processes."""
    pairs = [socket.socketpair() for _ in range(number)]

    async def serve() -> None:
        service = AppendService(log)
        try:
            await asyncio.gather(*(service.serve(ours) for ours, _ in pairs))
        finally:
            service.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="committing")
    thread.start()
    try:
        yield [theirs for _, theirs in pairs]
    finally:
        for _, theirs in pairs:
            theirs.close()
        thread.join()


@contextmanager
def open_sharing_log(path: Path, clock: Clock) -> Iterator[EventLog]:
    """Yield a log whose appends another log commits."""
    with closing(SqliteLog(path, clock)) as committing, commit_for(committing) as (connection,):
        log = SqliteLog(path, clock, committer=connection)
        try:
            yield log
        finally:
            log.close()
