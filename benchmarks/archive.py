"""How fast can one read old events from the archive, and how much does archiving slow down publishers?

    python benchmarks/archive.py [replay] [publish] [windows] [--quick] [--json FILE]

* Replay: the same events through one stream of the low-level API, alternately from the hot log and from the archive.
* Publish: batches of 100 events of 0.7 KB over four connections, alternately to a broker without an archive and to one
  that archives all the time; and the archive's final delay.
* Windows: two hundred small objects, as an indexer leaves them, in a slow store. The figure is the time to read all of
them, in slices of a thousand events or of one window, as a multiple of one response time of the store.

The broker is embedded, with a data file and a folder as its archive, and runs in its own process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import selectors
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

EVENT_BYTES = 700
BATCH = 100
PUBLISHERS = 4
BEGIN = '[{"partition":"0","offset":"BEGIN"}]'
FAR_SECONDS = 0.04
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
HOT, COLD = "bench.hot", "bench.cold"

Figures = dict[str, float]


def serve(archive_after: int | None, ready: Any, stop: Any) -> None:
    """Serve a broker with an additional route that archives everything and removes one event type's events from the hot
    log.
    """
    from nakadi.app.broker import open_broker  # noqa: PLC0415  # the load generators do without
    from nakadi.app.routes import make_application  # noqa: PLC0415
    from nakadi.app.settings import Settings  # noqa: PLC0415
    from nakadi.engines.archive.segment_cache import SegmentCache  # noqa: PLC0415
    from nakadi.engines.archive.trimming import trim_hot_log  # noqa: PLC0415
    from nakadi.http.application import Application  # noqa: PLC0415
    from nakadi.http.message import Request, Response  # noqa: PLC0415
    from nakadi.http.router import Route  # noqa: PLC0415
    from nakadi.http.server import tune_interpreter  # noqa: PLC0415
    from nakadi.local.serving import ServerThread  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/nakadi.db"
        settings = Settings(
            registry=url,
            event_log=url,
            archive="" if archive_after is None else f"{folder}/archive",
            archive_after_seconds=archive_after or 0,
        )
        broker = open_broker(settings)

        def archive_and_report(_: Request) -> Response:
            log = broker.logs.for_storage("default")
            began = time.perf_counter()
            log.archive()
            took = time.perf_counter() - began
            topic = broker.event_types.get(COLD).timeline.topic
            trim_hot_log(log._hot, log._index, topic, 0)  # noqa: SLF001  # a day would have the same effect
            objects = [path.stat().st_size for path in Path(folder, "archive").rglob("*.gz")]
            oldest = log._hot.bounds(topic, [0])[0].oldest  # noqa: SLF001  # as above
            told = {"seconds": took, "bytes": sum(objects), "objects": len(objects), "cold": oldest}
            log._archive._segment_cache = SegmentCache(log._store)  # noqa: SLF001  # without the cache of the last round
            return Response(body=json.dumps(told).encode(), headers={"content-type": "application/json"})

        route = Route(method="GET", template="/settle", handler=archive_and_report, operation="settle")
        application = Application([*make_application(broker).router.routes, route])
        tune_interpreter()
        with ServerThread(application) as serving:
            ready.send(serving.url)
            stop.wait()
        broker.close()


@contextmanager
def a_broker(archive_after: int | None) -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    stop = context.Event()
    process = context.Process(target=serve, args=(archive_after, theirs, stop))
    process.start()
    try:
        url = ours.recv()
        for name in (HOT, COLD):
            definition = {
                "name": name,
                "owning_application": "bench",
                "category": "undefined",
                "schema": {"type": "json_schema", "schema": "{}"},
            }
            httpx.post(f"{url}/event-types", json=definition).raise_for_status()
        yield url
    finally:
        stop.set()
        process.join(30)
        process.kill()


def an_event(dice: random.Random, number: int) -> str:
    """An event like those of a shop: some names repeat, but numbers and identifiers do not."""
    items = [
        {"sku": f"{dice.getrandbits(48):012x}", "quantity": dice.randint(1, 5), "price": dice.randint(100, 99999)}
        for _ in range(6)
    ]
    event = {
        "order": number,
        "customer": f"{dice.getrandbits(128):032x}",
        "country": dice.choice(["DE", "FR", "PL", "IT"]),
        "note": "",
        "items": items,
    }
    short = EVENT_BYTES - len(json.dumps(event, separators=(",", ":")))
    words = " ".join(dice.choice(["red", "shoe", "left", "express", "gift", "parcel"]) for _ in range(40))
    return json.dumps(event | {"note": words[: max(short, 0)]}, separators=(",", ":"))


def request_bodies(events: int, batch: int) -> list[bytes]:
    dice = random.Random(7)
    made = [an_event(dice, number) for number in range(events)]
    return [f"[{','.join(made[first : first + batch])}]".encode() for first in range(0, events, batch)]


def publish_pieces(url: str, name: str, pieces: list[bytes]) -> float:
    """The seconds in which several publishers publish these request bodies."""
    target = f"{url}/event-types/{name}/events"

    def publish(mine: list[bytes]) -> None:
        with httpx.Client() as client:
            for body in mine:
                client.post(target, content=body, headers={"content-type": "application/json"}).raise_for_status()

    began = time.perf_counter()
    with ThreadPoolExecutor(PUBLISHERS) as threads:
        list(threads.map(publish, [pieces[number::PUBLISHERS] for number in range(PUBLISHERS)]))
    return time.perf_counter() - began


def stream_rate(url: str, name: str, events: int) -> float:
    """The megabytes per second of one stream."""
    parts = urlsplit(url)
    client = socket.create_connection((parts.hostname, parts.port))
    target = f"/event-types/{name}/events?batch_limit={BATCH}&stream_limit={events}"
    client.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nX-nakadi-cursors: {BEGIN}\r\n\r\n".encode())
    waiting = selectors.DefaultSelector()
    waiting.register(client, selectors.EVENT_READ)
    buffer = bytearray(1 << 20)
    total, began, tail = 0, 0.0, b""
    while not tail.endswith(b"0\r\n\r\n"):
        waiting.select()
        count = client.recv_into(buffer)
        assert count, "the stream ended early"
        total += count
        tail = (tail + bytes(buffer[max(0, count - 5) : count]))[-5:]
        # The server briefly delays the first bytes of a body, because some clients need the delay.
        if not began and total > 100_000:
            began, total = time.perf_counter(), 0
    client.close()
    return total / (time.perf_counter() - began) / 1e6


def measure_replay(*, quick: bool) -> Figures:
    events, rounds = (20_000, 5) if quick else (100_000, 11)
    # The events of a commit leave the hot log together, and publishers share commits, so part of each may stay there.
    pieces = request_bodies(events, events // 100)
    with a_broker(archive_after=100_000) as url:
        for name in (HOT, COLD):
            publish_pieces(url, name, pieces)
        settled = httpx.get(f"{url}/settle", timeout=300).raise_for_status().json()
        assert settled["cold"] > 0.9 * events, settled
        pairs = []
        for _ in range(rounds):
            httpx.get(f"{url}/settle").raise_for_status()
            pairs.append((stream_rate(url, HOT, events), stream_rate(url, COLD, events)))
    size = 2 * sum(len(piece) for piece in pieces)
    return {
        "replay_hot_mb_s": statistics.median(hot for hot, _ in pairs),
        "replay_archive_mb_s": statistics.median(cold for _, cold in pairs),
        "replay_archive_of_hot": statistics.median(cold / hot for hot, cold in pairs),
        "archived_mb_s": size / settled["seconds"] / 1e6,
        "archive_bytes_of_event_bytes": settled["bytes"] / size,
    }


def measure_publishing(*, quick: bool) -> Figures:
    events, rounds = (20_000, 3) if quick else (60_000, 7)
    pieces = request_bodies(events, BATCH)
    with a_broker(None) as without, a_broker(archive_after=1) as archiving:
        for url in (without, archiving):
            publish_pieces(url, HOT, pieces[:50])
        pairs = [(publish_pieces(without, HOT, pieces), publish_pieces(archiving, HOT, pieces)) for _ in range(rounds)]
        left = httpx.get(f"{archiving}/settle", timeout=300).raise_for_status().json()
    return {
        "publish_without_archive_events_s": events / statistics.median(each for each, _ in pairs),
        "publish_while_archiving_events_s": events / statistics.median(each for _, each in pairs),
        "publish_of_without_archive": statistics.median(one / other for one, other in pairs),
        "left_to_archive_s": left["seconds"],
    }


def measure_windows(*, quick: bool) -> Figures:
    from nakadi.engines.archive.member_format import pack_member  # noqa: PLC0415
    from nakadi.engines.archive.reading import ArchiveReader  # noqa: PLC0415
    from nakadi.engines.archive.segment_cache import SegmentCache  # noqa: PLC0415
    from nakadi.engines.archive.stores import MemoryStore  # noqa: PLC0415
    from nakadi.engines.memory.log_index import MemoryLogIndex  # noqa: PLC0415
    from nakadi.model.events import Record, StoredEvent  # noqa: PLC0415  # noqa: PLC0415
    from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexingState, IndexSegment  # noqa: PLC0415  # noqa: PLC0415

    class DelayedStore(MemoryStore):
        def read_range(self, location: ArchiveLocation) -> bytes:
            time.sleep(FAR_SECONDS)
            return super().read_range(location)

    count, events = (50 if quick else 200), 25
    index, store, dice = MemoryLogIndex(), DelayedStore(), random.Random(7)
    for number in range(count):
        first = number * events
        made = [StoredEvent(first + each, Record(an_event(dice, each).encode()), NOW) for each in range(events)]
        content = pack_member("t", 0, made)
        store.put(f"{number}", content)
        archived = ArchiveLocation(f"{number}", 0, len(content))
        segment = IndexSegment(
            state_before=IndexingState(next_offset=first),
            offset_count=events,
            first_stored_at=0,
            last_stored_at=0,
            location=archived,
        )
        index.advance_head("t", 0, number, IndexHead(IndexingState(next_offset=first + events)), segment)
    figures: Figures = {}
    for name, limit in (("large_slices", 1000), ("slices_of_a_window", events)):
        reader = ArchiveReader(index, SegmentCache(store))
        place, began = 0, time.perf_counter()
        while (found := reader.read_slice("t", 0, place, limit, 4_000_000)) is not None:
            place = found.next_offset
        took = time.perf_counter() - began
        assert place == count * events
        reader.close()
        figures[f"windows_in_answers_{name}"] = took / FAR_SECONDS
        figures[f"windows_of_one_by_one_{name}"] = took / FAR_SECONDS / count
    return figures


QUESTIONS = {"replay": measure_replay, "publish": measure_publishing, "windows": measure_windows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*", choices=[[], *QUESTIONS], default=[])
    parser.add_argument("--quick", action="store_true", help="less of everything, and rougher figures")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    figures: Figures = {}
    for name in options.questions or QUESTIONS:
        for label, value in QUESTIONS[name](quick=options.quick).items():
            figures[label] = round(value, 3)
            print(f"{label:40} {value:12,.3f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
