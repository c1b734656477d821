"""Everything that clients of a broker do, at the same time and continuously: the load of a run that looks for growth.

Each activity is a function that does one thing from beginning to end, such as creating an event type, using it and
deleting it. Threads repeat them until the load ends. A failure ends one repetition: when the broker goes down, each
thread can fail once. A refusal with `Retry-After`, by which a busy broker asks for time, is no failure: the request is
repeated, as clients do.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from tests.soak.soak import Refused, request_bytes, request_json
from tests.support.receiver import Receiver, a_sink

T = TypeVar("T")

ORDERS, CLICKS = "lasting.orders", "lasting.clicks"
BATCH = 10
WORDS = tuple(f"{number:x}" for number in range(2_000, 4_000))
RETENTION_MS = 900_000
PAUSE_AFTER_FAILURE = 0.5

# Longer than a broker may be busy, and shorter than the life of a broker in a run.
PATIENCE_WITH_REFUSALS = 120.0

CLICK_SCHEMAS = (
    {"properties": {"page": {"type": "string"}}},
    {"properties": {"page": {"type": "string"}, "note": {"type": "string", "maxLength": 20}}},
)


class Activity(NamedTuple):
    """`pause` is about how many seconds a thread waits between two repetitions."""

    work: Callable[[random.Random], None]
    threads: int
    pause: float


class MixedLoad:
    """`events_a_second` are published in total, half to each of two event types."""

    def __init__(self, host: str, events_a_second: float, receiver: Receiver | None, seed: int = 0) -> None:
        self._host = host
        self._seed = seed
        self._receiver = receiver
        self._ending = threading.Event()
        self._counting = threading.Lock()
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.refused = 0
        self.last_failures: dict[str, str] = {}
        self.events = 0
        self._subscription = ""
        pause = 2 * BATCH / events_a_second
        self.activities: Mapping[str, Activity] = {
            "publish orders": Activity(self._publish_orders, 1, pause),
            "publish clicks": Activity(self._publish_clicks, 1, pause),
            "consume": Activity(self._consume, 4, 0.5),
            "read": Activity(self._read, 6, 0.5),
            "change the schema": Activity(self._change_schema, 1, 15.0),
            "switch the timeline": Activity(self._switch_timeline, 1, 60.0),
            "use an event type": Activity(self._use_event_type, 2, 1.0),
            "use a subscription": Activity(self._use_subscription, 2, 1.0),
            "rehearse": Activity(self._rehearse, 1, 20.0),
            "watch": Activity(self._watch, 1, 5.0),
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        self._prepare()
        threads = [
            threading.Thread(target=self._repeat, args=(name, activity, number))
            for name, activity in self.activities.items()
            for number in range(activity.threads)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in threads:
                thread.join()

    def _repeat(self, name: str, activity: Activity, number: int) -> None:
        chance = random.Random(f"{self._seed}/{name}/{number}")
        while not self._ending.is_set():
            try:
                activity.work(chance)
            except ConnectionRefusedError:
                # The broker is down for a moment, so this is no failure of the activity.
                self._ending.wait(PAUSE_AFTER_FAILURE)
            except (OSError, http.client.HTTPException) as error:
                with self._counting:
                    self.failed[name] += 1
                    self.last_failures[name] = repr(error)[:300]
                self._ending.wait(PAUSE_AFTER_FAILURE)
            else:
                with self._counting:
                    self.done[name] += 1
                self._ending.wait(activity.pause * chance.uniform(0.5, 1.5))

    def _prepare(self) -> None:
        orders = _define_event_type(ORDERS, {"properties": {"key": {"type": "string"}}, "required": ["key"]}, 8)
        keyed = {"partition_strategy": "hash", "partition_key_fields": ["key"]}
        self._call("POST", "/event-types", orders | keyed | {"deduplication": {"window_seconds": 60}})
        self._call("POST", "/event-types", _define_event_type(CLICKS, CLICK_SCHEMAS[0], 4))
        objective = {"percent": 99, "within_seconds": 30}
        self._subscription = self._subscribe(ORDERS, "consumers", objective=objective)
        if self._receiver is not None:
            self._subscribe(CLICKS, "sink", sink=a_sink(self._receiver, max_in_flight=4))

    def _publish_orders(self, chance: random.Random) -> None:
        self._publish(ORDERS, chance)

    def _publish_clicks(self, chance: random.Random) -> None:
        self._publish(CLICKS, chance)

    def _publish(self, event_type: str, chance: random.Random, size: int = BATCH) -> None:
        self._call("POST", f"/event-types/{event_type}/events", [_make_event(chance) for _ in range(size)])
        with self._counting:
            self.events += size

    def _consume(self, chance: random.Random) -> None:
        """Read one of the streams that share a subscription. The stream ends by its timeout, or as if its client had
        died.
        """
        self._read_and_commit(self._subscription, chance.uniform(2, 40), stream_timeout=chance.choice([0, 10]))

    def _read(self, chance: random.Random) -> None:
        event_type = chance.choice([ORDERS, CLICKS])
        offset = chance.choice(["BEGIN", None])
        partitions = self._call("GET", f"/event-types/{event_type}/partitions")
        cursors = [{"partition": each["partition"], "offset": offset} for each in partitions] if offset else None
        headers = {"X-Nakadi-Cursors": json.dumps(cursors)} if cursors else {}
        path = f"/event-types/{event_type}/events?batch_limit=100&batch_flush_timeout=1"
        for _ in self._lines(path, chance.uniform(0.5, 20), headers):
            pass

    def _change_schema(self, _: random.Random) -> None:
        schema = CLICK_SCHEMAS[self.done["change the schema"] % len(CLICK_SCHEMAS)]
        self._call("POST", f"/event-types/{CLICKS}/schemas", _show_schema(schema))

    def _switch_timeline(self, _: random.Random) -> None:
        self._call("POST", f"/event-types/{CLICKS}/timelines", {"storage_id": "default"})

    def _use_event_type(self, chance: random.Random) -> None:
        """Create an event type, publish to it, change it, read it through a subscription, and delete both."""
        name = f"lasting.temporary.{uuid.UUID(int=chance.getrandbits(128))}"
        path = f"/event-types/{name}"
        self._call("POST", "/event-types", _define_event_type(name, CLICK_SCHEMAS[0], 1))
        self._publish(name, chance)
        self._call("POST", f"{path}/schemas", _show_schema(CLICK_SCHEMAS[1]))
        self._call("PUT", f"{path}/partition-count", {"partition_count": 3})
        self._publish(name, chance)
        subscription = self._subscribe(name, str(uuid.uuid4()))
        self._read_and_commit(subscription, 1.0)
        self._call("DELETE", f"/subscriptions/{subscription}")
        self._call("DELETE", path)

    def _use_subscription(self, chance: random.Random) -> None:
        """Create a subscription to one of the event types, read it, reset its cursors, and delete it."""
        subscription = self._subscribe(chance.choice([ORDERS, CLICKS]), str(uuid.uuid4()), read_from="end")
        self._read_and_commit(subscription, chance.uniform(1, 5))
        path = f"/subscriptions/{subscription}"
        cursors = self._call("GET", f"{path}/cursors")["items"]
        if cursors:
            reset = [{name: each[name] for name in ("event_type", "partition", "offset")} for each in cursors]
            self._call("PATCH", f"{path}/cursors", {"items": reset})
        self._call("GET", f"{path}/stats?show_time_lag=true")
        self._call("DELETE", path)

    def _rehearse(self, _: random.Random) -> None:
        path = f"/event-types/{CLICKS}/schemas/rehearsals"
        wanted = {"schema": _show_schema(CLICK_SCHEMAS[1]), "last": "1h"}
        rehearsal = self._call("POST", path, wanted)["id"]
        while self._call("GET", f"{path}/{rehearsal}")["state"] == "running" and not self._ending.wait(0.5):
            pass
        self._call("DELETE", f"{path}/{rehearsal}")

    def _watch(self, _: random.Random) -> None:
        """Send the requests of a console, an operator and a scraper of metrics."""
        request_bytes(self._host, "GET", "/metrics")
        self._call("GET", "/event-types")
        self._call("GET", "/subscriptions?show_status=true")
        self._call("GET", f"/subscriptions/{self._subscription}/objective")
        if self._receiver is not None:
            self._receiver.received.clear()

    def _subscribe(self, event_type: str, group: str, read_from: str = "begin", **more: Any) -> str:
        wanted = {"owning_application": "lasting", "event_types": [event_type], "consumer_group": group}
        return str(self._call("POST", "/subscriptions", wanted | {"read_from": read_from} | more)["id"])

    def _read_and_commit(self, subscription: str, seconds: float, stream_timeout: int = 0) -> None:
        path = f"/subscriptions/{subscription}"
        parameters = f"batch_limit=50&batch_flush_timeout=1&commit_timeout=5&stream_timeout={stream_timeout}"
        stream_id = ""
        for line in self._lines(f"{path}/events?{parameters}", seconds):
            stream_id = line.headers["X-Nakadi-StreamId"]
            if "events" in line.batch:
                commit = {"items": [line.batch["cursor"]]}
                self._call("POST", f"{path}/cursors", commit, {"X-Nakadi-StreamId": stream_id})

    def _lines(self, path: str, seconds: float, headers: Mapping[str, str] | None = None) -> Iterator[_Line]:
        """The lines of a stream. After these seconds, the reader closes the connection, even if the stream would
        continue.
        """
        try:
            connection, answer = self._repeat_while_refused(lambda: self._open_stream(path, headers or {}))
        except Refused as refused:
            if refused.status == http.HTTPStatus.CONFLICT:
                return  # each partition has a stream already
            raise
        end = time.monotonic() + seconds
        with closing(connection):
            for line in answer:
                if not line.endswith(b"\n"):
                    raise http.client.IncompleteRead(line)
                yield _Line(answer.headers, json.loads(line))
                if time.monotonic() > end or self._ending.is_set():
                    return

    def _open_stream(
        self, path: str, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        with ExitStack() as cleanup:
            connection = cleanup.enter_context(closing(http.client.HTTPConnection(self._host, timeout=60)))
            connection.request("GET", path, headers=dict(headers))
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise Refused(answer)
            cleanup.pop_all()
        return connection, answer

    def _call(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        return self._repeat_while_refused(lambda: request_json(self._host, method, path, body, headers))

    def _repeat_while_refused(self, request: Callable[[], T]) -> T:
        """Repeat the request while the broker asks for time. Raise the refusal if it names no time, or when the
        patience or the load has ended.
        """
        end = time.monotonic() + PATIENCE_WITH_REFUSALS
        while True:
            try:
                return request()
            except Refused as refused:
                if refused.retry_after is None or time.monotonic() + refused.retry_after > end:
                    raise
                with self._counting:
                    self.refused += 1
                if self._ending.wait(refused.retry_after):
                    raise


class _Line(NamedTuple):
    headers: http.client.HTTPMessage
    batch: Any


def _define_event_type(name: str, schema: Mapping[str, Any], partitions: int) -> dict[str, Any]:
    statistic = {"messages_per_minute": 1, "message_size": 1}
    return {
        "name": name,
        "owning_application": "lasting",
        "category": "business",
        "enrichment_strategies": ["metadata_enrichment"],
        "compatibility_mode": "none",
        "schema": _show_schema(schema),
        "options": {"retention_time": RETENTION_MS},
        "default_statistic": statistic | {"read_parallelism": partitions, "write_parallelism": partitions},
    }


def _show_schema(schema: Mapping[str, Any]) -> dict[str, str]:
    return {"type": "json_schema", "schema": json.dumps(schema)}


def _make_event(chance: random.Random) -> dict[str, Any]:
    occurred_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata = {"eid": str(uuid.UUID(int=chance.getrandbits(128), version=4)), "occurred_at": occurred_at}
    text = " ".join(chance.choices(WORDS, k=100))
    return {"metadata": metadata, "key": str(chance.randrange(500)), "page": text[:20], "text": text}


def fail_now_and_then(chance: random.Random) -> Callable[[list[Any]], int]:
    """A sink's choice of its answer: four in a hundred are failures."""
    return lambda _events: chance.choices((204, 500, 503), (96, 2, 2))[0]
