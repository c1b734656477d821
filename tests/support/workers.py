"""A broker of several processes, and clients whose requests reach a different one each time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import IO

import httpx

from tests.support.loop_guard import guarded_variables
from tests.support.patience import PATIENCE
from tests.support.processes import ENVIRONMENT, run_process

# `make test-workers` runs all end-to-end tests, which takes minutes. Other runs include only SELECTED_TESTS, in which
# processes have to see each other's changes.
ALL = os.environ.get("TWO_WORKERS") == "all"
SELECTED_TESTS = frozenset(
    {
        "test_a_batch_that_is_sent_again_is_stored_once",
        "test_a_changed_event_type_is_published_to_as_it_is_now",
        "test_a_client_that_comes_back_misses_nothing",
        "test_a_client_that_leaves_can_still_commit",
        "test_a_client_that_leaves_gives_its_partitions_back_at_once",
        "test_a_client_that_needs_longer_gets_more_time",
        "test_a_deleted_event_type_is_gone",
        "test_a_lost_connection_releases_partitions_if_the_client_wants_it",
        "test_a_feature_is_in_force_for_the_next_request",
        "test_a_new_one_with_the_same_key_begins_anew",
        "test_a_partition_changes_hands_when_it_is_committed",
        "test_a_reset_ends_streams",
        "test_a_second_attempt_may_meet_another_partition",
        "test_a_second_stream_gets_its_share",
        "test_a_stream_follows_into_a_new_timeline",
        "test_adding_a_schema_makes_it_current",
        "test_blocks_take_effect_at_once",
        "test_deleting_a_subscription_ends_its_streams",
        "test_every_process_shows_and_removes_a_rehearsal",
        "test_events_are_counted_from_the_committed_offset",
        "test_events_arrive_in_order_while_they_are_published",
        "test_more_partitions_end_streams",
        "test_new_partitions_are_consumed_from_their_beginning",
        "test_only_one_of_many_simultaneous_requests_creates_a_subscription",
        "test_slots_under_contention",
        "test_subscribing_and_deleting_exclude_each_other",
        "test_the_next_events_go_by_the_new_count",
        "test_what_was_published_is_counted_at_once",
    }
)

PYTHON = (sys.executable, "-W", "error")
PROGRAM = ("-m", "nakadi.local")


def program_with_silence_limits(until_noticed: float, until_ended: float) -> tuple[str, str]:
    """The command of a broker program that notices a worker, and ends it, after it was silent for these seconds."""
    code = f"""
from functools import partial
from nakadi.app.shutdown import SignalHandler, exit_process
from nakadi.local import program
from nakadi.local.heartbeats import SilenceLimits

signals = SignalHandler()
signals.install()
program.supervise = partial(program.supervise, silence=SilenceLimits({until_noticed}, {until_ended}))
exit_process(program.main(signals=signals))
"""
    return ("-c", code)


def program_whose_second_start_hangs() -> tuple[str, str]:
    """The command of a broker program whose second start of a worker hangs, and is ended after a second."""
    code = """
import asyncio
from itertools import count
from nakadi.app.shutdown import SignalHandler, exit_process
from nakadi.local import program, supervisor
from nakadi.local.heartbeats import Heartbeat, SilenceLimits

signals = SignalHandler()
signals.install()
execute, starts = asyncio.create_subprocess_exec, count(1)
limits = iter([SilenceLimits(), SilenceLimits(until_serving=1)])

async def execute_or_hang(python, *arguments, **options):
    hangs = next(starts) == 2
    return await execute(python, *(("-c", "import time; time.sleep(3600)") if hangs else arguments), **options)

def new_heartbeat(self):
    return Heartbeat(next(limits, SilenceLimits()), self._clock.monotonic())

asyncio.create_subprocess_exec = execute_or_hang
supervisor.Supervisor._new_heartbeat = new_heartbeat
exit_process(program.main(signals=signals))
"""
    return ("-c", code)


class BrokerProgram:
    """The program with its workers. `process` supervises them, commits for them, and also serves requests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        greeting = ""
        while "Ctrl-C ends it." not in greeting:
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr is not None else "it did not start"
            greeting += line
        found = re.search(r"ready at (\S+)", greeting)
        assert found is not None, greeting
        self.url = found[1]

    @property
    def workers(self) -> list[int]:
        """The process ids of the workers."""
        return find_children(self.process.pid)

    def end(self) -> tuple[int, str]:
        """End the broker, and return its exit code and its log."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


def find_children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@contextmanager
def start_broker(
    data: Path,
    variables: Mapping[str, str] | None = None,
    log: IO[str] | int = subprocess.PIPE,
    processes: int = 2,
    program: Sequence[str] = PROGRAM,
) -> Iterator[BrokerProgram]:
    command = [*PYTHON, *program, "--port=0", "--data", str(data), f"--workers={processes}"]
    report = data.with_name(f"{data.name}-blocking-calls")
    guarded = guarded_variables(report, ENVIRONMENT["PYTHONPATH"])
    with run_process(command, {**ENVIRONMENT, **guarded, **(variables or {})}, log=log) as process:
        broker = BrokerProgram(process)
        try:
            yield broker
        finally:
            # Workers end when the supervisor is killed; kill them anyway, in case that is broken.
            with suppress(OSError):
                for each in broker.workers:
                    os.kill(each, signal.SIGKILL)
    calls = report.read_text()
    assert not calls, calls


@contextmanager
def serve_broker(folder: Path, variables: Mapping[str, str] | None = None) -> Iterator[BrokerProgram]:
    """Yield a broker that many tests share. At the end, its log must have no error."""
    log = folder / "log"
    with log.open("w") as said, start_broker(folder / "data", variables, said) as program:
        yield program
        code, _ = program.end()
        assert code == 0, log.read_text()
    assert " ERROR " not in log.read_text(), log.read_text()


class RoundRobinTransport(httpx.BaseTransport):
    """Sends requests in turn over three connections, which the supervisor gives to different processes."""

    def __init__(self) -> None:
        self._all = [httpx.HTTPTransport() for _ in range(3)]
        self._next = cycle(self._all)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return next(self._next).handle_request(request)

    def close(self) -> None:
        for each in self._all:
            each.close()
