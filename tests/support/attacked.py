"""A broker in a separate process, with limited memory, for tests that attack it.

`make test` runs short attacks. `make attacks` sets `ATTACKS=long`, and runs long ones.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.environment import plain_environment
from tests.support.processes import ENVIRONMENT
from tests.support.wire import Wire

LONG = os.environ.get("ATTACKS") == "long"
ADDRESS_LIMIT = 3_500_000_000
MEGABYTE = 1_000_000


def choose_repetitions(short: int, long: int) -> int:
    """The number of repetitions: `short` in `make test`, `long` in `make attacks`."""
    return long if LONG else short


class AttackedBroker:
    """A running broker: its address, its memory, and its log."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        greeting = ""
        while "Ctrl-C ends it." not in greeting:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, self.read_log()
            greeting += line
        found = re.search(r"ready at (\S+)", greeting)
        assert found is not None
        self.url = found[1]

    def wire(self) -> Wire:
        """A new connection for raw bytes."""
        return Wire(self.url)

    def alive(self) -> bool:
        return self.process.poll() is None

    def memory(self) -> int:
        """The bytes of memory that the broker holds now (RSS)."""
        return self._read_measure("VmRSS", "rss")

    def peak_memory(self) -> int:
        """On Linux, the most memory that the broker has held since `forget_peak` or its start; elsewhere, its present
        memory.
        """
        return self._read_measure("VmHWM", "rss")

    def forget_peak(self) -> None:
        if self._status.exists():
            (self._status.parent / "clear_refs").write_text("5")

    def read_log(self) -> str:
        """The broker's log so far."""
        return self._log.read_text(errors="replace")

    def tracebacks(self) -> list[str]:
        """The lines of the log at which tracebacks begin, each with the line before it."""
        lines = self.read_log().splitlines()
        return [
            "\n".join(lines[max(0, n - 1) : n + 40]) for n, line in enumerate(lines) if line.startswith("Traceback")
        ]

    def end(self, how: int = signal.SIGTERM, within: float = 60) -> int:
        """End the broker by a signal, and return its exit code."""
        self.process.send_signal(how)
        return self.process.wait(timeout=within)

    @property
    def _status(self) -> Path:
        return Path(f"/proc/{self.process.pid}/status")

    def _read_measure(self, field: str, column: str) -> int:
        if self._status.exists():
            found = re.search(rf"{field}:\s*(\d+) kB", self._status.read_text())
            assert found is not None, "the process has ended"
            return int(found[1]) * 1024
        command = ["ps", "-o", f"{column}=", "-p", str(self.process.pid)]
        return (
            int(subprocess.run(command, env=plain_environment(), capture_output=True, text=True, check=True).stdout)
            * 1024
        )


@contextmanager
def start_attacked_broker(
    *arguments: str, address_limit: int = ADDRESS_LIMIT, **environment: str
) -> Iterator[AttackedBroker]:
    """Start a broker with memory engines and a limit on its address space in bytes, and end it afterwards.

    `arguments` are further ones of the program, and `environment` is added to its own: `NAKADI_AUTH="jwt"`.
    """
    program = [sys.executable, "-m", "nakadi.local", "--port=0", "--engine=memory", *arguments]
    # Not every system can limit the address space; without the limit, the attack only measures.
    limited = ["sh", "-c", f'ulimit -v {address_limit // 1024} 2>/dev/null; exec "$@"', "sh", *program]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                limited, env={**ENVIRONMENT, **environment}, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        try:
            yield AttackedBroker(process, log)
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()
