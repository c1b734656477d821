"""Clients of the library that no longer find their servers: the log uses others, and continues.

The library may lose a cluster for good when all its servers were away for a while. Here, a client of a cluster that
does not exist takes the place of such a client.
"""

from contextlib import closing

import pytest

from nakadi.app.engines import open_event_log
from nakadi.common.waiting import run_blocking
from nakadi.engines.kafka import client, reading, writing
from nakadi.engines.kafka.client import ClusterAddress, new_admin_client, new_consumer
from nakadi.model.events import AppendRefused, AppendStored, OffsetBounds
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import SystemClock
from tests.support import kafka
from tests.support.engines import a_record, record_text
from tests.support.kafka_load import retry_until_available
from tests.support.patience import until

pytestmark = kafka.NOT_IN_EVERY_RUN


@pytest.fixture
def url():
    return f"{kafka.url()}&timeout=2"


@pytest.fixture
def log(url):
    with closing(open_event_log(url, SystemClock())) as opened:
        opened.create_topic("t", 1)
        run_blocking(opened.append("t", {0: [a_record("a")]}))
        yield opened


@pytest.fixture
def other_process_log(url, log):  # noqa: ARG001  # it makes the topic
    with closing(open_event_log(url, SystemClock())) as opened:
        yield opened


def lose_next_client(make, module, name, monkeypatch):
    """Make the next client that a module creates find no servers. Return the list of clients created since."""
    made = []

    def make_one(address, **settings):
        made.append(make(address if made else ClusterAddress("127.0.0.1:9", timeout_seconds=2), **settings))
        return made[-1]

    monkeypatch.setattr(module, name, make_one)
    return made


def test_an_append_that_a_producer_cannot_send_is_the_last_one_that_it_refuses(other_process_log, url, monkeypatch):
    """If its producer cannot send an append, the log refuses it when its time expires, and stores each of the next ones
    once.
    """
    made = lose_next_client(client.new_producer, writing, "new_producer", monkeypatch)
    with closing(open_event_log(url, SystemClock())) as log:
        assert run_blocking(log.append("t", {0: [a_record("b")]})) == {0: AppendRefused("timed out")}
        assert run_blocking(log.append("t", {0: [a_record("c")]})) == {0: AppendStored()}
        assert run_blocking(log.append("t", {0: [a_record("d")]})) == {0: AppendStored()}
        assert [record_text(event.record) for event in other_process_log.read("t", 0, 0).events] == ["a", "c", "d"]
        assert len(made) == 2


def test_a_read_that_a_consumer_cannot_make_is_the_last_one_that_fails(log, monkeypatch):
    lose_next_client(client.new_consumer, reading, "new_consumer", monkeypatch)
    with pytest.raises(Unavailable):
        log.read("t", 0, 0)
    assert [record_text(event.record) for event in log.read("t", 0, 0).events] == ["a"]


def test_a_tail_that_stays_behind_is_followed_by_another_consumer(log, other_process_log, monkeypatch):
    """If the consumer that follows a partition's end finds no servers, another consumer replaces it; until then, each
    reader fetches events for itself.
    """
    lose_next_client(client.new_consumer, reading, "new_consumer", monkeypatch)
    place = 1

    def tail_has_the_next_event():
        nonlocal place
        assert log.read("t", 0, place).events == ()
        run_blocking(other_process_log.append("t", {0: [a_record("b")]}))
        assert len(log.read("t", 0, place).events) == 1
        place += 1
        return log._tail.slice(("t", 0), place - 1, 1, 1000) is not None

    assert not tail_has_the_next_event()
    until(tail_has_the_next_event)


def test_a_question_that_a_client_cannot_ask_is_its_last_one(log):
    """If a client finds no servers, the request fails, and other clients make all later requests."""
    nowhere = ClusterAddress("127.0.0.1:9", timeout_seconds=2)
    for ask in (
        lambda: log.bounds("t", [0])[0],
        lambda: OffsetBounds(*log._cluster.read_partition_bounds("t", 0)),
        lambda: OffsetBounds(log.first_offset_since("t", 0, SystemClock().now().replace(year=2020)), 1),
    ):
        unconnected = new_admin_client(nowhere), new_consumer(nowhere)
        log._cluster._admin, log._cluster._offset_consumer = unconnected
        with pytest.raises(Unavailable):
            ask()
        assert log._cluster._admin is not unconnected[0]
        assert log._cluster._offset_consumer is not unconnected[1]
        # On a busy machine, a new client may not be connected within the two seconds that a request may take.
        assert retry_until_available(ask) == OffsetBounds(0, 1)
