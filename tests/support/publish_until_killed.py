"""A program that publishes from several threads, and prints the acknowledged events, until a test kills it.

    python publish_until_killed.py URL RUN

It prints `ready`, and then a line for each acknowledged append: the topic, the partition and the events' names. One
call prints a line, so a killed process leaves whole lines, and perhaps half of one at the end.
"""

import itertools
import os
import sys
import threading

from nakadi.app.engines import open_event_log
from nakadi.common.waiting import run_blocking
from nakadi.model.events import AppendStored, Record
from nakadi.ports.clock import SystemClock

THREADS = 6
PARTITIONS = 3
TOPIC = "crash"


def main(url: str, run: str) -> None:
    log = open_event_log(url, SystemClock())
    log.create_topic(TOPIC, PARTITIONS)
    os.write(1, b"ready\n")

    def publish(thread: int) -> None:
        for number in itertools.count():
            names = [f"{run}.{thread}.{number}.{index}" for index in range(1 + number % 3)]
            partitions = {thread % PARTITIONS, number % PARTITIONS}
            batches = {partition: [Record(f'"{name}"'.encode()) for name in names] for partition in partitions}
            fates = run_blocking(log.append(TOPIC, batches))
            stored = [partition for partition, fate in fates.items() if fate == AppendStored()]
            os.write(1, "".join(f"{partition} {' '.join(names)}\n" for partition in stored).encode())

    for thread in range(THREADS):
        threading.Thread(target=publish, args=(thread,), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
