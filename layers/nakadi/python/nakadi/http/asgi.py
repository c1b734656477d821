"""The edge to ASGI: turns scopes and messages into requests, and responses into messages."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from nakadi.common.metrics import Metrics
from nakadi.common.waiting import LEAVE_LOOP
from nakadi.http import compression
from nakadi.http.application import AdmittedRequest, current_flow_id, logged_path
from nakadi.http.asgi_requests import AsgiScope, ClosableConnection, connection_in_scope, request_from_scope
from nakadi.http.direct import (
    MAX_BYTES_COMPRESSED_ON_LOOP,
    MAX_QUICK_BODY_BYTES,
    AnsweringApp,
    LoopMailbox,
    NeedsThreadError,
    QuickAnswerer,
)
from nakadi.http.memory import MIN_BYTES_TO_TRIM, RequestMemory, trim_memory
from nakadi.http.message import (
    Answer,
    ClientGone,
    Request,
    Response,
    StreamingResponse,
    UnfinishedAnswer,
    finish_answer,
    stay_in_thread,
)
from nakadi.http.problem import RequestTooSlow, make_and_log_problem
from nakadi.http.router import Lane
from nakadi.model.outcomes import TooLarge, TryLater

log = logging.getLogger(__name__)

T = TypeVar("T")
RequestWork = Callable[[], Answer | UnfinishedAnswer]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class RequestLimits(Struct, frozen=True, kw_only=True):
    """How much memory and time requests and clients may take."""

    # The same limit applies to compressed and to uncompressed bodies.
    max_body_bytes: int = compression.MAX_DECOMPRESSED_BYTES
    # The memory that all bodies in progress may take together, as sent, decompressed and parsed.
    max_memory_bytes: int = 1024 * 1024 * 1024
    # The time for receiving a whole body: enough for the largest body at a megabyte per second, with a margin.
    body_timeout_seconds: float = 90.0
    # How long the rest of a refused body is read, because a client that is still sending loses the answer if the
    # connection is closed.
    linger_timeout_seconds: float = 2.0
    # How long a client may read nothing before the broker gives its stream up.
    stalled_client_timeout_seconds: float = 120.0
    # How long the first batch is held back after the headers, for clients that lose bytes which arrive together with
    # the headers.
    first_chunk_delay_seconds: float = 0.1
    # The maximum number of requests of a lane that wait for a thread. With more, some would wait longer than their
    # clients.
    max_waiting_requests: int = 1000


class ClientDisconnected(Exception):
    """Raised when the client has left before its request was complete."""


class AsgiApplication:
    """The application for an ASGI server. `threads` is the number of threads for publishing and commits.

    Each other lane has half as many, except monitoring, which has two.
    """

    def __init__(
        self, app: AnsweringApp, threads: int, limits: RequestLimits | None = None, metrics: Metrics | None = None
    ) -> None:
        limits, metrics = limits or RequestLimits(), metrics or Metrics()
        self._application = app
        self._threads = {
            Lane.EVENTS: _LaneThreads(Lane.EVENTS, threads),
            Lane.STREAMS: _LaneThreads(Lane.STREAMS, (threads + 1) // 2),
            Lane.REGISTRY: _LaneThreads(Lane.REGISTRY, (threads + 1) // 2),
            Lane.MONITORING: _LaneThreads(Lane.MONITORING, 2),
        }
        self._limits = limits
        self._memory = RequestMemory(limits.max_memory_bytes)
        metrics.request_memory.add_source(lambda: {(): self._memory.taken_bytes})
        metrics.requests_waiting.add_source(
            lambda: {(lane,): each.waiting_count for lane, each in self._threads.items()}
        )
        self._is_draining = False
        self._outlets: set[_StreamOutlet] = set()

    @cached_property
    def quick_answerer(self) -> QuickAnswerer:
        """Answers small requests that have arrived completely. Use it only on the event loop."""
        return QuickAnswerer(self._application, self._new_request, self._run_in_thread, self._mailbox)

    @cached_property
    def _mailbox(self) -> LoopMailbox:
        return LoopMailbox()

    def announce_shutdown(self) -> None:
        """Make open and later streams end, because the process is about to end. Call this only on the event loop."""
        self._is_draining = True
        for outlet in tuple(self._outlets):
            outlet.mark_draining()

    async def trim_memory(self) -> None:
        """Return freed memory to the system, in a thread."""
        await self._run_in_thread(Lane.REGISTRY, trim_memory)

    def shut_down_threads(self) -> None:
        """Let the threads finish their work and end."""
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle a scope of ASGI. If handling it fails before an answer has begun, send a Problem, because servers
        would answer in their own way.
        """
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        if scope["type"] != "http":
            return
        begun = False

        async def tracked_send(message: Message) -> None:
            nonlocal begun
            await send(message)
            begun = True

        # Only a server that ends cancels this task, as its last step, when it has closed the connection.
        with suppress(asyncio.CancelledError):
            try:
                stream = await self._answer_or_begin_stream(scope, receive, tracked_send)
                # The stream is awaited here, because each further frame around an open stream takes memory, and each
                # line passes through it.
                if stream is not None:
                    await self._serve_stream(stream, scope, receive, send)
            except Exception as error:
                problem = make_and_log_problem(error, f"Answering {scope['method']}")
                if begun:
                    raise
                await _send_response(problem, send)

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.announce_shutdown()
                self.shut_down_threads()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _answer_or_begin_stream(self, scope: Message, receive: Receive, send: Send) -> _BegunStream | None:
        """Answer a request. If the answer is a stream, only begin it, and return it for the caller to serve."""
        request = self._new_request(scope)
        share, stream = request.memory, None
        lane = self._application.lane_of(request)
        try:
            answer = await self._compute_answer(request, lane, scope, receive, send)
        finally:
            share.close()
        if isinstance(answer, StreamingResponse):
            stream = await self._begin_stream(request, answer, connection_in_scope(scope), send)
        elif answer is not None:
            # Compressing a long list takes as long as many requests, so it does not run on the loop.
            is_long = len(answer.body) > MAX_BYTES_COMPRESSED_ON_LOOP and request.method != "HEAD"
            compress = compression.compress_body
            sent = await self._run_in_thread(lane, compress, request, answer) if is_long else compress(request, answer)
            await _send_response(sent, send)
        if share.taken > MIN_BYTES_TO_TRIM:
            await self.trim_memory()
        return stream

    async def _compute_answer(
        self, request: Request, lane: Lane, scope: Message, receive: Receive, send: Send
    ) -> Answer | None:
        """The answer to a request; None if the request was refused before its end, or its client has left."""
        connection = connection_in_scope(scope)
        try:
            if not request.may_have_body() or (connection is not None and connection.has_whole_body):
                body = await self._read_body(request, self._limits.max_body_bytes, receive)
                if lane is Lane.IMMEDIATE and not body:
                    return finish_answer(self._application.admit_and_begin_answer(request))
                work, quick = partial(self._application.admit_and_begin_answer, replace(request, body=body)), False
            else:
                # If the head alone leads to a refusal, the body is not read.
                admit = partial(self._application.admit, request)
                if lane is Lane.IMMEDIATE:
                    admitted = admit()
                else:
                    admitted = await self._run_quickly_or_in_lane(lane, request, connection, admit, quick=True)
                if not isinstance(admitted, AdmittedRequest):
                    await self._send_refusal(admitted, receive, send)
                    return None
                max_bytes = min(admitted.route.max_body_bytes, self._limits.max_body_bytes)
                body = await self._read_body(request, max_bytes, receive)
                work = partial(self._application.begin_answer, admitted, body)
                quick = len(body) <= MAX_QUICK_BODY_BYTES and "content-encoding" not in request.headers
            return await self._run_to_answer(lane, request, connection, work, quick=quick)
        except ClientDisconnected:
            return None
        except (TooLarge, RequestTooSlow, TryLater) as refusal:
            await self._send_refusal(self._application.refuse(request, refusal), receive, send)
            return None

    def _new_request(self, scope: AsgiScope, body: bytes = b"") -> Request:
        """A request with a share of the memory. The caller must close it."""
        return request_from_scope(scope, body, self._memory.open_share(), lambda: self._is_draining)

    async def _run_to_answer(
        self, lane: Lane, request: Request, connection: ClosableConnection | None, work: RequestWork, *, quick: bool
    ) -> Answer:
        """The answer that `work` produces. The work begins on the event loop if it is `quick`, otherwise in a thread.
        Neither the loop nor a thread waits for writes.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        begin = partial(self._begin_work, work, outcome)
        made = await self._run_quickly_or_in_lane(lane, request, connection, begin, quick=quick)
        while isinstance(made, UnfinishedAnswer):
            if made.wait is LEAVE_LOOP:
                made = await self._run_in_thread(lane, self._begin_work, partial(stay_in_thread, made), outcome)
                continue
            # The work continues even if the client has left, because stored events must be counted.
            found, outcome = await outcome, loop.create_future()
            made = self._begin_work(partial(made.resume, found), outcome)
        return made

    def _begin_work(self, work: RequestWork, outcome: asyncio.Future[Any]) -> Answer | UnfinishedAnswer:
        """Run work up to its next wait, and begin the operation for which it waits, unless the work asks to leave the
        loop.
        """
        made = work()
        if isinstance(made, UnfinishedAnswer) and made.wait is not LEAVE_LOOP:
            made.wait.begin(partial(self._mailbox.put, partial(_set_result_once, outcome)))
        return made

    async def _run_quickly_or_in_lane(
        self, lane: Lane, request: Request, connection: ClosableConnection | None, work: Callable[[], T], *, quick: bool
    ) -> T | Answer:
        if quick and self._application.is_quick(request.method, request.target):
            taken = request.memory.taken
            try:
                return await self.quick_answerer.loop_work.result_of(work)
            except NeedsThreadError:
                request.memory.release_down_to(taken)
        return await self._run_in_lane(lane, request, connection, work)

    async def _run_in_lane(
        self, lane: Lane, request: Request, connection: ClosableConnection | None, work: Callable[[], T]
    ) -> T | Answer:
        """Run work in a thread, unless too many requests wait for a thread, or the client has left meanwhile."""
        if self._threads_of_lane(lane).waiting_count >= self._limits.max_waiting_requests:
            return self._application.refuse(request, TryLater("Too many requests are waiting, please repeat request"))

        def work_unless_disconnected() -> T:
            if connection is not None and connection.is_lost:
                raise ClientDisconnected
            return work()

        return await self._run_in_thread(lane, work_unless_disconnected)

    def _threads_of_lane(self, lane: Lane) -> _LaneThreads:
        return self._threads[Lane.REGISTRY if lane is Lane.IMMEDIATE else lane]

    def _run_in_thread(self, lane: Lane, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads_of_lane(lane), work, *arguments)

    async def _read_body(self, request: Request, max_bytes: int, receive: Receive) -> bytes:
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > max_bytes:
            raise TooLarge(f"The body is longer than {max_bytes} bytes")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.body_timeout_seconds
        message = await _receive_in_time(receive, deadline - loop.time())
        request.memory.take(len(message.get("body", b"")))
        if not message.get("more_body"):
            whole: bytes = message.get("body", b"")
            return whole
        gathered = bytearray(message.get("body", b""))
        while message.get("more_body"):
            message = await _receive_in_time(receive, deadline - loop.time())
            # The memory is taken when bytes arrive: bytes that are only announced must not take memory from other
            # requests.
            request.memory.take(len(message.get("body", b"")))
            gathered += message.get("body", b"")
            if len(gathered) > max_bytes:
                raise TooLarge(f"The body is longer than {max_bytes} bytes")
        return bytes(gathered)

    async def _send_refusal(self, answer: Answer, receive: Receive, send: Send) -> None:
        """Send the whole answer at once, receive further bytes for a moment, and close."""
        assert isinstance(answer, Response)
        await send(_start_of_response(answer.status, {**answer.headers, "connection": "close"}, len(answer.body)))
        await send({"type": "http.response.body", "body": answer.body, "more_body": True})
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.linger_timeout_seconds
        try:
            while (await _receive_in_time(receive, deadline - loop.time())).get("more_body"):
                pass
        except (RequestTooSlow, ClientDisconnected):
            pass
        await send({"type": "http.response.body"})

    async def _begin_stream(
        self, request: Request, answer: StreamingResponse, connection: ClosableConnection | None, send: Send
    ) -> _BegunStream | None:
        """Send the head of a stream, and return the stream; return None if the client may have left."""
        if connection is not None and connection.is_half_closed:
            # The client has closed at least its sending half. If it has left altogether, that looks the same, so the
            # stream does not begin.
            connection.abort()
            await self._run_in_thread(Lane.STREAMS, answer.release_if_never_served)
            return None
        is_compressed = compression.wants_gzip(request.headers.get("accept-encoding", ""))
        compressor = StreamCompressor() if is_compressed else None
        encoding = {"content-encoding": "gzip"} if compressor else {}
        await send(_start_of_response(answer.status, {**answer.headers, **encoding, "vary": "Accept-Encoding"}, None))
        # An empty chunk makes servers write the headers that they would otherwise keep for the first batch.
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        return _BegunStream(request, answer, compressor)

    async def _serve_stream(self, stream: _BegunStream, scope: Message, receive: Receive, send: Send) -> None:
        request, answer, compressor = stream
        connection = connection_in_scope(scope)
        is_read_directly = compression.client_may_read_socket(request.headers)
        head_start = self._limits.first_chunk_delay_seconds if is_read_directly else 0.0
        outlet = _StreamOutlet(send, compressor, self._limits.stalled_client_timeout_seconds, head_start)
        self._outlets.add(outlet)
        if self._is_draining:
            outlet.mark_draining()
        watching = asyncio.create_task(_watch_for_disconnect(receive, outlet))
        current_flow_id.set(answer.headers.get("x-flow-id", ""))
        # If the last chunk is missing, the client knows that the answer is incomplete.
        hang_up = connection and connection.abort
        try:
            try:
                await answer.serve(outlet)
            finally:
                answer.on_end(outlet.size)
            await outlet.end_stream()
            # Some clients wait for the connection to close, because they do not recognize the last chunk. Others send
            # their next request on the connection at once, and must not find it closed.
            hang_up = connection and connection.close_unless_reused
        except (ClientGone, asyncio.CancelledError):
            # The client has disconnected, or the server is ending and has cancelled this task: neither needs a result.
            pass
        except Exception:
            log.exception("A stream failed: %s %s", request.method, logged_path(request))
        self._outlets.discard(outlet)
        watching.cancel()
        await asyncio.wait({watching})
        if hang_up:
            hang_up()


class _BegunStream(NamedTuple):
    """A stream whose head was sent."""

    request: Request
    answer: StreamingResponse
    compressor: StreamCompressor | None


def _set_result_once(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


class _LaneThreads(ThreadPoolExecutor):
    """The threads of a lane."""

    def __init__(self, lane: Lane, number: int) -> None:
        super().__init__(number, thread_name_prefix=f"nakadi-{lane}")

    @property
    def waiting_count(self) -> int:
        """How many requests wait for a thread."""
        return self._work_queue.qsize()


class StreamCompressor:
    """Compresses a stream with gzip. It returns all bytes at once, so a batch never waits for the next one.

    Ten thousand streams may be open at once, so the state for each has 32 KB instead of 256.
    """

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(compression.GZIP_LEVEL, wbits=16 + 12, memLevel=5)

    def compress(self, chunk: bytes) -> bytes:
        return self._compressor.compress(chunk) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def flush_end(self) -> bytes:
        return self._compressor.flush()


class _StreamOutlet:
    """The outlet of a stream to its client. Thousands of streams wait at once, so they wait for futures, which take
    less memory than tasks.
    """

    def __init__(
        self,
        send: Send,
        compressor: StreamCompressor | None,
        stalled_client_timeout_seconds: float,
        first_chunk_delay: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._send = send
        self._compressor = compressor
        self._stalled_client_timeout_seconds = stalled_client_timeout_seconds
        self._not_before = loop.time() + first_chunk_delay if first_chunk_delay else 0.0
        self._gone: asyncio.Future[None] = loop.create_future()
        self._draining: asyncio.Future[None] = loop.create_future()
        self._cut_off = False
        # The number of bytes written, before compression.
        self.size = 0

    async def write(self, chunk: bytes) -> None:
        if self._not_before:
            await self._await_first_chunk_delay()
        if self._gone.done():
            raise ClientGone
        body = chunk
        if self._compressor is not None:
            if len(chunk) > MAX_BYTES_COMPRESSED_ON_LOOP:
                body = await asyncio.to_thread(self._compressor.compress, chunk)
            else:
                body = self._compressor.compress(chunk)
        try:
            async with asyncio.timeout(self._stalled_client_timeout_seconds):
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self.size += len(chunk)
        except (TimeoutError, OSError) as error:
            self.mark_client_gone()
            raise ClientGone from error
        except asyncio.CancelledError:
            # A chunk that was sent in part cannot be completed, and waiting for room for a last chunk could take
            # forever.
            self._cut_off = True
            raise

    def when_client_gone(self) -> asyncio.Future[None]:
        return self._gone

    def when_shutting_down(self) -> asyncio.Future[None]:
        return self._draining

    def mark_client_gone(self) -> None:
        _set_result_once(self._gone, None)

    def mark_draining(self) -> None:
        _set_result_once(self._draining, None)

    async def end_stream(self) -> None:
        if self._cut_off:
            raise ClientGone
        await self._await_first_chunk_delay()
        if not self._gone.done():
            last = self._compressor.flush_end() if self._compressor else b""
            await self._send({"type": "http.response.body", "body": last})

    async def _await_first_chunk_delay(self) -> None:
        remaining = self._not_before - asyncio.get_running_loop().time()
        if remaining > 0:
            await asyncio.sleep(remaining)
        self._not_before = 0.0


async def _watch_for_disconnect(receive: Receive, outlet: _StreamOutlet) -> None:
    """While nothing is being sent, only `receive` shows that a client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
    outlet.mark_client_gone()


async def _receive_in_time(receive: Receive, seconds: float) -> Message:
    try:
        async with asyncio.timeout(seconds):
            message = await receive()
    except TimeoutError:
        raise RequestTooSlow("The body did not arrive in time") from None
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    return message


async def _send_response(response: Response, send: Send) -> None:
    bodiless = response.status in (204, 304)
    await send(_start_of_response(response.status, response.headers, None if bodiless else len(response.body)))
    await send({"type": "http.response.body", "body": b"" if bodiless else response.body})


def _start_of_response(status: int, headers: Mapping[str, str], length: int | None) -> Message:
    measured = {} if length is None else {"content-length": str(length)}
    pairs = ({**measured, **headers}).items()
    raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in pairs]
    return {"type": "http.response.start", "status": status, "headers": raw}
