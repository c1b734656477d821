"""The promises of every event log for trimming and compaction (the port `EventLog`)."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from nakadi.model.events import OffsetBounds, Record
from nakadi.ports.event_log import OffsetUnavailable
from tests.support.engines import COMPACT_LATER, EVENT_LOGS, HOUR, LogUnderTest, a_log, a_record, event_log_params
from tests.support.patience import PATIENCE, run_in_threads


class TestTrim:
    def test_releases_what_was_stored_before(self, log: LogUnderTest):
        """Trimming removes old events, and moves the oldest offset; reads before it are refused, and newer
        events stay.
        """
        topic = log.a_topic()
        began = log.now()
        for names in ("ab", "cd", "ef"):
            log.store(topic, *names)
            log.an_hour_passes()
        log.log.trim(topic, 0, began + HOUR)
        assert log.log.bounds(topic, [0])[0] == OffsetBounds(2, 6)
        assert log.events(topic) == [(2, "c"), (3, "d"), (4, "e"), (5, "f")]
        with pytest.raises(OffsetUnavailable):
            log.log.read(topic, 0, 1)

    def test_may_remove_everything(self, log: LogUnderTest):
        """A partition from which every event was trimmed continues with the next offset, and times still do not
        decrease.
        """
        topic = log.a_topic()
        log.store(topic, "a", "b")
        log.an_hour_passes()
        log.log.trim(topic, 0, log.now())
        assert log.log.bounds(topic, [0]) == {0: OffsetBounds(2, 2)}
        assert log.found(topic, 2) == ([], 2)
        assert log.log.first_offset_since(topic, 0, log.now()) == 2
        log.store(topic, "c")
        assert log.events(topic) == [(2, "c")]

    def test_trimming_nothing_changes_nothing(self, log: LogUnderTest):
        """If every event is newer than the time up to which a log is trimmed, every event stays."""
        topic = log.a_topic()
        log.store(topic, "a")
        log.log.trim(topic, 0, log.now())
        assert log.events(topic) == [(0, "a")]

    def test_while_events_arrive_loses_none_of_them(self, log: LogUnderTest):
        """Trimming during appends removes only old events, and leaves no gaps in the offsets."""
        topic = log.a_topic()
        old = 500
        for _ in range(old // 10):
            log.store(topic, *"abcdefghij")
        log.an_hour_passes()
        with ThreadPoolExecutor(1) as trimmer:
            trimming = trimmer.submit(log.log.trim, topic, 0, log.now())
            run_in_threads(lambda writer: [log.store(topic, f"{writer}/{number}") for number in range(20)], 4)
            trimming.result(PATIENCE)
        assert [offset for offset, _ in log.events(topic)] == list(range(old, old + 80))


class TestCompact:
    @pytest.fixture(params=event_log_params(*COMPACT_LATER))
    def log(self, request, tmp_path):
        with a_log(EVENT_LOGS[request.param], tmp_path) as opened:
            yield opened

    def test_keeps_the_newest_of_each_key_and_those_without(self, log: LogUnderTest):
        """A later event replaces earlier ones with the same key; events without a key stay, and the remaining events
        keep their offsets. (P97)"""
        topic = log.a_topic()
        log.store(topic, a_record("a1", "a"), a_record("b1", "b"), "x")
        log.store(topic, a_record("a2", "a"), "y", a_record("", ""))
        log.store(topic, a_record("b2", "b"), a_record("a3", "a"), a_record("c1", "c"))
        log.an_hour_passes()
        compact_all(log, topic)
        assert log.events(topic) == [(2, "x"), (4, "y"), (5, ""), (6, "b2"), (7, "a3"), (8, "c1")]

    def test_leaves_partitions_apart(self, log: LogUnderTest):
        """The same key in different partitions counts as different keys. (P97)"""
        topic = log.a_topic(partitions=2)
        for partition in range(2):
            log.store(topic, a_record(f"{partition}", "k"), "end", partition=partition)
        log.an_hour_passes()
        compact_all(log, topic, partition=0)
        compact_all(log, topic, partition=1)
        assert [log.values(topic, partition) for partition in range(2)] == [["0", "end"], ["1", "end"]]

    def test_leaves_what_is_newer(self, log: LogUnderTest):
        """Events stored at `upto` or later stay, and do not replace earlier ones yet."""
        topic = log.a_topic()
        log.store(topic, a_record("1", "k"))
        log.store(topic, a_record("2", "k"))
        log.an_hour_passes()
        upto = log.now()
        log.store(topic, a_record("3", "k"))
        log.store(topic, a_record("4", "k"))
        log.log.compact(topic, 0, stored_before=upto, tombstones_before=upto)
        assert log.values(topic) == ["2", "3", "4"]

    def test_leaves_holes_that_reads_step_over(self, log: LogUnderTest):
        """A read that starts in a gap returns the next event after it; the bounds stay the same."""
        topic = log.a_topic()
        for number in range(10):
            log.store(topic, a_record(f"{number}", "k"))
        log.store(topic, a_record("last", "other"))
        log.an_hour_passes()
        compact_all(log, topic)
        for start in range(10):
            found = log.log.read(topic, 0, start, limit=1)
            assert [event.offset for event in found.events] == [9]
            assert found.next_offset == 10
        assert log.log.bounds(topic, [0]) == {0: OffsetBounds(0, 11)}

    def test_leaves_the_newest_event_whatever_its_key_says(self, log: LogUnderTest):
        """The newest event of a partition stays, even if it is a tombstone that is no longer needed."""
        topic = log.a_topic()
        log.store(topic, a_record("1", "k"), Record(None, "k"))
        log.an_hour_passes()
        compact_all(log, topic)
        assert log.events(topic) == [(1, None)]
        log.store(topic, "end")
        log.an_hour_passes()
        compact_all(log, topic)
        assert log.events(topic) == [(2, "end")]

    def test_lets_a_tombstone_go_with_what_it_covers(self, log: LogUnderTest):
        """A tombstone removes the key's events at once, and is itself removed once it is old enough. (P144)"""
        topic = log.a_topic()
        log.store(topic, a_record("1", "k"), a_record("2", "k"))
        log.an_hour_passes()
        log.store(topic, Record(None, "k"), "end")
        deleted = log.now()
        log.an_hour_passes()
        log.log.compact(topic, 0, stored_before=log.now(), tombstones_before=deleted)
        assert log.events(topic) == [(2, None), (3, "end")]
        compact_all(log, topic)
        assert log.events(topic) == [(3, "end")]

    def test_keeps_what_came_after_a_tombstone(self, log: LogUnderTest):
        """A key that was deleted and used again keeps its newest event."""
        topic = log.a_topic()
        log.store(topic, a_record("1", "k"), Record(None, "k"), a_record("2", "k"), "end")
        log.an_hour_passes()
        compact_all(log, topic)
        assert log.values(topic) == ["2", "end"]

    def test_goes_on_where_it_ended(self, log: LogUnderTest):
        """Compacting again includes later events, and changes nothing if there are no later events."""
        topic = log.a_topic()
        for round_ in range(4):
            log.store(topic, *[a_record(f"{key}{round_}", key) for key in "abc"], f"end {round_}")
            log.an_hour_passes()
            compact_all(log, topic)
            compact_all(log, topic)
        assert log.values(topic) == ["end 0", "end 1", "end 2", "a3", "b3", "c3", "end 3"]

    def test_and_trim_work_on_the_same_partition(self, log: LogUnderTest):
        """Compacted events can be trimmed, and the search for a time skips the gaps."""
        topic = log.a_topic()
        began = log.now()
        for number in range(6):
            log.store(topic, a_record(f"a{number}", "a"), a_record(f"b{number}", "b" if number % 2 else None))
            log.an_hour_passes()
        compact_all(log, topic)
        assert log.events(topic) == [(1, "b0"), (5, "b2"), (9, "b4"), (10, "a5"), (11, "b5")]
        assert log.log.first_offset_since(topic, 0, began + HOUR) == 5
        log.log.trim(topic, 0, began + HOUR)
        assert log.log.bounds(topic, [0]) == {0: OffsetBounds(5, 12)}
        assert log.events(topic) == [(5, "b2"), (9, "b4"), (10, "a5"), (11, "b5")]

    def test_beside_appends_and_reads_loses_nothing(self, log: LogUnderTest):
        """While events are appended and compacted, a reader gets the newest event of every key, and offsets only
        increase."""
        topic = log.a_topic()
        total = 80
        with ThreadPoolExecutor(2) as others:
            storing = others.submit(
                lambda: [log.store(topic, a_record(f"{number}", f"k{number % 7}")) for number in range(total)]
            )

            def compact_again_and_again() -> None:
                while not storing.done():
                    compact_all(log, topic)

            compacting = others.submit(compact_again_and_again)
            place, latest = 0, {}
            while place < total:
                found = log.log.read(topic, 0, place, wait=PATIENCE)
                assert all(event.offset >= place for event in found.events)
                latest |= {event.record.key: event.offset for event in found.events}
                place = found.next_offset
            storing.result(PATIENCE)
            compacting.result(PATIENCE)
        assert latest == {f"k{number % 7}": number for number in range(total - 7, total)}


def compact_all(log: LogUnderTest, topic: str, partition: int = 0) -> None:
    log.log.compact(topic, partition, stored_before=log.now(), tombstones_before=log.now())
