"""The operations on parked events, and the cases in which they are refused."""

import pytest
from msgspec.structs import replace

from nakadi.model.authorization import Attribute, Subject
from nakadi.model.event_type import Position
from nakadi.model.outcomes import Conflict, NotPermitted
from nakadi.model.subscription import Redrive, Replay, SetOffsets
from nakadi.ports.coordination import AssignmentChanged
from nakadi.subscriptions.api import parked_events as module
from nakadi.subscriptions.api.parked_events import ParkedEventFilter, parked_event_id, parse_parked_event_id
from tests.support.api import problem
from tests.support.builders import A_MOMENT
from tests.support.coordination import a_parked_event
from tests.support.subscriptions import a_cursor, committed_offsets, reset

ADMIN = Subject(name="ann", trusted=True)


class SubscriptionWithParkedEvents:
    """A subscription with one partition, and parked events."""

    def __init__(self, house, *events):
        self.house = house
        self.name = house.event_type(events=10)
        self.subscription = house.subscription(self.name)
        self.id = self.subscription["id"]
        [self.entry] = house.assignment(self.subscription).entries
        session = house.session(self.subscription)
        them = [replace_place(each, self.entry.partition) for each in events]
        if them:
            house.coordination.park_events(self.id, session, them, A_MOMENT)
        house.commit(self.subscription, session, a_cursor(self.name, "0", 9))
        house.leave(self.subscription, session)
        self.events = house.broker.subscription_requests.parked_events

    @property
    def waiting(self):
        return [each.position.offset for each in self.house.coordination.list_parked_events(self.id)]

    def path(self, offset=None, timeline=1):
        name = "" if offset is None else f"/{self.name}:0:001-{timeline:04x}-{offset:018d}"
        return f"/subscriptions/{self.id}/parked-events{name}"

    def entry_now(self):
        [entry] = self.house.assignment(self.subscription).entries
        return entry

    def write_entry(self, **changes):
        old = self.house.assignment(self.subscription)
        entries = (replace(old.entries[0], **changes),)
        self.house.coordination.replace_assignment(self.id, old, replace(old, entries=entries), A_MOMENT)

    def at(self, offset):
        return Position(1, offset)

    def put_cursor(self, position):
        old = self.house.assignment(self.subscription)
        self.house.coordination.replace_assignment(self.id, old, old, A_MOMENT, {self.entry.partition: position})


def replace_place(event, place):
    return replace(event, parked=replace(event.parked, partition=place))


def test_a_redrive_puts_the_cursor_before_the_first(house):
    """The cursor goes back to before the first event of the key, and the events to send are stored with the cursor."""
    parking = SubscriptionWithParkedEvents(
        house, a_parked_event(3), a_parked_event(5, key="another"), a_parked_event(7)
    )
    assert house.api.post(parking.path(7) + "/redrive").status_code == 204
    replay = parking.entry_now().replay
    assert (replay.last_position.offset, replay.event_keys) == (9, ("a key",))
    assert committed_offsets(house.api, parking.subscription)[parking.name, "0"].endswith(f"{2:018d}")


def test_one_redrive_after_the_other(house):
    """A second redrive keeps the remainder of the first, except for keys that failed again; events that were sent are
    removed."""
    parking = SubscriptionWithParkedEvents(
        house,
        a_parked_event(1),
        a_parked_event(3, key="failed again", replay="first"),
        a_parked_event(4, key="failed again"),
        a_parked_event(5),
        a_parked_event(6, key="another"),
        a_parked_event(8, key="third"),
    )
    parking.write_entry(replay=Replay("first", parking.at(9), ("a key", "failed again")))
    parking.put_cursor(parking.at(2))
    assert house.api.post(parking.path(6) + "/redrive").status_code == 204
    replay = parking.entry_now().replay
    assert (replay.event_keys, replay.last_position.offset) == (("a key", "another"), 9)
    assert parking.waiting == [3, 4, 5, 6, 8]
    assert committed_offsets(house.api, parking.subscription)[parking.name, "0"].endswith(f"{2:018d}")


def test_setting_cursors_ends_a_replay(house):
    """A cursor that is set determines the next events; events that were to be sent again stay parked."""
    parking = SubscriptionWithParkedEvents(house, a_parked_event(3))
    assert house.api.post(parking.path(3) + "/redrive").status_code == 204
    assert reset(house.api, parking.subscription, a_cursor(parking.name, "0", 9)).status_code == 204
    assert (parking.entry_now().replay, parking.waiting) == (None, [3])
    assert house.api.get(parking.path(3)).json()["state"] == "parked"


def test_what_the_log_will_give_again_is_not_parked_any_more(house):
    """An event that was parked before the cursor reached it is not sent twice, once from the log and once from the
    parked events."""
    parking = SubscriptionWithParkedEvents(house, a_parked_event(3), a_parked_event(12))
    assert house.api.post(parking.path() + "/redrive").status_code == 204
    assert parking.waiting == [3]


def test_without_parked_events_streams_are_not_disturbed(house):
    """If there is nothing to redrive, streams continue."""
    parking = SubscriptionWithParkedEvents(house)
    session = house.session(parking.subscription)
    assert house.api.post(parking.path() + "/redrive").status_code == 204
    assert house.assignment(parking.subscription).session(session) is not None


def test_many_keys_at_once_are_too_many(house, monkeypatch):
    """The keys to redrive have to fit into the partition's entry; redriving all of them always does."""
    monkeypatch.setattr(module, "MAX_KEYS_PER_REDRIVE", 1)
    parking = SubscriptionWithParkedEvents(house, a_parked_event(3), a_parked_event(4, key="another"))
    assert house.api.post(parking.path(3) + "/redrive").status_code == 204
    assert problem(house.api.post(parking.path(4) + "/redrive"), 409).startswith("More than")
    assert house.api.post(parking.path() + "/redrive").status_code == 204
    assert parking.entry_now().replay.event_keys is None


def test_what_cannot_be_committed_is_not_redriven(house):
    """An event whose timeline is deleted could not be committed; it can still be read and skipped."""
    parking = SubscriptionWithParkedEvents(house, a_parked_event(3, timeline=7, value=b'{"n":3}'))
    parking.put_cursor(Position(8, 9))
    assert "its timeline is gone" in problem(house.api.post(parking.path(3, 7) + "/redrive"), 409)
    assert house.api.get(parking.path(3, 7)).json()["event"] == {"n": 3}
    assert house.api.delete(parking.path(3, 7)).status_code == 204
    assert parking.waiting == []


def test_a_redrive_is_refused_while_cursors_are_being_set(house):
    """While cursors are being set, a redrive is refused: a subscription can have only one of these requests at a
    time.
    """
    parking = SubscriptionWithParkedEvents(house, a_parked_event(3))
    house.broker.subscription_requests.reset_requests.request_reset(parking.id, SetOffsets())
    with pytest.raises(Conflict):
        parking.events.redrive_all(parking.id, ADMIN)


def test_events_of_others_are_not_shown(house):
    """With owners switched on, only subjects that may read an event see it. (S87)"""
    parking = SubscriptionWithParkedEvents(house, a_parked_event(3, value=b'{"n":3}', owner=Attribute("user", "bob")))
    switch = {"feature": "event_owner_selector_authz", "enabled": True}
    assert house.api.post("/settings/features", json=switch).status_code == 204
    [found] = parking.events.list_events(parking.id, ParkedEventFilter(), None, 10, ADMIN)
    ann, bob = (Subject(name=each, attributes=frozenset({Attribute("user", each)})) for each in ("ann", "bob"))
    assert parking.events.get_event(parking.id, found.id, bob)[1] == b'{"n":3}'
    with pytest.raises(NotPermitted):
        parking.events.get_event(parking.id, found.id, ann)


def test_an_event_that_goes_meanwhile_is_not_found(house, monkeypatch):
    """An event that is skipped while a request reads it is not found."""
    parking = SubscriptionWithParkedEvents(house, a_parked_event(3))
    monkeypatch.setattr(house.coordination, "parked_event_value", lambda *_: None)
    assert problem(house.api.get(parking.path(3)), 404)


def test_skipping_notifies_streams_even_if_another_is_faster(house, monkeypatch):
    """Skipping an event changes the assignment, so that streams read the parked events again. If another process
    changes the assignment first, that is enough.
    """
    parking = SubscriptionWithParkedEvents(house, a_parked_event(3), a_parked_event(4))
    before = house.assignment(parking.subscription).revision
    assert house.api.delete(parking.path(3)).status_code == 204
    assert house.assignment(parking.subscription).revision == before + 1

    def raise_conflict(*_):
        raise AssignmentChanged(parking.id)

    monkeypatch.setattr(house.coordination, "replace_assignment", raise_conflict)
    assert house.api.delete(parking.path(4)).status_code == 204


def test_ids_name_places():
    """An id consists of event type, partition and offset; it can be converted to a position and back, in any
    timeline."""
    event = a_parked_event(12, timeline=0xABCDE).parked
    assert parse_parked_event_id(parked_event_id(event)) == (event.partition, event.position)
    assert parse_parked_event_id("a:b:c") is None


@pytest.mark.parametrize("offset", ["9" * 19, "9" * 30, "9" * 5000, "٣" * 18])
def test_ids_beyond_64_bits_name_nothing(house, offset):
    """An id with an offset that no event can have is answered with 404, and not looked up."""
    parking = SubscriptionWithParkedEvents(house)
    parked_id = f"{parking.name}:0:001-0001-{offset}"

    assert parse_parked_event_id(parked_id) is None
    assert house.api.get(f"/subscriptions/{parking.id}/parked-events/{parked_id}").status_code == 404


def test_a_redrive_goes_on_without_its_caller(house):
    """If a process has started a redrive without its caller, no other process repeats the work: events that are parked
    meanwhile stay. The redrive is given up when its time is over and the process has died."""
    parking = SubscriptionWithParkedEvents(house, a_parked_event(3))
    fulfilment = house.subscription_services.reset_execution
    house.broker.subscription_requests.reset_requests.request_reset(parking.id, Redrive())
    old = house.assignment(parking.subscription)
    house.coordination.replace_assignment(
        parking.id, old, replace(old, reset=replace(old.reset, is_claimed=True)), A_MOMENT
    )
    assert fulfilment.try_to_execute(parking.id).reset.is_claimed
    house.wait(63)
    given_up = fulfilment.try_to_execute(parking.id)
    assert (given_up.reset, given_up.ended_reset.failure) == (None, "Timeout resetting cursors")
    assert (parking.waiting, parking.entry_now().replay) == ([3], None)


def test_a_redrive_that_fails_in_another_process_is_reported(house, monkeypatch):
    """A request that waits for a redrive which another process cannot carry out gets the reason."""
    parking = SubscriptionWithParkedEvents(house, a_parked_event(3))
    resets = house.broker.subscription_requests.reset_requests
    reset_id = resets.request_reset(parking.id, Redrive())
    monkeypatch.setattr(module.RedrivePlanner, "_check_timelines", _refuse)
    house.subscription_services.reset_execution.try_to_execute(parking.id)
    assert house.assignment(parking.subscription).ended_reset.id == reset_id
    assert problem(house.api.post(parking.path() + "/redrive"), 409) == "its timeline is gone"


def _refuse(*_):
    raise Conflict("its timeline is gone")
