"""The check whether the broker can do its work."""

import threading

import pytest

from nakadi.common.metrics import Metrics
from nakadi.http.application import Application
from nakadi.http.message import Request
from nakadi.http.readiness import ReadinessCheck
from nakadi.http.routes import monitoring
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.outcomes import TryLater, Unavailable
from nakadi.ports.clock import SystemClock
from tests.support.clock import HandMovedClock
from tests.support.patience import PATIENCE


class ProbedRegistry:
    """A registry that counts the probes, and answers when the test allows it."""

    def __init__(self, error=None):
        self.asked = 0
        self.error = error
        self.free = threading.Event()
        self.free.set()

    def probe(self):
        self.asked += 1
        assert self.free.wait(PATIENCE)
        if self.error:
            raise self.error


def test_an_answer_is_good_for_a_moment():
    """The registry is called again only when its last answer is out of date."""
    registry, clock = ProbedRegistry(), HandMovedClock()
    readiness = ReadinessCheck(registry.probe, clock, max_age_seconds=1, timeout_seconds=30)
    for _ in range(3):
        readiness.check()
    assert registry.asked == 1

    clock.move(1)
    readiness.check()
    assert registry.asked == 2


def test_a_registry_that_fails_is_reported_and_asked_again():
    """A failure of the registry is reported without details, until the registry works again."""
    registry, clock = ProbedRegistry(Unavailable("/secret/path: disk I/O error")), HandMovedClock()
    readiness = ReadinessCheck(registry.probe, clock, max_age_seconds=1, timeout_seconds=30)
    with pytest.raises(TryLater, match=r"^The registry cannot be reached$"):
        readiness.check()

    registry.error = None
    clock.move(1)
    readiness.check()


def test_a_registry_that_does_not_answer_holds_one_thread():
    """However many requests come, there is one probe at a time, and no request waits longer than its limit."""
    registry, clock = ProbedRegistry(), HandMovedClock()
    registry.free.clear()
    readiness = ReadinessCheck(registry.probe, clock, max_age_seconds=1, timeout_seconds=0)
    before = threading.enumerate()
    for _ in range(100):
        clock.move(1)
        with pytest.raises(TryLater, match=r"^The registry does not answer$"):
            readiness.check()
    probes = [each for each in threading.enumerate() if each.name == "nakadi-readiness" and each not in before]
    assert (registry.asked, len(probes)) == (1, 1)

    registry.free.set()
    probes[0].join(PATIENCE)
    readiness.check()


def test_an_unready_broker_answers_with_a_problem():
    """If the registry fails, the answer to `GET /ready` is 503 with the time after which to retry, but the answer to
    `GET /health` is still 200.
    """
    registry = ProbedRegistry(Unavailable("no"))
    readiness = ReadinessCheck(registry.probe, SystemClock(), timeout_seconds=30)
    application = Application(
        monitoring.routes(lambda: Metrics(0), SystemClock(), readiness, "1"), lambda _: UNAUTHENTICATED
    )

    answer = application.answer(Request(method="GET", path="/ready", target="/ready"))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert application.answer(Request(method="GET", path="/health", target="/health")).status == 200
