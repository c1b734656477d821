"""Makes calls that block raise on the event loop of a broker in this process, where all else would wait for them.

Guarded are statements of SQLite, sockets that block, files that are opened, `time.sleep`, and work of ours that takes
long: compiling schemas, explaining violations, cutting a body by hand, fetching keys, and a turn at long work. Locks
are not: one that is held for a moment may be contended anywhere.
"""

from __future__ import annotations

import builtins
import io
import socket
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from nakadi.auth.tokens import KeySet
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
"""Modules and classes, and what blocks or takes long in them."""

OF_SOCKETS = ("connect", "recv", "recv_into", "send", "sendall")
OF_SQLITE = ("execute", "executemany", "executescript")


class LoopBlockedError(AssertionError):
    """Raised in the place of a call that would block the event loop."""


class LoopGuard:
    """What was called on an event loop so far, with the stack of each call."""

    def __init__(self) -> None:
        self._calls: list[str] = []

    def check(self, what: str) -> None:
        """Raise if this is work on the event loop of a broker."""
        if is_blocking_forbidden.get() or threading.current_thread().name == SERVER_THREAD:
            self._calls.append(f"{what} on the event loop\n{''.join(traceback.format_stack(limit=25))}")
            raise LoopBlockedError(what)

    def take_calls(self) -> list[str]:
        """The calls since this was done last."""
        calls, self._calls = self._calls, []
        return calls

    def guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            self.check(name)
            return function(*arguments, **options)

        return call

    def guarded_if_blocking(self, name: str) -> Callable[..., Any]:
        """A method of sockets. Event loops have sockets that do not block."""
        function = getattr(socket.socket, name)

        def call(connection: socket.socket, *arguments: Any) -> Any:
            if connection.gettimeout() != 0:
                self.check(f"socket.{name}")
            return function(connection, *arguments)

        return call

    def guarded_connect(self) -> Callable[..., sqlite3.Connection]:
        methods = {name: self.guarded("SQLite", getattr(sqlite3.Connection, name)) for name in OF_SQLITE}
        factory = type("GuardedConnection", (sqlite3.Connection,), methods)
        connect = self.guarded("SQLite", sqlite3.connect)
        return lambda *arguments, **options: connect(*arguments, **{"factory": factory, **options})

    def guarded_turn(self) -> Callable[..., Any]:
        wait_for_turn = LongWorkQueue.wait_for_turn

        @contextmanager
        def wait_guarded(queue: LongWorkQueue, is_client_gone: Callable[[], bool]) -> Iterator[None]:
            with wait_for_turn(queue, is_client_gone):
                self.check("a turn at long work")
                yield

        return wait_guarded


@contextmanager
def guarded_loops() -> Iterator[LoopGuard]:
    """Inside, calls that block raise on the event loops of brokers that are made inside."""
    guard = LoopGuard()
    with ExitStack() as stack:
        for owner, name in BLOCKING:
            stack.enter_context(patch.object(owner, name, guard.guarded(name, getattr(owner, name))))
        for name in OF_SOCKETS:
            stack.enter_context(patch.object(socket.socket, name, guard.guarded_if_blocking(name)))
        stack.enter_context(patch.object(sqlite3, "connect", guard.guarded_connect()))
        stack.enter_context(patch.object(LongWorkQueue, "wait_for_turn", guard.guarded_turn()))
        yield guard
