"""Answers small requests with quick handlers on the event loop, without a task, a thread or messages of ASGI.

Nothing waits here. If a handler awaits a result, another thread delivers the result to the loop, where the handler
continues. If a request needs more than a moment, the server starts it again in the usual way; a handler may also leave
the loop itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

from nakadi.common.waiting import LEAVE_LOOP
from nakadi.common.work import NeedsThread, run_without_blocking
from nakadi.http import compression
from nakadi.http.application import AdmittedRequest
from nakadi.http.asgi_requests import AsgiScope, connection_in_scope
from nakadi.http.message import Answer, Request, Response, UnfinishedAnswer, stay_in_thread
from nakadi.http.problem import make_and_log_problem
from nakadi.http.router import Lane
from nakadi.model.outcomes import Outcome, TooLarge, TryLater

log = logging.getLogger(__name__)

# Handling a body of this size at once takes a few milliseconds at worst.
MAX_QUICK_BODY_BYTES = 128 * 1024
# Compressing more than this at once would delay all other requests on the event loop.
MAX_BYTES_COMPRESSED_ON_LOOP = 32 * 1024
# How long a round of the event loop continues with waiting requests.
MAX_LOOP_WORK_SECONDS = 0.004
# How long a write may wait for requests that are handled meanwhile, to share its commit with them.
MAX_WRITE_DELAY_SECONDS = 0.001

T = TypeVar("T")
SendResponse = Callable[[Response], None]


class AnsweringApp(Protocol):
    """An application, or a wrapper of one."""

    def lane_of(self, request: Request) -> Lane:
        """The lane of the threads that should answer a request."""

    def is_quick(self, method: str, target: str) -> bool:
        """Whether a request may begin on the event loop, where it raises `NeedsThread` before it waits."""

    def admit_and_begin_answer(self, request: Request) -> Answer | UnfinishedAnswer:
        """Begin to answer a request from the network."""

    def admit(self, request: Request) -> AdmittedRequest | Answer:
        """Check the head of a request. Returns the admitted request, or an answer that refuses it."""

    def begin_answer(self, admitted: AdmittedRequest, body: bytes) -> Answer | UnfinishedAnswer:
        """Begin to answer an admitted request, once its body has been read."""

    def refuse(self, request: Request, outcome: Outcome) -> Answer:
        """Answer a request that could not be read to its end."""


class RunInThread(Protocol):
    """Runs work in a thread of a lane."""

    def __call__(self, lane: Lane, work: Callable[[], T], /) -> asyncio.Future[T]: ...


class LoopMailbox:
    """Delivers messages of other threads to the event loop. Messages that arrive together wake the loop once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._is_awake = False

    def put(self, deliver: Callable[[T], None], value: T) -> None:
        """Make the loop call `deliver(value)`. Returns at once, in any thread."""
        self._waiting.append((deliver, value))
        # The loop clears the flag before it empties the queue. So if a thread finds the flag set after adding a value,
        # that value will still be delivered; two threads that find it clear wake the loop twice, which does no harm.
        if not self._is_awake:
            self._is_awake = True
            try:
                self._loop.call_soon_threadsafe(self._deliver_waiting)
            except RuntimeError:
                log.warning("A write has ended after the event loop", exc_info=True)

    def _deliver_waiting(self) -> None:
        self._is_awake = False
        while self._waiting:
            deliver, value = self._waiting.popleft()
            try:
                deliver(value)
            except Exception:
                log.exception("Continuing a request after its write failed")


class NeedsThreadError(Exception):
    """Raised instead of `NeedsThread`, because a future's exception must be an `Exception`."""


class LoopWorkQueue:
    """Work on the event loop, a few milliseconds at a time. In between, the loop reads, accepts and answers other
    requests.

    A loop accepts one connection per round, so a round must be short, however many requests are waiting.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], None]] = deque()
        self.is_due = False

    def put(self, work: Callable[[], None]) -> None:
        self._waiting.append(work)
        if not self.is_due:
            self.is_due = True
            self._loop.call_soon(self._run_time_slice)

    def result_of(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """The result of quick work, when its turn comes. Raises `NeedsThreadError` if the work would wait."""
        done: asyncio.Future[T] = self._loop.create_future()

        def complete() -> None:
            if done.done():
                return  # the future was cancelled, because the server is ending
            try:
                done.set_result(run_without_blocking(work))
            except NeedsThread:
                done.set_exception(NeedsThreadError())
            except Exception as error:  # noqa: BLE001  # it is raised by the one who waits
                done.set_exception(error)

        self.put(complete)
        return done

    def _run_time_slice(self) -> None:
        end = time.perf_counter() + MAX_LOOP_WORK_SECONDS
        while self._waiting:
            work = self._waiting.popleft()
            try:
                work()
            except Exception:
                log.exception("Work for a request on the event loop failed")
            if time.perf_counter() >= end:
                break
        self.is_due = bool(self._waiting)
        if self.is_due:
            self._loop.call_soon(self._run_time_slice)


class WriteGate:
    """Begins the writes of requests, together if there are many, since writes that begin together share a commit.

    A write waits only while other writes are in progress, and only until every request that has arrived is handled: a
    commit costs as much as handling several requests. If no other write is in progress, a write does not wait.
    """

    def __init__(self, work: LoopWorkQueue) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._unfinished = 0
        self._waiting: list[Callable[[], None]] = []
        self._latest = 0.0

    def begin(self, begin: Callable[[], None]) -> None:
        self._unfinished += 1
        if self._unfinished == 1:
            begin()
            return
        self._waiting.append(begin)
        if len(self._waiting) == 1:
            self._latest = time.perf_counter() + MAX_WRITE_DELAY_SECONDS
            self._loop.call_soon(self._begin_when_idle)

    def note_end(self) -> None:
        self._unfinished -= 1

    def _begin_when_idle(self) -> None:
        # The loop has read all data that arrived since the last call. If a request was among it, there is work again,
        # so wait for that.
        if self._work.is_due and time.perf_counter() < self._latest:
            self._loop.call_soon(self._begin_when_idle)
            return
        waiting, self._waiting = self._waiting, []
        for begin in waiting:
            begin()


class QuickAnswerer:
    """Answers small requests on the event loop. `new_request` creates a request with a share of the memory, which must
    be closed.
    """

    def __init__(
        self,
        application: AnsweringApp,
        new_request: Callable[[AsgiScope, bytes], Request],
        in_thread: RunInThread,
        mailbox: LoopMailbox,
    ) -> None:
        self._application = application
        self._new_request = new_request
        self._in_thread = in_thread
        self._mailbox = mailbox
        self.loop_work = LoopWorkQueue()
        self._writes = WriteGate(self.loop_work)

    def answer_if_quick(
        self, scope: AsgiScope, body: bytes, respond: SendResponse, otherwise: Callable[[], None]
    ) -> None:
        """Answer a complete request with `respond`, or call `otherwise` if the answer takes longer than a moment."""
        path = scope["raw_path"].decode("latin-1")
        if len(body) <= MAX_QUICK_BODY_BYTES and self._application.is_quick(scope["method"], path):
            self.loop_work.put(partial(self._begin_answer, scope, body, respond, otherwise))
        else:
            otherwise()

    def _begin_answer(
        self, scope: AsgiScope, body: bytes, respond: SendResponse, otherwise: Callable[[], None]
    ) -> None:
        request = self._new_request(scope, body)
        connection = connection_in_scope(scope)
        if "content-encoding" in request.headers or (connection is not None and connection.is_lost):
            otherwise()
            return
        try:
            request.memory.take(len(body))
            work = run_without_blocking(partial(self._application.admit_and_begin_answer, request))
        except (NeedsThread, TooLarge, TryLater):
            request.memory.close()
            otherwise()
            return
        except Exception as error:  # noqa: BLE001  # a client always gets a Problem
            work = make_and_log_problem(error, f"Answering {request.method}")
        self._continue_answer(request, work, respond)

    def _continue_answer(self, request: Request, work: Answer | UnfinishedAnswer, respond: SendResponse) -> None:
        if not isinstance(work, UnfinishedAnswer):
            self._send_answer(request, work, respond)
        elif work.wait is LEAVE_LOOP:
            # Requests that leave the loop may wait, for example for a new timeline, or have long answers.
            self._in_thread(Lane.EVENTS, partial(stay_in_thread, work)).add_done_callback(
                partial(self._return_to_loop, request, respond)
            )
        else:
            resume = partial(self._resume, request, work, respond)
            self._writes.begin(partial(work.wait.begin, partial(self._mailbox.put, resume)))

    def _return_to_loop(
        self, request: Request, respond: SendResponse, done: asyncio.Future[Answer | UnfinishedAnswer]
    ) -> None:
        if done.cancelled():
            request.memory.close()  # the server ends, and has closed the connection
        else:
            self._continue_answer(request, done.result(), respond)

    def _resume(self, request: Request, work: UnfinishedAnswer, respond: SendResponse, outcome: Any) -> None:
        self._writes.note_end()
        try:
            further = work.resume(outcome)
        except Exception as error:  # noqa: BLE001  # a client always gets a Problem
            further = make_and_log_problem(error, f"Answering {request.method}")
        self._continue_answer(request, further, respond)

    def _send_answer(self, request: Request, response: Answer, respond: SendResponse) -> None:
        assert isinstance(response, Response), "handlers that stream are not quick"
        if len(response.body) > MAX_BYTES_COMPRESSED_ON_LOOP:
            self._answer_from_thread(request, lambda: response, respond)
            return
        request.memory.close()
        respond(compression.compress_body(request, response) if response.body else response)

    def _answer_from_thread(self, request: Request, work: Callable[[], Response], respond: SendResponse) -> None:
        def done(future: asyncio.Future[Response]) -> None:
            request.memory.close()
            if future.cancelled():
                return  # the server ends, and has closed the connection
            try:
                response = future.result()
            except Exception as error:  # noqa: BLE001  # a client always gets a Problem
                response = make_and_log_problem(error, f"Answering {request.method}")
            respond(response)

        working = self._in_thread(Lane.EVENTS, lambda: compression.compress_body(request, work()))
        working.add_done_callback(done)


def _require_whole_response(answer: Answer) -> Response:
    assert isinstance(answer, Response), "handlers that stream are not quick"
    return answer


def http_response_bytes(response: Response, date: bytes, *, keep_alive: bool) -> bytes:
    """The bytes of a whole answer, with the `Date` header first."""
    lines = [f"{name}: {value}\r\n" for name, value in response.headers.items()]
    if not keep_alive:
        lines.append("connection: close\r\n")
    headers = "".join(lines)
    assert headers.count("\r") == headers.count("\n") == len(lines), "a header that cannot be sent"
    return b"%b%bcontent-length: %d\r\n%b\r\n%b" % (
        http_status_line(response.status),
        date,
        len(response.body),
        headers.encode("latin-1", "replace"),
        response.body,
    )


@cache
def http_status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
