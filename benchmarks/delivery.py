"""What do deliveries to sinks cost, how soon are they made, and how many sinks can there be?

    python benchmarks/delivery.py [rate] [latency] [sinks] [--engine memory|sqlite] [--quick] [--json FILE]

The broker, the sink and the publisher run in separate processes, on loopback. `rate` delivers a backlog to one sink,
and compares the broker's CPU time per delivery with two floors, in alternating rounds: the same HTTP client posting
bodies of the same length to the same sink in a loop, without and with the signature of each body. `latency` is the time
from the answer to a publish until the first byte at the sink. `sinks` measures a thousand sinks, first idle, and then
with one event a second for all of them.
"""

from __future__ import annotations

import asyncio
import hmac
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import c_double, c_longlong
from functools import partial
from multiprocessing.sharedctypes import Synchronized, SynchronizedArray
from typing import Any

import httpx

from benchmarks.asking import Figures, answer_questions
from benchmarks.publish import RunningServer
from benchmarks.stream import memory_of, raise_file_limit

NAME = "bench.delivery"
EVENT_BYTES = 700
MAX_EVENTS = 20_000
# Starting here, all numbers have nine digits.
FIRST_NUMBER = 100_000_000

NEVER = 0.0


class SinkServer(asyncio.Protocol):
    """Reads requests, and answers each with 204: a sink that costs as little as possible."""

    def __init__(self, tally: DeliveryCounts) -> None:
        self._tally = tally
        self._data = bytearray()
        self._first_at = NEVER

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        if not self._data:
            self._first_at = time.monotonic()
        self._data += data
        head_end = self._data.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = bytes(self._data[:head_end]).lower()
        length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        if len(self._data) < head_end + 4 + length:
            return
        self._tally.note(self._data, self._first_at)
        self._data = bytearray()
        self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")


class DeliveryCounts:
    """The deliveries that the sink received, in memory that the processes share. It holds the number of bodies, the
    number of the last event, and the time at which the first byte of each event's delivery arrived.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.bodies: Synchronized[int] = context.Value(c_longlong, 0)
        self.last: Synchronized[int] = context.Value(c_longlong, -1)
        self.came_at: SynchronizedArray[float] = context.Array(c_double, MAX_EVENTS)

    def note(self, body: bytearray, first_at: float) -> None:
        # The sink has one thread, and no other process writes here.
        at = body.rfind(b'"number":')
        if at >= 0:
            number = int(body[at + 9 : at + 18]) - FIRST_NUMBER
            if number < MAX_EVENTS:
                self.came_at[number] = first_at
            self.last.value = number
        self.bodies.value += 1

    def reset(self) -> None:
        self.bodies.value, self.last.value = 0, -1


def serve_sink(tally: DeliveryCounts, ready: Any) -> None:
    raise_file_limit()

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: SinkServer(tally), "127.0.0.1", 0, backlog=2048)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    run_on_fast_loop(serve)


def serve_broker(url: str, ready: Any) -> None:
    from nakadi.app.broker import open_broker  # noqa: PLC0415  # the other processes do without
    from nakadi.app.settings import Settings  # noqa: PLC0415
    from nakadi.http.server import open_listening_socket, tune_interpreter  # noqa: PLC0415
    from nakadi.local.serving import make_server  # noqa: PLC0415

    raise_file_limit()
    settings = Settings(registry=url, event_log=url, sink_schemes=("https", "http"), sink_networks=("127.0.0.0/8",))
    broker = open_broker(settings)
    tune_interpreter()

    async def serve() -> None:
        with open_listening_socket("127.0.0.1", 0) as listening:
            ready.send(listening.getsockname()[1])
            await make_server(broker, settings, ("127.0.0.1", 0)).serve(listening, asyncio.Event())

    run_on_fast_loop(serve)


def serve_floor(port: int, requests: Any) -> None:
    """Post the given bodies as often as requested, and report how much CPU time each took."""
    import aiohttp  # noqa: PLC0415  # as above

    from nakadi.http.server import tune_interpreter  # noqa: PLC0415

    headers = {
        "content-type": "application/json",
        "webhook-id": "msg_0123456789abcdef0123456789abcdef",
        "webhook-timestamp": "1700000000",
        "webhook-signature": "v1,0123456789abcdef0123456789abcdef0123456789a=",
    }

    async def post_deliveries(count: int, body: bytes, *, signs: bool) -> float:
        async with aiohttp.ClientSession() as session:

            async def post_once() -> None:
                async with session.post(f"http://127.0.0.1:{port}/hook", data=body, headers=headers) as response:
                    await response.read()

            for _ in range(20):
                await post_once()
            began = time.process_time()
            for _ in range(count):
                if signs:
                    hmac.digest(b"0123456789abcdef0123456789abcdef", body, "sha256")
                await post_once()
            return (time.process_time() - began) / count

    tune_interpreter()
    while (request := requests.recv()) is not None:
        count, body = request
        requests.send([run_on_fast_loop(partial(post_deliveries, count, body, signs=signs)) for signs in (False, True)])


def run_on_fast_loop(run: Callable[[], Any]) -> Any:
    from nakadi.http.server import new_event_loop  # noqa: PLC0415  # as above

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run())


@contextmanager
def a_process(target: Callable[..., None], *arguments: Any) -> Iterator[tuple[Any, int]]:
    """A connection to a process, and the process's id."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield ours, process.pid
    finally:
        process.kill()
        process.join()


class DeliverySetup:
    """A broker, a sink, and the calls of a client to both."""

    def __init__(self, broker: RunningServer, sink_port: int, tally: DeliveryCounts) -> None:
        self.broker = broker
        self.sink_url = f"http://127.0.0.1:{sink_port}/hook"
        self.sink_port = sink_port
        self.tally = tally
        self._api = httpx.Client(base_url=f"http://127.0.0.1:{broker.port}", timeout=60)
        self._event_types = 0

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        response = self._api.request(method, path, json=body)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def create_event_type(self) -> str:
        self._event_types += 1
        name = f"{NAME}.{self._event_types}"
        schema = {"type": "json_schema", "schema": "{}"}
        body = {"name": name, "owning_application": "bench", "category": "undefined", "schema": schema}
        self.ask("POST", "/event-types", body)
        return name

    def publish(self, name: str, first: int, count: int) -> float:
        """Publish an event, and return when the answer arrived."""
        body = "[" + ",".join(an_event(number) for number in range(first, first + count)) + "]"
        headers = {"content-type": "application/json"}
        response = self._api.post(f"/event-types/{name}/events", content=body, headers=headers)
        answered_at = time.monotonic()
        assert response.status_code == 200, response.text
        return answered_at

    def subscribe(self, name: str, group: str = "default", **sink: Any) -> str:
        body = {
            "owning_application": "bench",
            "event_types": [name],
            "consumer_group": group,
            "read_from": "begin",
            "sink": {"type": "http", "url": self.sink_url, **sink},
        }
        return str(self.ask("POST", "/subscriptions", body)["id"])

    def wait_for(self, is_done: Callable[[], bool], seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        while not is_done():
            assert time.monotonic() < until, (self.tally.bodies.value, self.tally.last.value)
            time.sleep(0.002)


def an_event(number: int) -> str:
    head = f'{{"number":{FIRST_NUMBER + number},"text":"'
    return head + "x" * (EVENT_BYTES - len(head) - 2) + '"}'


@contextmanager
def a_delivery_setup(engine: str) -> Iterator[DeliverySetup]:
    tally = DeliveryCounts()
    with tempfile.TemporaryDirectory() as folder, a_process(serve_sink, tally) as (sink, _):
        url = "memory:" if engine == "memory" else f"sqlite:///{folder}/nakadi.db"
        with a_process(serve_broker, url) as (broker, pid):
            yield DeliverySetup(RunningServer(broker.recv(), pid), sink.recv(), tally)


# Questions


def measure_rate(engine: str, *, quick: bool) -> Figures:
    figures: Figures = {}
    with a_delivery_setup(engine) as setup, a_process(serve_floor, setup.sink_port) as (floor, _):
        for batch_limit, count in ((100, 60_000), (1, 6_000)):
            rounds = [
                measure_round(setup, floor, batch_limit, count // 3 if quick else count)
                for _ in range(3 if quick else 7)
            ]
            name = f"rate_{batch_limit}_a_batch"
            for key in rounds[0]:
                figures[f"{name}_{key}"] = statistics.median(each[key] for each in rounds)
    return figures


def measure_round(setup: DeliverySetup, floor: Any, batch_limit: int, count: int) -> Mapping[str, float]:
    """Deliver a backlog; the first tenth only warms up."""
    name = setup.create_event_type()
    for first in range(0, count, 500):
        setup.publish(name, first, 500)
    tally = setup.tally
    tally.reset()
    subscription = setup.subscribe(name, batch_limit=batch_limit)
    setup.wait_for(lambda: tally.last.value >= count // 10)
    bodies, began, cpu = tally.bodies.value, time.monotonic(), setup.broker.cpu_seconds()
    setup.wait_for(lambda: tally.last.value >= count - 1)
    bodies, seconds = tally.bodies.value - bodies, time.monotonic() - began
    broker_us = (setup.broker.cpu_seconds() - cpu) / bodies * 1e6
    setup.ask("DELETE", f"/subscriptions/{subscription}")
    body = b"[" + b",".join(an_event(number).encode() for number in range(batch_limit)) + b"]"
    floor.send((min(bodies, 2000), body))
    floor_us, signing_us = (1e6 * seconds for seconds in floor.recv())
    return {
        "broker_us": broker_us,
        "floor_us": floor_us,
        "of_floor_percent": 100 * floor_us / broker_us,
        "signing_floor_us": signing_us,
        "of_signing_floor_percent": 100 * signing_us / broker_us,
        "deliveries_per_s": bodies / seconds,
    }


def measure_latency(engine: str, *, quick: bool) -> Figures:
    figures: Figures = {}
    with a_delivery_setup(engine) as setup:
        for per_second in (10, 100):
            name = setup.create_event_type()
            setup.tally.reset()
            setup.subscribe(name)
            setup.publish(name, 0, 1)
            setup.wait_for(lambda: setup.tally.last.value >= 0)
            count = per_second * (5 if quick else 20)
            answered_at = {}
            for number in range(1, count + 1):
                answered_at[number] = setup.publish(name, number, 1)
                time.sleep(1 / per_second)
            setup.wait_for(lambda count=count: setup.tally.last.value >= count)
            # The last of the events that shared a delivery counts.
            took = sorted(
                max(0.0, setup.tally.came_at[number] - at) * 1e3
                for number, at in answered_at.items()
                if setup.tally.came_at[number] != NEVER
            )
            figures[f"latency_{per_second}_per_s_p50_ms"] = took[len(took) // 2]
            figures[f"latency_{per_second}_per_s_p99_ms"] = took[len(took) * 99 // 100]
    return figures


def measure_idle_sinks(engine: str, *, quick: bool) -> Figures:
    count = 200 if quick else 1000
    with a_delivery_setup(engine) as setup:
        name = setup.create_event_type()
        # The first sink creates what all sinks share.
        for number in range(20):
            setup.subscribe(name, f"first-{number}")
        setup.publish(name, 0, 1)
        setup.wait_for(lambda: setup.tally.bodies.value >= 20)
        before = memory_of(setup.broker.pid)
        for number in range(count):
            setup.subscribe(name, f"sink-{number}")
        setup.wait_for(lambda: setup.tally.bodies.value >= 20 + count)
        time.sleep(3)
        memory = memory_of(setup.broker.pid) - before
        cpu = setup.broker.cpu_seconds()
        time.sleep(10)
        cpu = setup.broker.cpu_seconds() - cpu
        took = []
        busy = setup.broker.cpu_seconds()
        for number in range(1, 11):
            setup.tally.reset()
            began = setup.publish(name, number, 1)
            setup.wait_for(lambda: setup.tally.bodies.value >= 20 + count)
            took.append(time.monotonic() - began)
            time.sleep(max(0.0, began + 1 - time.monotonic()))
        busy = setup.broker.cpu_seconds() - busy
    return {
        "sinks": count,
        "sinks_idle_kib_each": memory / count / 1024,
        "sinks_idle_cpu_percent": 100 * cpu / 10,
        "sinks_active_all_served_s_p50": statistics.median(took),
        "sinks_active_all_served_s_max": max(took),
        "sinks_active_cpu_us_a_delivery": busy / 10 / (20 + count) * 1e6,
    }


QUESTIONS = {"rate": measure_rate, "latency": measure_latency, "sinks": measure_idle_sinks}


if __name__ == "__main__":
    answer_questions(__doc__, QUESTIONS, engine="sqlite")
