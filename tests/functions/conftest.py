"""Fixtures for functions: the tables, an environment, and a new logger, as in a new process."""

import json
import logging
import sys

import pytest

from tests.support.aws import REGION, aws
from tests.support.functions import Context, load_handler, load_recorded_event
from tests.support.tokens import Issuer


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """The settings that the deployment gives to functions, except that a file keeps the events."""
    for name, value in {
        "AWS_DEFAULT_REGION": REGION,
        "NAKADI_REGISTRY": "dynamodb://live",
        "NAKADI_EVENT_LOG": f"sqlite:///{tmp_path / 'events.db'}",
        "NAKADI_AUTH": "gateway",
        "NAKADI_DEFAULT_ADMIN": "user=the-admin",
        "NAKADI_CACHE_SECONDS": "0",
    }.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def issuer(tmp_path, environment):
    issuer = Issuer(tmp_path)
    for name, value in issuer.settings.items():
        if name.startswith("auth_"):
            environment.setenv(f"NAKADI_{name.upper()}", value)
    return issuer


@pytest.fixture
def broker(environment):  # noqa: ARG001  # the functions find it there
    with aws() as opened:
        opened.create_tables("live")
        yield opened


@pytest.fixture(autouse=True)
def new_logger():
    """Give each test a new logger: on AWS, each function has its own process and logger, but tests share a process."""
    yield
    logger = logging.getLogger("nakadi")
    logger.handlers.clear()
    vars(logger).pop("init", None)
    vars(logger).pop("powertools_handler", None)


class Lambda:
    """Invokes functions; the first invocation of each creates its execution environment."""

    def __init__(self):
        self._handlers = {}

    def invoke(self, name, event):
        if name not in self._handlers:
            self._handlers[name] = load_handler(name).handler
        event = load_recorded_event(event) if isinstance(event, str) else event
        for handler in logging.getLogger("nakadi").handlers:
            handler.setStream(sys.stdout)
        answer = self._handlers[name](event, Context())
        json.dumps(answer)
        return answer


@pytest.fixture
def functions(broker):  # noqa: ARG001  # they are invoked inside it
    return Lambda()
