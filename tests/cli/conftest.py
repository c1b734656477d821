"""A running broker, and the command line in this process."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from infra.laptop.laptop import Laptop
from nakadi_cli.__main__ import main
from tests.support.laptop import ALL, FAST_SETTINGS, OPEN, STRICTNESS, LaptopBroker
from tests.support.patience import PATIENCE
from tests.support.served import ServedBroker


@dataclass(frozen=True)
class CommandResult:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(scope="session", params=["aws-local" if ALL else "embedded"])
def broker(request, tmp_path_factory) -> Iterator[ServedBroker | LaptopBroker]:
    """A broker in this process or, in `make test-aws-local`, the deployment on this machine."""
    if request.param == "embedded":
        with ServedBroker() as broker:
            yield broker
        return
    with Laptop(tmp_path_factory.mktemp("laptop"), FAST_SETTINGS, STRICTNESS) as laptop:
        front = laptop.front(authorizes=False, settings=OPEN)
        with pytest.MonkeyPatch.context() as patch, closing(LaptopBroker(laptop, front)) as deployed:
            # These credentials are for calls that only the deployment itself can make: no role has this name, so
            # everything is allowed.
            patch.setenv("AWS_ACCESS_KEY_ID", "laptop")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "laptop")
            yield deployed


@pytest.fixture
def api(broker):
    with httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture(autouse=True)
def a_home(tmp_path, monkeypatch):
    """A home folder with only the test's own contexts, and with the broker of the tests."""
    monkeypatch.setenv("NAKADI_CONFIG", str(tmp_path / "config" / "nakadi.yaml"))
    monkeypatch.delenv("NAKADI_TOKEN", raising=False)
    monkeypatch.delenv("NAKADI_URL", raising=False)


@pytest.fixture
def run(monkeypatch, broker):
    """A function that runs a command in this process, against the broker of the tests unless the test names another
    one.
    """

    def run(*arguments: str, stdin: str = "", url: str | None = "") -> CommandResult:
        if url == "":
            url = broker.url
        with monkeypatch.context() as patch:
            if url is not None:
                patch.setenv("NAKADI_URL", url)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
            out, err = io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                code = main(arguments)
        return CommandResult(code, out.getvalue(), err.getvalue())

    return run
