"""Kafka's answers are errors, come late, or never come: acknowledged events are stored once and in order.

A proxy in front of a real server spoils its answers while events are published and read. The summary of the run shows
how many events each test published, and their outcomes.
"""

from contextlib import contextmanager
from types import SimpleNamespace
from uuid import uuid4

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.model.events import AppendRefused, AppendStored
from tests.support import kafka
from tests.support.engines import a_record
from tests.support.kafka_load import WRITERS, NumberedLoad, open_log, value_or_error
from tests.support.kafka_proxy import FETCH, LIST_OFFSETS, METADATA, PRODUCE, KafkaProxy, ProxyFault
from tests.support.patience import until

pytestmark = kafka.NOT_IN_EVERY_RUN

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC = 3
NOT_LEADER = 6
REQUEST_TIMED_OUT = 7
NOT_ENOUGH_REPLICAS = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
TOPIC_AUTHORIZATION_FAILED = 29
KAFKA_STORAGE_ERROR = 56

NOT_STORED = {
    "not the leader": {"code": NOT_LEADER},
    "timed out": {"code": REQUEST_TIMED_OUT},
    "too few copies in sync": {"code": NOT_ENOUGH_REPLICAS},
    "disk failed": {"code": KAFKA_STORAGE_ERROR},
    "request lost": {},
}
STORED = {
    "timed out after storing": {"code": REQUEST_TIMED_OUT, "reaches_server": True},
    "too few copies in sync after storing": {"code": NOT_ENOUGH_REPLICAS_AFTER_APPEND, "reaches_server": True},
    "answer lost": {"reaches_server": True},
}
SPOILED_READS = {
    "offset out of range": {"code": OFFSET_OUT_OF_RANGE},
    "not the leader": {"code": NOT_LEADER},
    "disk failed": {"code": KAFKA_STORAGE_ERROR},
    "may not be read": {"code": TOPIC_AUTHORIZATION_FAILED},
    "answer lost": {},
}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A server that directs its clients to the proxy in front of it."""
    made = KafkaProxy()
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{made.port}"}
    server = kafka.OwnServer(tmp_path_factory.mktemp("kafka"), settings=advertised)
    try:
        server.wait()
        made.stand_in_front_of(int(server.address.rpartition(":")[2]))
        yield made
    finally:
        made.close()
        server.end()


@contextmanager
def a_log(proxy, timeout):
    servers = [SimpleNamespace(address=f"127.0.0.1:{proxy.port}")]
    with open_log(servers, timeout, f"{uuid4().hex[:12]}-") as log:
        log.create_topic("t", 1)
        yield log


def assert_nothing_waits(log):
    """No append and no record stays in memory once all of them have an outcome."""
    threads = log._writer._threads
    until(lambda: not any(thread._waiting or thread._under_way for thread in threads))
    return all(not thread._waiting_bytes and not len(thread._producer or ()) for thread in threads)


@pytest.mark.parametrize("spoiled", [*NOT_STORED.values(), *STORED.values()], ids=[*NOT_STORED, *STORED])
def test_publishers_do_not_see_an_error_that_passes(proxy, spoiled, record_property):
    """After a passing error, the library sends the request again, and Kafka recognizes records that it has stored, so
    every event is acknowledged once.
    """
    with a_log(proxy, timeout=60) as log, NumberedLoad(log, record_property) as load:
        with proxy.spoiling(ProxyFault(PRODUCE, times=3, **spoiled)) as fault:
            until(lambda: fault.seen == fault.times)
            load.goes_on()
        assert load.figures()["refused"] == 0
        assert assert_nothing_waits(log)


@pytest.mark.parametrize("spoiled", NOT_STORED.values(), ids=NOT_STORED)
def test_an_error_that_lasts_is_told_in_time(proxy, spoiled, record_property):
    """If an error lasts, events are refused when their time is over, and are not stored later; once the error has
    ended, new events are accepted.

    At most the request that is being sent when the error ends may still be carried out.
    """
    with a_log(proxy, timeout=2) as log, NumberedLoad(log, record_property) as load:
        with proxy.spoiling(ProxyFault(PRODUCE, **spoiled)):
            load.is_refused()
        load.goes_on()
        assert load.figures()["refused but stored"] <= WRITERS
        assert assert_nothing_waits(log)


@pytest.mark.parametrize(
    "spoiled", [*STORED.values(), {"reaches_server": True, "held_back": True}], ids=[*STORED, "answer late"]
)
def test_events_without_an_answer_have_an_unknown_outcome(proxy, spoiled, record_property):
    """Events that Kafka has stored without an answer are refused when their time is over, and are still stored only
    once."""
    with a_log(proxy, timeout=2) as log, NumberedLoad(log, record_property) as load:
        with proxy.spoiling(ProxyFault(PRODUCE, **spoiled)):
            load.is_refused()
        load.goes_on()
        assert load.figures()["refused but stored"] > 0
        assert assert_nothing_waits(log)


def test_publishing_that_is_not_allowed_is_refused_at_once(proxy, record_property):
    """While Kafka does not allow publishing, events are refused at once, and none of them is stored later."""
    with a_log(proxy, timeout=240) as log, NumberedLoad(log, record_property) as load:
        with proxy.spoiling(ProxyFault(PRODUCE, TOPIC_AUTHORIZATION_FAILED)):
            load.is_refused()
            load.is_refused()
        load.goes_on()
        assert load.figures()["refused but stored"] == 0
        assert assert_nothing_waits(log)


@pytest.mark.parametrize("spoiled", SPOILED_READS.values(), ids=SPOILED_READS)
def test_readers_go_on_after_an_error(proxy, spoiled, record_property):
    """Whether an error of Kafka ends soon or lasts until reads fail, readers neither miss an event nor read
    one twice.
    """
    with a_log(proxy, timeout=2) as log, NumberedLoad(log, record_property) as load:
        with proxy.spoiling(ProxyFault(FETCH, times=3, **spoiled)) as fault:
            until(lambda: fault.seen == fault.times)
            load.goes_on()
        with proxy.spoiling(ProxyFault(FETCH, **spoiled)):
            failed = load.failed_reads
            until(lambda: load.failed_reads > failed)
        load.goes_on()
        load.figures()


def test_readers_go_on_after_slow_answers_about_ends(proxy, record_property):
    """A reader that does not learn where the partition ends fails in time, and later continues where it was."""
    with a_log(proxy, timeout=2) as log, NumberedLoad(log, record_property) as load:
        with proxy.spoiling(ProxyFault(LIST_OFFSETS, reaches_server=True, held_back=True)):
            failed = load.failed_reads
            until(lambda: load.failed_reads > failed)
        load.goes_on()
        load.figures()


def test_slow_answers_about_topics_delay_only_those_who_ask(proxy, record_property):
    """While Kafka's answers about topics are slow, known topics need no request; unknown ones are refused in time, and
    are found once there are answers.
    """
    with a_log(proxy, timeout=2) as log, NumberedLoad(log, record_property) as load:
        log.create_topic("other", 1)
        with proxy.spoiling(ProxyFault(METADATA, reaches_server=True, held_back=True)):
            assert run_blocking(log.append("other", {0: [a_record("a")]})) == {0: AppendRefused("internal error")}
            load.goes_on()
        until(
            lambda: (
                value_or_error(lambda: run_blocking(log.append("other", {0: [a_record("a")]}))) == {0: AppendStored()}
            )
        )
        load.figures()


def test_a_topic_that_a_starting_server_does_not_know_is_used_again(proxy, record_property):
    """If a starting server does not know a topic yet, writers and readers do not treat the topic as deleted, and
    continue when the server knows it.
    """
    with a_log(proxy, timeout=2) as log, NumberedLoad(log, record_property) as load:
        # A reader at the end only asks for the partition's end, which a server that it knows would answer.
        not_leading = ProxyFault(PRODUCE, NOT_LEADER), ProxyFault(FETCH, NOT_LEADER), ProxyFault(LIST_OFFSETS)
        with proxy.spoiling(ProxyFault(METADATA, UNKNOWN_TOPIC), *not_leading):
            failed = load.failed_reads
            for _ in range(3):
                load.is_refused()
            until(lambda: load.failed_reads > failed + 3)
        load.goes_on()
        load.figures()
