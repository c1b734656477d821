"""Commits of sessions: who may commit, which commits take effect, and the answers."""

import pytest

from nakadi.model.event_type import Position
from nakadi.model.subscription import CommitResult, EventTypePartition
from nakadi.subscriptions.api.cursors import commit_results_in_order
from tests.support.api import problem
from tests.support.coordination import a_place
from tests.support.subscriptions import a_cursor, committed_offsets, offset_text, reset


@pytest.fixture
def name(house):
    return house.event_type(events=10)


@pytest.fixture
def subscription(house, name):
    return house.subscription(name)


@pytest.fixture
def session(house, subscription):
    return house.session(subscription)


def results(answer):
    assert answer.status_code == 200, answer.text
    return [each["result"] for each in answer.json()["items"]]


class TestCommitting:
    def test_moves_the_offset(self, house, name, subscription, session):
        """A commit in which every cursor moves is answered with 204, and the new offsets are returned from then on.
        (S103, S122, S125)"""
        answer = house.commit(subscription, session, a_cursor(name, "0", 4))
        assert (answer.status_code, answer.content) == (204, b"")
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(4)}

    @pytest.mark.parametrize("again", [4, 3, "BEGIN", "-1", "3", -5])
    def test_committing_a_committed_place_is_outdated(self, house, name, subscription, session, again):
        """The committed position, and every position before it, is outdated and moves nothing. (S124, S314)"""
        house.commit(subscription, session, a_cursor(name, "0", 4))
        assert results(house.commit(subscription, session, a_cursor(name, "0", again))) == ["outdated"]
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(4)}

    def test_committing_the_beginning_is_outdated_at_the_beginning(self, house, name, subscription, session):
        """Before anything is committed, the position before the first event is outdated. (S121, S124)

        The offset of a subscription that begins at `BEGIN` is that position, and not a word that is less than all
        positions.
        """
        for offset in ("BEGIN", offset_text(-1)):
            assert results(house.commit(subscription, session, a_cursor(name, "0", offset))) == ["outdated"]

    def test_reports_every_cursor_as_it_was_sent(self, house, name, subscription, session):
        """If any cursor is outdated, the result of each is reported in the order of the request. (S120, S123)"""
        sent = [a_cursor(name, "0", offset) for offset in (3, "2", 5, 5, "BEGIN", 7)]
        answer = house.commit(subscription, session, *sent)
        assert answer.json()["items"] == [
            {"cursor": cursor, "result": result}
            for cursor, result in zip(
                sent, ["committed", "outdated", "committed", "outdated", "outdated", "committed"], strict=True
            )
        ]
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(7)}

    def test_committing_rising_cursors_needs_no_results(self, house, name, subscription, session):
        """Several cursors of one partition that each move the offset are all committed. (S120, S122)"""
        rising = [a_cursor(name, "0", offset) for offset in (1, 2, 3)]
        assert house.commit(subscription, session, *rising).status_code == 204
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(3)}

    def test_is_not_bounded_by_the_log(self, house, name, subscription, session):
        """A position beyond the newest event can be committed. (S127)"""
        assert house.commit(subscription, session, a_cursor(name, "0", 25)).status_code == 204
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(25)}
        assert house.stats(subscription)["0"]["unconsumed_events"] == 0

    def test_does_not_look_at_tokens(self, house, name, subscription, session):
        """The token is required, but its value does not matter. (S126)"""
        cursor = a_cursor(name, "0", 4) | {"cursor_token": "abc"}
        assert house.commit(subscription, session, cursor).status_code == 204

    def test_reads_every_form_of_an_offset(self, house, name, subscription, session):
        """Plain numbers are positions in the first timeline. (S90)"""
        assert house.commit(subscription, session, a_cursor(name, "0", "3")).status_code == 204
        assert house.commit(subscription, session, a_cursor(name, "0", "000000000000000004")).status_code == 204
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(4)}

    def test_takes_ids_in_any_letter_case(self, house, name, subscription):
        """The id of a stream is a UUID in any letter case. (S114)"""
        session = house.session(subscription, id="70779F46-950D-4E48-9FCA-10C413845E7F")
        assert house.commit(subscription, session, a_cursor(name, "0", 4)).status_code == 204


class TestOwnership:
    def test_unknown_streams_are_reported(self, house, name, subscription, session):
        """A commit for a stream that has ended, or for one of another subscription, is refused. (S115, S227)"""
        other = house.session(house.subscription(name))
        house.leave(subscription, session)
        for stream in (session, other):
            detail = problem(house.commit(subscription, stream, a_cursor(name, "0", 1)), 422)
            assert detail == f"Session with stream id {stream} not found"
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(-1)}

    def test_partitions_of_no_one_do_not_exist(self, house):
        """A commit for a partition without a reader is refused. (S116)"""
        name = house.event_type(partitions=2)
        subscription = house.subscription(name)
        session = house.session(subscription, EventTypePartition(name, "0"))
        assert problem(house.commit(subscription, session, a_cursor(name, "1", 1)), 422) == "non existing partition 1"

    def test_event_types_of_others_do_not_exist(self, house, subscription, session):
        """An event type that is not part of the subscription is refused like a missing partition. (S113)"""
        other = house.event_type()
        assert problem(house.commit(subscription, session, a_cursor(other, "0", 1)), 422) == "non existing partition 0"
        assert problem(house.commit(subscription, session, a_cursor(other, "7", 1)), 422) == "non existing partition 7"

    def test_partitions_of_others_are_reported(self, house):
        """The refusal of a partition that another stream reads names the cursor and the stream that commits it.
        (S117)
        """
        name = house.event_type(partitions=2)
        subscription = house.subscription(name)
        first, second = (house.session(subscription, EventTypePartition(name, each)) for each in ("0", "1"))
        detail = problem(house.commit(subscription, first, a_cursor(name, "0", 1), a_cursor(name, "1", 1)), 422)
        assert detail == f"Cursor {name}:1:{offset_text(1)} cannot be committed with stream id {first}"
        detail = problem(house.commit(subscription, second, a_cursor(name, "0", 1)), 422)
        assert detail == f"Cursor {name}:0:{offset_text(1)} cannot be committed with stream id {second}"

    def test_stays_with_the_owner_until_it_releases(self, house):
        """While a partition is promised to another stream, the old stream may commit and the new one may not. (S118,
        S312)"""
        name = house.event_type(partitions=2)
        subscription = house.subscription(name)
        first = house.session(subscription)
        second = house.session(subscription)
        [promised] = [each.partition.partition for each in house.assignment(subscription).entries if each.next_owner]
        cursor = a_cursor(name, promised, 1)
        assert "cannot be committed" in problem(house.commit(subscription, second, cursor), 422)
        assert house.commit(subscription, first, cursor).status_code == 204
        house.hand_over(subscription, first)
        later = a_cursor(name, promised, 2)
        assert "cannot be committed" in problem(house.commit(subscription, first, later), 422)
        assert house.commit(subscription, second, later).status_code == 204

    def test_one_bad_cursor_stops_all(self, house):
        """If one cursor is refused, nothing is committed. (S119)"""
        name = house.event_type(partitions=2)
        subscription = house.subscription(name)
        session = house.session(subscription, EventTypePartition(name, "0"))
        answer = house.commit(subscription, session, a_cursor(name, "0", 1), a_cursor(name, "1", 1))
        assert problem(answer, 422) == "non existing partition 1"
        assert committed_offsets(house.api, subscription)[name, "0"] == offset_text(-1)

    def test_works_over_several_event_types(self, house):
        """Partitions of several event types are committed together, each independently. (S302, S303)"""
        names = [house.event_type(), house.event_type()]
        subscription = house.subscription(*names)
        session = house.session(subscription)
        assert house.commit(subscription, session, *(a_cursor(each, "0", 3) for each in names)).status_code == 204
        mixed = house.commit(subscription, session, a_cursor(names[0], "0", 3), a_cursor(names[1], "0", 4))
        assert results(mixed) == ["outdated", "committed"]
        assert committed_offsets(house.api, subscription) == {
            (names[0], "0"): offset_text(3),
            (names[1], "0"): offset_text(4),
        }

    def test_ends_with_the_subscription(self, house, name, subscription, session):
        """A commit for a deleted subscription is refused as not found. (S75)

        The definition of the subscription is not cached for further commits.
        """
        house.api.delete(f"/subscriptions/{subscription['id']}")
        assert house.commit(subscription, session, a_cursor(name, "0", 1)).status_code == 404
        assert house.coordination.committed_offsets(subscription["id"]) == {}

    def test_is_lost_between_looking_and_writing(self, house, name, subscription, session):
        """If a session ends while its commit is in progress, the commit is refused. (S119, S312)"""
        real = house.coordination.commit

        def meanwhile(subscription_id, session_id, *rest):
            house.leave(subscription, session)
            return real(subscription_id, session_id, *rest)

        house.coordination.commit = meanwhile
        answer = house.commit(subscription, session, a_cursor(name, "0", 1), a_cursor(name, "0", 2))
        assert problem(answer, 422) == f"Session with stream id {session} not found"

    def test_hears_of_what_others_have_committed(self, house, name, subscription, session):
        """If another request commits a later position while a commit is in progress, the cursors of the commit in
        progress are outdated. (S120)
        """
        real, once = house.coordination.commit, [5]

        def meanwhile(*arguments):
            while once:
                house.commit(subscription, session, a_cursor(name, "0", once.pop()))
            return real(*arguments)

        house.coordination.commit = meanwhile
        answer = house.commit(subscription, session, a_cursor(name, "0", 1), a_cursor(name, "0", 2))
        assert results(answer) == ["outdated", "outdated"]
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(5)}


class TestTimelines:
    def test_the_end_of_one_is_the_beginning_of_the_next(self, house, name, subscription, session):
        """A commit of the last event of a closed timeline is stored as the beginning of the next timeline. (S91,
        S299)"""
        assert house.api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"}).status_code == 201
        assert house.commit(subscription, session, a_cursor(name, "0", 8)).status_code == 204
        assert house.stats(subscription)["0"]["unconsumed_events"] == 1
        assert house.commit(subscription, session, a_cursor(name, "0", 9)).status_code == 204
        assert committed_offsets(house.api, subscription) == {(name, "0"): offset_text(-1, timeline=2)}
        assert house.stats(subscription)["0"]["unconsumed_events"] == 0

    def test_cursors_of_an_older_timeline_work_until_it_is_gone(self, house, name, subscription, session):
        """Positions in an older timeline can be committed and reset to, until the timeline is deleted. (S93, S112,
        S132, S300)"""
        house.api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"})
        assert house.commit(subscription, session, a_cursor(name, "0", 3)).status_code == 204
        house.leave(subscription, session)
        assert reset(house.api, subscription, a_cursor(name, "0", 1)).status_code == 204
        house.clock.move(10 * 24 * 3600)
        house.broker.housekeeping.run()
        for answer in (
            house.commit(subscription, session, a_cursor(name, "0", 3)),
            reset(house.api, subscription, a_cursor(name, "0", 3)),
        ):
            assert problem(answer, 422).startswith("offset 000000000000000003 for partition 0 event type")


def test_each_cursor_is_judged_by_those_before_it():
    """Each cursor is compared with a running maximum for its partition; the result contains the final maximum of each
    partition that moved. (S120)"""
    one, two, three = a_place(1), a_place(2), a_place(3)
    before = dict.fromkeys((one, two, three), Position(1, 5))
    asked = [(one, 6), (two, 5), (one, 6), (three, 4), (one, 9), (one, 8)]
    verdicts, reached = commit_results_in_order([(place, Position(1, offset)) for place, offset in asked], before)
    C, O = CommitResult.COMMITTED, CommitResult.OUTDATED  # noqa: N806, E741  # two columns to read at a glance
    assert verdicts == [C, O, O, O, C, O]
    assert reached == {one: Position(1, 9)}
