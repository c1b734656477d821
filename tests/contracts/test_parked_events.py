"""What every implementation of the port `Coordination` promises about parked events."""

import threading

import pytest
from msgspec.structs import replace

from nakadi.model.authorization import Attribute
from nakadi.model.subscription import EMPTY_ASSIGNMENT, CommitResult, CommittedOffset, PartitionAssignment
from nakadi.ports.coordination import MAX_PARKED_BYTES_PER_CALL, MAX_PARKED_EVENTS_PER_CALL, Coordination
from tests.support.builders import A_MOMENT
from tests.support.coordination import (
    LATER,
    SUBSCRIPTION,
    a_parked_event,
    a_place,
    an_assignment,
    at,
    begin_assignment,
    commit,
    entries,
    position,
)
from tests.support.patience import run_in_threads


class TestParkedEvents:
    """Parked events are those that consumers could not process; they stay until an operator skips or redrives them."""

    def test_takes_events_and_moves_the_cursor_in_one_step(self, coordination: Coordination):
        """An event is either parked and consumed, or neither; parking it again is outdated."""
        begin_assignment(coordination, "a")
        event = a_parked_event(3, b'{"n":3}', failed_streams=4, replay="r", owner=Attribute("team", "checkout"))
        assert park_events(coordination, "a", event, upto=3) is CommitResult.COMMITTED
        assert coordination.committed_offsets(SUBSCRIPTION)[a_place()] == CommittedOffset(at(3), "a", LATER)
        assert coordination.list_parked_events(SUBSCRIPTION) == [event.parked]
        assert coordination.parked_event_value(SUBSCRIPTION, a_place(), at(3)) == b'{"n":3}'
        assert park_events(coordination, "a", a_parked_event(2), upto=3) is CommitResult.OUTDATED
        assert coordination.list_parked_events(SUBSCRIPTION) == [event.parked]

    @pytest.mark.parametrize("upto", [5, None])
    @pytest.mark.parametrize("owned", ["", "b", "b>a"])
    def test_is_for_the_owner_alone(self, coordination: Coordination, owned, upto):
        """A session that does not own the partition cannot park events, and does not move the cursor. (S312)"""
        begin_assignment(coordination, owned)
        assert park_events(coordination, "a", a_parked_event(5), upto=upto) is CommitResult.NOT_OWNED
        assert (coordination.list_parked_events(SUBSCRIPTION), position(coordination)) == ([], at(-1))

    def test_takes_events_without_moving_the_cursor(self, coordination: Coordination):
        """Events can be parked before the cursor passes them, or after it; each is parked once."""
        begin_assignment(coordination, "a")
        commit(coordination, "a", 7)
        for _ in range(2):
            assert park_events(coordination, "a", a_parked_event(5), a_parked_event(9)) is CommitResult.COMMITTED
        assert position(coordination) == at(7)
        assert list_parked_offsets(coordination) == [5, 9]

    def test_keeps_the_last_of_what_is_parked_twice(self, coordination: Coordination):
        """If an event is parked again, the later description and value are kept."""
        begin_assignment(coordination, "a")
        park_events(coordination, "a", a_parked_event(5, b"{}" * 400_000))
        again = a_parked_event(5, b"[]", key="another", failed_streams=3)
        park_events(coordination, "a", again)
        assert coordination.list_parked_events(SUBSCRIPTION) == [again.parked]
        assert coordination.parked_event_value(SUBSCRIPTION, a_place(), at(5)) == b"[]"

    def test_is_listed_in_order_page_by_page(self, coordination: Coordination):
        """Pages are sorted by event type, partition and position, and begin after the given event, whether it exists or
        not."""
        order = [
            *(a_parked_event(9, partition=a_place(10, "order")), a_parked_event(99, partition=a_place(2, "order"))),
            *(
                a_parked_event(100, partition=a_place(2, "order")),
                a_parked_event(0, partition=a_place(2, "order"), timeline=2),
            ),
            *(a_parked_event(1, partition=a_place(0, "order.paid")), a_parked_event(1, partition=a_place(0, "orders"))),
        ]
        owned = [PartitionAssignment(each, "a") for each in dict.fromkeys(each.parked.partition for each in order)]
        new = replace(an_assignment(), entries=tuple(owned))
        coordination.replace_assignment(
            SUBSCRIPTION, EMPTY_ASSIGNMENT, new, A_MOMENT, {each.partition: at(-1) for each in owned}
        )
        for each in reversed(order):
            assert park_events(coordination, "a", each) is CommitResult.COMMITTED
        heads = [each.parked for each in order]
        assert coordination.list_parked_events(SUBSCRIPTION, limit=2) == heads[:2]
        assert coordination.list_parked_events(SUBSCRIPTION, after=(a_place(2, "order"), at(100))) == heads[3:]
        assert coordination.list_parked_events(SUBSCRIPTION, partition=a_place(2, "order")) == heads[1:4]
        assert (
            coordination.list_parked_events(
                SUBSCRIPTION, partition=a_place(2, "order"), after=(heads[1].partition, at(99))
            )
            == heads[2:4]
        )
        assert coordination.list_parked_events(SUBSCRIPTION, partition=a_place(7, "order")) == []
        assert coordination.list_parked_events("another") == []

    def test_releases_events(self, coordination: Coordination):
        """Events that are released are removed with their values, others stay, and releasing them again changes
        nothing."""
        begin_assignment(coordination, "a")
        park_events(coordination, "a", *map(a_parked_event, range(MAX_PARKED_EVENTS_PER_CALL)))
        for _ in range(2):
            coordination.remove_parked_events(SUBSCRIPTION, a_place(), [at(each) for each in range(1, 1000)])
            coordination.remove_parked_events("another", a_place(), [at(0)])
        assert list_parked_offsets(coordination) == [0]
        assert coordination.parked_event_value(SUBSCRIPTION, a_place(), at(1)) is None
        assert position(coordination) == at(-1)

    def test_takes_as_much_as_it_says(self, coordination: Coordination):
        """The maximum number of events, the maximum number of bytes and the largest event fit into one step, and are
        read as they were written."""
        begin_assignment(coordination, "a")
        size = MAX_PARKED_BYTES_PER_CALL // MAX_PARKED_EVENTS_PER_CALL
        many = [a_parked_event(each, b"%d" % (each % 10) * size) for each in range(MAX_PARKED_EVENTS_PER_CALL)]
        assert park_events(coordination, "a", *many, upto=MAX_PARKED_EVENTS_PER_CALL) is CommitResult.COMMITTED
        largest = a_parked_event(60, bytes(range(256)) * 3900)
        assert park_events(coordination, "a", largest, upto=60) is CommitResult.COMMITTED
        for each in (many[0], many[-1], largest):
            assert coordination.parked_event_value(SUBSCRIPTION, a_place(), each.parked.position) == each.value

    @pytest.mark.parametrize(
        "events",
        [
            [],
            [a_parked_event(1), a_parked_event(2, partition=a_place(1))],
            [a_parked_event(1), a_parked_event(1)],
            [a_parked_event(each) for each in range(MAX_PARKED_EVENTS_PER_CALL + 1)],
            [a_parked_event(each, b"x" * (MAX_PARKED_BYTES_PER_CALL // 2 + 1)) for each in range(2)],
        ],
        ids=["none", "two partitions", "one position", "too many", "too much"],
    )
    def test_refuses_what_no_engine_could_do(self, coordination: Coordination, events):
        """More events than fit into one atomic step are an error of the caller."""
        begin_assignment(coordination, "a", "a")
        with pytest.raises(ValueError, match=r"partitions|position|too many"):
            park_events(coordination, "a", *events, upto=99)
        assert position(coordination) == at(-1)

    def test_goes_with_its_subscription(self, coordination: Coordination):
        """When a subscription is forgotten, its parked events are removed. (S72)"""
        begin_assignment(coordination, "a")
        park_events(coordination, "a", a_parked_event(1))
        coordination.remove_subscription_state(SUBSCRIPTION)
        begin_assignment(coordination, "a")
        assert coordination.list_parked_events(SUBSCRIPTION) == []
        assert coordination.parked_event_value(SUBSCRIPTION, a_place(), at(1)) is None

    def test_never_comes_from_two_sessions(self, coordination: Coordination):
        """While a partition changes hands, each event is parked by the owner at that moment, and none is left out."""
        begin_assignment(coordination, "a")
        done = threading.Event()

        def park_on(number: int) -> list[int]:
            mine = []
            while not done.is_set():
                following = position(coordination).offset + 1
                if (
                    park_events(coordination, "ab"[number], a_parked_event(following), upto=following)
                    is CommitResult.COMMITTED
                ):
                    mine.append(following)
            return mine

        def swap() -> list[int]:
            for turn in range(20):
                old = coordination.assignment(SUBSCRIPTION)
                coordination.replace_assignment(SUBSCRIPTION, old, replace(old, entries=entries("ba"[turn % 2])), LATER)
            done.set()
            return []

        parked = run_in_threads(lambda number: swap() if number == 2 else park_on(number), 3)
        assert sorted(parked[0] + parked[1]) == list(range(position(coordination).offset + 1))
        assert list_parked_offsets(coordination) == list(range(position(coordination).offset + 1))


def park_events(coordination, session: str, *events, upto: int | None = None) -> CommitResult:
    return coordination.park_events(SUBSCRIPTION, session, events, LATER, None if upto is None else at(upto))


def list_parked_offsets(coordination) -> list[int]:
    return [each.position.offset for each in coordination.list_parked_events(SUBSCRIPTION, limit=100_000)]
