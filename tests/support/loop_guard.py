"""Makes blocking calls raise on the event loop of a broker, where everything else would wait for them.

`guarded_loops` guards brokers in the process of the tests, `guarded_variables` those in separate processes.

The guard covers SQLite statements, blocking sockets, opening files, `time.sleep`, and slow work of the broker's own:
compiling schemas, explaining violations, splitting a body by hand, fetching keys, and a turn at long work. It does not
cover locks, because a lock that is only held for a moment may be contended anywhere.
"""

from __future__ import annotations

import asyncio
import builtins
import io
import os
import socket
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from nakadi.auth.key_set import KeySet
from nakadi.common.work import LongWorkQueue, is_blocking_forbidden
from nakadi.publishing import publisher
from nakadi.publishing import validation as publishing_validation
from nakadi.schemas import validation

SERVER_THREAD = "nakadi-server"

BLOCKING = (
    (time, "sleep"),
    (io, "open"),
    (builtins, "open"),
    (KeySet, "_refresh"),
    (publisher, "compile_validator"),
    (publisher, "make_batch_check"),
    (publishing_validation, "_split_strictly"),
    (validation, "explain_violations"),
)
"""Modules and classes, each with the name of a function in it that blocks or takes long."""

OF_SOCKETS = ("connect", "recv", "recv_into", "send", "sendall")
OF_SQLITE = ("execute", "executemany", "executescript")


class LoopBlockedError(AssertionError):
    """Raised in place of a call that would block the event loop."""


class LoopGuard:
    """Calls `report` with the name and the stack of each blocking call on an event loop."""

    def __init__(self, is_on_loop: Callable[[], bool], report: Callable[[str], object]) -> None:
        self._is_on_loop = is_on_loop
        self._report = report

    def check(self, what: str) -> None:
        """Raise if the caller runs on the event loop of a broker."""
        if is_blocking_forbidden.get() or self._is_on_loop():
            self._report(f"{what} on the event loop\n{''.join(traceback.format_stack(limit=25))}")
            raise LoopBlockedError(what)

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            self.check(name)
            return function(*arguments, **options)

        return call

    def guarded_if_blocking(self, name: str) -> Callable[..., Any]:
        """A method of sockets that is guarded unless the socket is non-blocking, as those of event loops are."""
        function = getattr(socket.socket, name)

        def call(connection: socket.socket, *arguments: Any) -> Any:
            if connection.gettimeout() != 0 and socket.MSG_DONTWAIT not in arguments[1:]:
                self.check(f"socket.{name}")
            return function(connection, *arguments)

        return call

    def guarded_connect(self) -> Callable[..., sqlite3.Connection]:
        methods = {name: self.wrap("SQLite", getattr(sqlite3.Connection, name)) for name in OF_SQLITE}
        factory = type("GuardedConnection", (sqlite3.Connection,), methods)
        connect = self.wrap("SQLite", sqlite3.connect)
        return lambda *arguments, **options: connect(*arguments, **{"factory": factory, **options})

    def guarded_turn(self) -> Callable[..., Any]:
        wait_for_turn = LongWorkQueue.wait_for_turn

        @contextmanager
        def wait_guarded(queue: LongWorkQueue, is_client_gone: Callable[[], bool]) -> Iterator[None]:
            with wait_for_turn(queue, is_client_gone):
                self.check("a turn at long work")
                yield

        return wait_guarded


class BlockingCalls:
    """Collects the blocking calls on event loops, each with its stack."""

    def __init__(self) -> None:
        self._calls: list[str] = []

    def add(self, call: str) -> None:
        self._calls.append(call)

    def take(self) -> list[str]:
        """Return the calls since the last call of this method."""
        calls, self._calls = self._calls, []
        return calls


@contextmanager
def guarded_loops() -> Iterator[BlockingCalls]:
    """Inside the block, blocking calls raise on the event loops of brokers in this process."""
    calls = BlockingCalls()
    guard = LoopGuard(lambda: threading.current_thread().name == SERVER_THREAD, calls.add)
    with ExitStack() as stack:
        for owner, name, guarded in guarded_attributes(guard):
            stack.enter_context(patch.object(owner, name, guarded))
        yield calls


def guarded_attributes(guard: LoopGuard) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield owners (modules and classes), an attribute of each, and the guarded replacement of the attribute."""
    for owner, name in BLOCKING:
        yield owner, name, guard.wrap(name, getattr(owner, name))
    for name in OF_SOCKETS:
        yield socket.socket, name, guard.guarded_if_blocking(name)
    yield sqlite3, "connect", guard.guarded_connect()
    yield LongWorkQueue, "wait_for_turn", guard.guarded_turn()


def guarded_variables(report: Path, path: str, *, forgets: str | None = None) -> dict[str, str]:
    """Variables with which Python guards the event loop of a broker, and writes blocking calls to the file `report`.
    `path` is where the process finds its modules. `forgets` may name a module whose check of whether it may block is
    switched off.
    """
    folders = (Path(__file__).parent / "guarded", Path(__file__).parents[2], path)
    variables = {"PYTHONPATH": os.pathsep.join(map(str, folders)), "LOOP_GUARD_REPORT": str(report)}
    return variables if forgets is None else {**variables, "LOOP_GUARD_FORGETS": forgets}


def guard_this_process(report: str, forgets: str | None) -> None:
    """Guard the event loop of this process until it ends."""
    file = os.open(report, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    # The processes of a broker may write at the same time, so each call is reported by one write to the end of the
    # file.
    guard = LoopGuard(is_loop_running, lambda call: os.write(file, call.encode()))
    for owner, name, guarded in guarded_attributes(guard):
        setattr(owner, name, guarded)
    if forgets is not None:
        import_module(forgets).check_may_block = lambda: None


def is_loop_running() -> bool:
    return asyncio.events._get_running_loop() is not None
