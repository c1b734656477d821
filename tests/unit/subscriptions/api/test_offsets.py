"""The initial offsets."""

import threading
from concurrent.futures import ThreadPoolExecutor

from nakadi.model.event_type import Position
from nakadi.model.subscription import EMPTY_ASSIGNMENT
from nakadi.ports.coordination import MAX_PARTITIONS_PER_WRITE
from nakadi.subscriptions.api.offsets import with_next_missing_entries
from tests.support.coordination import a_place, an_assignment, format_partitions
from tests.support.patience import PATIENCE
from tests.support.subscriptions import committed_offsets, create_subscription, offset_text, publish, reset


def a_position_for_each(count):
    return {a_place(number): Position(1, number) for number in range(count)}


class TestAdding:
    def test_fills_up_what_is_missing(self):
        """Partitions without an entry get one, without an owner; existing entries stay. (S100, S293)"""
        new, added = with_next_missing_entries(an_assignment("a"), a_position_for_each(3))
        assert format_partitions(new.entries) == ["a", "", ""]
        assert added == {a_place(1): Position(1, 1), a_place(2): Position(1, 2)}

    def test_says_when_it_is_complete(self):
        """A subscription is initialised only with its last partition; afterwards, nothing is added. (S100, S319)"""
        first, added = with_next_missing_entries(EMPTY_ASSIGNMENT, a_position_for_each(150))
        assert (first.initialised, len(first.entries), len(added)) == (
            False,
            MAX_PARTITIONS_PER_WRITE,
            MAX_PARTITIONS_PER_WRITE,
        )
        second, added = with_next_missing_entries(first, a_position_for_each(150))
        assert (second.initialised, len(second.entries), len(added)) == (True, 150, 51)
        assert with_next_missing_entries(second, a_position_for_each(150)) == (second, {})

    def test_is_in_order(self):
        """Entries are sorted by event type, then by partition number. (S237)"""
        several = {a_place(number, name): Position(1, 0) for name in ("b", "a") for number in (10, 2, 0)}
        new, _ = with_next_missing_entries(EMPTY_ASSIGNMENT, several)
        assert [(each.partition.event_type, each.partition.partition) for each in new.entries] == [
            ("a", "0"), ("a", "2"), ("a", "10"), ("b", "0"), ("b", "2"), ("b", "10")]  # fmt: skip


class TestInitialisation:
    def test_happens_once_among_many(self, house):
        """All processes that initialise at the same time end up with the same offsets, and each offset is set once.
        (S100, S319)"""
        name = house.event_type(partitions=3, events=1)
        subscription = create_subscription(house.api, name)
        barrier = threading.Barrier(8)

        def initialise(_):
            barrier.wait(PATIENCE)
            publish(house.api, name)
            return reset(house.api, subscription).status_code

        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(initialise, range(8))) == {204}
        assert house.assignment(subscription).initialised
        assert len(house.assignment(subscription).entries) == 3

    def test_a_cursor_whose_timeline_is_gone_begins_at_the_oldest_event(self, house):
        """If an initial cursor is no longer available, the partition begins at the oldest event. (S98, S101)"""
        name = house.event_type(events=3)
        cursor = {"event_type": name, "partition": "0", "offset": offset_text(1)}
        subscription = create_subscription(house.api, name, read_from="cursors", initial_cursors=[cursor])
        house.api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"})
        house.clock.move(10 * 24 * 3600)
        house.broker.housekeeping.run()
        publish(house.api, name)
        assert reset(house.api, subscription).status_code == 204
        assert committed_offsets(house.api, subscription)[name, "0"] in (offset_text(1), offset_text(-1, timeline=2))
        assert house.stats(subscription, show_time_lag=True)["0"]["consumer_lag_seconds"] == 0

    def test_gives_partitions_without_an_initial_cursor_their_beginning(self, house):
        """A partition that was added after the subscription was created is read from its first event. (S293, S294,
        S297)"""
        name = house.event_type(events=3)
        cursor = {"event_type": name, "partition": "0", "offset": offset_text(1)}
        subscription = create_subscription(house.api, name, read_from="cursors", initial_cursors=[cursor])
        house.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2})
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(1), (name, "1"): offset_text(-1)}

    def test_a_subscription_with_offsets_keeps_them(self, house):
        """A subscription that has offsets keeps them, even if its event type is deleted. (S100, S160)"""
        name = house.event_type(events=1)
        subscription = house.subscription(name)
        house.broker.event_types.remove(house.broker.event_types.get(name))
        assert reset(house.api, subscription).status_code == 204
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(-1)}

    def test_comes_before_new_partitions_can_have_events(self, house):
        """Events that are published to new partitions before a subscription knows of them are consumed, even by a
        subscription that reads from the end and never had a stream. (S293, S294, R212)"""
        name = house.event_type()
        subscription = create_subscription(house.api, name)
        event_types = house.broker.event_types
        replace = event_types.replace

        def replace_and_publish(*arguments):
            stored = replace(*arguments)
            for _ in range(20):
                publish(house.api, name)
            return stored

        event_types.replace = replace_and_publish
        house.api.put(f"/event-types/{name}/partition-count", json={"partition_count": 2})
        assert committed_offsets(house.api, subscription) == {
            (name, "0"): offset_text(-1),
            (name, "1"): offset_text(-1),
        }

    def test_the_end_is_in_the_newest_timeline(self, house):
        """`end` is the end of the newest timeline, even if that is empty; `begin` is before the oldest event of the
        oldest timeline. (S96, S97)"""
        name = house.event_type(events=3)
        house.api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"})
        for read_from, wanted in (("end", offset_text(-1, timeline=2)), ("begin", offset_text(-1))):
            subscription = house.subscription(name, read_from=read_from, consumer_group=read_from)
            assert committed_offsets(house.api, subscription) == {(name, "0"): wanted}
