"""A program that publishes and archives at the same time, and prints the acknowledged events, until a test kills it.

    python archive_until_killed.py FOLDER RUN

It prints `ready`, and then a line for each acknowledged append: the partition and the events' names. One call prints a
line, so a killed process leaves whole lines, and perhaps half of one at the end.
"""

import itertools
import os
import sys
import threading
from pathlib import Path

from nakadi.app.engines import open_event_log, open_log_index
from nakadi.common.waiting import run_blocking
from nakadi.engines.archive.policy import ArchivePolicy
from nakadi.engines.archive.stores import open_archive
from nakadi.engines.archive.tiered_log import TieredLog
from nakadi.model.events import AppendStored, Record
from nakadi.ports.clock import SystemClock

THREADS = 4
PARTITIONS = 3
TOPIC = "crash"


def log_url(folder: Path) -> str:
    return f"sqlite:///{folder}/nakadi.db"


def open_log(folder: Path, tiers: ArchivePolicy) -> TieredLog:
    url = log_url(folder)
    clock = SystemClock()
    return TieredLog(
        open_event_log(url, clock), open_log_index(url), open_archive(f"{folder}/archive"), clock, None, tiers
    )


def main(folder: str, run: str) -> None:
    log = open_log(Path(folder), ArchivePolicy(archive_after=0, hot_retention=0, unreferenced_grace=3600))
    log.create_topic(TOPIC, PARTITIONS)
    os.write(1, b"ready\n")

    def publish(thread: int) -> None:
        for number in itertools.count():
            names = [f"{run}.{thread}.{number}.{index}" for index in range(1 + number % 3)]
            partition = (thread + number) % PARTITIONS
            fates = run_blocking(log.append(TOPIC, {partition: [Record(f'"{name}"'.encode()) for name in names]}))
            if fates[partition] == AppendStored():
                os.write(1, f"{partition} {' '.join(names)}\n".encode())

    for thread in range(THREADS):
        threading.Thread(target=publish, args=(thread,), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
