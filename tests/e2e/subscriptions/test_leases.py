"""The lease of a process, and the sessions that hang on it, whatever goes wrong in it."""

import threading
from contextlib import ExitStack

import httpx
import pytest

from nakadi.local import Broker
from nakadi.model.outcomes import Unavailable
from nakadi.subscriptions.stream import streams
from tests.support.api import created, problem
from tests.support.consumer import Consumer, soon
from tests.support.http import described
from tests.support.subscriptions import publish, subscribed

PATIENCE_SECONDS = 60


@pytest.fixture
def inside(monkeypatch):
    """A broker of its own that renews its lease all the time."""
    monkeypatch.setattr(streams, "RENEWAL_SECONDS", 0.02)
    with Broker() as broker:
        inside = broker._inside
        inside.url = broker.url
        yield inside


@pytest.fixture
def api(inside):
    with described(httpx.Client(base_url=inside.url, timeout=30)) as client:
        yield client


@pytest.fixture
def subscription(api):
    return subscribed(api, created(api)["name"], read_from="begin")


@pytest.fixture
def consumer(api):
    with ExitStack() as opened:
        yield lambda *args, **parameters: opened.enter_context(Consumer(api, *args, **parameters))


def sessions(inside, subscription):
    return inside.coordination.assignment(subscription["id"]).sessions


@pytest.mark.parametrize("error", [RuntimeError("a mistake"), Unavailable("not now"), OSError("no such file")])
def test_the_lease_is_renewed_again_whatever_happened(inside, api, subscription, consumer, monkeypatch, caplog, error):
    """Whatever renewing the lease raises, the log says so, it is tried again, and streams go on. (S318)"""
    stream = consumer(subscription, batch_flush_timeout=1)
    errors, renewed, renew = [error] * 3, threading.Event(), inside.coordination.renew

    def unreliable(*lease):
        if errors:
            raise errors.pop()
        renew(*lease)
        renewed.set()

    monkeypatch.setattr(inside.coordination, "renew", unreliable)
    assert renewed.wait(PATIENCE_SECONDS)
    publish(api, *subscription["event_types"])
    stream.consumed(1)
    said = [each for each in caplog.records if each.getMessage().startswith("Renewing the lease failed, tried again")]
    assert len(said) == 3
    assert str(error) in caplog.text


def test_the_lease_is_renewed_while_all_threads_wait(inside, subscription, consumer, monkeypatch):
    """Streams that wait for a log that does not answer take no thread from the lease. (S318)"""
    consumer(subscription)
    answered = threading.Event()
    for _ in range(streams.THREADS):
        inside.subscription_streams._threads.submit(answered.wait, PATIENCE_SECONDS)
    renewed, renew = threading.Event(), inside.coordination.renew
    monkeypatch.setattr(inside.coordination, "renew", lambda *lease: (renew(*lease), renewed.set()))
    assert renewed.wait(PATIENCE_SECONDS)
    answered.set()


def test_a_stream_that_could_not_be_opened_leaves_no_session(inside, api, subscription, monkeypatch):
    """Whatever goes wrong once a session has joined, it does not stay without a stream. (S223)"""
    monkeypatch.setattr(inside.subscription_streams._starts, "find", lambda *_: 1 / 0)
    problem(api.get(f"/subscriptions/{subscription['id']}/events"), 500)
    assert sessions(inside, subscription) == ()


def test_a_session_that_cannot_be_removed_is_removed_later(inside, api, subscription, consumer, monkeypatch):
    """A session whose removal fails, for whatever reason, goes with one of the next turns. (S227)"""
    other = consumer(subscribed(api, created(api)["name"], read_from="begin"), batch_flush_timeout=1)
    write, failing = inside.coordination.write, threading.Event()

    def unless_failing(*args, **more):
        if failing.is_set():
            raise RuntimeError("a mistake")
        return write(*args, **more)

    stream = consumer(subscription, batch_flush_timeout=1)
    monkeypatch.setattr(inside.coordination, "write", unless_failing)
    failing.set()
    stream.close()
    soon(lambda: inside.subscription_streams._keeper.has_unremoved, PATIENCE_SECONDS)
    assert len(sessions(inside, subscription)) == 1
    failing.clear()
    soon(lambda: sessions(inside, subscription) == (), PATIENCE_SECONDS)
    publish(api, *other.subscription["event_types"])
    other.consumed(1)


def test_a_stream_that_cannot_follow_its_subscription_leaves_no_session(inside, subscription, consumer, monkeypatch):
    """A stream that has begun and cannot watch its subscription is cut off, and has left. (S223)"""

    def out_of_reach(*_):
        raise Unavailable("not now")

    monkeypatch.setattr(inside.coordination, "watch", out_of_reach)
    with pytest.raises(EOFError):
        consumer(subscription).rest()
    assert sessions(inside, subscription) == ()
