"""One cursor from the oldest archived event to the live one, over the socket."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from nakadi.engines.archive.gzip_format import decompress_members
from nakadi.engines.archive.tiered_log import TieredLog
from tests.support import everything
from tests.support.api import create_event_type
from tests.support.consumer import Consumer
from tests.support.expected_lines import cursors, position
from tests.support.open_stream import OpenStream
from tests.support.patience import PATIENCE, until
from tests.support.served import ServedBroker

LONG_AGO_ENOUGH = 1.1
"""In seconds: two times that are this far apart differ even when written without fractions."""


class ArchivingBroker:
    """A broker that archives on demand, and keeps hardly any archived events in its hot log."""

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
        self.name = create_event_type(self.api)["name"]

    @property
    def log(self) -> TieredLog:
        log = self.broker.log
        assert isinstance(log, TieredLog)
        return log

    def publish(self, *numbers: int) -> None:
        for number in numbers:
            answer = self.api.post(f"/event-types/{self.name}/events", json=[{"number": number}])
            assert answer.status_code == 200

    def archive_everything(self) -> int:
        """Archive everything, and return how many events are only in the archive from now on."""
        self.log.archive()
        topic = self.broker.services.event_types.get(self.name).timeline.topic
        return self.log._hot.bounds(topic, [0])[0].oldest

    def stream(self, query: str, offset: str) -> OpenStream:
        target = f"/event-types/{self.name}/events?{query}"
        return OpenStream(self.broker.url, target, {"X-nakadi-cursors": cursors(**{"0": offset})})

    def close(self) -> None:
        self.api.close()
        self.broker.close()


@pytest.fixture(params=[*(["memory"] if everything.WANTED else []), "sqlite"])
def archiving(request, tmp_path) -> Iterator[ArchivingBroker]:
    archiving = ArchivingBroker(request.param, tmp_path)
    yield archiving
    archiving.close()


def numbers(stream: OpenStream, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [each["number"] for each in json.loads(stream.line()).get("events", [])]
    return found


def test_a_stream_crosses_from_the_archive_to_what_is_published_now(archiving: ArchivingBroker):
    """From the oldest event on, a stream delivers events that only the archive has, events of the hot log, and new
    ones."""
    archiving.publish(*range(20))
    assert archiving.archive_everything() > 15
    archiving.publish(*range(20, 25))
    with archiving.stream("batch_limit=7&batch_flush_timeout=1", "BEGIN") as stream:
        assert numbers(stream, 25) == list(range(25))
        archiving.publish(25, 26)
        assert numbers(stream, 2) == [25, 26]


def test_no_line_of_archived_events_can_be_torn(archiving: ArchivingBroker):
    """The archive keeps U+2028, U+2029 and U+0085 as published, and streams send them as escapes. (L71)"""
    torn = "a \u2028 b \u2029 c \u0085 d"
    body = json.dumps([{"number": 0, "text": torn}], ensure_ascii=False).encode()
    answer = archiving.api.post(
        f"/event-types/{archiving.name}/events", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 200
    archiving.publish(*range(1, 20))
    assert archiving.archive_everything() > 15
    [archive_everything] = [path.read_bytes() for path in archiving.folder.rglob("*.gz")]
    assert torn.encode() in b"".join(decompress_members(archive_everything))

    with archiving.stream("stream_limit=1", "BEGIN") as stream:
        text = stream.rest().decode()
    [batch, *_] = [json.loads(line) for line in text.splitlines()]
    assert batch["events"] == [{"number": 0, "text": torn}]
    assert not set("\u2028\u2029\u0085").intersection(text)


def test_cursors_are_reckoned_with_across_both(archiving: ArchivingBroker):
    """The oldest offset, lag, distance and shift count archived events like others."""
    archiving.publish(*range(20))
    assert archiving.archive_everything() > 15
    archiving.publish(*range(20, 25))
    path = f"/event-types/{archiving.name}"
    [partition] = archiving.api.get(f"{path}/partitions").json()
    assert partition["oldest_available_offset"] == position(0)
    assert partition["newest_available_offset"] == position(24)
    [lag] = archiving.api.post(f"{path}/cursors-lag", json=[{"partition": "0", "offset": position(3)}]).json()
    assert lag["unconsumed_events"] == 21
    ends = {name: {"partition": "0", "offset": position(at)} for name, at in (("initial", 2), ("final", 23))}
    [distance] = archiving.api.post(
        f"{path}/cursor-distances",
        json=[{"initial_cursor": ends["initial"], "final_cursor": ends["final"]}],
    ).json()
    assert distance["distance"] == 21
    [shifted] = archiving.api.post(f"{path}/shifted-cursors", json=[ends["initial"] | {"shift": 20}]).json()
    assert shifted["offset"] == position(22)


def test_a_moment_leads_into_the_archive(archiving: ArchivingBroker):
    """A stream that begins at a point in time can begin among the archived events."""
    archiving.publish(0, 1)
    time.sleep(LONG_AGO_ENOUGH)
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    archiving.publish(2, 3, 4)
    assert archiving.archive_everything() == 4
    with archiving.stream("batch_limit=1&batch_flush_timeout=1", moment) as stream:
        assert numbers(stream, 3) == [2, 3, 4]


def test_a_subscription_reads_on_from_the_archive(archiving: ArchivingBroker):
    """A subscription that begins with the oldest event gets each once, commits in the archive, and continues live."""
    archiving.publish(*range(20))
    assert archiving.archive_everything() > 15
    archiving.publish(*range(20, 22))
    subscription = archiving.api.post(
        "/subscriptions",
        json={"owning_application": "shop", "event_types": [archiving.name], "read_from": "begin"},
    ).json()
    found: list[int] = []
    with Consumer(archiving.api, subscription, batch_limit=8, batch_flush_timeout=1) as consumer:
        while len(found) < 22:
            batch = consumer.batch()
            found += [each["number"] for each in batch["events"]]
            assert consumer.commit(batch["cursor"]).status_code in {200, 204}
    assert found == list(range(22))


def test_retention_reaches_into_the_archive(archiving: ArchivingBroker):
    """Events that retention removes can no longer be read, from the archive or the hot log."""
    archiving.publish(*range(4))
    time.sleep(LONG_AGO_ENOUGH)
    archiving.publish(*range(4, 8))
    assert archiving.archive_everything() == 7
    definition = archiving.api.get(f"/event-types/{archiving.name}").json()
    definition["options"]["retention_time"] = 1000
    assert archiving.api.put(f"/event-types/{archiving.name}", json=definition).status_code == 200

    def find_oldest_offset() -> str:
        archiving.broker.services.housekeeping.run()
        [partition] = archiving.api.get(f"/event-types/{archiving.name}/partitions").json()
        return partition["oldest_available_offset"]

    until(lambda: find_oldest_offset() == position(8))
    with archiving.stream("batch_limit=1", position(2)) as stream:
        assert stream.status == 412


def test_damage_is_never_stepped_over(archiving: ArchivingBroker, caplog):
    """A stream delivers nothing after a damaged archive object, and the log names its offsets; a reader that begins
    after the object continues.
    """
    archiving.publish(*range(4))
    assert archiving.archive_everything() == 3
    archiving.publish(*range(4, 8))
    assert archiving.archive_everything() == 7
    first, _ = sorted(archiving.folder.rglob("*.gz"), key=lambda path: path.stat().st_mtime_ns)
    content = bytearray(first.read_bytes())
    content[-6] ^= 1
    first.write_bytes(content)
    with archiving.stream("batch_limit=1&batch_flush_timeout=1", "BEGIN") as stream:
        until(lambda: "Offsets 0 to 3" in caplog.text)
        lines = [stream.line() for _ in range(2)]
    assert b"number" not in b"".join(lines)
    with archiving.stream("batch_limit=1&batch_flush_timeout=1", position(3)) as stream:
        assert numbers(stream, 4) == [4, 5, 6, 7]


def test_a_rehearsal_judges_what_is_archived_and_what_is_not_once(archiving: ArchivingBroker):
    """A rehearsal counts each event once, whether or not it is archived. (H4)"""
    archiving.publish(*range(20))
    assert archiving.archive_everything() > 15
    archiving.publish(*range(20, 25))
    schema = {"properties": {"number": {"multipleOf": 3}}}
    request = {"schema": {"type": "json_schema", "schema": json.dumps(schema)}, "compatibility_mode": "none"}
    path = f"/event-types/{archiving.name}/schemas/rehearsals"

    found = archiving.api.post(path, json=request | {"last": "1d"}).json()
    assert (found["state"], found["events_seen"], found["events_failed"]) == ("finished", 25, 16)
    assert [each["event"]["number"] for each in found["samples"]] == [1, 2, 4, 5, 7]
    assert archiving.api.post(path, json=request | {"events": 7}).json()["events_seen"] == 7
