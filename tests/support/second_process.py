"""A second process on the same data file, which carries out one command a line, and answers each with a line.

    python second_process.py URL

It reads JSON arrays of a command and its arguments, and answers with the result or `null`.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nakadi.app.engines import open_event_log, open_registry
from nakadi.common.waiting import run_blocking
from nakadi.model.events import Record
from nakadi.ports.clock import SystemClock
from nakadi.ports.registry import ChangedMeanwhile, PutDocument
from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]


class SecondProcess:
    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process

    def begin(self, *command: Any) -> None:
        """Send the process a command, without waiting for the answer."""
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        line = self._process.stdout.readline()
        assert line, "the process has died"
        return json.loads(line)

    def ask(self, *command: Any) -> Any:
        self.begin(*command)
        return self.answer()


@contextmanager
def a_second_process(url: str) -> Iterator[SecondProcess]:
    command = [sys.executable, __file__, url]
    environment = plain_environment(PYTHONPATH=f"{ROOT / 'layers/nakadi/python'}:{ROOT}")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        try:
            other = SecondProcess(process)
            assert other.answer() == "ready"
            yield other
        finally:
            process.stdin.close()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


class Commands:
    """The commands that the process carries out."""

    def __init__(self, url: str) -> None:
        self._clock = SystemClock()
        self._log = open_event_log(url, self._clock)
        self._registry = open_registry(url)

    def append(self, topic: str, name: str, count: int) -> None:
        for number in range(count):
            run_blocking(self._log.append(topic, {0: [Record(f'"{name}/{number}"'.encode())]}))

    def append_in_threads(self, topic: str, name: str, threads: int, count: int) -> None:
        with ThreadPoolExecutor(threads) as publishers:
            list(publishers.map(lambda thread: self.append(topic, f"{name}{thread}", count), range(threads)))

    def seal(self, topic: str) -> int:
        self._log.seal_topic(topic)
        return self._log.bounds(topic, [0])[0].next_offset

    def trim(self, topic: str) -> None:
        self._log.trim(topic, 0, self._clock.now())

    def create(self, name: str, count: int) -> list[str]:
        mine = []
        for number in range(count):
            with suppress(ChangedMeanwhile):
                self._registry.write(PutDocument("thing", f"{number}", {"by": name}, expected_revision=0))
                mine.append(f"{number}")
        return mine

    def count_up(self, count: int) -> None:
        done = 0
        while done < count:
            found = self._registry.get("thing", "counter")
            with suppress(ChangedMeanwhile):
                self._registry.write(
                    PutDocument("thing", "counter", {"n": found.body["n"] + 1}, expected_revision=found.revision)
                )
                done += 1

    def close(self) -> None:
        self._log.close()
        self._registry.close()


def main(url: str) -> None:
    commands = Commands(url)
    print('"ready"', flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(getattr(commands, command)(*arguments)), flush=True)
    commands.close()


if __name__ == "__main__":
    main(sys.argv[1])
