"""The lease of a process, and the sessions that depend on it, under any failure."""

import threading

import httpx
import pytest

from nakadi.model.outcomes import Unavailable
from nakadi.subscriptions.stream import streams
from tests.support.api import create_event_type, problem
from tests.support.consumer import soon
from tests.support.http import check_against_description
from tests.support.patience import PATIENCE
from tests.support.served import ServedBroker
from tests.support.subscriptions import create_subscription, publish


@pytest.fixture
def running_broker(monkeypatch):
    """A separate broker that renews its lease very often."""
    monkeypatch.setattr(streams, "LEASE_RENEWAL_INTERVAL_SECONDS", 0.02)
    with ServedBroker() as broker:
        yield broker


@pytest.fixture
def services(running_broker):
    """The broker's internal services."""
    return running_broker.services


@pytest.fixture
def api(running_broker):
    with check_against_description(httpx.Client(base_url=running_broker.url, timeout=PATIENCE)) as client:
        yield client


@pytest.fixture
def subscription(api):
    return create_subscription(api, create_event_type(api)["name"], read_from="begin")


def sessions(services, subscription):
    return services.coordination.assignment(subscription["id"]).sessions


@pytest.mark.parametrize("error", [RuntimeError("a mistake"), Unavailable("not now"), OSError("no such file")])
def test_the_lease_is_renewed_again_whatever_happened(
    services, api, subscription, open_consumer, monkeypatch, caplog, error
):
    """After any error in renewing the lease, the log says so, the renewal is retried, and streams continue. (S318)"""
    stream = open_consumer(subscription, batch_flush_timeout=1)
    errors, renewed, renew = [error] * 3, threading.Event(), services.coordination.renew_lease

    def unreliable(*lease):
        if errors:
            raise errors.pop()
        renew(*lease)
        renewed.set()

    monkeypatch.setattr(services.coordination, "renew_lease", unreliable)
    assert renewed.wait(PATIENCE)
    publish(api, *subscription["event_types"])
    stream.consumed(1)
    said = [each for each in caplog.records if each.getMessage().startswith("Renewing the lease failed, trying again")]
    assert len(said) == 3
    assert str(error) in caplog.text


def test_the_lease_is_renewed_while_all_threads_wait(services, subscription, open_consumer, monkeypatch):
    """Streams that wait for an unresponsive log do not block the lease's thread. (S318)"""
    open_consumer(subscription)
    answered = threading.Event()
    for _ in range(streams.CALL_THREAD_COUNT):
        services.subscription_streams._threads.submit(answered.wait, PATIENCE)
    renewed, renew = threading.Event(), services.coordination.renew_lease
    monkeypatch.setattr(services.coordination, "renew_lease", lambda *lease: (renew(*lease), renewed.set()))
    assert renewed.wait(PATIENCE)
    answered.set()


def test_a_stream_that_could_not_be_opened_leaves_no_session(services, api, subscription, monkeypatch):
    """If a stream cannot be opened after its session has joined, the session does not remain, whatever the failure.
    (S223)
    """
    offsets, joined = services.coordination.committed_offsets, threading.Event()

    def fail_after_joining(subscription_id):
        if sessions(services, subscription) and not joined.is_set():
            joined.set()
            raise ZeroDivisionError
        return offsets(subscription_id)

    monkeypatch.setattr(services.coordination, "committed_offsets", fail_after_joining)
    problem(api.get(f"/subscriptions/{subscription['id']}/events"), 500)
    assert joined.is_set()
    assert sessions(services, subscription) == ()


def test_the_log_says_why_a_stream_ended(api, subscription, open_consumer, caplog):
    """The log entry about the end of a stream has the stream's id, its subscription, and the reason in words."""
    caplog.set_level("INFO")
    publish(api, *subscription["event_types"])
    with open_consumer(subscription, stream_limit=1) as stream:
        stream.consumed(1)
        stream.rest()
    soon(lambda: f"of subscription {subscription['id']} ended: stream_limit events were sent" in caplog.text, PATIENCE)


def test_a_session_that_cannot_be_removed_is_removed_later(services, api, subscription, open_consumer, monkeypatch):
    """A session whose removal fails, for any reason, is removed in one of the next rounds. (S227)"""
    other = open_consumer(
        create_subscription(api, create_event_type(api)["name"], read_from="begin"), batch_flush_timeout=1
    )
    write, failing, failed = services.coordination.replace_assignment, threading.Event(), threading.Event()

    def write_or_fail(*args, **more):
        if failing.is_set():
            failed.set()
            raise RuntimeError("a mistake")
        return write(*args, **more)

    stream = open_consumer(subscription, batch_flush_timeout=1)
    monkeypatch.setattr(services.coordination, "replace_assignment", write_or_fail)
    failing.set()
    stream.close()
    assert failed.wait(PATIENCE)
    assert len(sessions(services, subscription)) == 1
    failing.clear()
    soon(lambda: sessions(services, subscription) == (), PATIENCE)
    publish(api, *other.subscription["event_types"])
    other.consumed(1)


def test_a_stream_that_cannot_watch_its_subscription_tries_again(
    services, api, subscription, open_consumer, monkeypatch
):
    """A stream whose watch fails is neither stuck nor cut off: it watches once the store answers again. (S223)"""
    errors, watch = [Unavailable("not now")] * 2, services.coordination.add_change_listener

    def unreliable(*listener):
        if errors:
            raise errors.pop()
        return watch(*listener)

    monkeypatch.setattr(services.coordination, "add_change_listener", unreliable)
    stream = open_consumer(subscription, batch_flush_timeout=1)
    publish(api, *subscription["event_types"])
    stream.consumed(1)
    assert errors == []
