"""A soak runs publishers, consumers of one subscription and the sink of another, while it kills consumers and ends the
server.

Nothing may be lost, come out of order, or come again after it was committed; duplicates are counted.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from infra.laptop.kinesis_local import free_port
from nakadi_client.answers import retry_after
from tests.soak.verdict import Entry, Judge, Verdict, entries
from tests.support.processes import ENVIRONMENT
from tests.support.receiver import ON_LOOPBACK_VARIABLES, Receiver, a_sink
from tests.support.workers import find_children

EVENT_TYPE = "soak"
PARTITIONS = 8
KEYS = 50

# How long consumers may take for the remaining events after the publishers have stopped: the leases of killed servers
# first have to expire.
PATIENCE_SECONDS = 180.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seconds: float
    consumers: int = 4
    publishers: int = 2
    events_a_second: float = 500.0
    # About how long a consumer lives.
    life_seconds: float = 15.0
    # When the server goes down, as fractions of the run, and by which signal.
    goes_down: tuple[tuple[float, signal.Signals], ...] = ((0.3, signal.SIGKILL), (0.6, signal.SIGTERM))
    # About how many seconds pass before the next part (a worker, or Kafka) is ended.
    part_life_seconds: float = 20.0
    seed: int = 0


class Server:
    """The program on a SQLite file, always at the same port."""

    delivers_to_sinks = True

    def __init__(self, folder: Path, workers: int = 1) -> None:
        self._folder = folder
        self._workers = workers
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._port}"

    def environment(self) -> Mapping[str, str]:
        return {**ENVIRONMENT, **ON_LOOPBACK_VARIABLES}

    def start(self) -> None:
        program = [sys.executable, "-m", "nakadi.local", f"--workers={self._workers}"]
        command = [*program, f"--port={self._port}", "--data", str(self._folder)]
        with (self._folder / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                command, env=self.environment(), stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        greeting = self._process.stdout.readline()
        assert " ready " in greeting, f"the server did not start: {(self._folder / 'server.log').read_text()[-2000:]}"

    def stop(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.communicate(timeout=PATIENCE_SECONDS)

    def end_a_part(self, how: signal.Signals, chance: random.Random) -> bool:
        """End a worker, and return whether there was one."""
        assert self._process is not None
        running = find_children(self._process.pid) if self._workers > 1 else []
        with suppress(ProcessLookupError):
            if running:
                os.kill(chance.choice(running), how)
        return bool(running)

    def close(self) -> None:
        self.stop(signal.SIGTERM)


class Ground(Protocol):
    """The system under test; `delivers_to_sinks` says whether it can reach a sink on this machine."""

    delivers_to_sinks: bool

    @property
    def host(self) -> str: ...

    def start(self) -> None: ...

    def stop(self, how: signal.Signals) -> None: ...

    def end_a_part(self, how: signal.Signals, chance: random.Random) -> bool: ...

    def close(self) -> None: ...


class Refused(http.client.HTTPException):
    """Raised for an answer that is not a success. `retry_after` has the seconds that the answer asks the client to
    wait, or None.
    """

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        super().__init__(f"{answer.status} {answer.read()[:300]!r}")
        self.status = answer.status
        self.retry_after = retry_after(answer.headers["Retry-After"])


def request_json(host: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
    """Send a request that must succeed, and return its answer."""
    content = request_bytes(host, method, path, body, headers)
    return json.loads(content) if content else None


def request_bytes(
    host: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> bytes:
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        # 207 says that some or all of the events are not stored.
        if answer.status >= 300 or answer.status == http.HTTPStatus.MULTI_STATUS:
            raise Refused(answer)
        return answer.read()
    finally:
        connection.close()


def create_subscription(host: str) -> str:
    """Create the event type and a subscription to it, and return the subscription's id."""
    statistic = {"messages_per_minute": 1, "message_size": 1}
    definition = {
        "name": EVENT_TYPE,
        "owning_application": "soak",
        "category": "business",
        "enrichment_strategies": ["metadata_enrichment"],
        "deduplication": {"window_seconds": 24 * 3600},
        "partition_strategy": "hash",
        "partition_key_fields": ["key"],
        "schema": {"type": "json_schema", "schema": '{"properties":{"key":{"type":"string"}},"required":["key"]}'},
        "default_statistic": statistic | {"read_parallelism": PARTITIONS, "write_parallelism": PARTITIONS},
    }
    request_json(host, "POST", "/event-types", definition)
    wanted = {"owning_application": "soak", "event_types": [EVENT_TYPE], "read_from": "begin"}
    return str(request_json(host, "POST", "/subscriptions", wanted)["id"])


def count_uncommitted(host: str, subscription: str) -> int | None:
    """How many events are not committed yet; None if that is unknown."""
    [item] = request_json(host, "GET", f"/subscriptions/{subscription}/stats")["items"]
    counts = [each.get("unconsumed_events") for each in item["partitions"]]
    return None if None in counts else sum(counts)


def count_stored(host: str) -> int:
    """The number of events that were ever stored: offsets have no gaps."""
    partitions = request_json(host, "GET", f"/event-types/{EVENT_TYPE}/partitions")
    return sum(int(each["newest_available_offset"].split("-", 2)[2]) + 1 for each in partitions)


@dataclass(slots=True)
class Publisher:
    """Publishes batch after batch, and repeats each until the broker acknowledges it."""

    name: str
    host: str
    rate: float
    stop: threading.Event
    acknowledged: list[str] = field(default_factory=list)

    def publish(self) -> None:
        numbers = [0] * KEYS
        chance = random.Random(self.name)
        while not self.stop.is_set():
            batch = []
            for key in chance.sample(range(KEYS), 10):
                metadata = {"eid": str(uuid.uuid4()), "occurred_at": "2026-11-21T12:00:00Z"}
                name = f"{self.name}:{key}"
                batch.append({"metadata": metadata, "key": name, "id": f"{name}:{numbers[key]}"})
                numbers[key] += 1
            self._publish(batch)
            self.stop.wait(len(batch) / self.rate)

    def _publish(self, batch: list[dict[str, Any]]) -> None:
        while True:
            try:
                request_json(self.host, "POST", f"/event-types/{EVENT_TYPE}/events", batch)
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)
            else:
                self.acknowledged += [each["id"] for each in batch]
                return


class Consumers:
    """Consumer processes. `kill_some` kills those that have lived long enough, and replaces them."""

    def __init__(self, plan: Plan, host: str, subscription: str, folder: Path) -> None:
        self._chance = random.Random(plan.seed)
        self._plan = plan
        self._command = [sys.executable, str(Path(__file__).with_name("consumer.py")), host, subscription]
        self._folder = folder
        self._living: list[tuple[float, subprocess.Popen[bytes]]] = []
        self.diaries: list[Path] = []
        for _ in range(plan.consumers):
            self._start()

    def kill_some(self) -> None:
        now = time.monotonic()
        for until, process in tuple(self._living):
            if until < now:
                self._living.remove((until, process))
                _kill(process)
                self._start()

    def close(self) -> None:
        for _, process in self._living:
            _kill(process)

    def _start(self) -> None:
        diary = self._folder / f"diary-{len(self.diaries)}"
        diary.touch()
        self.diaries.append(diary)
        until = time.monotonic() + self._plan.life_seconds * self._chance.uniform(0.2, 1.8)
        self._living.append((until, subprocess.Popen([*self._command, str(diary)], env=ENVIRONMENT)))


class SoakedSink:
    """The sink of a separate subscription, which fails at times; its received events are its diary."""

    def __init__(self, host: str, seed: int, around: ExitStack) -> None:
        self._chance = random.Random(seed)
        self._receiver = around.enter_context(Receiver(self._decide))
        wanted = {"owning_application": "soak", "event_types": [EVENT_TYPE], "read_from": "begin"}
        body = wanted | {"consumer_group": "sink", "sink": a_sink(self._receiver, max_in_flight=4)}
        self.subscription = str(request_json(host, "POST", "/subscriptions", body)["id"])

    def judge(self, acknowledged: Collection[str]) -> Verdict:
        judge = Judge()
        judge.read(self._entries())
        judge.verdict.acknowledged = len(acknowledged)
        judge.verdict.lost = judge.count_lost(acknowledged)
        return judge.verdict

    def _decide(self, _events: list[Any]) -> int:
        return self._chance.choices((204, 500, 503), (96, 2, 2))[0]

    def _entries(self) -> Iterator[Entry]:
        """Each delivery counts as a session: it may repeat earlier events, and may leave nothing out."""
        for number, each in enumerate(self._receiver.received):
            if each.status < 300:
                body = json.loads(each.body)
                ids = [event["id"] for event in body["events"]]
                yield number, "opened", str(number), 0.0
                yield number, "got", str(number), body["cursor"]["partition"], body["cursor"]["offset"], ids


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@contextmanager
def publishing(plan: Plan, host: str) -> Iterator[list[Publisher]]:
    stop = threading.Event()
    rate = plan.events_a_second / plan.publishers
    publishers = [Publisher(f"p{number}", host, rate, stop) for number in range(plan.publishers)]
    threads = [threading.Thread(target=each.publish) for each in publishers]
    for thread in threads:
        thread.start()
    try:
        yield publishers
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def run_soak(plan: Plan, folder: Path, say: Say = print, new_ground: Callable[[Path], Ground] = Server) -> Verdict:
    """Carry out a plan, and judge the result."""
    with ExitStack() as around:
        server = new_ground(folder)
        around.callback(server.close)
        subscription = create_subscription(server.host)
        consumers = Consumers(plan, server.host, subscription, folder)
        around.callback(consumers.close)
        sink = SoakedSink(server.host, plan.seed, around) if server.delivers_to_sinks else None
        with publishing(plan, server.host) as publishers:
            _live_through(plan, server, consumers, say)
        acknowledged = [each for publisher in publishers for each in publisher.acknowledged]
        say(f"published {len(acknowledged):,}, killed {len(consumers.diaries) - plan.consumers} consumers")
        _wait_for_the_rest(server.host, subscription, say)
        if sink is not None:
            _wait_for_the_rest(server.host, sink.subscription, say)
        stored = count_stored(server.host)
    judge = Judge()
    judge.read(entry for diary in consumers.diaries for entry in entries(diary))
    judge.verdict.acknowledged = len(acknowledged)
    judge.verdict.stored_again = stored - len(acknowledged)
    judge.verdict.lost = judge.count_lost(acknowledged)
    judge.verdict.of_sink = None if sink is None else sink.judge(acknowledged)
    return judge.verdict


def _live_through(plan: Plan, server: Ground, consumers: Consumers, say: Say) -> None:
    began = time.monotonic()
    going_down = list(plan.goes_down)
    chance = random.Random(plan.seed)
    ended: Counter[str] = Counter()
    next_end = plan.part_life_seconds
    while (passed := time.monotonic() - began) < plan.seconds:
        consumers.kill_some()
        if going_down and passed > going_down[0][0] * plan.seconds:
            _, how = going_down.pop(0)
            server.stop(how)
            server.start()
            say(f"after {passed:.0f} s the server was ended by {how.name}, and is back")
        if passed > next_end:
            next_end += plan.part_life_seconds * chance.uniform(0.5, 1.5)
            how = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            ended[how.name] += server.end_a_part(how, chance)
        time.sleep(0.1)
    if ended.total():
        say(
            f"parts of the server were ended by {', '.join(f'{name} {number} times' for name, number in ended.items())}"
        )


def _wait_for_the_rest(host: str, subscription: str, say: Say) -> None:
    began = time.monotonic()
    while (rest := count_uncommitted(host, subscription)) != 0 and time.monotonic() < began + PATIENCE_SECONDS:
        time.sleep(0.1)
    say(f"{time.monotonic() - began:.1f} s later {rest} events are not committed")


def main(minutes: float, folder: Path, engine: str) -> int:
    workers = int(os.environ.get("WORKERS") or "1")
    plan = Plan(seconds=60 * minutes, seed=int(os.environ.get("SEED", "0")))
    if engine == "aws-local":
        from tests.soak.aws import LaptopGround  # noqa: PLC0415  # it needs the deployment's modules

        verdict = run_soak(replace(plan, events_a_second=100.0), folder, new_ground=LaptopGround)
    elif engine == "kafka":
        from tests.soak.kafka import KafkaGround  # noqa: PLC0415  # only on request

        verdict = run_soak(plan, folder, new_ground=partial(KafkaGround, workers=workers))
    else:
        verdict = run_soak(plan, folder, new_ground=partial(Server, workers=workers))
    print(verdict)
    return 0 if verdict.is_good else 1
