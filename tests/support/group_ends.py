"""Ends resources that tests share without a fixture, such as a server of this process, when the group of tests that
shares them ends.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Generator

import pytest

_endings: list[Callable[[], object]] = []
_fixtures: list[tuple[pytest.FixtureDef[object], pytest.FixtureRequest]] = []


def end_with_group(end: Callable[[], object]) -> None:
    """Call `end` when the current group of tests ends, or when the process ends."""
    _endings.append(end)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Remember fixtures that live as long as the session. A `conftest.py` below the root does not get these calls."""
    value = yield
    if fixturedef.scope == "session":
        _fixtures.append((fixturedef, request))
    return value


@atexit.register
def end_shared() -> None:
    """End all shared resources now, in the reverse order of registration."""
    while _endings:
        _endings.pop()()


def finish_fixtures() -> None:
    """Finish all fixtures that live as long as the session. pytest sets them up again if a later test needs them."""
    while _fixtures:
        fixture, request = _fixtures.pop()
        fixture.finish(request)
