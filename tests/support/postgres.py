"""Runs PostgreSQL for tests: the machine's, or the one that a Python wheel carries."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from tests.support.environment import plain_environment

START_SECONDS = 60


def running_server() -> Iterator[PostgresServer]:
    """Yield a server for a fixture, or skip the test if there is no PostgreSQL."""
    folder = programs()
    if folder is None:
        pytest.skip("there is no PostgreSQL: install Debian's package postgresql, or `pip install pgserver`")
    server = PostgresServer(folder)
    yield server
    server.close()


def programs() -> Path | None:
    """The folder with `initdb` and `postgres`; the newest version if there are several."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: float(each.parent.name))
    wheel = find_spec("pgserver")
    if wheel is not None and wheel.origin:
        folders.insert(0, Path(wheel.origin).parent / "pginstall" / "bin")
    return next((each for each in reversed(folders) if (each / "initdb").exists()), None)


class PostgresServer:
    """A server on a Unix socket in a folder of its own. It runs without `fsync`, because no test lets the machine
    fail.
    """

    def __init__(self, folder_with_programs: Path) -> None:
        self._programs = folder_with_programs
        # pytest's folders have paths that are too long for sockets, and belong to root if tests run as root, which
        # PostgreSQL refuses.
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._account = _account()
        if self._account is not None:
            shutil.chown(self._folder, self._account)
        self._data = self._folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(self._data), "-U", "tests", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        self.start()

    @property
    def dsn(self) -> str:
        return f"host={self._folder} user=tests dbname=postgres"

    @property
    def socket(self) -> str:
        return f"{self._folder}/.s.PGSQL.5432"

    def start(self) -> None:
        """Start the server, and return when it answers."""
        options = {
            "listen_addresses": "",
            "fsync": "off",
            "wal_level": "logical",
            "unix_socket_directories": self._folder,
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, *settings],
                stdout=log,
                stderr=log,
                env=plain_environment(),
                user=self._account,
                cwd=self._folder,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.dsn).close()
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
                time.sleep(0.05)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """End the server. SIGQUIT ends it and its connections at once."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(START_SECONDS)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=plain_environment(),
            user=self._account,
            cwd=self._folder,
        )
        assert done.returncode == 0, done.stderr


def _account() -> str | None:
    """The account that the server runs as, or None for the account of the tests if that is not root."""
    if os.geteuid() != 0:
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
