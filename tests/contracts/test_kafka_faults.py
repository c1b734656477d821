"""Kafka servers fail while events are published and read: acknowledged events are stored once and in order.

The tests wait two seconds for the cluster's answers instead of ten, so that unknown outcomes are soon reported. The
summary of the run shows how many events each test published, and their outcomes.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.kafka.client import ClusterAddress
from nakadi.engines.kafka.cluster import Cluster
from nakadi.model.events import AppendRefused, AppendStored, Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import UnknownTopic
from tests.support import kafka
from tests.support.engines import a_record, append_and_wait
from tests.support.kafka_load import WRITERS, NumberedLoad, open_log, retry_until_available, value_or_error
from tests.support.patience import PATIENCE, until

pytestmark = kafka.NOT_IN_EVERY_RUN


class TestOneServer:
    def test_is_killed_and_restarted(self, tmp_path, record_property):
        """Publishers get refusals while the server is down; when it is back, they and the reader continue."""
        with kafka.a_server(tmp_path) as server, open_log([server]) as log:
            log.create_topic("t", 1)
            with NumberedLoad(log, record_property) as load:
                server.kill()
                server.start()
                load.goes_on()
                load.figures()

    def test_is_shut_down_and_restarted(self, tmp_path, record_property):
        """If a server shuts down properly and starts again, no acknowledged event is lost."""
        with kafka.a_server(tmp_path) as server, open_log([server]) as log:
            log.create_topic("t", 1)
            with NumberedLoad(log, record_property) as load:
                server.end()
                load.is_refused()
                server.start()
                load.goes_on()
                load.figures()

    @pytest.mark.parametrize("timeout", [2, 10], ids=["for six seconds", "for thirty seconds, as the default is"])
    def test_is_paused(self, tmp_path, timeout, record_property):
        """Events that a paused server has not acknowledged are refused in time. At most the requests that were already
        sent may be stored later: one of each writer, and nothing that was appended after those."""
        with kafka.a_server(tmp_path) as server, open_log([server], timeout) as log:
            log.create_topic("t", 1)
            with NumberedLoad(log, record_property) as load:
                server.pause()
                for _ in range(3):
                    load.is_refused()
                refused = list(load.refused)
                server.go_on()
                load.goes_on()
                load.figures()
                stored = [name for name in refused if name in set(load.read[0])]
                assert len(stored) <= WRITERS

    def test_that_is_paused_costs_bounded_memory(self, tmp_path):
        """While a server is paused, unsent events wait in a bounded queue; when the queue is full, further events are
        refused at once.
        """
        big = Record(b'"%s"' % (b"x" * 4_000_000))
        with (
            kafka.a_server(tmp_path) as server,
            open_log([server], timeout=30) as log,
            ThreadPoolExecutor(40) as threads,
        ):
            log.create_topic("t", 1)
            run_blocking(log.append("t", {0: [a_record("a")]}))
            server.pause()
            try:
                appends = [threads.submit(append_and_wait, log, "t", {0: [big]}) for _ in range(40)]
                # Sixteen of them fill the queue, and a few have already been sent.
                until(lambda: sum(each.done() for each in appends) >= 20)
            finally:
                server.go_on()
            fates = [each.result(PATIENCE)[0] for each in appends]
            stored = len(fates) - sum(isinstance(fate, AppendRefused) for fate in fates)
            assert 10 <= stored <= 20
            assert log.bounds("t", [0])[0].next_offset == 1 + stored

    def test_that_is_paused_keeps_no_append_for_long(self, tmp_path):
        """An append that waits behind others is refused when its time expires, and is never sent."""
        with (
            kafka.a_server(tmp_path) as server,
            open_log([server], timeout=6) as log,
            ThreadPoolExecutor(12) as threads,
        ):
            log.create_topic("t", 1)
            run_blocking(log.append("t", {0: [a_record("a")]}))
            server.pause()
            try:
                # Each append needs a separate batch. One after another, they would take longer than this test waits.
                big = Record(b'"%s"' % (b"x" * 5_000_000))
                appends = [threads.submit(append_and_wait, log, "t", {0: [big]}) for _ in range(12)]
                fates = [each.result(PATIENCE)[0] for each in appends]
            finally:
                server.go_on()
            assert fates == [AppendRefused("timed out")] * 12
            retry_until_available(lambda: log.bounds("t", [0]))
            until(lambda: not isinstance(run_blocking(log.append("t", {0: [a_record("b")]}))[0], AppendRefused))
            assert log.bounds("t", [0])[0].next_offset <= 2 + 2

    def test_has_no_room_left(self, tmp_path, record_property):
        """Without disk space, a server refuses and ends; with space, it starts again, with all acknowledged events."""
        limited = ("/bin/sh", "-c", 'ulimit -f 20480; exec "$0" "$@"')
        with kafka.a_server(tmp_path, limited) as server, open_log([server]) as log:
            log.create_topic("t", 1)
            log.create_topic("filled", 1)
            with NumberedLoad(log, record_property) as load:
                filling = Record(b'"%s"' % random.Random(1).randbytes(500_000).hex().encode())
                until(
                    lambda: (
                        server.has_ended()
                        or value_or_error(lambda: run_blocking(log.append("filled", {0: [filling]})))
                        != {0: AppendStored()}
                    )
                )
                load.is_refused()
                until(server.has_ended)
                server.start()
                load.goes_on()
                load.figures()

    @pytest.mark.parametrize("timeout", [2, 10], ids=["records time out first", "the library finds out first"])
    def test_forgets_a_topic_that_others_delete(self, tmp_path, timeout, record_property, caplog):
        """A topic that another process deletes soon becomes unknown, and other topics continue. The log reports it in
        single lines, and does not repeat them."""

        def delete_and_find_unknown(topic):
            log.create_topic(topic, 1)
            run_blocking(log.append(topic, {0: [a_record("a")]}))
            log.read(topic, 0, 1)
            cluster = Cluster(ClusterAddress.parse(f"kafka://{server.address}"))
            cluster.delete_topic(topic)
            cluster.close()
            begun, answers = time.monotonic(), []

            def append_is_unknown():
                answers.append(value_or_error(lambda: run_blocking(log.append(topic, {0: [a_record("b")]}))))
                return answers[-1] is UnknownTopic

            until(append_is_unknown)
            known = time.monotonic() - begun
            until(lambda: value_or_error(lambda: log.read(topic, 0, 1, wait=0.1)) is UnknownTopic)
            assert all(isinstance(answer[0], AppendRefused) for answer in answers[:-1])
            for _ in range(20):
                assert value_or_error(lambda: run_blocking(log.append(topic, {0: [a_record("c")]}))) is UnknownTopic
            record_property("figures", f"{topic}: refused {len(answers) - 1}, unknown after {known:.1f} s")

        with kafka.a_server(tmp_path) as server, open_log([server], timeout) as log:
            log.create_topic("t", 1)
            delete_and_find_unknown("gone-in-silence")
            with NumberedLoad(log, record_property) as load:
                delete_and_find_unknown("gone-under-load")
                load.goes_on()
                load.figures()
        lines = [each.getMessage() for each in caplog.records if "gone" in each.getMessage()]
        assert not [each for each in caplog.records if each.exc_info]
        assert len(lines) == len(set(lines))

    def test_that_does_not_answer_is_asked_once_for_a_topic(self, tmp_path, monkeypatch):
        """While appends time out, one request for their topic is in progress, however many appends there are."""
        with kafka.a_server(tmp_path) as server, open_log([server]) as log, ThreadPoolExecutor(30) as threads:
            log.create_topic("t", 1)
            run_blocking(log.append("t", {0: [a_record("a")]}))
            asking, asked, count = [], [], log._cluster._count_partitions

            def count_records(topic):
                asking.append(topic)
                asked.append(len(asking))
                try:
                    return count(topic)
                finally:
                    asking.pop()

            monkeypatch.setattr(log._cluster, "_count_partitions", count_records)
            server.pause()
            try:
                for _ in range(2):
                    appends = [threads.submit(append_and_wait, log, "t", {0: [a_record("b")]}) for _ in range(30)]
                    assert all(isinstance(each.result(PATIENCE)[0], AppendRefused) for each in appends)
            finally:
                server.go_on()
            until(
                lambda: (
                    value_or_error(lambda: run_blocking(log.append("t", {0: [a_record("c")]}))) == {0: AppendStored()}
                )
            )
            assert set(asked) == {1}


class TestThreeServers:
    def test_lead_in_turn(self, tmp_path, record_property):
        """When the server that leads a partition is killed, another one leads, with all acknowledged events; with too
        few in-sync replicas, every append is refused, and appends succeed when there are enough again."""
        with kafka.three_servers(tmp_path) as servers, open_log(servers.values(), timeout=4) as log:
            until(lambda: are_copies_possible(log))
            with NumberedLoad(log, record_property, partitions=3) as load:
                servers[2].kill()
                load.goes_on()
                servers[3].kill()
                load.is_refused()
                load.is_refused()
                assert all(
                    isinstance(run_blocking(log.append("t", {n: [a_record("x")]}))[n], AppendRefused) for n in range(3)
                )
                servers[3].start()
                load.goes_on()
                servers[2].start()
                load.goes_on()
                load.figures()


def are_copies_possible(log):
    """Whether a topic with three replicas can be created, which is possible once all servers have joined."""
    try:
        log.create_topic("t", 3)
    except Unavailable:
        return False
    return True
