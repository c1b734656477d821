"""What can be done about parked events, and what cannot."""

import pytest
from msgspec.structs import replace

from nakadi.model.authorization import Attribute, Subject
from nakadi.model.event_type import Position
from nakadi.model.outcomes import Conflict, NotPermitted
from nakadi.model.subscription import Redrive, Replay, SetOffsets
from nakadi.ports.coordination import AssignmentChanged
from nakadi.subscriptions.api import parked_events as module
from nakadi.subscriptions.api.parked_events import ParkedEventFilter, id_of, parsed_id
from tests.support.api import problem
from tests.support.builders import A_MOMENT
from tests.support.coordination import a_parked_event
from tests.support.subscriptions import a_cursor, cursors, reset

ADMIN = Subject(name="ann", trusted=True)


class Lot:
    """A subscription with one partition, and events in its lot."""

    def __init__(self, house, *events):
        self.house = house
        self.name = house.event_type(events=10)
        self.subscription = house.subscription(self.name)
        self.id = self.subscription["id"]
        [self.entry] = house.assignment(self.subscription).entries
        session = house.session(self.subscription)
        them = [replace_place(each, self.entry.place) for each in events]
        if them:
            house.coordination.park(self.id, session, them, A_MOMENT)
        house.commit(self.subscription, session, a_cursor(self.name, "0", 9))
        house.leave(self.subscription, session)
        self.events = house.subscription_services.parked_events

    @property
    def waiting(self):
        return [each.position.offset for each in self.house.coordination.parked(self.id)]

    def path(self, offset=None, timeline=1):
        name = "" if offset is None else f"/{self.name}:0:001-{timeline:04x}-{offset:018d}"
        return f"/subscriptions/{self.id}/parked-events{name}"

    def entry_now(self):
        [entry] = self.house.assignment(self.subscription).entries
        return entry

    def write_entry(self, **changes):
        old = self.house.assignment(self.subscription)
        entries = (replace(old.entries[0], **changes),)
        self.house.coordination.write(self.id, old, replace(old, entries=entries), A_MOMENT)

    def at(self, offset):
        return Position(1, offset)

    def put_cursor(self, position):
        old = self.house.assignment(self.subscription)
        self.house.coordination.write(self.id, old, old, A_MOMENT, {self.entry.place: position})


def replace_place(event, place):
    return replace(event, parked=replace(event.parked, place=place))


def test_a_redrive_puts_the_cursor_before_the_first(house):
    """The cursor goes back to before the first event of the key, and what is to be sent is written down with it."""
    lot = Lot(house, a_parked_event(3), a_parked_event(5, key="another"), a_parked_event(7))
    assert house.api.post(lot.path(7) + "/redrive").status_code == 204
    replay = lot.entry_now().replay
    assert (replay.until.offset, replay.keys) == (9, ("a key",))
    assert cursors(house.api, lot.subscription)[lot.name, "0"].endswith(f"{2:018d}")


def test_one_redrive_after_the_other(house):
    """A second redrive keeps what is left of the first one, but for keys that failed again; what was sent goes."""
    lot = Lot(
        house,
        a_parked_event(1),
        a_parked_event(3, key="failed again", replay="first"),
        a_parked_event(4, key="failed again"),
        a_parked_event(5),
        a_parked_event(6, key="another"),
        a_parked_event(8, key="third"),
    )
    lot.write_entry(replay=Replay("first", lot.at(9), ("a key", "failed again")))
    lot.put_cursor(lot.at(2))
    assert house.api.post(lot.path(6) + "/redrive").status_code == 204
    replay = lot.entry_now().replay
    assert (replay.keys, replay.until.offset) == (("a key", "another"), 9)
    assert lot.waiting == [3, 4, 5, 6, 8]
    assert cursors(house.api, lot.subscription)[lot.name, "0"].endswith(f"{2:018d}")


def test_setting_cursors_ends_a_replay(house):
    """Whoever sets the cursor says what is sent next; what was to be sent once more stays parked."""
    lot = Lot(house, a_parked_event(3))
    assert house.api.post(lot.path(3) + "/redrive").status_code == 204
    assert reset(house.api, lot.subscription, a_cursor(lot.name, "0", 9)).status_code == 204
    assert (lot.entry_now().replay, lot.waiting) == (None, [3])
    assert house.api.get(lot.path(3)).json()["state"] == "parked"


def test_what_the_log_will_give_again_leaves_the_lot(house):
    """An event that was put away before the cursor came to it is not sent twice, out of the log and out of the lot."""
    lot = Lot(house, a_parked_event(3), a_parked_event(12))
    assert house.api.post(lot.path() + "/redrive").status_code == 204
    assert lot.waiting == [3]


def test_an_empty_lot_disturbs_no_one(house):
    """Where there is nothing to redrive, streams go on."""
    lot = Lot(house)
    session = house.session(lot.subscription)
    assert house.api.post(lot.path() + "/redrive").status_code == 204
    assert house.assignment(lot.subscription).session(session) is not None


def test_many_keys_at_once_are_too_many(house, monkeypatch):
    """Keys that are redriven have to fit into the partition's entry; all together always do."""
    monkeypatch.setattr(module, "MOST_KEYS", 1)
    lot = Lot(house, a_parked_event(3), a_parked_event(4, key="another"))
    assert house.api.post(lot.path(3) + "/redrive").status_code == 204
    assert problem(house.api.post(lot.path(4) + "/redrive"), 409).startswith("More than")
    assert house.api.post(lot.path() + "/redrive").status_code == 204
    assert lot.entry_now().replay.keys is None


def test_what_cannot_be_committed_is_not_redriven(house):
    """An event whose timeline is gone could not be committed; it can still be read and skipped."""
    lot = Lot(house, a_parked_event(3, timeline=7, value=b'{"n":3}'))
    lot.put_cursor(Position(8, 9))
    assert "its timeline is gone" in problem(house.api.post(lot.path(3, 7) + "/redrive"), 409)
    assert house.api.get(lot.path(3, 7)).json()["event"] == {"n": 3}
    assert house.api.delete(lot.path(3, 7)).status_code == 204
    assert lot.waiting == []


def test_a_redrive_is_refused_while_cursors_are_being_set(house):
    """As with setting cursors, one at a time."""
    lot = Lot(house, a_parked_event(3))
    house.subscription_services.resets._asked(lot.id, SetOffsets())
    with pytest.raises(Conflict):
        lot.events.redrive_all(lot.id, ADMIN)


def test_events_of_others_are_not_shown(house):
    """With owners switched on, an event is told to those who may read it alone. (S87)"""
    lot = Lot(house, a_parked_event(3, value=b'{"n":3}', owner=Attribute("user", "bob")))
    switch = {"feature": "event_owner_selector_authz", "enabled": True}
    assert house.api.post("/settings/features", json=switch).status_code == 204
    [found] = lot.events.listed(lot.id, ParkedEventFilter(), None, 10, ADMIN)
    ann, bob = (Subject(name=each, attributes=frozenset({Attribute("user", each)})) for each in ("ann", "bob"))
    assert lot.events.one(lot.id, found.id, bob)[1] == b'{"n":3}'
    with pytest.raises(NotPermitted):
        lot.events.one(lot.id, found.id, ann)


def test_an_event_that_goes_meanwhile_is_not_found(house, monkeypatch):
    """Whoever skips while another looks leaves nothing to be shown."""
    lot = Lot(house, a_parked_event(3))
    monkeypatch.setattr(house.coordination, "parked_value", lambda *_: None)
    assert problem(house.api.get(lot.path(3)), 404)


def test_skipping_notifies_streams_even_if_another_is_faster(house, monkeypatch):
    """Streams look at the lot anew when the assignment changes, whoever changes it."""
    lot = Lot(house, a_parked_event(3), a_parked_event(4))
    before = house.assignment(lot.subscription).revision
    assert house.api.delete(lot.path(3)).status_code == 204
    assert house.assignment(lot.subscription).revision == before + 1

    def taken(*_):
        raise AssignmentChanged(lot.id)

    monkeypatch.setattr(house.coordination, "write", taken)
    assert house.api.delete(lot.path(4)).status_code == 204


def test_ids_name_places():
    """An id is event type, partition and offset; there and back it is the same, whatever the timeline."""
    event = a_parked_event(12, timeline=0xABCDE).parked
    assert parsed_id(id_of(event)) == (event.place, event.position)
    assert parsed_id("a:b:c") is None


@pytest.mark.parametrize("offset", ["9" * 19, "9" * 30, "9" * 5000, "٣" * 18])
def test_ids_beyond_64_bits_name_nothing(house, offset):
    """An id with an offset that no event can have is 404, and not looked up."""
    lot = Lot(house)
    parked_id = f"{lot.name}:0:001-0001-{offset}"

    assert parsed_id(parked_id) is None
    assert house.api.get(f"/subscriptions/{lot.id}/parked-events/{parked_id}").status_code == 404


def test_a_redrive_goes_on_without_its_caller(house):
    """What one process has begun to do without its caller no other does as well: what is parked meanwhile stays. It is
    given up when its time is over and the process has died."""
    lot = Lot(house, a_parked_event(3))
    fulfilment = house.subscription_services.reset_execution
    house.subscription_services.resets._asked(lot.id, Redrive())
    old = house.assignment(lot.subscription)
    house.coordination.write(lot.id, old, replace(old, reset=replace(old.reset, claimed=True)), A_MOMENT)
    assert fulfilment.attempt(lot.id).reset.claimed
    house.wait(63)
    given_up = fulfilment.attempt(lot.id)
    assert (given_up.reset, given_up.ended.failure) == (None, "Timeout resetting cursors")
    assert (lot.waiting, lot.entry_now().replay) == ([3], None)


def test_a_redrive_that_fails_in_another_process_is_reported(house, monkeypatch):
    """Whoever waits for a redrive that another process cannot carry out learns why."""
    lot = Lot(house, a_parked_event(3))
    resets = house.subscription_services.resets
    reset_id = resets._asked(lot.id, Redrive())
    monkeypatch.setattr(module.RedrivePlanner, "_check_timelines", _refuse)
    house.subscription_services.reset_execution.attempt(lot.id)
    assert house.assignment(lot.subscription).ended.id == reset_id
    assert problem(house.api.post(lot.path() + "/redrive"), 409) == "its timeline is gone"


def _refuse(*_):
    raise Conflict("its timeline is gone")
