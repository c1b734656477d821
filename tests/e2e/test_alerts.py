"""The broker is broken on purpose: an alert detects that, and the instructions in docs/operations.md repair it.

The alert for workers that die is in `test_workers.py`.
"""

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from types import SimpleNamespace

import httpx
import pytest

from nakadi.app import engines
from nakadi.delivery.courier import Courier
from nakadi.engines.sqlite.file import path_in_url
from nakadi.local import Broker
from nakadi.model.outcomes import Unavailable
from nakadi.subscriptions.stream.leases import LeaseKeeper
from tests.support.alerts import AlertWatch
from tests.support.api import create_event_type
from tests.support.clock import MovableClock
from tests.support.consumer import Consumer
from tests.support.environment import plain_environment
from tests.support.metrics import sample_value, scrape
from tests.support.open_stream import OpenStream
from tests.support.patience import PATIENCE, until
from tests.support.receiver import ON_LOOPBACK, Receiver, a_sink, delivering_quickly
from tests.support.served import ServedBroker
from tests.support.subscriptions import create_event_type_with, create_subscription, publish

BEGIN = {"X-nakadi-cursors": '[{"partition": "0", "offset": "BEGIN"}]'}
SCHEMAS = {kind: f'{{"properties": {{"n": {{"type": "{kind}"}}}}}}' for kind in ("integer", "string")}


class SlowRegistry:
    """A registry in which each call takes `seconds`, by the test's clock."""

    def __init__(self, registry, clock):
        self._registry = registry
        self._clock = clock
        self.seconds = 0.0

    def __getattr__(self, name):
        call = getattr(self._registry, name)

        def call_late(*arguments, **named):
            self._clock.move(self.seconds)
            return call(*arguments, **named)

        return call_late


@pytest.fixture(scope="module")
def breakable_broker(tmp_path_factory):
    """A broker that archives events at once, with its clock, its registry and its files."""
    folder = tmp_path_factory.mktemp("data")
    url = f"sqlite:///{folder}/nakadi.db"
    clock = MovableClock()
    registries = []

    def open_registry(registry_url):
        registries.append(SlowRegistry(open_sqlite(registry_url), clock))
        return registries[-1]

    open_sqlite = engines.REGISTRY_OPENERS["sqlite"]
    settings = {"archive": str(folder / "archive"), "archive_after_seconds": 0, "hot_retention_ms": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(engines.REGISTRY_OPENERS, "sqlite", open_registry)
        with ServedBroker(clock=clock, registry=url, event_log=url, **settings) as broker:
            yield SimpleNamespace(
                broker=broker, clock=clock, registry=registries[0], file=path_in_url(url), archive=folder / "archive"
            )


@pytest.fixture
def api(breakable_broker):
    with httpx.Client(base_url=breakable_broker.broker.url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def start_alert_watch(api):
    """A function that begins to watch the broker, and checks that no alert fires yet."""
    return lambda: AlertWatch(api)


def read_first_event(breakable_broker, event_type):
    with OpenStream(breakable_broker.broker.url, f"/event-types/{event_type}/events?stream_limit=1", BEGIN) as stream:
        return stream.rest()


def count_lost_streams(api):
    return sample_value(scrape(api), "nakadi_streams_ended_total", api="subscription", reason="released")


def test_a_stuck_consumer_is_found(api, breakable_broker, start_alert_watch):
    """Three streams in a row leave the same event uncommitted: the alert fires until a repaired consumer commits the
    event.
    """
    name = create_event_type(api)["name"]
    subscription = create_subscription(api, name, read_from="begin")
    publish(api, name, 1)
    for number in range(1, 4):
        with Consumer(api, subscription, batch_limit=1, on_disconnect="release") as stream:
            assert stream.batch()
        until(lambda ended=number: count_lost_streams(api) == ended)
    breakable_broker.broker.services.housekeeping.run()
    assert start_alert_watch().fires("NakadiConsumerIsStuck")

    with Consumer(api, subscription, batch_limit=1) as stream:
        assert stream.consumed(1) == [{"n": 0}]
    breakable_broker.broker.services.housekeeping.run()
    assert not start_alert_watch().fires("NakadiConsumerIsStuck")


def test_why_a_stream_cannot_begin_is_in_the_log(api, monkeypatch, caplog):
    """If a stream gets 503 because a store does not answer, the log names the subscription and the cause."""
    subscription = create_subscription(api, create_event_type(api)["name"])

    def refuse(_keeper):
        raise Unavailable("the data file") from OSError("database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(LeaseKeeper, "ensure_lease", refuse)
        assert api.get(f"/subscriptions/{subscription['id']}/events").status_code == 503

    assert f"A stream of subscription {subscription['id']} cannot begin: database is locked" in caplog.text


def test_a_sink_that_fails_is_found(monkeypatch):
    """If a sink has accepted nothing for two minutes, the alert names its subscription until the receiver is repaired.
    Statistics show the failure just as long. (X66)
    """
    measure = Courier.failing_seconds
    # Two minutes later, without waiting.
    monkeypatch.setattr(Courier, "failing_seconds", lambda courier: (found := measure(courier)) and found + 121)
    with (
        delivering_quickly(),
        Receiver(lambda _: 500) as receiver,
        Broker(**ON_LOOPBACK) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        subscription = create_subscription(api, read_from="begin")
        place = f"/subscriptions/{subscription['id']}/sink"
        assert api.put(place, json=a_sink(receiver)).status_code == 201
        before = AlertWatch(api)
        assert not before.fires("NakadiSinkFails")
        publish(api, subscription["event_types"][0], 1)
        until(lambda: before.fires("NakadiSinkFails"))
        assert sample_value(scrape(api), "nakadi_sink_failing_seconds", subscription=subscription["id"]) > 121
        stats = f"/subscriptions/{subscription['id']}/stats"
        until(lambda: "failing_sink" in api.get(stats).json())
        failing = api.get(stats).json()["failing_sink"]
        assert (failing["status"], failing["text"]) == (500, "cannot read it")

        receiver.decide = lambda _: 204
        assert api.post(f"{place}/resume").status_code == 204
        receiver.wait_for(1)
        until(lambda: not before.fires("NakadiSinkFails"))
        until(lambda: "failing_sink" not in api.get(stats).json())


def test_a_hot_partition_is_found(api, start_alert_watch):
    """Events that all have one key fill one partition: the alert fires until keys differ."""
    name = create_event_type_with(api, 4)
    target = f"/event-types/{name}/events"
    publish(api, name, 1)
    before = start_alert_watch()
    keyed = api.get(f"/event-types/{name}").json() | {"partition_strategy": "hash", "partition_key_fields": ["key"]}
    assert api.put(f"/event-types/{name}", json=keyed).status_code == 200
    assert api.post(target, json=[{"key": "same"}] * 200).status_code == 200
    assert before.fires("NakadiPartitionIsHot")

    assert api.post(target, json=[{"key": str(number)} for number in range(2000)]).status_code == 200
    assert not before.fires("NakadiPartitionIsHot")


def test_a_disk_that_fills_up_is_found(breakable_broker, start_alert_watch, monkeypatch):
    """The alert fires with a twentieth of the disk free, and no longer with half of it free."""
    usage = shutil.disk_usage(breakable_broker.file.parent)
    assert ("nakadi_disk_free_bytes", frozenset({("place", "data")})) in scrape(start_alert_watch().api)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=usage.total // 20))
    assert start_alert_watch().fires("NakadiDiskFillsUp")

    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=usage.total // 2))
    assert not start_alert_watch().fires("NakadiDiskFillsUp")


def test_a_full_disk_is_found(api, breakable_broker, start_alert_watch):
    """When the disk is full, publishers get errors, and the alert fires; once there is room, they continue without a
    restart.
    """
    name = create_event_type(api)["name"]
    before = start_alert_watch()
    with closing(sqlite3.connect(breakable_broker.file)) as other:
        other.execute(
            """CREATE TRIGGER full_disk BEFORE INSERT ON frames
            BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"""
        )
    try:
        assert api.post(f"/event-types/{name}/events", json=[{}]).status_code == 207
        assert before.fires("NakadiCannotStoreEvents")
    finally:
        with closing(sqlite3.connect(breakable_broker.file)) as other:
            other.execute("DROP TRIGGER full_disk")

    after = start_alert_watch()
    publish(api, name, 1)
    assert not after.fires("NakadiCannotStoreEvents")


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of 8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount") if sys.platform == "linux" else None
    command = [mount, "-t", "tmpfs", "-o", "size=8m", "tmpfs", place]
    if mount is None or subprocess.run(command, env=plain_environment(), check=False).returncode:
        pytest.skip("this user cannot mount a file system")
    yield place
    subprocess.run(["umount", "-l", place], env=plain_environment(), check=True)


def test_on_a_disk_without_any_room_readers_go_on(small_disk):
    """Publishers and commits get errors, and the alert fires. Readers get every stored event, and with room, all
    continue without a restart."""
    spare = small_disk / "spare"
    spare.write_bytes(bytes(3_000_000))
    url = f"sqlite:///{small_disk}/nakadi.db"
    with (
        ServedBroker(registry=url, event_log=url) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        subscription = create_subscription(api, read_from="begin")
        [name] = subscription["event_types"]
        events = f"/event-types/{name}/events"
        with Consumer(api, subscription, batch_limit=1) as reader:
            publish(api, name, 1)
            batch = reader.batch()
            before = AlertWatch(api)
            stored = 1
            while (answer := api.post(events, json=[{"n": "n" * 300_000}])).status_code == 200:
                stored += 1
            assert (answer.status_code, answer.json()[0]["publishing_status"]) == (207, "failed")
            # The remaining space suffices for a smaller event.
            with suppress(OSError):
                spare.with_name("rest").write_bytes(bytes(shutil.disk_usage(small_disk).free))
            assert before.fires("NakadiCannotStoreEvents")
            assert before.fires("NakadiDiskFillsUp")
            assert reader.commit(batch["cursor"]).status_code == 503
        read = api.get(events, params={"stream_limit": stored}, headers=BEGIN)
        assert read.text.count('"n":') == stored

        spare.unlink()
        after = AlertWatch(api)
        publish(api, name, 1)
        assert not after.fires("NakadiCannotStoreEvents")


def publish_until_archived(api, breakable_broker):
    """Publish to a new event type until some of its events are archived. Return its name and its topic."""
    name = create_event_type(api)["name"]
    for _ in range(20):
        publish(api, name, 1)
    topic = breakable_broker.broker.services.event_types.get(name).timeline.topic
    log = breakable_broker.broker.log
    until(lambda: log.archive() or log._hot.bounds(topic, [0])[0].oldest > 0)
    return name, topic


def test_an_archive_that_is_not_mounted_is_not_damaged(api, breakable_broker, start_alert_watch):
    """Reads of archived events wait until the file system is mounted. The alert for failed reads fires until then, and
    no alert asks for a backup. (L80a)
    """
    name, topic = publish_until_archived(api, breakable_broker)
    before = start_alert_watch()
    aside = breakable_broker.archive.with_name("unmounted")
    breakable_broker.archive.rename(aside)
    breakable_broker.archive.mkdir()
    try:
        target = f"/event-types/{name}/events?batch_flush_timeout=1"
        with OpenStream(breakable_broker.broker.url, target, BEGIN):
            until(lambda: sample_value(scrape(api), "nakadi_archive_read_failures_total") > 0)
        assert not before.fires("NakadiArchiveIsDamaged")
        assert before.fires("NakadiArchiveCannotBeRead")
    finally:
        breakable_broker.archive.rmdir()
        aside.rename(breakable_broker.archive)
    assert breakable_broker.broker.log.read(topic, 0, 0).events
    until(lambda: not start_alert_watch().fires("NakadiArchiveCannotBeRead"))


def test_a_damaged_archive_is_found(api, breakable_broker, start_alert_watch):
    """Streams say where the archive is damaged, and the alert fires; once the object is restored from a backup, they
    continue. (L79, S341)
    """
    there = set(breakable_broker.archive.rglob("*.gz"))
    name, _ = publish_until_archived(api, breakable_broker)
    objects = {each: each.read_bytes() for each in set(breakable_broker.archive.rglob("*.gz")) - there}
    before = start_alert_watch()
    for path, content in objects.items():
        path.write_bytes(content[:-20] + bytes(20))
    target = f"/event-types/{name}/events?stream_timeout=1&batch_flush_timeout=1"

    def fires_behind_a_stream() -> bool:
        with OpenStream(breakable_broker.broker.url, target, BEGIN) as stream:
            lines = stream.rest()
            assert b'"n":0' not in lines
        if b'"unreadable":{' in lines:
            problem = json.loads(lines.splitlines()[-1])
            assert (problem["status"], problem["unreadable"]["event_type"]) == (503, name)
            assert f"of partition 0 of {name} cannot be read" in problem["detail"]
        return before.fires("NakadiArchiveIsDamaged")

    # On a busy machine a stream may end before it has read anything.
    until(fires_behind_a_stream)
    subscription = create_subscription(api, name, read_from="begin")
    with Consumer(api, subscription, batch_flush_timeout=1) as reader:
        while not (info := reader.keep_alive().get("info", {})).get("unreadable"):
            pass
        assert f"of partition 0 of {name} cannot be read" in info["debug"]
        for path, content in objects.items():
            path.write_bytes(content)
        assert reader.batch()["events"][0]["n"] == 0

    read = api.get(f"/event-types/{name}/events", params={"stream_limit": 20}, headers=BEGIN)
    assert read.text.count('"n":') == 20
    # A read ahead may have begun before the repair; the broker checks again whenever somebody asks.
    until(lambda: not start_alert_watch().fires("NakadiArchiveIsDamaged"))


def test_a_schema_that_rejects_events_is_found(api, start_alert_watch):
    """A changed schema rejects the events of publishers: the alert fires until the change is reverted."""
    definition = create_event_type(api, schema=SCHEMAS["integer"], compatibility_mode="none")
    name, target = definition["name"], f"/event-types/{definition['name']}"
    publish(api, name, 5)
    changed = definition | {"schema": {"type": "json_schema", "schema": SCHEMAS["string"]}}
    assert api.put(target, json=changed).status_code == 200
    assert api.post(f"{target}/events", json=[{"n": 1}]).status_code == 422
    before = start_alert_watch()
    assert api.post(f"{target}/events", json=[{"n": 1}]).status_code == 422
    assert before.fires("NakadiSchemaRejectsEvents")

    assert api.put(target, json=definition).status_code == 200
    after = start_alert_watch()
    publish(api, name, 5)
    assert not after.fires("NakadiSchemaRejectsEvents")


def test_a_slow_registry_is_found(api, breakable_broker, start_alert_watch):
    """Calls that take a second make the alert fire, until they are quick again."""
    before = start_alert_watch()
    breakable_broker.registry.seconds = 1.0
    api.get("/event-types")
    breakable_broker.registry.seconds = 0.0
    assert before.fires("NakadiRegistryIsSlow")

    def is_quick_again() -> bool:
        after = start_alert_watch()
        for _ in range(3):
            api.get("/event-types")
        return not after.fires("NakadiRegistryIsSlow")

    # On a busy machine a call may take half a second.
    until(is_quick_again)


def test_an_indexer_that_is_behind_is_found(api, breakable_broker, start_alert_watch):
    """If every attempt to archive fails, the alert fires after ten minutes, until the archive is back."""
    name = create_event_type(api)["name"]
    aside = breakable_broker.archive.with_name("aside")
    before = start_alert_watch()
    breakable_broker.archive.mkdir(exist_ok=True)
    breakable_broker.archive.rename(aside)
    breakable_broker.archive.write_text("")
    failed = sample_value(scrape(api), "nakadi_archive_failures_total", operation="archiving")
    try:
        publish(api, name, 1)
        until(lambda: sample_value(scrape(api), "nakadi_archive_failures_total", operation="archiving") > failed + 1)
        assert not before.fires("NakadiIndexerIsBehind")
        breakable_broker.clock.move(700)
        assert before.fires("NakadiIndexerIsBehind")
    finally:
        breakable_broker.archive.unlink()
        # From this moment on, the next attempt creates the folder itself.
        shutil.copytree(aside, breakable_broker.archive, dirs_exist_ok=True)

    until(lambda: not before.fires("NakadiIndexerIsBehind"))
    assert b'"n":0' in read_first_event(breakable_broker, name)
