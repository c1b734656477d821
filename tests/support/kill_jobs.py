"""Kills jobs at random moments, repeatedly, and then lets them finish: the tables have to be as if no job had been
killed.

python -m tests.support.kill_jobs [KILLS] [compaction|follow|statistics|retention ...]
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from io import StringIO
from pathlib import Path

from nakadi.engines.archive import member_format
from nakadi.model.event_type import Category, CleanupPolicy, EventType
from nakadi_jobs import compaction as finishing
from nakadi_jobs.archive_ranges import NO_PROGRESS, unread_parts
from nakadi_jobs.session import open_spark
from tests.support.bytes_left import find_files_with_text, list_files_in
from tests.support.environment import plain_environment
from tests.support.jobs import STORED_AT, DataFolder
from tests.support.patience import until

PATIENCE = 300
UNTIL = ("--until", (STORED_AT + timedelta(hours=3)).isoformat(), "--hours", "3")
UNTIL_IDLE = ("--until-idle", "--no-tidying")
OFTEN = ("--every-seconds", "0.2", "--tidy-minutes", "0.05")
ERASE = ("--do", "erase", "--event-type", "customer.changed", "--path", "name", "--value", "name 3")


class KilledJobs:
    """A data folder whose jobs are killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.data = DataFolder(folder)
        self.drawn = random.Random(seed)
        self.expected: list[tuple[int, str | None]] = []
        self.customers: EventType = self.data.event_type(
            "customer.changed",
            {"properties": {"name": {"type": "string"}}},
            category=Category.BUSINESS,
            cleanup_policy=CleanupPolicy.COMPACT,
        )
        self.lasts = 1.0

    def archive(self) -> None:
        """Archive a few more events, sometimes with a tombstone."""
        names = [None if self.drawn.random() < 0.2 else f"name {self.drawn.randrange(6)}" for _ in range(5)]
        keys = [f"k{self.drawn.randrange(8)}" for _ in names]
        at = STORED_AT + timedelta(seconds=len(self.expected))
        events = [
            None if name is None else {"metadata": {"eid": key}, "name": name}
            for name, key in zip(names, keys, strict=True)
        ]
        self.data.archive_events(self.customers, events, keys=keys, at=at)
        self.expected += zip(keys, names, strict=True)

    def run(self, job: str, *arguments: str, kill: bool | str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Run a job in a separate process. With `kill`, kill it at a random moment, before which `meanwhile` is called
        repeatedly; or, if `kill` is a pattern, as soon as it has written a further file that matches the pattern in the
        folder of its tables.
        """
        there = self._files(kill)
        command = [
            sys.executable,
            "-m",
            f"nakadi_jobs.{job}",
            "--data",
            str(self.data.folder),
            "--memory",
            "1g",
        ]
        process = subprocess.Popen(
            [*command, *arguments],
            env=plain_environment(PYTHONPATH=os.pathsep.join(sys.path)),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert process.stderr is not None
        try:
            told = []
            for line in process.stderr:
                told.append(line)
                if line == f"{job}: begun\n":
                    break
            started_at = time.monotonic()
            if isinstance(kill, str):
                until(lambda: self._files(kill) > there or process.poll() is not None, PATIENCE)
                assert process.poll() is None, "it was over before it could be killed"
            elif kill:
                end = started_at + self.drawn.uniform(0, self.lasts)
                while (left := end - time.monotonic()) > 0:
                    meanwhile()
                    time.sleep(min(left, 0.5))
            else:
                told += process.stderr.readlines()
                assert process.wait(PATIENCE) == 0, "".join(told)
                self.lasts = time.monotonic() - started_at
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
            process.stderr.close()

    def finish(self) -> None:
        """Run compaction to its end in this process, whose Spark reads the tables later anyway."""
        with redirect_stderr(StringIO()) as told, redirect_stdout(StringIO()):
            code = finishing.main(["--data", str(self.data.folder), "--master", "local[2]", "--memory", "1g"])
        assert code == 0, told.getvalue()

    def _files(self, pattern: bool | str) -> set[Path]:
        return set((self.data.folder / "tables").glob(pattern)) if isinstance(pattern, str) else set()

    def rows(self, table: str, *columns: str) -> list[tuple[object, ...]]:
        spark = open_spark("look", f"file://{self.data.folder / 'tables'}", "hadoop", "local[2]", "1g")
        rows = spark.table(f"nakadi.nakadi.{table}").selectExpr(*columns)
        return sorted((tuple(row) for row in rows.collect()), key=str)

    def newest_names_by_key(self) -> list[tuple[str, str]]:
        newest = dict(self.expected)
        return sorted((key, name) for key, name in newest.items() if name is not None)


def kill_compaction(killed: KilledJobs, kills: int) -> None:
    """Kill compaction, and check that every event is there once, that `latest` has the newest event of each key, and
    that the progress matches the tables.
    """
    killed.archive()
    killed.run("compaction", kill=False)
    kill_compaction_at(killed, [("compaction", True)] * kills)


def kill_compaction_at(killed: KilledJobs, moments: Sequence[tuple[str, bool | str]]) -> None:
    """Do the same as `kill_compaction`, but kill the first runs at these moments."""
    for job, moment in moments:
        killed.archive()
        killed.run(job, kill=moment)
    killed.finish()
    check_tables(killed)


def kill_follow(killed: KilledJobs, kills: int) -> None:
    """Do the same as `kill_compaction` for the following job: events that are archived while it runs are also there
    once.
    """
    killed.archive()
    killed.run("follow", *UNTIL_IDLE, kill=False)
    # The job never ends by itself, so let it run long enough for some rounds.
    killed.lasts += 10
    for _ in range(kills):
        killed.run("follow", *OFTEN, kill=True, meanwhile=killed.archive)
    killed.run("follow", *UNTIL_IDLE, kill=False)
    check_tables(killed)


def check_tables(killed: KilledJobs) -> None:
    wanted = [(offset, key, name) for offset, (key, name) in enumerate(killed.expected)]
    assert killed.rows("customer_changed", "nakadi_offset", "nakadi_key", "name") == sorted(wanted, key=str)
    assert killed.rows("customer_changed__latest", "nakadi_key", "name") == killed.newest_names_by_key()


def kill_statistics(killed: KilledJobs, kills: int) -> None:
    """Kill statistics, and check that each window is there once and counts every event."""
    killed.archive()
    killed.run("statistics", *UNTIL, kill=False)
    for _ in range(kills):
        killed.archive()
        killed.run("statistics", *UNTIL, kill=True)
    killed.run("statistics", *UNTIL, kill=False)
    assert killed.rows("nakadi__statistics", "events") == [(len(killed.expected),)]


def kill_retention(killed: KilledJobs, kills: int) -> None:
    """Kill retention, and check that no byte of an erased value is left, and that all other data is unchanged."""
    for _ in range(6):
        killed.archive()
    killed.run("compaction", kill=False)
    killed.lasts = 10
    for _ in range(kills):
        killed.run("retention", *ERASE, kill=True)
    killed.run("retention", *ERASE, kill=False)
    left = [(offset, key, name) for offset, (key, name) in enumerate(killed.expected) if name != "name 3"]
    assert killed.rows("customer_changed", "nakadi_offset", "nakadi_key", "name") == sorted(left, key=str)
    archived = {
        event.offset
        for part in unread_parts(killed.data.index, killed.customers, NO_PROGRESS)
        for event in member_format.parse_member(killed.data.store.read_range(part.location))
    }
    assert archived == {offset for offset, _, _ in left}
    killed.run("retention", "--grace-hours", "0", kill=False)
    assert find_files_with_text("name 3", list_files_in(killed.data.folder)) == []


JOBS: dict[str, Callable[[KilledJobs, int], None]] = {
    "compaction": kill_compaction,
    "follow": kill_follow,
    "statistics": kill_statistics,
    "retention": kill_retention,
}


def main(arguments: Sequence[str]) -> None:
    kills = int(arguments[0]) if arguments else 20
    for job in arguments[1:] or JOBS:
        seed = random.randrange(2**32)
        print(f"{job}: killed {kills} times, with seed {seed}", flush=True)
        with tempfile.TemporaryDirectory(prefix="nakadi-killed-") as folder:
            JOBS[job](KilledJobs(Path(folder) / "data", seed), kills)
        print(f"{job}: as if it had never been killed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
