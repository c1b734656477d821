"""How much time passes between publishing an event and finding it in its table by a query, while `follow` runs?

    python benchmarks/follow.py [--seconds 180] [--archive-after 60] [--rounds 10] [--json FILE]

A broker, the job `follow` and a reader run on this machine, as with `make run` and `make jobs FOLLOW=1`. An event is
published every second. The reader, which is pyiceberg, reads the table four times a second: its figures are up to
0.25 seconds too long. Time begins before an event is sent, and ends when the reader has its row. Events published
before the first commit are left out, since that commit waits for Spark to start and for the table to be created.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx
from pyiceberg.table import StaticTable

from nakadi.local import Broker
from tests.support.api import a_business_definition, create_event_type

LOOKS_EVERY = 0.25
PATIENCE = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="how long events are measured")
    parser.add_argument("--archive-after", type=int, default=60, help="NAKADI_ARCHIVE_AFTER_SECONDS")
    parser.add_argument("--rounds", type=float, default=10.0, help="--every-seconds of follow")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nakadi-follow-") as folder:
        figures = measure_delays(Path(folder), options.seconds, options.archive_after, options.rounds)
    figures["load of the machine"] = os.getloadavg()[0]
    for name, value in figures.items():
        print(f"{name:44s} {value:12.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures))


def measure_delays(folder: Path, seconds: float, archive_after: int, rounds: float) -> dict[str, float]:
    file, definition = f"sqlite:///{folder / 'nakadi.db'}", a_business_definition(name="page.viewed")
    places = {"registry": file, "event_log": file, "log_index": file, "archive": str(folder / "archive")}
    sent: list[float] = []
    with (
        Broker(**places, archive_after_seconds=archive_after) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        create_event_type(api, definition)
        with _publish_every_second(api, definition["name"], sent), _run_follow_job(folder, rounds):
            return _measure_latencies(folder / "tables" / "nakadi" / "page_viewed", sent, seconds)


@contextmanager
def _publish_every_second(api: httpx.Client, name: str, sent: list[float]) -> Iterator[None]:
    """Publish an event every second. Its number is its offset, and `sent` receives the time of each event."""
    ending = threading.Event()

    def publish() -> None:
        for number in count():
            metadata = {"eid": f"00000000-0000-4000-8000-{number:012}", "occurred_at": "2026-11-20T10:00:00Z"}
            sent.append(time.monotonic())
            api.post(f"/event-types/{name}/events", json=[{"metadata": metadata}]).raise_for_status()
            if ending.wait(1.0):
                return

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        yield
    finally:
        ending.set()
        publishing.join()


@contextmanager
def _run_follow_job(folder: Path, rounds: float) -> Iterator[None]:
    command = [sys.executable, "-m", "nakadi_jobs.follow", "--data", str(folder), "--every-seconds", str(rounds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (folder / "follow.log").open("w") as told:
        job = subprocess.Popen(command, env=environment, stdout=told, stderr=told)
        try:
            yield
            assert job.poll() is None, (folder / "follow.log").read_text()
        finally:
            job.terminate()
            job.wait(PATIENCE)


def _measure_latencies(table: Path, sent: Sequence[float], seconds: float) -> dict[str, float]:
    """Query the table until the time ends, and return percentiles of the latencies."""
    latencies: list[float] = []
    following, commits, first, ends = 0, 0, 0, time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        rows = _count_in_table(table, following)
        now = time.monotonic()
        if rows and not commits:
            first, ends = len(sent), now + seconds
        commits += bool(rows)
        latencies += [now - sent[number] for number in range(following, following + rows) if number >= first]
        following += rows
        time.sleep(max(0.0, LOOKS_EVERY - (time.monotonic() - now)))
    latencies.sort()
    assert latencies, "no event came to its table"
    return {
        "events": len(latencies),
        "commits": commits,
        "p50, s": latencies[len(latencies) // 2],
        "p99, s": latencies[int(len(latencies) * 0.99)],
        "greatest, s": latencies[-1],
    }


def _count_in_table(table: Path, following: int) -> int:
    """The number of events in the table from an offset on, all in order and without gaps."""
    if not (table / "metadata" / "version-hint.text").exists():
        return 0
    found = StaticTable.from_metadata(str(table)).scan(
        f"nakadi_offset >= {following}", selected_fields=("nakadi_offset",)
    )
    offsets = sorted(found.to_arrow()["nakadi_offset"].to_pylist())
    assert offsets == list(range(following, following + len(offsets))), offsets
    return len(offsets)


if __name__ == "__main__":
    main()
