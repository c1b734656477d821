"""A program that publishes to the data file FILE, and sets its mark continuously, until a test kills it."""

import os
import sys
import threading
from pathlib import Path

from nakadi.common.waiting import run_blocking
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.engines.sqlite.mark import Marker
from nakadi.model.events import Record
from nakadi.ports.clock import SystemClock


def main(path: Path) -> None:
    log = SqliteLog(path, SystemClock())
    log.create_topic("killed", 1)
    marker = Marker(path, SystemClock().now)

    def publish() -> None:
        while True:
            run_blocking(log.append("killed", {0: [Record(b"{}")]}))

    threading.Thread(target=publish, daemon=True).start()
    os.write(1, b"ready\n")
    marker.write_mark_if_changed()
    os.write(1, b"marked\n")
    while True:
        marker.write_mark_if_changed()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
