"""The promises of every coordination to several processes (the port `Coordination`)."""

import subprocess
import sys
import threading
from contextlib import closing

import pytest
from msgspec.structs import replace

from nakadi.app.engines import open_coordination
from nakadi.model.subscription import CommitResult, SubscriptionChange
from nakadi.ports.coordination import AssignmentChanged
from tests.support.builders import A_MOMENT
from tests.support.coordination import SUBSCRIPTION, at, begin_assignment, commit, position
from tests.support.dynamodb_service import CREDENTIALS
from tests.support.engines import DYNAMODB_LOCAL, SQLITE
from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE, run_in_threads

OTHER_PROCESS = """
import sys
from msgspec.structs import replace
from datetime import UTC, datetime
from nakadi.ports.clock import SystemClock
from nakadi.app.engines import open_coordination
from nakadi.common.waiting import run_blocking
from nakadi.model.event_type import Position
from nakadi.model.subscription import EventTypePartition
from nakadi.ports.coordination import AssignmentChanged

coordination = open_coordination(sys.argv[1])
now = datetime.now(UTC)
for line in sys.stdin:
    words = line.split()
    if words[0] == "commit":
        place = EventTypePartition("order", "0")
        found = run_blocking(coordination.commit("1b6c", words[1], {place: Position(1, int(words[2]))}, now))
        print(found[place].value, flush=True)
    else:
        for _ in range(int(words[1])):
            while True:
                old = coordination.assignment("1b6c")
                counted = tuple(replace(each, failed_streams=each.failed_streams + 1) for each in old.entries)
                new = replace(old, entries=counted)
                try:
                    coordination.replace_assignment("1b6c", old, new, now)
                    break
                except AssignmentChanged:
                    continue
        print("done", flush=True)
coordination.close()
"""


@pytest.fixture(params=["sqlite", "dynamodb", *DYNAMODB_LOCAL])
def shared_url(request, tmp_path):
    """The URL of a store that two processes share."""
    if request.param == "sqlite":
        yield SQLITE.format(folder=tmp_path)
        return
    # Importing the package takes seconds.
    from tests.support.dynamodb_service import a_dynamodb, start_dynamodb_local  # noqa: PLC0415

    with a_dynamodb() if request.param == "dynamodb" else start_dynamodb_local() as url:
        yield url


@pytest.fixture
def two_processes(shared_url):
    """A coordination in this process, and a function that makes another process call a coordination on the
    same store.
    """
    with (
        closing(open_coordination(shared_url)) as here,
        subprocess.Popen(
            [sys.executable, "-c", OTHER_PROCESS, shared_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=plain_environment(PYTHONPATH=":".join(sys.path), **CREDENTIALS),
        ) as other,
    ):

        def ask(line: str) -> str:
            print(line, file=other.stdin, flush=True)
            return other.stdout.readline().strip()

        yield here, ask
        try:
            other.stdin.close()
            assert other.wait(PATIENCE) == 0
        finally:
            other.kill()


class TestTwoProcesses:
    def test_see_and_hear_of_each_other(self, two_processes):
        """When one process commits, the other process sees the commit, and is notified of it. (S198)"""
        here, ask = two_processes
        begin_assignment(here, "a")
        heard = threading.Event()
        end = here.add_change_listener(
            SUBSCRIPTION, lambda changed: heard.set() if changed is SubscriptionChange.OFFSETS else None
        )
        assert ask("commit a 5") == "committed"
        assert heard.wait(PATIENCE)
        end()
        assert position(here) == at(5)
        assert commit(here, "a", 5) is CommitResult.OUTDATED
        assert ask("commit b 6") == "not_owned"

    def test_lose_no_update(self, two_processes):
        """Two processes that increment one entry at the same time lose no increment. (S249, S319)"""
        here, ask = two_processes
        begin_assignment(here, "a")

        def count_up(_: int) -> None:
            for _ in range(50):
                while True:
                    old = here.assignment(SUBSCRIPTION)
                    new = replace(
                        old,
                        entries=tuple(replace(each, failed_streams=each.failed_streams + 1) for each in old.entries),
                    )
                    try:
                        here.replace_assignment(SUBSCRIPTION, old, new, A_MOMENT)
                        break
                    except AssignmentChanged:
                        continue

        run_in_threads(lambda number: ask("count 50") if number else count_up(0), 2)
        assert here.assignment(SUBSCRIPTION).entries[0].failed_streams == 100
