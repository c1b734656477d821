import pytest

from nakadi.model.authorization import UNAUTHENTICATED, Attribute, Feature, Subject
from nakadi.model.event_type import OwnerSelector, OwnerSelectorType
from nakadi.publishing.batch import BatchStatus
from tests.support.builders import an_event_type
from tests.support.logs import records_of_this_thread
from tests.support.publishing import (
    ANN,
    EID,
    PublisherInMemory,
    a_business_type,
    metadata,
    statuses_and_steps,
    the_failure,
)

PATH = OwnerSelector(type=OwnerSelectorType.PATH, name="user", value="order.'sold.by'")
STATIC = OwnerSelector(type=OwnerSelectorType.STATIC, name="user", value="ann")
METADATA = OwnerSelector(type=OwnerSelectorType.METADATA, name="user")
BOB = Subject(name="bob", attributes=frozenset({Attribute("user", "bob")}))


@pytest.fixture
def house_with_owners(house) -> PublisherInMemory:
    """A publisher of an event type whose events have owners."""
    house.features.switch(Feature.EVENT_OWNER_SELECTOR_AUTHZ, on=True)
    return house


def owners(house, event_type):
    return [record.owner for record in house.records(event_type)]


def sold_by(seller):
    return {"order": {"sold.by": seller}}


def test_owners_are_beside_the_events(house_with_owners):
    """The owner that is found at the path from the event's root is stored beside the event, as a string. (P129, P130,
    P134)"""
    event_type = house_with_owners.add(an_event_type(event_owner_selector=PATH))
    house_with_owners.publish(event_type, [sold_by("ann"), sold_by(7), sold_by(True)])
    assert owners(house_with_owners, event_type) == [Attribute("user", name) for name in ("ann", "7", "true")]
    assert house_with_owners.stored(event_type)[0] == sold_by("ann")


def test_a_fixed_owner(house_with_owners):
    """With a static selector, every event has the same owner. (P130)"""
    event_type = house_with_owners.add(an_event_type(event_owner_selector=STATIC))
    house_with_owners.publish(event_type, [{}, {}], ANN)
    assert owners(house_with_owners, event_type) == [Attribute("user", "ann")] * 2


def test_without_the_feature_events_have_no_owner(house):
    """Selectors have no effect while the feature is off, and without a selector there is no owner. (P129)"""
    with_selector, without = house.add(an_event_type(event_owner_selector=STATIC)), house.add(an_event_type())
    house.publish(with_selector, [{}], BOB)
    house.features.switch(Feature.EVENT_OWNER_SELECTOR_AUTHZ, on=True)
    house.publish(without, [{}], BOB)
    assert owners(house, with_selector) == owners(house, without) == [None]


@pytest.mark.parametrize("event", [{}, {"order": {}}, {"order": 1}, sold_by(None)])
def test_an_event_without_an_owner(house_with_owners, event):
    """If the path leads to nothing or to null, the event has no owner, and is published. (P131)"""
    event_type = house_with_owners.add(an_event_type(event_owner_selector=PATH))
    assert house_with_owners.publish(event_type, [event], BOB).status is BatchStatus.STORED
    assert owners(house_with_owners, event_type) == [None]


def test_events_without_an_owner_are_noted(house_with_owners, caplog):
    """The log contains the number of events in a batch without an owner, which all readers may read."""
    event_type = house_with_owners.add(an_event_type(event_owner_selector=PATH))
    with caplog.at_level("INFO", "nakadi.publishing.validation"):
        house_with_owners.publish(event_type, [sold_by("bob")], BOB)
        assert not records_of_this_thread(caplog)
        house_with_owners.publish(event_type, [sold_by("bob"), {}, {}], BOB)
    [record] = records_of_this_thread(caplog)
    assert record.getMessage().startswith("2 of 3 events name no ")


def test_owners_are_found_before_enrichment(house_with_owners):
    """The owner is found in the event as it was sent: values that enrichment adds cannot be an owner. (P132)"""
    selector = OwnerSelector(type=OwnerSelectorType.PATH, name="user", value="metadata.published_by")
    event_type = house_with_owners.add(a_business_type(event_owner_selector=selector))
    house_with_owners.publish(event_type, [{"metadata": metadata()}], ANN)
    assert owners(house_with_owners, event_type) == [None]
    assert house_with_owners.stored(event_type)[0]["metadata"]["published_by"] == "ann"


def test_writing_for_another_owner_is_rejected(house_with_owners):
    """If a publisher may not write for an event's owner, the answer has items, and nothing is stored. (P133, P122,
    P14)"""
    event_type = house_with_owners.add(an_event_type(event_owner_selector=PATH))
    events = [sold_by("ann"), sold_by("bob") | {"metadata": {"eid": EID}}, sold_by("ann")]
    outcome = house_with_owners.publish(event_type, events, ANN)
    assert statuses_and_steps(outcome) == [("aborted", "validating"), ("failed", "validating"), ("aborted", "none")]
    assert the_failure(outcome)[1] == f"Access on WRITE event:{EID} denied"
    assert house_with_owners.records(event_type) == []


def test_owners_are_not_checked_while_authentication_is_off(house_with_owners):
    """Without authentication, every client may write for all owners. (P133)"""
    event_type = house_with_owners.add(an_event_type(event_owner_selector=PATH))
    assert house_with_owners.publish(event_type, [sold_by("bob")], UNAUTHENTICATED).status is BatchStatus.STORED


def test_an_owner_in_metadata_is_for_other_formats(house_with_owners):
    """JSON events fail if their selector is for another format, rather than being readable by all. (P130)"""
    event_type = house_with_owners.add(an_event_type(event_owner_selector=METADATA))
    assert the_failure(house_with_owners.publish(event_type, [{}, {}])) == (
        "validating",
        "event_owner_selector of type 'metadata' is not supported for JSON events",
    )


def test_a_validation_failure_among_owned_events(house_with_owners):
    """With owners, events after the failing one already count as being validated. (P123)"""
    event_type = house_with_owners.add(a_business_type(event_owner_selector=STATIC))
    outcome = house_with_owners.publish(event_type, [{}, {"metadata": metadata()}], ANN)
    assert statuses_and_steps(outcome) == [("failed", "validating"), ("aborted", "validating")]
