"""Requests that are answered on the event loop, and appends for which no thread waits."""

import asyncio
import threading
from collections import Counter, deque
from contextlib import ExitStack, closing

import orjson
import pytest

from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.common.metrics import Metrics
from nakadi.common.waiting import LEAVE_LOOP, Callback
from nakadi.common.work import check_may_block
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.http import direct
from nakadi.http.application import Application
from nakadi.http.asgi_requests import request_from_scope
from nakadi.http.direct import LoopMailbox, LoopWorkQueue, QuickAnswerer, WriteGate, http_response_bytes
from nakadi.http.message import Response, empty_response, json_response
from nakadi.http.router import Lane, Route
from nakadi.local.serving import ServerThread
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.events import AppendRefused, AppendStored
from nakadi.model.outcomes import NotAuthenticated, Unavailable
from tests.support.patience import PATIENCE, until
from tests.support.wire import Wire

STORED = {0: AppendStored()}


class HeldLog:
    """A log whose appends take place when the test releases them."""

    def __init__(self):
        self.waiting = deque()

    async def append(self):
        return await Callback(self.waiting.append)

    def end(self, outcome=STORED, number=1):
        """Give waiting appends their outcome, in a separate thread, as a log does."""
        until(lambda: len(self.waiting) >= number)
        ended = [self.waiting.popleft() for _ in range(number)]
        thread = threading.Thread(target=lambda: [done(outcome) for done in ended])
        thread.start()
        thread.join()


class QuickHandler:
    """A handler that answers with the outcome of an append. It needs no thread, unless the request says that it
    waits.
    """

    def __init__(self):
        self.log = HeldLog()
        self.waits = False
        self.threads = []

    async def publish(self, request):
        self.threads.append(threading.current_thread().name.rpartition("_")[0] or "loop")
        request.memory.take(1000)
        if self.waits:
            check_may_block()
        try:
            fates = await self.log.append()
        except Unavailable as error:
            await LEAVE_LOOP
            self.threads.append(threading.current_thread().name.rpartition("_")[0] or "loop")
            return json_response(str(error), 500)
        if isinstance(fates[0], AppendRefused):
            await LEAVE_LOOP
            self.threads.append(threading.current_thread().name.rpartition("_")[0] or "loop")
            return json_response([fates[0].reason] * 5000, 207)
        return Response(200, {"x-length": str(len(request.body))})


def quick_route(handler):
    return Route(
        method="POST",
        template="/event-types/{name}/events",
        handler=handler.publish,
        operation="publish",
        lane=Lane.EVENTS,
        quick=True,
        accepts_any_content_type=True,
    )


@pytest.fixture
def handler():
    return QuickHandler()


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def serving(handler, metrics):
    other = Route(method="GET", template="/other", handler=lambda _: empty_response(), operation="other")
    with ServerThread(
        Application([quick_route(handler), other], lambda _: UNAUTHENTICATED), grace_seconds=PATIENCE, metrics=metrics
    ) as serving:
        yield serving


@pytest.fixture
def wire(serving):
    with Wire(serving.url) as wire:
        yield wire


def publish(wire, body=b"{}", *headers, version="1.1"):
    head = f"POST /event-types/x/events HTTP/{version}"
    return wire.send(head, f"Content-Length: {len(body)}", *headers, body=body)


def memory_taken(metrics):
    return sum(metrics.request_memory.rows().values())


def test_a_whole_request_needs_no_thread(wire, handler, metrics):
    """The request begins on the loop, and continues there after its append; its memory is returned."""
    publish(wire, b"[1]", "X-Flow-Id: mine")
    until(lambda: handler.log.waiting)
    assert memory_taken(metrics) == 1003
    handler.log.end()
    status, headers, body = wire.response()
    assert (status, headers["x-length"], headers["x-flow-id"], body) == (200, "3", "mine", b"")
    assert headers["content-length"] == "0"
    assert "date" in headers
    assert handler.threads == ["loop"]
    assert memory_taken(metrics) == 0


def test_one_that_would_wait_is_begun_anew_in_a_thread(wire, handler, metrics):
    """A request that would wait begins again in a thread: its first attempt has no effect, and the thread does not
    wait for the append.
    """
    handler.waits = True
    publish(wire)
    until(lambda: handler.log.waiting)
    assert memory_taken(metrics) == 1002
    handler.log.end()
    assert wire.response()[0] == 200
    assert handler.threads == ["loop", "nakadi-events"]
    assert memory_taken(metrics) == 0


@pytest.mark.parametrize("waits", [False, True])
def test_more_requests_wait_for_appends_than_there_are_threads(serving, handler, wire, waits):
    """While requests wait for their appends, whether they began on the loop or in a thread, other requests are
    answered.
    """
    handler.waits = waits
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(serving.url)) for _ in range(100)]
        for each in wires:
            publish(each)
        until(lambda: len(handler.log.waiting) == 100)
        assert wire.send("GET /other HTTP/1.1").response()[0] == 200
        handler.log.end(number=100)
        assert [each.response()[0] for each in wires] == [200] * 100


@pytest.mark.parametrize("in_pieces", [False, True])
def test_what_follows_a_failed_append_is_done_in_a_thread(wire, handler, metrics, in_pieces):
    """After an append fails, a thread does the remaining work, which may have to wait, or produce a long answer."""
    for outcome, status in ((Unavailable("gone"), 500), ({0: AppendRefused("full")}, 207)):
        handler.threads.clear()
        if in_pieces:
            wire.send("POST /event-types/x/events HTTP/1.1", "Content-Length: 2")
            wire.socket.sendall(b"{")
            until(lambda: memory_taken(metrics) == 1)
            wire.socket.sendall(b"}")
        else:
            publish(wire)
        handler.log.end(outcome)
        assert wire.response()[0] == status
        assert handler.threads == ["loop", "nakadi-events"]
        until(lambda: memory_taken(metrics) == 0)


@pytest.mark.parametrize("is_known", [True, False])
def test_an_answer_that_cannot_be_finished_is_a_problem(handler, metrics, is_known):
    """If an answer cannot be finished, before or after an append, the client gets a Problem, and the memory is
    returned.
    """

    def authenticate(_):
        if is_known:
            return UNAUTHENTICATED
        raise NotAuthenticated("Who is there?")

    def fail(*_):
        raise OSError("The observer has failed")

    application = Application([quick_route(handler)], authenticate, wrap_answer=fail)
    with ServerThread(application, grace_seconds=PATIENCE, metrics=metrics) as serving, Wire(serving.url) as wire:
        publish(wire)
        if is_known:
            handler.log.end()
        assert wire.response()[0] == 500
        assert memory_taken(metrics) == 0


def test_a_body_in_pieces_is_answered_too(wire, handler):
    """If a body comes in pieces, the head is checked first, then the body is read, and the request gets the same
    answer.
    """
    wire.send("POST /event-types/x/events HTTP/1.1", "Content-Length: 70000")
    wire.socket.sendall(b"x" * 35_000)
    wire.socket.sendall(b"y" * 35_000)
    handler.log.end()
    assert wire.response()[1]["x-length"] == "70000"


def test_answers_keep_the_order_of_requests_on_a_connection(wire, handler):
    """A client that does not wait for answers gets them in the order of its requests."""
    for length in (2, 3, 4):
        publish(wire, b"x" * length)
    for length in (2, 3, 4):
        handler.log.end()
        assert wire.response()[1]["x-length"] == str(length)
    assert not handler.log.waiting


@pytest.mark.parametrize(("version", "header"), [("1.0", "Accept: */*"), ("1.1", "Connection: close")])
def test_a_connection_that_is_not_kept_is_closed(wire, handler, version, header):
    """A client that asks to close the connection gets its answer before the end."""
    publish(wire, b"{}", header, version=version)
    handler.log.end()
    status, headers, _ = wire.response()
    assert (status, headers["connection"]) == (200, "close")
    assert wire.once() == b""


def test_a_client_that_leaves_meanwhile_harms_nothing(serving, wire, handler, metrics):
    """If a client leaves while its append waits, its events are stored, its memory is returned, and the next client is
    served.
    """
    with Wire(serving.url) as leaving:
        publish(leaving)
        until(lambda: handler.log.waiting)
    assert wire.send("GET /other HTTP/1.1").response()[0] == 200
    handler.log.end()
    until(lambda: memory_taken(metrics) == 0)
    publish(wire)
    handler.log.end()
    assert wire.response()[0] == 200


def test_a_server_that_stops_answers_what_has_been_begun(serving, wire, handler):
    """The answer to a request whose append is not finished is sent before the connection is closed."""
    publish(wire)
    until(lambda: handler.log.waiting)
    stopping = threading.Thread(target=serving.close)
    stopping.start()
    handler.log.end()
    assert wire.response()[0] == 200
    stopping.join(PATIENCE)
    assert not stopping.is_alive()


def test_a_server_that_stops_waits_for_each_client(serving, handler):
    """The server does not stop when one connection ends: a client whose append takes longer gets its answer."""
    with Wire(serving.url) as first, Wire(serving.url) as second:
        for number, each in enumerate((first, second), start=1):
            publish(each)
            until(lambda number=number: len(handler.log.waiting) == number)
        stopping = threading.Thread(target=serving.close)
        stopping.start()
        for each in (first, second):
            handler.log.end()
            assert each.response()[0] == 200
            assert each.once() == b""
        stopping.join(PATIENCE)
        assert not stopping.is_alive()


def test_no_publication_asks_the_registry_on_the_loop(monkeypatch):
    """Missing or outdated documents are read from the registry in threads, because it may not answer."""
    askers = Counter()
    for name in ("get", "list", "change_counters"):
        asked = getattr(MemoryRegistry, name)

        def count_and_ask(self, *arguments, asked=asked, **more):
            askers[threading.current_thread().name] += 1
            return asked(self, *arguments, **more)

        monkeypatch.setattr(MemoryRegistry, name, count_and_ask)
    schema = {"type": "json_schema", "schema": "{}"}
    definition = orjson.dumps({"name": "x", "owning_application": "y", "category": "undefined", "schema": schema})
    with (
        closing(open_broker(Settings(cache_seconds=0))) as broker,
        ServerThread(make_application(broker)) as serving,
        Wire(serving.url) as wire,
    ):
        kind = "Content-Type: application/json"
        length = f"Content-Length: {len(definition)}"
        assert wire.send("POST /event-types HTTP/1.1", kind, length, body=definition).response()[0] == 201
        for body in (b"[{}]", b"[]", b"[{}", b'[{"a":1}, {"b":2}]', b"[1]"):
            assert publish(wire, body, kind).response()[0] in (200, 400, 422)
    assert sum(askers.values()) > 5
    assert "nakadi-server" not in askers


def test_everything_in_a_mailbox_is_delivered_once(caplog):
    """Threads add values to a mailbox at any time; each value is delivered once, and a delivery that fails does not
    stop the others.
    """

    async def run():
        mailbox, delivered = LoopMailbox(), Counter()

        def deliver(value):
            delivered[value] += 1
            if value == (0, 7):
                raise ValueError(value)

        def put(thread):
            for number in range(500):
                mailbox.put(deliver, (thread, number))

        threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        async with asyncio.timeout(PATIENCE):
            while len(delivered) < 2000:  # noqa: ASYNC110  # the awaited change notifies nobody
                await asyncio.sleep(0.001)
        for each in threads:
            each.join()
        return delivered

    assert set(asyncio.run(run()).values()) == {1}
    assert "Continuing a request after its write failed" in caplog.text


def test_an_answer_is_written_with_its_length():
    """An answer is written as HTTP/1.1 with its length, and no header value can begin another line."""
    written = http_response_bytes(Response(207, {"a": "b"}, b"[]"), b"date: now\r\n", keep_alive=False)
    assert written == (
        b"HTTP/1.1 207 Multi-Status\r\ndate: now\r\ncontent-length: 2\r\na: b\r\nconnection: close\r\n\r\n[]"
    )
    with pytest.raises(AssertionError):
        http_response_bytes(Response(200, {"a": "b\r\nc: d"}), b"", keep_alive=True)


class HeldLoop:
    """A loop whose calls run when the test releases them."""

    def __init__(self):
        self.calls = []

    def call_soon(self, call):
        self.calls.append(call)

    call_soon_threadsafe = call_soon

    def run(self):
        calls, self.calls = self.calls, []
        for each in calls:
            each()


def test_a_round_of_the_loop_is_short_however_much_is_waiting(monkeypatch):
    """Between two long pieces of work, the loop does its other work, and then continues."""
    loop, seen = HeldLoop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    monkeypatch.setattr(direct, "MAX_LOOP_WORK_SECONDS", 0.0)
    queue = LoopWorkQueue()
    for number in range(3):
        queue.put(lambda number=number: seen.append(number))
    for number in range(3):
        assert len(loop.calls) == 1
        loop.run()
        assert seen == list(range(number + 1))
    assert not loop.calls


@pytest.mark.parametrize("make", [LoopMailbox, LoopWorkQueue])
def test_a_queue_that_was_emptied_wakes_the_loop_again(monkeypatch, make):
    """Each new value wakes the loop once: the first value, one after others, and one after a failed delivery."""
    loop, seen = HeldLoop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    queue = make()

    def put(number):
        if make is LoopMailbox:
            queue.put(seen.append, number)
        else:
            queue.put(lambda: seen.append(number))

    def fail(*_):
        raise ValueError

    for number in range(3):
        put(number)
        assert len(loop.calls) == 1
        queue.put(*((fail, 0) if make is LoopMailbox else (fail,)))
        assert len(loop.calls) == 1
        loop.run()
        for _ in range(100):  # a slow machine may need more rounds
            if not loop.calls:
                break
            loop.run()
        assert seen == list(range(number + 1))


def test_a_value_that_comes_while_others_are_delivered_is_delivered(monkeypatch):
    """Values that are added during a delivery, by the delivery itself or by a thread, do not stay in the mailbox."""
    loop, seen = HeldLoop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    mailbox = LoopMailbox()
    mailbox.put(lambda value: mailbox.put(seen.append, value), 1)
    loop.run()
    loop.run()
    assert seen == [1]
    mailbox.put(seen.append, 2)
    loop.run()
    assert seen == [1, 2]


def test_the_end_of_another_connection_harms_no_request(serving, wire, handler):
    """A client gets its answer although other clients, whose requests came before and after its own, leave
    meanwhile."""
    with Wire(serving.url) as before:
        publish(before, b"[1]")
        until(lambda: len(handler.log.waiting) == 1)
        publish(wire, b"[1,2]")
        until(lambda: len(handler.log.waiting) == 2)
        with Wire(serving.url) as after:
            publish(after, b"[1,2,3]")
            until(lambda: len(handler.log.waiting) == 3)
    # Once the server serves a later connection, it has noticed that both others have ended.
    with Wire(serving.url) as later:
        assert later.send("GET /other HTTP/1.1").response()[0] == 200
    handler.log.end(number=3)
    status, headers, _ = wire.response()
    assert (status, headers["x-length"]) == (200, "5")
    publish(wire, b"[1]")
    handler.log.end()
    assert wire.response()[0] == 200


class BareConnection:
    """The methods of a connection that the edge calls."""

    is_half_closed = False
    has_whole_body = True

    def __init__(self, *, is_lost):
        self.is_lost = is_lost


class OneAnswer:
    """An application with one quick answer."""

    def __init__(self, response):
        self.response = response
        self.begun = 0

    def is_quick(self, _method, _target):
        return True

    def admit_and_begin_answer(self, _request):
        self.begun += 1
        return self.response


def answer_directly(response, connection):
    """Answer a request directly, and return the application, its answers, a list that is empty unless the ordinary path
    was taken, and the lanes of the threads that compressed.
    """
    application, answers, otherwise, lanes = OneAnswer(response), [], [], []

    async def run():
        def in_thread(lane, work):
            lanes.append(lane)
            return asyncio.get_running_loop().run_in_executor(None, work)

        answerer = QuickAnswerer(application, request_from_scope, in_thread, LoopMailbox())
        scope = {
            "method": "POST",
            "raw_path": b"/event-types/x/events",
            "query_string": b"",
            "headers": [(b"accept-encoding", b"gzip")],
            "state": {"connection": connection},
        }
        answerer.answer_if_quick(scope, b"[]", answers.append, lambda: otherwise.append(True))
        async with asyncio.timeout(PATIENCE):
            while not (answers or otherwise):  # noqa: ASYNC110  # the awaited change notifies nobody
                await asyncio.sleep(0.001)

    asyncio.run(run())
    return application, answers, otherwise, lanes


def test_nothing_is_begun_for_a_client_that_has_left():
    """If a connection is lost while its request waits for the loop, the request is not handled."""
    application, answers, otherwise, _ = answer_directly(Response(200, {}, b"x"), BareConnection(is_lost=True))
    assert (application.begun, answers, otherwise) == (0, [], [True])
    application, answers, otherwise, _ = answer_directly(Response(200, {}, b"x"), BareConnection(is_lost=False))
    assert (application.begun, len(answers), otherwise) == (1, 1, [])


@pytest.mark.parametrize(("size", "lanes"), [(32 * 1024, []), (32 * 1024 + 1, [Lane.EVENTS])])
def test_a_long_answer_is_compressed_in_a_thread(monkeypatch, size, lanes):
    """The loop compresses short answers only, because a long one would delay all other requests."""
    compress, threads = direct.compression.compress_body, []

    def compressing(*arguments):
        threads.append(threading.current_thread() is threading.main_thread())
        return compress(*arguments)

    monkeypatch.setattr(direct.compression, "compress_body", compressing)
    response = Response(200, {"content-type": "application/json"}, b"x" * size)
    _, [answer], _, used = answer_directly(response, BareConnection(is_lost=False))
    assert used == lanes
    assert threads == [not lanes]
    assert answer.headers["content-encoding"] == "gzip"


def steps_of_writes(requests, *, ends_after_each=False):
    """Handle requests that have arrived, one in each round of the loop, each with a write, and return the steps."""

    async def run():
        work, steps, done = LoopWorkQueue(), [], asyncio.Event()
        gate = WriteGate(work)

        def handle(number):
            steps.append(f"handle {number}")
            gate.begin(lambda: steps.append(f"begin {number}"))
            if ends_after_each:
                gate.note_end()
            if number == requests:
                asyncio.get_running_loop().call_later(0.01, done.set)

        for number in range(1, requests + 1):
            work.put(lambda number=number: handle(number))
        await done.wait()
        return steps

    return asyncio.run(run())


def test_writes_of_requests_that_arrived_together_begin_together(monkeypatch):
    """Writes of requests that arrived together begin together, so they share a commit. Only the first begins at
    once, so a commit is under way while the others are handled.
    """
    monkeypatch.setattr(direct, "MAX_LOOP_WORK_SECONDS", 0)
    monkeypatch.setattr(direct, "MAX_WRITE_DELAY_SECONDS", 60)

    assert steps_of_writes(4) == [
        *("handle 1", "begin 1", "handle 2", "handle 3", "handle 4"),
        *("begin 2", "begin 3", "begin 4"),
    ]


def test_a_request_that_is_alone_writes_at_once(monkeypatch):
    """If no other request has arrived, a request's write begins at once."""
    monkeypatch.setattr(direct, "MAX_LOOP_WORK_SECONDS", 0)

    assert steps_of_writes(2, ends_after_each=True) == ["handle 1", "begin 1", "handle 2", "begin 2"]


def test_writes_do_not_wait_longer_than_they_may(monkeypatch):
    """A write waits no longer than allowed, however many requests still have to be handled."""
    monkeypatch.setattr(direct, "MAX_LOOP_WORK_SECONDS", 0)
    monkeypatch.setattr(direct, "MAX_WRITE_DELAY_SECONDS", 0)

    steps = steps_of_writes(4)

    assert steps.index("begin 2") < steps.index("handle 4")
