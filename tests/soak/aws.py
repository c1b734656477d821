"""The system of a soak test, deployed as on AWS, but on this machine: gateway, functions and streaming service.

`stop` takes all of them down; the tables and the log stay.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from infra.laptop.laptop import Front, Laptop

PATIENCE_SECONDS = 120


class LaptopGround:
    # The deployment on this machine does not deliver to sinks.
    delivers_to_sinks = False

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._laptop = Laptop(folder / "logs", settings)
        self._port = 0
        self._front: Front | None = None
        self.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        if self._front is None:
            self._front = self._laptop.front(authorizes=False, port=self._port)
            self._port = urlsplit(self._front.url).port or 0

    def stop(self, how: signal.Signals) -> None:
        assert self._front is not None
        # This is as when ECS replaces a task: the streams of the service end, or break off, before the gateway notices.
        self._front.streaming._process.send_signal(how)
        self._front.streaming._process.wait(PATIENCE_SECONDS)
        self._front.close()
        self._front = None

    def end_a_part(self, *_: object) -> bool:
        return False

    def find_processes(self) -> Iterable[psutil.Process]:
        """The streaming service, and the processes of the functions; not the emulated services."""
        names = ("services.streaming", "worker.py")
        return [
            each
            for each in psutil.Process().children(recursive=True)
            if any(argument.endswith(names) for argument in each.cmdline())
        ]

    def close(self) -> None:
        """Take the deployment down, including its gateway and streaming service."""
        self._laptop.close()
