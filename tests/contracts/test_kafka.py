"""Properties of an event log in Kafka that go beyond the contract: for processes that share a cluster, and for its
topics."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from nakadi.app.engines import LogDependencies, open_event_log, open_log_index
from nakadi.common.waiting import run_blocking
from nakadi.engines.archive.policy import ArchivePolicy
from nakadi.engines.archive.segments import archived_segments_from
from nakadi.engines.archive.stores import open_archive
from nakadi.engines.kafka import reading
from nakadi.engines.kafka.client import ClusterAddress
from nakadi.engines.kafka.cluster import Cluster
from nakadi.model.authorization import Attribute
from nakadi.model.events import AppendRefused, EventSlice, OffsetBounds, Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import SystemClock
from nakadi.ports.event_log import OffsetUnavailable, SealedTopic, UnknownTopic
from tests.support import kafka
from tests.support.clock import HandMovedClock
from tests.support.engines import a_record, record_text
from tests.support.patience import PATIENCE, until

pytestmark = kafka.NOT_IN_EVERY_RUN


@pytest.fixture
def url():
    return kafka.url()


@pytest.fixture
def log(url):
    opened = open_event_log(url, SystemClock())
    opened.create_topic("t", 2)
    yield opened
    opened.close()


@pytest.fixture
def other_process_log(url, log):  # noqa: ARG001  # it makes the topic
    """The log of another process: the two share only the cluster."""
    opened = open_event_log(url, SystemClock())
    yield opened
    opened.close()


class TestArchive:
    def test_has_what_kafka_has_removed(self, url, tmp_path):
        """Two processes share a cluster, an index and an archive: one reads events that the other has archived and
        Kafka has removed, and one cursor leads through both halves."""
        first, second = (self._open_log(url, tmp_path) for _ in range(2))
        with closing(first), closing(second):
            first.create_topic("t", 1)
            names = [f"{number}" for number in range(500)]
            run_blocking(first.append("t", {0: [a_record(name) for name in names[:400]]}))
            first.archive_topic("t", [0])
            run_blocking(second.append("t", {0: [a_record(name) for name in names[400:]]}))

            assert first._hot.bounds("t", [0]) == {0: OffsetBounds(0, 500)}
            first._hot.trim("t", 0, first._hot.read("t", 0, 300).events[0].stored_at + timedelta(milliseconds=1))
            removed = second._hot.bounds("t", [0])[0].oldest
            assert removed == 400

            assert second.bounds("t", [0]) == {0: OffsetBounds(0, 500)}
            assert values(second, "t") == names

    def test_has_everything_once_when_several_processes_write_it(self, url, tmp_path):
        """Two workers that have opened the same storage archive it while events arrive, and remove archived events from
        Kafka: the archive has neither a gap nor a duplicate, and each worker reads every event once and in order."""
        first, second = (self._open_log(url, tmp_path, hot_retention=0.0) for _ in range(2))
        appended = threading.Event()

        def archive_again_and_again(log):
            while not appended.is_set():
                log.archive_topic("t", [0])

        with closing(first), closing(second), ThreadPoolExecutor(2) as workers:
            first.create_topic("t", 1)
            archiving = [workers.submit(archive_again_and_again, each) for each in (first, second)]
            try:
                for number in range(60):
                    run_blocking(
                        (first, second)[number % 2].append("t", {0: [a_record(f"{number}/{n}") for n in range(10)]})
                    )
            finally:
                appended.set()
            for each in archiving:
                each.result(PATIENCE)
            first.archive_topic("t", [0])

            names = [f"{number}/{n}" for number in range(60) for n in range(10)]
            assert values(first, "t") == values(second, "t") == names
            segments = list(archived_segments_from(first._index, "t", 0))
            assert segments[0].first_offset == 0
            assert [each.first_offset for each in segments[1:]] == [each.end_offset for each in segments[:-1]]
            assert first._hot.bounds("t", [0])[0].oldest > 0

    def _open_log(self, url, folder, **policy):
        dependencies = LogDependencies(
            open_index=lambda: open_log_index(f"sqlite:///{folder}/index.db"),
            open_archive=lambda: open_archive(f"{folder}/archive"),
            make_archive_policy=lambda: ArchivePolicy(another_process_archives=True, **policy),
        )
        return open_event_log(url, SystemClock(), dependencies)


class TestTwoProcesses:
    def test_keep_together_what_each_appended_together(self, log, other_process_log):
        """The records of one append are stored consecutively, however much two processes append to the same
        partition."""

        def publish(writer: int) -> None:
            mine = (log, other_process_log)[writer % 2]
            for number in range(25):
                names = [f"{writer}/{number}/{index}" for index in range(40)]
                run_blocking(mine.append("t", {0: [a_record(name) for name in names]}))

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(publish, range(6)))
        found = values(log, "t")
        assert len(found) == 6 * 25 * 40
        groups = [found[start : start + 40] for start in range(0, len(found), 40)]
        assert all([name.rsplit("/", 1)[1] for name in group] == [str(n) for n in range(40)] for group in groups)
        assert all(len({name.rsplit("/", 1)[0] for name in group}) == 1 for group in groups)

    def test_show_each_other_at_once_what_they_stored(self, log, other_process_log):
        """A read sees the events that another process stored before the read began, up to the end of a partition."""
        for number in range(20):
            run_blocking(other_process_log.append("t", {0: [a_record(f"{number}")]}))
            assert log.bounds("t", [0])[0].next_offset == number + 1
            assert record_text(log.read("t", 0, number).events[0].record) == f"{number}"
            assert log.read("t", 0, number + 1) == EventSlice((), number + 1)

    def test_tell_each_other_of_appends(self, log, other_process_log):
        """A watcher is soon notified of another process's appends to a partition that was read to its end."""
        log.read("t", 1, 0)
        told = threading.Event()
        end = log.add_change_listener(lambda *place: told.set() if place == ("t", 1) else None)
        for number in range(5):
            told.clear()
            run_blocking(other_process_log.append("t", {1: [a_record(f"{number}")]}))
            assert told.wait(PATIENCE)
            assert len(log.read("t", 1, number).events) == 1
        end()

    def test_miss_nothing_of_each_other_when_following_fails(self, log, other_process_log, monkeypatch):
        """If the events that follow do not fit into a process's memory, its readers fetch them from the cluster."""
        failures = iter([True, False, True])
        original = reading.event_from_message

        def event_from_message(message):
            if threading.current_thread().name == "kafka-tail" and next(failures, False):
                raise ZeroDivisionError
            return original(message)

        log.read("t", 0, 0)
        monkeypatch.setattr(reading, "event_from_message", event_from_message)
        for number in range(20):
            run_blocking(other_process_log.append("t", {0: [a_record(f"{number}")]}))
            assert log.read("t", 0, number, wait=PATIENCE).events[0].offset == number
        assert values(log, "t") == [f"{number}" for number in range(20)]

    def test_wake_each_others_readers(self, log, other_process_log):
        """A read that waits returns when another process appends."""
        with ThreadPoolExecutor(1) as reader:
            for number in range(5):
                reading = reader.submit(log.read, "t", 0, number, wait=10 * PATIENCE)
                run_blocking(other_process_log.append("t", {0: [a_record(f"{number}")]}))
                assert len(reading.result(PATIENCE).events) == 1

    def test_take_nothing_once_one_of_them_has_sealed(self, log, other_process_log):
        """Once a process has sealed the topic and read its end, other processes store nothing after that end."""

        def append_until_sealed(writer: int) -> int:
            stored = 0
            while True:
                try:
                    fates = run_blocking(other_process_log.append("t", {writer % 2: [a_record("a")]}))
                except SealedTopic:
                    return stored
                stored += not isinstance(fates[writer % 2], AppendRefused)

        with ThreadPoolExecutor(4) as threads:
            publishing = [threads.submit(append_until_sealed, writer) for writer in range(4)]
            until(lambda: log.bounds("t", [0])[0].next_offset > 20)
            log.seal_topic("t")
            end = log.bounds("t", [0, 1])
            acknowledged = sum(each.result(PATIENCE) for each in publishing)
        assert log.bounds("t", [0, 1]) == end
        assert acknowledged == len(values(log, "t", 0)) + len(values(log, "t", 1))

    def test_learn_that_a_topic_was_deleted(self, log, other_process_log):
        """A topic that another process has deleted is unknown, even to a process that has used it."""
        run_blocking(other_process_log.append("t", {0: [a_record("a")]}))
        assert len(log.read("t", 0, 0).events) == 1
        other_process_log.delete_topic("t")
        for attempt in (
            lambda: run_blocking(log.append("t", {0: [a_record("a")]})),
            lambda: log.bounds("t", [0]),
            lambda: log.first_offset_since("t", 0, SystemClock().now()),
            lambda: log.read("t", 0, 1),
        ):
            with pytest.raises(UnknownTopic):
                attempt()

    def test_keep_what_comes_while_they_trim(self, url, log, monkeypatch):
        """An event that another process appends during the search for the end of the old events is not removed."""
        run_blocking(log.append("t", {0: [a_record("old")]}))
        before = SystemClock().now() + timedelta(hours=1)
        ends = log._cluster.read_partition_bounds
        with closing(open_event_log(url, HandMovedClock(before + timedelta(hours=1)))) as another:

            def end_after_another_append(*wanted):
                run_blocking(another.append("t", {0: [a_record("late")]}))
                return ends(*wanted)

            monkeypatch.setattr(log._cluster, "read_partition_bounds", end_after_another_append)

            assert log.first_offset_since("t", 0, before) == 1

    def test_learn_of_events_that_are_removed_while_they_read(self, log, other_process_log, monkeypatch):
        """A read whose events another process removes at that moment reports it: an archive may have them."""
        run_blocking(other_process_log.append("t", {0: [a_record("a")]}))
        ask = log._cluster.read_partition_bounds

        def removed_afterwards(*place):
            found = ask(*place)
            other_process_log.trim("t", 0, SystemClock().now() + timedelta(hours=1))
            return found

        monkeypatch.setattr(log._cluster, "read_partition_bounds", removed_afterwards)
        with pytest.raises(OffsetUnavailable):
            log.read("t", 0, 0)

    def test_learn_of_new_partitions(self, log, other_process_log):
        """Partitions that another process has added can be written and read."""
        assert other_process_log.bounds("t", [0]) == {0: OffsetBounds(0, 0)}
        log.add_partitions("t", 4)
        run_blocking(other_process_log.append("t", {3: [a_record("a")]}))
        assert values(log, "t", 3) == ["a"]


class TestAppend:
    def test_that_is_larger_than_a_batch_keeps_its_order(self, log):
        """An append that is larger than the largest batch is stored in parts, all in order."""
        records = [Record(b'"%07d%s"' % (number, b"x" * 50_000)) for number in range(400)]
        run_blocking(log.append("t", {0: records}))
        found = []
        while len(found) < 400:
            found += [event.record for event in log.read("t", 0, len(found), limit=100, max_bytes=10_000_000).events]
        assert found == records

    def test_an_event_larger_than_kafka_accepts_is_refused(self, log, caplog):
        """A single event that is too large for any batch is refused, and the topic does not count as sealed. The log
        says that the records were refused, because this outcome is known.
        """
        assert run_blocking(log.append("t", {0: [Record(b'"%s"' % (b"x" * 9_000_000))]})) == {
            0: AppendRefused("internal error")
        }
        [line] = [each.getMessage() for each in caplog.records if "Append to the Kafka topic t" in each.getMessage()]
        assert "failed, the records were refused: " in line
        run_blocking(log.append("t", {0: [a_record("a")]}))
        assert values(log, "t") == ["a"]


class TestTopics:
    def test_are_read_as_the_original_nakadi_has_written_them(self, url, log):
        """Records with the original's headers are events with key, owner and subscription."""
        producer = Producer({"bootstrap.servers": kafka.servers()})
        name = url.partition("prefix=")[2] + "t"
        headers = [("X-AuthParam-Name", b"team"), ("X-AuthParam-Value", b"shop"), ("CONSUMER_SUBSCRIPTION_ID", b"s1")]
        producer.produce(name, b'{"a":1}', b"k1", 0, headers=headers)
        producer.produce(name, b'{"a":2}', b"k2", 0, headers=[("DEBUG_PUBLISHER_TOPIC_ID", b"t")])
        producer.produce(name, None, b"k1", 0)
        producer.flush(PATIENCE)
        assert [event.record for event in log.read("t", 0, 0).events] == [
            Record(b'{"a":1}', "k1", Attribute("team", "shop"), "s1"),
            Record(b'{"a":2}', "k2"),
            Record(None, "k1"),
        ]

    def test_topics_with_transactions_are_read_to_their_end(self, url, log):
        """Readers skip the markers that a transaction leaves between the events and at the end, and the events of
        aborted transactions."""
        name = url.partition("prefix=")[2] + "t"
        producer = Producer({"bootstrap.servers": kafka.servers(), "transactional.id": name})
        producer.init_transactions(PATIENCE)
        for value, end in ((b'"a"', producer.commit_transaction), (b'"b"', producer.abort_transaction)):
            producer.begin_transaction()
            producer.produce(name, value, partition=0)
            producer.flush(PATIENCE)
            end(PATIENCE)
        assert values(log, "t") == ["a"]
        run_blocking(log.append("t", {0: [a_record("c")]}))
        assert values(log, "t") == ["a", "c"]

    def test_are_compacted_by_kafka(self, url, log):
        """Kafka removes replaced events in its own time; the newest ones and all offsets stay."""
        now = SystemClock().now()
        run_blocking(log.append("t", {0: [a_record("0", "k0")]}))
        log.compact("t", 0, stored_before=now + timedelta(minutes=1), tombstones_before=now - timedelta(days=1))
        with open_cluster(url) as cluster:
            cluster.configure_topic("t", {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"})
        stored = 1

        def append_and_see_holes() -> bool:
            nonlocal stored
            run_blocking(
                log.append("t", {0: [a_record(f"{number}", f"k{number % 3}") for number in range(stored, stored + 10)]})
            )
            stored += 10
            return len(values(log, "t")) < stored / 2

        until(append_and_see_holes)
        assert log.bounds("t", [0]) == {0: OffsetBounds(0, stored)}
        found = values(log, "t")
        assert found[-3:] == [f"{number}" for number in range(stored - 3, stored)]
        assert found == sorted(found, key=int)

    def test_stay_where_the_cluster_takes_no_settings_of_compaction(self, log, caplog):
        """If a cluster does not permit the setting for compaction, the engine tries once to set it, and logs that
        nothing is compacted.
        """
        run_blocking(log.append("t", {0: [a_record("a", "k"), a_record("b", "k")]}))
        now = SystemClock().now()
        refused = KafkaException(KafkaError(KafkaError.INVALID_CONFIG))
        asked = []

        def refuse(topic, _wanted):
            asked.append(topic)
            raise Unavailable("on purpose") from refused

        log._cluster.configure_topic = refuse
        for _ in range(2):
            log.compact("t", 0, stored_before=now, tombstones_before=now)
        assert asked == ["t"]
        assert "refuses to compact the topic t" in caplog.text
        assert values(log, "t") == ["a", "b"]

    def test_have_a_latest_time_in_clusters_that_do_not_know_it(self, log):
        """In a cluster older than Kafka 3.0, the latest time of a partition is found by a search."""
        assert log._cluster._search_latest_record_time_ms("t", 0) == 0
        run_blocking(log.append("t", {0: [a_record("a"), a_record("b")]}))

        assert (
            log._cluster._search_latest_record_time_ms("t", 0) == log._cluster.fetch_latest_record_time_ms("t", 0) > 0
        )

    def test_topics_with_events_without_a_key_are_not_compacted(self, url, log):
        """Kafka would remove events without a key, so compaction does not begin as long as the oldest events have
        none."""
        now = SystemClock().now()
        run_blocking(log.append("t", {0: [a_record("a"), a_record("b", "k")]}))
        log.compact("t", 0, stored_before=now, tombstones_before=now)
        assert topic_setting(url, "cleanup.policy") == "delete"
        log.trim("t", 0, now + timedelta(hours=1))
        run_blocking(log.append("t", {0: [a_record("c", "k")]}))
        log.compact("t", 0, stored_before=now, tombstones_before=now)
        assert topic_setting(url, "cleanup.policy") == "compact"


class TestFaults:
    def test_a_cluster_that_is_down_is_reported_in_bounded_time(self, tmp_path):
        """While no server answers, appends are refused and reads are unavailable, and no call waits for ever."""
        with kafka.a_server(tmp_path) as server:
            log = open_event_log(f"kafka://{server.address}", SystemClock())
            log.create_topic("t", 1)
            run_blocking(log.append("t", {0: [a_record("a")]}))
            server.kill()
            begun = time.monotonic()
            assert isinstance(run_blocking(log.append("t", {0: [a_record("b")]}))[0], AppendRefused)
            with pytest.raises(Unavailable):
                log.bounds("t", [0])
            assert time.monotonic() - begun < PATIENCE
            server.start()
            until(lambda: not isinstance(run_blocking(log.append("t", {0: [a_record("c")]}))[0], AppendRefused))
            assert "b" not in values(log, "t")
            log.close()


def values(log, topic: str, partition: int = 0) -> list[str]:
    found: list[str] = []
    bounds = log.bounds(topic, [partition])[partition]
    place = bounds.oldest
    while place < bounds.next_offset:
        piece = log.read(topic, partition, place)
        found += [record_text(event.record) for event in piece.events]
        assert piece.next_offset > place
        place = piece.next_offset
    return found


def topic_setting(url: str, name: str) -> str:
    """A setting of the topic `t`, as Kafka reports it."""
    with open_cluster(url) as cluster:
        return cluster.read_topic_configuration("t")[name]


@contextmanager
def open_cluster(url: str):
    cluster = Cluster(ClusterAddress.parse(url))
    try:
        yield cluster
    finally:
        cluster.close()
