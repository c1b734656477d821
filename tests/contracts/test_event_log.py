"""The promises of every event log: the sentences of `nakadi.ports.event_log.EventLog`, one by one."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.model.authorization import Attribute
from nakadi.model.events import AppendStored, OffsetBounds, Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import EventLog, OffsetUnavailable, SealedTopic, UnknownTopic
from tests.support.closed import assert_everything_is_refused
from tests.support.engines import HOUR, LogUnderTest, a_record, append_async, read_everything
from tests.support.patience import PATIENCE, run_in_threads, until


class TestAppend:
    def test_stores_what_it_is_given(self, log: LogUnderTest):
        """Events are read byte for byte as they were appended, with key, owner and addressee; a tombstone has a key and
        no value. (P137)"""
        records = [
            Record(b'{"name":"\xc3\xa9\\u0000"}', "k1", Attribute("team", "shop"), "subscription"),
            Record(b"1"),
            Record(None, "k2"),
            Record(b"[]", ""),
            Record(b'"  "', None, Attribute("user", "ann")),
            Record(None),
        ]
        topic = log.a_topic()
        run_blocking(log.log.append(topic, {0: records}))
        assert [event.record for event in read_everything(log.log, topic, 0, 0)] == records

    @pytest.mark.parametrize("size", [1, 100, 5_000, 70_000, 1_000_000])
    def test_stores_values_of_any_size(self, log: LogUnderTest, size):
        """Small and large events are read byte for byte as they were appended."""
        topic = log.a_topic()
        values = [b'"%s"' % (bytes([97 + number]) * size) for number in range(3)]
        run_blocking(log.log.append(topic, {0: [Record(value) for value in values]}))
        assert [event.record.value for event in read_everything(log.log, topic, 0, 0)] == values

    def test_numbers_events_from_zero_in_their_order(self, log: LogUnderTest):
        """In a partition, events are numbered 0, 1, 2, … in the order of the log."""
        topic = log.a_topic()
        log.store(topic, "a", "b")
        log.store(topic, "c")
        assert log.events(topic) == [(0, "a"), (1, "b"), (2, "c")]

    def test_reports_the_fate_of_each_partition(self, log: LogUnderTest):
        """Every partition of an append has its own outcome, and its own offsets."""
        topic = log.a_topic(partitions=3)
        fates = run_blocking(log.log.append(topic, {2: [a_record("x")], 0: [a_record("y"), a_record("z")]}))
        assert fates == {2: AppendStored(), 0: AppendStored()}
        assert [log.values(topic, partition) for partition in range(3)] == [["y", "z"], [], ["x"]]

    def test_an_empty_append_stores_nothing(self, log: LogUnderTest):
        """An append without records changes nothing."""
        topic = log.a_topic()
        assert run_blocking(log.log.append(topic, {})) == {}
        assert run_blocking(log.log.append(topic, {0: []})) == {0: AppendStored()}
        assert log.log.bounds(topic, [0]) == {0: OffsetBounds(0, 0)}

    def test_to_an_unknown_place_stores_nothing(self, log: LogUnderTest):
        """An append to a topic that was never created, or to a partition that the topic does not have, raises
        `UnknownTopic`.
        """
        with pytest.raises(UnknownTopic):
            run_blocking(log.log.append("nowhere", {0: [a_record("a")]}))
        topic = log.a_topic(partitions=2)
        with pytest.raises(UnknownTopic):
            run_blocking(log.log.append(topic, {0: [a_record("a")], 2: [a_record("b")]}))
        assert log.values(topic) == []

    def test_keeps_together_what_was_appended_together(self, log: LogUnderTest):
        """The records of one append are stored consecutively in their order, however many appends run at once."""
        topic = log.a_topic(partitions=2)

        def publish(writer: int) -> None:
            for number in range(20):
                names = [f"{writer}/{number}/{index}" for index in range(3)]
                run_blocking(
                    log.log.append(topic, {partition: [a_record(name) for name in names] for partition in range(2)})
                )

        run_in_threads(publish, 8)
        for partition in range(2):
            found = log.values(topic, partition)
            assert len(found) == 8 * 20 * 3
            groups = [found[start : start + 3] for start in range(0, len(found), 3)]
            assert all([name.rsplit("/", 1)[1] for name in group] == ["0", "1", "2"] for group in groups)
            assert all(len({name.rsplit("/", 1)[0] for name in group}) == 1 for group in groups)

    def test_keeps_the_order_of_each_appender(self, log: LogUnderTest):
        """An append that begins after another append of the same thread has returned has greater offsets."""
        topic = log.a_topic()
        run_in_threads(lambda writer: [log.store(topic, f"{writer}/{number}") for number in range(50)], 8)
        for writer in range(8):
            mine = [int(name.split("/")[1]) for name in log.values(topic) if name.startswith(f"{writer}/")]
            assert mine == list(range(50))

    def test_leaves_no_gap_and_gives_no_number_twice(self, log: LogUnderTest):
        """Offsets have no gaps, even when many processes append at once."""
        topic = log.a_topic()
        run_in_threads(lambda writer: [log.store(topic, *"abc"[: 1 + writer % 3]) for _ in range(50)], 8)
        offsets = [offset for offset, _ in log.events(topic)]
        assert offsets == list(range(log.log.bounds(topic, [0])[0].next_offset))

    def test_is_seen_by_every_read_that_begins_later(self, log: LogUnderTest):
        """A read sees every event that any process stored before the read began."""
        topic = log.a_topic(partitions=4)

        def store_and_look(writer: int) -> None:
            for number in range(25):
                log.store(topic, f"{writer}/{number}", partition=writer)
                assert log.log.bounds(topic, [writer])[writer].next_offset == number + 1
                assert len(log.log.read(topic, writer, number).events) == 1

        run_in_threads(store_and_look, 4)

    def test_stamps_events_with_a_time_that_never_decreases(self, log: LogUnderTest):
        """Within a partition, no event is stored earlier than the one before it, even if the clock is set back."""
        topic = log.a_topic()
        log.store(topic, "a")
        log.an_hour_passes()
        log.store(topic, "b")
        log.an_hour_is_lost()
        log.store(topic, "c")
        moments = [event.stored_at for event in read_everything(log.log, topic, 0, 0)]
        assert moments == sorted(moments)
        assert moments[1] == moments[0] + HOUR
        assert moments[0].utcoffset() == timedelta(0)


class TestRead:
    def test_answers_from_the_start_on(self, log: LogUnderTest):
        """A read starts at the offset that it is given, wherever an append began or ended."""
        topic = log.a_topic()
        log.store(topic, "a", "b", "c")
        log.store(topic, "d", "e")
        for start in range(5):
            found = log.log.read(topic, 0, start)
            assert [event.offset for event in found.events] == list(range(start, found.next_offset))
            assert [event.offset for event in read_everything(log.log, topic, 0, start)] == list(range(start, 5))

    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 100])
    def test_answers_no_more_than_the_limit(self, log: LogUnderTest, limit):
        """A slice has at most `limit` events, and reading on from its end misses none."""
        topic = log.a_topic()
        for names in ("ab", "c", "defgh", "i", "jk"):
            log.store(topic, *names)
        assert len(log.log.read(topic, 0, 0, limit=limit).events) <= limit
        assert [text for _, text in log.events(topic, limit=limit)] == list("abcdefghijk")

    def test_answers_about_as_many_bytes_as_asked(self, log: LogUnderTest):
        """A slice ends near `max_bytes`, and the next slice has the rest."""
        topic = log.a_topic()
        for number in range(40):
            log.store(topic, str(number % 10) * 10_000)
        # A log of two halves may return less where one half ends.
        until(lambda: len(log.log.read(topic, 0, 0, max_bytes=100_000).events) >= 9)
        assert len(log.log.read(topic, 0, 0, max_bytes=100_000).events) <= 20
        assert len(log.events(topic, max_bytes=100_000)) == 40

    def test_answers_at_least_one_event_if_there_is_one(self, log: LogUnderTest):
        """An event that is larger than `max_bytes` is still read."""
        topic = log.a_topic()
        log.store(topic, "x" * 10_000, "y" * 10_000)
        assert len(log.log.read(topic, 0, 1, max_bytes=1).events) == 1
        assert len(log.events(topic, max_bytes=1)) == 2

    def test_shows_every_reader_the_same(self, log: LogUnderTest):
        """An event's offset never changes: all readers find the same events, even while more are stored."""
        topic = log.a_topic()
        seen: list[list[tuple[int, str | None]]] = []

        def read_along(_: int) -> None:
            mine: list[tuple[int, str | None]] = []
            while len(mine) < 150:
                found = log.log.read(topic, 0, len(mine), limit=7, wait=PATIENCE)
                mine += [(event.offset, event.record.value) for event in found.events]
            seen.append(mine)

        with ThreadPoolExecutor(4) as readers:
            ended = [readers.submit(read_along, number) for number in range(4)]
            run_in_threads(lambda writer: [log.store(topic, f"{writer}/{number}") for number in range(50)], 3)
            for end in ended:
                end.result(PATIENCE)
        assert all(each == seen[0] for each in seen)

    def test_a_read_at_the_end_is_empty(self, log: LogUnderTest):
        """At the end of a partition, a read that does not wait returns an empty slice, after which reading can
        continue."""
        topic = log.a_topic()
        assert log.found(topic, 0) == ([], 0)
        log.store(topic, "a")
        assert log.found(topic, 1) == ([], 1)

    def test_says_that_nothing_follows_only_at_the_end(self, log: LogUnderTest):
        """A read that does not reach the end of the partition never claims to have reached it; one that reaches the end
        may say so."""
        topic = log.a_topic()
        log.store(topic, "a", "b")
        log.store(topic, "c")
        found = [log.log.read(topic, 0, 0, limit=limit) for limit in (1, 2, 3)]
        found += [log.log.read(topic, 0, start, max_bytes=1) for start in (0, 1, 2, 3)]
        assert not any(each.at_end for each in found if each.next_offset < 3)

    def test_reading_an_unknown_place_is_refused(self, log: LogUnderTest):
        """A read of a topic that was never created, or of a partition that the topic does not have, raises
        `UnknownTopic`.
        """
        topic = log.a_topic()
        for place in (("nowhere", 0), (topic, 1), (topic, -1)):
            with pytest.raises(UnknownTopic):
                log.log.read(*place, 0)

    @pytest.mark.parametrize("start", [-1, 3, 1000])
    def test_reading_outside_of_the_log_is_refused(self, log: LogUnderTest, start):
        """A read before the oldest event, or beyond the next offset, is refused."""
        topic = log.a_topic()
        log.store(topic, "a", "b")
        with pytest.raises(OffsetUnavailable):
            log.log.read(topic, 0, start)

    def test_waits_for_the_first_event(self, log: LogUnderTest):
        """A read that waits returns as soon as an event is stored, long before its time ends."""
        topic = log.a_topic()
        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(log.log.read, topic, 0, 0, wait=10 * PATIENCE)
            log.store(topic, "a")
            assert [event.offset for event in reading.result(PATIENCE).events] == [0]

    def test_waits_no_longer_than_asked(self, log: LogUnderTest):
        """A read that finds nothing returns an empty slice when its time ends."""
        topic = log.a_topic(partitions=2)
        begun = time.monotonic()
        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(log.log.read, topic, 0, 0, wait=0.3)
            log.store(topic, "another partition's", partition=1)
            found = reading.result(PATIENCE)
            assert (list(found.events), found.next_offset) == ([], 0)
        assert time.monotonic() - begun >= 0.3


class TestBounds:
    def test_say_where_partitions_begin_and_end(self, log: LogUnderTest):
        """The bounds are the offset of the oldest event and the offset that the next event will get."""
        topic = log.a_topic(partitions=3)
        log.store(topic, "a", "b", partition=1)
        assert log.log.bounds(topic, [1, 2]) == {1: OffsetBounds(0, 2), 2: OffsetBounds(0, 0)}
        assert log.log.bounds(topic, [1])[1].newest == 1
        assert log.log.bounds(topic, []) == {}

    def test_bounds_of_an_unknown_place_are_refused(self, log: LogUnderTest):
        """The bounds of a topic that was never created, or of a partition that the topic does not have, raise
        `UnknownTopic`.
        """
        topic = log.a_topic()
        for place in (("nowhere", [0]), ("nowhere", []), (topic, [0, 1])):
            with pytest.raises(UnknownTopic):
                log.log.bounds(*place)


class TestFirstOffsetSince:
    def test_finds_the_first_event_stored_at_or_after_a_moment(self, log: LogUnderTest):
        """For a point in time, the result is the first event that was stored then or later, or the next offset."""
        topic = log.a_topic()
        began = log.now()
        for names in ("ab", "c", "def"):
            log.store(topic, *names)
            log.an_hour_passes()
        moments = [began - HOUR, began, began + HOUR / 2, began + HOUR, began + 1.5 * HOUR, began + 2 * HOUR]
        assert [log.log.first_offset_since(topic, 0, moment) for moment in moments] == [0, 0, 2, 2, 3, 3]
        assert log.log.first_offset_since(topic, 0, began + 2 * HOUR + timedelta(microseconds=1)) == 6
        assert log.log.first_offset_since(topic, 0, began + 9 * HOUR) == 6

    def test_agrees_with_reading_in_a_long_partition(self, log: LogUnderTest):
        """In a partition with many appends, the search for any time finds the event that reading finds."""
        topic = log.a_topic()
        began = log.now()
        for number in range(100):
            log.store(topic, *("x" * (1 + number % 3)))
            log.an_hour_passes()
        events = []
        while (piece := log.log.read(topic, 0, len(events))).events:
            events += piece.events
        for hours in range(101):
            moment = began + hours * HOUR
            expected = next((event.offset for event in events if event.stored_at >= moment), len(events))
            assert log.log.first_offset_since(topic, 0, moment) == expected

    def test_in_an_empty_partition_it_is_the_next_offset(self, log: LogUnderTest):
        """Without events, the search for any time returns the next offset."""
        assert log.log.first_offset_since(log.a_topic(), 0, log.now()) == 0

    def test_searching_an_unknown_place_is_refused(self, log: LogUnderTest):
        """A search in a topic that was never created, or in a partition that the topic does not have, raises
        `UnknownTopic`.
        """
        for place in (("nowhere", 0), (log.a_topic(), 1)):
            with pytest.raises(UnknownTopic):
                log.log.first_offset_since(*place, log.now())


class TestTopics:
    def test_created_twice_stay_as_they_are(self, log: LogUnderTest):
        """Creating a topic again changes nothing, not even with another number of partitions."""
        topic = log.a_topic(partitions=2)
        log.store(topic, "a")
        log.log.create_topic(topic, 3)
        assert log.values(topic) == ["a"]
        with pytest.raises(UnknownTopic):
            log.log.bounds(topic, [2])

    def test_created_at_once_by_many_are_made_once(self, log: LogUnderTest):
        """If many processes create a topic and append to it at once, none loses an event."""

        def create_and_store(_: int) -> None:
            log.log.create_topic("shared", 1)
            log.store("shared", "a")

        run_in_threads(create_and_store, 8)
        assert log.values("shared") == ["a"] * 8

    def test_grow_by_empty_partitions(self, log: LogUnderTest):
        """New partitions start empty at offset 0; existing partitions keep their events."""
        topic = log.a_topic()
        log.store(topic, "a")
        log.log.add_partitions(topic, 3)
        log.store(topic, "b", partition=2)
        assert [log.values(topic, partition) for partition in range(3)] == [["a"], [], ["b"]]

    @pytest.mark.parametrize("partitions", [0, 1, 2])
    def test_a_topic_keeps_its_partitions_if_fewer_are_requested(self, log: LogUnderTest, partitions):
        """A request for as many partitions as there are, or fewer, changes nothing."""
        topic = log.a_topic(partitions=2)
        log.log.add_partitions(topic, partitions)
        assert log.log.bounds(topic, [0, 1]) == {0: OffsetBounds(0, 0), 1: OffsetBounds(0, 0)}

    def test_that_are_sealed_take_no_more(self, log: LogUnderTest):
        """A sealed topic refuses appends, and can be read as before; sealing it again changes nothing."""
        topic = log.a_topic()
        log.store(topic, "a")
        log.log.seal_topic(topic)
        log.log.seal_topic(topic)
        with pytest.raises(SealedTopic):
            log.store(topic, "b")
        assert log.values(topic) == ["a"]

    def test_take_nothing_once_sealing_returned(self, log: LogUnderTest):
        """While many processes append, no acknowledged event is after the end that is visible once the topic is
        sealed."""
        topic = log.a_topic()
        with publishing_until(SealedTopic, log, topic) as acknowledged:
            log.log.seal_topic(topic)
            end = log.log.bounds(topic, [0])
        assert log.log.bounds(topic, [0]) == end
        assert sorted(log.values(topic)) == sorted(acknowledged)

    def test_that_are_deleted_are_forgotten(self, log: LogUnderTest):
        """A deleted topic is unknown to every operation, deleting it again changes nothing, and other topics stay."""
        topic, other = log.a_topic(), log.a_topic()
        log.store(topic, "a")
        log.store(other, "b")
        log.log.delete_topic(topic)
        log.log.delete_topic(topic)
        log.log.delete_topic("never created")
        for attempt in calls_needing_a_topic(log, topic).values():
            with pytest.raises(UnknownTopic):
                attempt()
        assert log.values(other) == ["b"]


class TestWatch:
    def test_reports_what_was_stored_where(self, log: LogUnderTest):
        """A watcher is called with the topic and the partition soon after events were stored."""
        topic = log.a_topic(partitions=2)
        told: list[tuple[str, int]] = []
        end = log.log.add_change_listener(lambda *place: told.append(place))
        log.store(topic, "a", partition=1)
        until(lambda: (topic, 1) in told)
        run_blocking(log.log.append(topic, {0: [a_record("b")]}))
        until(lambda: (topic, 0) in told)
        end()

    def test_ends_when_ordered(self, log: LogUnderTest):
        """A watcher that has ended is no longer called, while others are."""
        topic = log.a_topic()
        mine: list[object] = []
        others: list[object] = []
        end = log.log.add_change_listener(lambda *place: mine.append(place))
        end_others = log.log.add_change_listener(lambda *place: others.append(place))
        end()
        log.store(topic, "a")
        until(lambda: others)
        assert mine == []
        end_others()

    def test_misses_nothing_between_a_read_and_the_next(self, log: LogUnderTest):
        """A reader that reads again whenever it is notified gets everything, without ever polling in between."""
        topic = log.a_topic()
        told = threading.Event()
        end = log.log.add_change_listener(lambda *_: told.set())
        with ThreadPoolExecutor(1) as writer:
            storing = writer.submit(lambda: [log.store(topic, f"{number}") for number in range(150)])
            place = 0
            while place < 150:
                assert told.wait(PATIENCE)
                told.clear()
                place = log.log.read(topic, 0, place).next_offset
            storing.result(PATIENCE)
        end()

    def test_does_not_hurt_any_client_that_appends(self, log: LogUnderTest, caplog):
        """The failure of a watcher is logged, and affects neither the append nor the other watchers."""
        topic = log.a_topic()
        told: list[object] = []

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        ends = [log.log.add_change_listener(fail), log.log.add_change_listener(lambda *place: told.append(place))]
        log.store(topic, "a")
        until(lambda: told)
        assert "a listener failed" in caplog.text
        for end in ends:
            end()


class TestClose:
    def test_releases_those_who_wait(self, log: LogUnderTest):
        """A read that waits returns when the log is closed."""
        topic = log.a_topic()
        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(log.log.read, topic, 0, 0, wait=60)
            until(reading.running)
            log.log.close()
            with pytest.raises(Unavailable):
                reading.result(PATIENCE)

    def test_refuses_what_comes_later(self, log: LogUnderTest):
        """After closing, calls fail and no watcher is called; closing again changes nothing."""
        topic = log.a_topic()
        told = []
        end = log.log.add_change_listener(lambda *place: told.append(place))
        log.log.close()
        log.log.close()
        assert_everything_is_refused(EventLog, all_calls(log, topic))
        begun = append_async(log.log, topic, {0: [a_record("a")]})
        assert isinstance(begun.exception(PATIENCE), Unavailable)
        assert told == []
        end()

    def test_finishes_what_was_begun(self, log: LogUnderTest):
        """Every append that is in progress when the log is closed either succeeds or reports that it did not."""
        topic = log.a_topic()
        with publishing_until(Unavailable, log, topic):
            log.log.close()


@contextmanager
def publishing_until(
    refusal: type[SealedTopic | Unavailable], log: LogUnderTest, topic: str
) -> Iterator[Sequence[str]]:
    """Append from four threads, each until its first refusal. Within the block, all of them append."""
    acknowledged: list[str] = []

    def publish(writer: int) -> None:
        with suppress(refusal):
            for number in range(10_000):
                log.store(topic, f"{writer}/{number}")
                acknowledged.append(f"{writer}/{number}")

    with ThreadPoolExecutor(4) as writers:
        publishing = [writers.submit(publish, number) for number in range(4)]
        until(lambda: len(acknowledged) > 50)
        yield acknowledged
        for each in publishing:
            each.result(PATIENCE)


def all_calls(log: LogUnderTest, topic: str):
    return calls_needing_a_topic(log, topic) | {
        "create_topic": lambda: log.log.create_topic("another", 1),
        "delete_topic": lambda: log.log.delete_topic(topic),
        "add_change_listener": lambda: log.log.add_change_listener(lambda *_: None),
    }


def calls_needing_a_topic(log: LogUnderTest, topic: str):
    now = log.now()
    return {
        "add_partitions": lambda: log.log.add_partitions(topic, 2),
        "seal_topic": lambda: log.log.seal_topic(topic),
        "append": lambda: run_blocking(log.log.append(topic, {0: [a_record("a")]})),
        "read": lambda: log.log.read(topic, 0, 0, wait=1),
        "bounds": lambda: log.log.bounds(topic, [0]),
        "first_offset_since": lambda: log.log.first_offset_since(topic, 0, now),
        "trim": lambda: log.log.trim(topic, 0, now),
        "compact": lambda: log.log.compact(topic, 0, stored_before=now, tombstones_before=now),
    }
