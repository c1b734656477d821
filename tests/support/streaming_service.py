"""Starts the streaming service in a process, as its container does."""

import signal
import sys
from contextlib import contextmanager
from pathlib import Path

from tests.support.patience import PATIENCE
from tests.support.processes import ENVIRONMENT, run_process

ROOT = Path(__file__).parents[2]


class Service:
    def __init__(self, process):
        self.process = process
        line = process.stdout.readline()
        assert line.startswith("Streaming on port "), process.stderr.read()
        self.url = f"http://127.0.0.1:{line.split()[-1]}"

    def end(self, how=signal.SIGTERM):
        """End the service by a signal, and return its exit code and its standard error."""
        self.process.send_signal(how)
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


@contextmanager
def run_service(environment, *arguments):
    with launch_service(environment, *arguments) as process:
        yield Service(process)


def launch_service(environment, *arguments):
    """Start the process of the service, and return it without waiting until it serves."""
    command = [sys.executable, "-W", "error", "-m", "services.streaming", "--port=0", *arguments]
    return run_process(command, {**ENVIRONMENT, **environment}, ROOT)


def variables(settings, **more):
    return {f"NAKADI_{name.upper()}": value for name, value in {**settings, **more}.items()}
