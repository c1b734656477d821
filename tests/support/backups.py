"""A data folder with one of everything that data folders can hold, and backups of it."""

from __future__ import annotations

import random
from pathlib import Path

from nakadi.common.waiting import run_blocking
from nakadi.engines.common.key_file import read_or_make_key
from nakadi.engines.sqlite.mark import Marker
from nakadi.local.backups.store import Manifest, open_store
from nakadi.local.backups.taking import DataFolder, take_backup
from nakadi.model.events import Record
from tests.support.clock import HandMovedClock
from tests.support.tiered_log_fixture import QUIET, TopicNames
from tests.support.tiers import TieredLogParts

TOPIC = "t"


class BusyFolder:
    """A data folder in use: a log with an archive, a mark, a key and files of a table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = HandMovedClock()
        self._random = random.Random(1)
        path.mkdir()
        self.log = TieredLogParts("sqlite", path, self.clock).log(QUIET, TopicNames())
        self.log.create_topic(TOPIC, 2)
        self.marker = Marker(path / "nakadi.db", self.clock.now)
        read_or_make_key(path / "nakadi.db.key")
        self.commit_to_table(1)

    def publish(self, count: int, size: int = 10) -> None:
        for _ in range(count):
            run_blocking(self.log.append(TOPIC, {0: [Record(self._random.randbytes(size).hex().encode())]}))

    def archive(self) -> None:
        self.log.archive()
        self.clock.move(3600)

    def commit_to_table(self, version: int) -> None:
        metadata = self.path / "tables" / "nakadi" / "orders" / "metadata"
        metadata.mkdir(parents=True, exist_ok=True)
        (metadata / f"v{version}.metadata.json").write_text(f"{{{version}}}")

    def back_up(self, backups: Path) -> Manifest:
        with open_store(backups, writes=True, creates=True) as store:
            self.clock.move(1)
            return take_backup(store, DataFolder(self.path), self.clock.now, "1.2.3")

    def close(self) -> None:
        self.log.close()
        self.marker.close()


def count_in(folder: Path) -> int:
    """Read all events in a data folder, and count them."""
    log = TieredLogParts("sqlite", folder, HandMovedClock()).log(QUIET, TopicNames())
    try:
        count = 0
        while found := log.read(TOPIC, 0, count).events:
            assert [event.offset for event in found] == list(range(count, count + len(found)))
            count += len(found)
        return count
    finally:
        log.close()
