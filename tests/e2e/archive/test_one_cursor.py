"""One cursor from the oldest archived event to the live one, over the socket."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from nakadi.engines.archive.objects import decompress_members
from nakadi.engines.archive.tiered_log import TieredLog
from tests.support.api import created
from tests.support.consumer import Consumer
from tests.support.open_stream import OpenStream
from tests.support.patience import PATIENCE, until
from tests.support.served import ServedBroker
from tests.support.stream_lines import cursors, position

LONG_AGO_ENOUGH = 1.1
"""Seconds, so that two moments differ in a time written with seconds."""


class World:
    """A broker that archives on demand, and keeps hardly anything of that in its hot log."""

    def __init__(self, engine: str, folder: Path) -> None:
        url = "memory:" if engine == "memory" else f"sqlite:///{folder}/nakadi.db"
        self.folder = folder / "archive"
        self.broker = ServedBroker(
            registry=url,
            event_log=url,
            archive=str(self.folder),
            archive_after_seconds=100_000,
            hot_retention_ms=0,
            retention_min_ms=1000,
        )
        self.api = httpx.Client(base_url=self.broker.url, timeout=PATIENCE)
        self.name = created(self.api)["name"]

    @property
    def log(self) -> TieredLog:
        log = self.broker.log
        assert isinstance(log, TieredLog)
        return log

    def publish(self, *numbers: int) -> None:
        for number in numbers:
            answer = self.api.post(f"/event-types/{self.name}/events", json=[{"number": number}])
            assert answer.status_code == 200

    def archived(self) -> int:
        """Archive everything; answers how many events only the archive has from now on."""
        self.log.archive()
        topic = self.broker.services.event_types.get(self.name).timeline.topic
        return self.log._hot.bounds(topic, [0])[0].oldest

    def stream(self, query: str, offset: str) -> OpenStream:
        target = f"/event-types/{self.name}/events?{query}"
        return OpenStream(self.broker.url, target, {"X-nakadi-cursors": cursors(**{"0": offset})})

    def close(self) -> None:
        self.api.close()
        self.broker.close()


@pytest.fixture(params=["memory", "sqlite"])
def world(request, tmp_path) -> Iterator[World]:
    world = World(request.param, tmp_path)
    yield world
    world.close()


def numbers(stream: OpenStream, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [each["number"] for each in json.loads(stream.line()).get("events", [])]
    return found


def test_a_stream_crosses_from_the_archive_to_what_is_published_now(world: World):
    """From the oldest event on, a stream delivers what only the archive has, what the hot log has, and what comes."""
    world.publish(*range(20))
    assert world.archived() > 15
    world.publish(*range(20, 25))
    with world.stream("batch_limit=7&batch_flush_timeout=1", "BEGIN") as stream:
        assert numbers(stream, 25) == list(range(25))
        world.publish(25, 26)
        assert numbers(stream, 2) == [25, 26]


def test_no_line_of_archived_events_can_be_torn(world: World):
    """The archive keeps the three characters as they were published, and streams send them as escapes. (L71)"""
    torn = "a \u2028 b \u2029 c \u0085 d"
    body = json.dumps([{"number": 0, "text": torn}], ensure_ascii=False).encode()
    answer = world.api.post(
        f"/event-types/{world.name}/events", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 200
    world.publish(*range(1, 20))
    assert world.archived() > 15
    [archived] = [path.read_bytes() for path in world.folder.rglob("*.gz")]
    assert torn.encode() in b"".join(decompress_members(archived))

    with world.stream("stream_limit=1", "BEGIN") as stream:
        text = stream.rest().decode()
    [batch, *_] = [json.loads(line) for line in text.splitlines()]
    assert batch["events"] == [{"number": 0, "text": torn}]
    assert not set("\u2028\u2029\u0085").intersection(text)


def test_cursors_are_reckoned_with_across_both(world: World):
    """The oldest offset, lag, distance and shift count what is archived as what is not."""
    world.publish(*range(20))
    assert world.archived() > 15
    world.publish(*range(20, 25))
    path = f"/event-types/{world.name}"
    [partition] = world.api.get(f"{path}/partitions").json()
    assert partition["oldest_available_offset"] == position(0)
    assert partition["newest_available_offset"] == position(24)
    [lag] = world.api.post(f"{path}/cursors-lag", json=[{"partition": "0", "offset": position(3)}]).json()
    assert lag["unconsumed_events"] == 21
    ends = {name: {"partition": "0", "offset": position(at)} for name, at in (("initial", 2), ("final", 23))}
    [distance] = world.api.post(
        f"{path}/cursor-distances",
        json=[{"initial_cursor": ends["initial"], "final_cursor": ends["final"]}],
    ).json()
    assert distance["distance"] == 21
    [shifted] = world.api.post(f"{path}/shifted-cursors", json=[ends["initial"] | {"shift": 20}]).json()
    assert shifted["offset"] == position(22)


def test_a_moment_leads_into_the_archive(world: World):
    """A stream that begins at a point in time finds it among the archived events."""
    world.publish(0, 1)
    time.sleep(LONG_AGO_ENOUGH)
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    world.publish(2, 3, 4)
    assert world.archived() == 4
    with world.stream("batch_limit=1&batch_flush_timeout=1", moment) as stream:
        assert numbers(stream, 3) == [2, 3, 4]


def test_a_subscription_reads_on_from_the_archive(world: World):
    """A subscription that begins with the oldest event gets each once, commits in the archive, and goes on live."""
    world.publish(*range(20))
    assert world.archived() > 15
    world.publish(*range(20, 22))
    subscription = world.api.post(
        "/subscriptions",
        json={"owning_application": "shop", "event_types": [world.name], "read_from": "begin"},
    ).json()
    found: list[int] = []
    with Consumer(world.api, subscription, batch_limit=8, batch_flush_timeout=1) as consumer:
        while len(found) < 22:
            batch = consumer.batch()
            found += [each["number"] for each in batch["events"]]
            assert consumer.commit(batch["cursor"]).status_code in {200, 204}
    assert found == list(range(22))


def test_retention_reaches_into_the_archive(world: World):
    """What the retention of an event type removes cannot be read any more, wherever it was."""
    world.publish(*range(4))
    time.sleep(LONG_AGO_ENOUGH)
    world.publish(*range(4, 8))
    assert world.archived() == 7
    definition = world.api.get(f"/event-types/{world.name}").json()
    definition["options"]["retention_time"] = 1000
    assert world.api.put(f"/event-types/{world.name}", json=definition).status_code == 200

    def oldest() -> str:
        world.broker.services.housekeeping.run()
        [partition] = world.api.get(f"/event-types/{world.name}/partitions").json()
        return partition["oldest_available_offset"]

    until(lambda: oldest() == position(8))
    with world.stream("batch_limit=1", position(2)) as stream:
        assert stream.status == 412


def test_damage_is_never_stepped_over(world: World, caplog):
    """A stream delivers nothing behind an archive object that is damaged, and the log has its offsets; a reader that
    begins behind it reads on."""
    world.publish(*range(4))
    assert world.archived() == 3
    world.publish(*range(4, 8))
    assert world.archived() == 7
    first, _ = sorted(world.folder.rglob("*.gz"), key=lambda path: path.stat().st_mtime_ns)
    content = bytearray(first.read_bytes())
    content[-6] ^= 1
    first.write_bytes(content)
    with world.stream("batch_limit=1&batch_flush_timeout=1", "BEGIN") as stream:
        until(lambda: "Offsets 0 to 3" in caplog.text)
        lines = [stream.line() for _ in range(2)]
    assert b"number" not in b"".join(lines)
    with world.stream("batch_limit=1&batch_flush_timeout=1", position(3)) as stream:
        assert numbers(stream, 4) == [4, 5, 6, 7]
