"""The statistics of a subscription's streams."""

import pytest

from nakadi.delivery.courier import COMMIT_SECONDS
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import EventTypePartition, Standstill
from nakadi.subscriptions.api.lease_watch import CLOCK_MARGIN, LEASE_DURATION
from nakadi.subscriptions.stream.actions import DepartureRecord
from nakadi.subscriptions.stream.members import SubscriptionSessions
from tests.support.api import problem
from tests.support.logs import records_of_this_thread
from tests.support.metrics import collect_samples, sample_value
from tests.support.subscriptions import a_cursor, offset_text, publish, reset


class TestReaders:
    def test_are_reported_with_their_kind(self, house):
        """The reader of a partition is reported, and whether it requested the partition by name. (S283, S284)"""
        name = house.event_type(partitions=2)
        subscription = house.subscription(name)
        direct = house.session(subscription, EventTypePartition(name, "1"))
        auto = house.session(subscription)
        found = house.stats(subscription)
        assert found["0"] == {
            "state": "assigned", "stream_id": auto, "assignment_type": "auto", "unconsumed_events": 0}  # fmt: skip
        assert found["1"]["stream_id"] == direct
        assert found["1"]["assignment_type"] == "direct"

    def test_stay_until_they_hand_over(self, house):
        """A partition that is promised is reported with its current owner. (S246, S282)"""
        name = house.event_type()
        subscription = house.subscription(name)
        first = house.session(subscription)
        house.session(subscription, EventTypePartition(name, "0"))
        found = house.stats(subscription)["0"]
        assert (found["state"], found["stream_id"]) == ("reassigning", first)

    def test_are_not_reported_when_they_are_dead(self, house):
        """A partition of a session whose process is dead is reported as unassigned. (S227, S282)"""
        subscription = house.subscription(house.event_type())
        house.coordination.renew_lease("another process", house.clock.now() + LEASE_DURATION)
        session = house.session(subscription, process_id="another process")
        assert house.stats(subscription)["0"]["stream_id"] == session
        house.clock.move((LEASE_DURATION + CLOCK_MARGIN).total_seconds())
        assert house.stats(subscription)["0"] == {"state": "unassigned", "stream_id": "", "unconsumed_events": 0}

    def test_are_reported_in_lists(self, house):
        """The status in a list contains the readers, but no counts. (S55)"""
        name = house.event_type(events=1)
        session = house.session(house.subscription(name))
        answer = house.api.get("/subscriptions", params={"event_type": name, "show_status": True})
        partition = {"partition": "0", "state": "assigned", "stream_id": session, "assignment_type": "auto"}
        assert answer.json()["items"][0]["status"] == [{"event_type": name, "partitions": [partition]}]


class TestLag:
    def test_is_the_age_of_the_next_event(self, house):
        """The lag is in whole seconds since the first uncommitted event was stored. (S287)"""
        name = house.event_type(events=1)
        subscription = house.subscription(name)
        session = house.session(subscription)
        house.clock.move(100)
        publish(house.api, name)
        house.clock.move(20.9)
        assert house.stats(subscription, show_time_lag=True)["0"]["consumer_lag_seconds"] == 120
        house.commit(subscription, session, a_cursor(name, "0", 0))
        assert house.stats(subscription, show_time_lag=True)["0"]["consumer_lag_seconds"] == 20
        house.commit(subscription, session, a_cursor(name, "0", 1))
        assert house.stats(subscription, show_time_lag=True)["0"]["consumer_lag_seconds"] == 0

    def test_begins_at_the_oldest_event(self, house):
        """Removed events have no age, but they still count as unconsumed. (S286, S287)"""
        name = house.event_type(events=3)
        subscription = house.subscription(name)
        house.clock.move(3 * 24 * 3600)
        publish(house.api, name)
        house.broker.housekeeping.run()
        house.clock.move(7)
        found = house.stats(subscription, show_time_lag=True)["0"]
        assert (found["unconsumed_events"], found["consumer_lag_seconds"]) == (4, 7)

    def test_goes_on_in_the_next_timeline(self, house):
        """If the events of a timeline are removed, those of the next one count. (S287, S299)"""
        name = house.event_type(events=3)
        subscription = house.subscription(name)
        house.api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"})
        house.clock.move(2 * 24 * 3600 - 10)
        publish(house.api, name)
        house.clock.move(10)
        house.broker.housekeeping.run()
        assert house.stats(subscription, show_time_lag=True)["0"]["consumer_lag_seconds"] == 10

    def test_is_missing_where_it_cannot_be_found_out(self, house):
        """A partition whose next event cannot be read has no lag, and says so; the others have theirs. (S288, S342)

        One failure does not affect the other partitions. Without a request for the lag, no event is read.
        """
        name = house.event_type(partitions=2)
        for _ in range(20):
            publish(house.api, name)
        subscription = house.subscription(name)
        log = house.broker.logs.for_storage("default")
        read = log.read

        def failing(topic, partition, *rest, **how):
            if partition == 1:
                raise Unavailable("not now")
            return read(topic, partition, *rest, **how)

        log.read = failing
        found = house.stats(subscription, show_time_lag=True)
        assert found["0"]["consumer_lag_seconds"] == 0
        assert "consumer_lag_seconds" not in found["1"]
        assert found["1"]["unconsumed_events"] > 0
        assert (found["1"]["unreadable"], "unreadable" in found["0"]) == (True, False)
        assert "unreadable" not in house.stats(subscription)["1"]

    def test_needs_no_reading_where_nothing_waits(self, house):
        """If everything is consumed, no event is read; without a request for the lag, none is read either. (S287)"""
        name = house.event_type(events=1)
        subscription = house.subscription(name)
        log = house.broker.logs.for_storage("default")
        log.read = None
        assert house.stats(subscription)["0"]["unconsumed_events"] == 1
        session = house.session(subscription)
        house.commit(subscription, session, a_cursor(name, "0", 0))
        assert house.stats(subscription, show_time_lag=True)["0"]["consumer_lag_seconds"] == 0


class TestStalled:
    """A stalled partition: events wait, and its stream commits nothing for too long, or three consecutive streams have
    ended without a commit."""

    def is_stalled(self, house, subscription):
        return house.stats(subscription)["0"].get("stalled", False)

    def test_is_who_does_not_commit(self, house):
        """A partition is stalled if events wait, and its stream has let the commit timeout pass. (S280)"""
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        session = house.session(subscription, commit_timeout=30.0)
        house.wait(30)
        assert not self.is_stalled(house, subscription)
        house.wait(1)
        assert self.is_stalled(house, subscription)
        house.commit(subscription, session, a_cursor(name, "0", 1))
        assert not self.is_stalled(house, subscription)
        house.wait(31)
        assert self.is_stalled(house, subscription)

    def test_is_not_who_has_nothing_to_commit(self, house):
        """The age of the last commit does not matter: only events that have waited long enough count. (S280)"""
        name = house.event_type(events=1)
        subscription = house.subscription(name)
        session = house.session(subscription, commit_timeout=30.0)
        house.commit(subscription, session, a_cursor(name, "0", 0))
        house.wait(1000)
        assert not self.is_stalled(house, subscription)
        publish(house.api, name)
        assert not self.is_stalled(house, subscription)
        house.wait(31)
        assert self.is_stalled(house, subscription)

    def test_is_a_sink_that_delivers_nothing_for_a_minute(self, house):
        """The stream of a sink stays open while its receiver is down, and counts as stalled like any other. (S340)"""
        name = house.event_type(events=1)
        subscription = house.subscription(name)
        session = house.session(subscription, commit_timeout=COMMIT_SECONDS)
        house.wait(59)
        assert not self.is_stalled(house, subscription)
        house.wait(2)
        assert self.is_stalled(house, subscription)
        house.commit(subscription, session, a_cursor(name, "0", 0))
        assert not self.is_stalled(house, subscription)

    def test_is_not_who_has_received_nothing_yet(self, house):
        """An event that waits for a full batch is sent after the flush timeout, and the time for its commit begins
        then. (S340)"""
        name = house.event_type(events=1)
        subscription = house.subscription(name)
        session = house.session(subscription, commit_timeout=5.0, flush_timeout=30.0)
        house.wait(35)
        assert not self.is_stalled(house, subscription)
        house.wait(1)
        assert self.is_stalled(house, subscription)
        house.commit(subscription, session, a_cursor(name, "0", 0))
        assert not self.is_stalled(house, subscription)

    def test_is_not_who_has_just_begun(self, house):
        """A stream that takes over has a commit timeout of its own. (S280)"""
        subscription = house.subscription(house.event_type(events=1))
        house.wait(1000)
        assert not self.is_stalled(house, subscription)
        house.session(subscription, commit_timeout=30.0)
        house.wait(30)
        assert not self.is_stalled(house, subscription)
        house.coordination.release_lease("this process")
        house.clock.move(10)
        assert not self.is_stalled(house, subscription)

    def fail(self, house, subscription, **record):
        """End a stream that was sent events of the partition and has not committed them."""
        offset = house.coordination.committed_offsets(subscription["id"])
        [(partition, found)] = offset.items()
        record = DepartureRecord(standstills=(Standstill(partition, found.position, 1),), **record)
        members = SubscriptionSessions(house.coordination, subscription["id"], house.clock, execute_reset=print)
        members.leave(house.session(subscription), record)

    def test_is_who_fails_in_one_stream_after_the_other(self, house):
        """A partition is stalled if three consecutive streams have ended at the same offset, even while none is
        open, until a commit. (S340)
        """
        name = house.event_type(events=5)
        subscription = house.subscription(name)
        seen = []
        for _ in range(4):
            self.fail(house, subscription, has_timed_out=True)
            seen.append(self.is_stalled(house, subscription))
        assert seen == [False, False, True, True]
        session = house.session(subscription)
        assert self.is_stalled(house, subscription)
        house.commit(subscription, session, a_cursor(name, "0", 0))
        assert not self.is_stalled(house, subscription)

    def test_is_not_who_has_nothing_left_to_read(self, house):
        """If no event waits, nothing is stalled, however streams ended. (S340)"""
        name = house.event_type()
        subscription = house.subscription(name)
        for _ in range(3):
            self.fail(house, subscription)
        assert not self.is_stalled(house, subscription)
        publish(house.api, name)
        assert self.is_stalled(house, subscription)

    def test_is_not_whose_cursor_was_reset(self, house):
        """After a reset, even to the same offset, earlier failures do not count. (S340)"""
        name = house.event_type(events=2)
        subscription = house.subscription(name)
        for _ in range(3):
            self.fail(house, subscription)
        assert reset(house.api, subscription, a_cursor(name, "0", "BEGIN")).status_code == 204
        assert not self.is_stalled(house, subscription)


class TestStallWatch:
    """The counts of stalled subscriptions that housekeeping makes."""

    def test_finds_those_whose_streams_have_ended(self, house):
        """A subscription whose consumer fails in every stream also counts between its streams. (S340)"""
        subscription = house.subscription(house.event_type(events=1))
        for _ in range(3):
            TestStalled().fail(house, subscription)
        house.broker.housekeeping.run()
        assert house.broker.subscription_services.troubled_subscriptions.stalled_ids == [subscription["id"]]

    def test_finds_those_that_are_stalled(self, house, caplog):
        """Subscriptions with a stalled partition are counted and named as long as they are stalled. (S280)"""
        name = house.event_type(events=2)
        stuck, lively, left = (house.subscription(name) for _ in range(3))
        sessions = [house.session(each, commit_timeout=30.0) for each in (stuck, lively, left)]
        house.clock.move(31)
        house.commit(lively, sessions[1], a_cursor(name, "0", 0))
        house.leave(left, sessions[2])
        watch = house.broker.subscription_services.troubled_subscriptions
        house.broker.housekeeping.run()
        assert watch.stalled_ids == [stuck["id"]]
        assert sample_value(collect_samples(house.broker.metrics), "nakadi_stalled_subscriptions") == 1
        said = [each.getMessage() for each in records_of_this_thread(caplog)]
        assert [stuck["id"] in each for each in said if " is stalled: " in each] == [True]
        house.commit(stuck, sessions[0], a_cursor(name, "0", 1))
        house.broker.housekeeping.run()
        assert watch.stalled_ids == []
        assert sample_value(collect_samples(house.broker.metrics), "nakadi_stalled_subscriptions") == 0

    def test_goes_on_after_one_that_cannot_be_looked_at(self, house, monkeypatch, caplog):
        """A subscription whose statistics fail is reported, and the others are still checked. (S280)"""
        name = house.event_type(events=2)
        found = [house.subscription(name) for _ in range(3)]
        for each in found:
            house.session(each, commit_timeout=30.0)
        house.wait(31)
        assignment = house.coordination.assignment
        broken = found[1]["id"]
        monkeypatch.setattr(
            house.coordination, "assignment", lambda each: assignment(each) if each != broken else {}["damaged"]
        )
        watch = house.broker.subscription_services.troubled_subscriptions
        watch.check_all()
        assert set(watch.stalled_ids) == {found[0]["id"], found[2]["id"]}
        assert f"of the subscription {broken} failed" in caplog.text

    def test_looks_at_no_log_without_need(self, house, monkeypatch):
        """If all streams commit in time, the broker reads no log."""
        name = house.event_type(events=2)
        house.session(house.subscription(name))
        house.subscription(name)
        monkeypatch.setattr(house.broker.logs, "for_storage", lambda *_: pytest.fail("a log was asked for"))
        house.broker.subscription_services.troubled_subscriptions.check_all()
        assert house.broker.subscription_services.troubled_subscriptions.stalled_ids == []


class TestOfAWholePage:
    def list_subscriptions(self, house, **query):
        answer = house.api.get("/subscriptions", params={"show_stats": True, **query})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def test_asks_once_where_an_event_type_ends(self, house, monkeypatch):
        """The newest events are looked up once for all subscriptions on a page. (S320)"""
        name = house.event_type(events=2)
        for _ in range(5):
            house.session(house.subscription(name))
        log, asked = house.broker.logs.for_storage("default"), []
        bounds = log.bounds
        monkeypatch.setattr(log, "bounds", lambda *places: asked.append(places) or bounds(*places))
        found = self.list_subscriptions(house, event_type=name)["items"]
        assert [each["status"][0]["partitions"][0]["unconsumed_events"] for each in found] == [2] * 5
        assert len(asked) == 1

    def test_has_ages_as_far_as_there_is_time(self, house, monkeypatch):
        """After ten seconds, no further event is read, and waiting events are still counted. (S288, S320)"""
        name = house.event_type(events=1)
        for _ in range(5):
            house.session(house.subscription(name))
        log = house.broker.logs.for_storage("default")
        read = log.read

        def slowly(*place, **how):
            house.clock.move(6)
            return read(*place, **how)

        monkeypatch.setattr(log, "read", slowly)
        found = self.list_subscriptions(house, event_type=name, show_time_lag=True)["items"]
        partitions = [each["status"][0]["partitions"][0] for each in found]
        assert ["consumer_lag_seconds" in each for each in partitions] == [True, True, False, False, False]
        assert [each["unconsumed_events"] for each in partitions] == [1] * 5

    def test_is_smaller_than_other_pages(self, house):
        """Whatever the limit, a page with statistics has a hundred subscriptions, and the next page has the rest.
        (S320)"""
        name = house.event_type()
        for _ in range(101):
            house.subscription(name)
        page = self.list_subscriptions(house, event_type=name, limit=1000, token="new")
        assert len(page["items"]) == 100
        following = house.api.get(page["_links"]["next"]["href"]).json()
        assert (len(following["items"]), "status" in following["items"][0]) == (1, True)


def test_stats_need_the_event_types(house):
    """A subscription to a deleted event type has no stats; in lists, the status of that event type is left out. (S56,
    S160, S289, S320)

    A listing is not refused as a whole because of one of its subscriptions.
    """
    name, other = house.event_type(), house.event_type()
    subscription = house.subscription(name, other)
    house.broker.event_types.remove(house.broker.event_types.get(name))
    answer = house.api.get(f"/subscriptions/{subscription['id']}/stats")
    assert problem(answer, 404) == f'EventType "{name}" does not exist.'
    for asked in ("show_status", "show_stats"):
        listed = house.api.get("/subscriptions", params={"event_type": other, asked: True}).json()["items"]
        assert [each["event_type"] for each in listed[0]["status"]] == [other]


def test_a_commit_ahead_of_the_log_leaves_nothing_waiting(house):
    """For a position beyond the newest event, nothing is unconsumed. (S127, S285)"""
    name = house.event_type(events=1)
    subscription = house.subscription(name)
    house.commit(subscription, house.session(subscription), a_cursor(name, "0", offset_text(99)))
    assert house.stats(subscription)["0"]["unconsumed_events"] == 0
