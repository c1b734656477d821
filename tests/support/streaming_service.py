"""The streaming service as its container starts it: a process, and what it is told."""

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from tests.support.patience import PATIENCE
from tests.support.processes import ENVIRONMENT

ROOT = Path(__file__).parents[2]


class Service:
    def __init__(self, process):
        self.process = process
        line = process.stdout.readline()
        assert line.startswith("Streaming on port "), process.stderr.read()
        self.url = f"http://127.0.0.1:{line.split()[-1]}"

    def end(self, how=signal.SIGTERM):
        """End it, and return its exit code and what it wrote to stderr."""
        self.process.send_signal(how)
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


@contextmanager
def started(environment, *arguments):
    process = process_of(environment, *arguments)
    try:
        yield Service(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def process_of(environment, *arguments):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "services.streaming", "--port=0", *arguments],
        cwd=ROOT,
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def variables(settings, **more):
    return {f"NAKADI_{name.upper()}": value for name, value in {**settings, **more}.items()}
