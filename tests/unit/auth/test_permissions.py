import itertools

import pytest

from nakadi.auth.admins import Admins
from nakadi.auth.blacklist import Blacklist
from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions, permission_denied_error
from nakadi.model.authorization import (
    UNAUTHENTICATED,
    WILDCARD,
    Attribute,
    Authorization,
    BlockedKind,
    Operation,
    Resource,
    ResourceType,
    Subject,
)
from nakadi.model.outcomes import NotPermitted
from tests.support.registry import settings_document

ANN, BOB, CAT, ROOT = (Attribute("user", name) for name in ("ann", "bob", "cat", "root"))


def subject(*attributes):
    return Subject(name=attributes[0].value if attributes else "anonymous", attributes=frozenset(attributes))


@pytest.fixture
def blacklist():
    return Blacklist(settings_document("blacklist"))


@pytest.fixture
def admins():
    return Admins(settings_document("admins"), Features(settings_document("features")), default=(ROOT,))


@pytest.fixture
def permissions(admins, blacklist):
    return Permissions(admins, blacklist, all_data_access=(Attribute("team", "archive"),))


LISTED = Resource(
    ResourceType.EVENT_TYPE, "order.created", Authorization(admins=(ANN,), readers=(BOB,), writers=(CAT,))
)
OPEN = Resource(ResourceType.EVENT_TYPE, "order.created")

GRANTED = {
    ANN: {Operation.VIEW, Operation.ADMIN},
    BOB: {Operation.VIEW, Operation.READ},
    CAT: {Operation.VIEW, Operation.WRITE},
    ROOT: {Operation.VIEW, Operation.ADMIN},
    Attribute("team", "archive"): {Operation.READ},
    Attribute("user", "dan"): set(),
}


@pytest.mark.parametrize(("attribute", "operation"), list(itertools.product(GRANTED, Operation)))
def test_each_list_grants_its_operations(permissions, attribute, operation):
    """Admins administrate, readers read, writers write, and each of them views. A Nakadi admin views and administrates,
    but neither reads nor writes events. A subject with all-data access reads. (R51, R55, R56, R57, R58, R59)
    """
    assert permissions.allows(operation, LISTED, subject(attribute)) == (operation in GRANTED[attribute])


@pytest.mark.parametrize("operation", Operation)
def test_an_open_resource_is_open_to_everyone(permissions, operation):
    """Without an authorization section, every operation is granted to everyone. (R54)"""
    assert permissions.allows(operation, OPEN, subject())


def test_one_matching_attribute_is_enough(permissions):
    """A subject with many attributes needs only one of them in the list. (R51)"""
    assert permissions.allows(Operation.READ, LISTED, subject(CAT, BOB))


@pytest.mark.parametrize("operation", Operation)
def test_the_wildcard_matches_every_subject(permissions, operation):
    """The attribute `*:*` grants its operation to any subject. (R50)"""
    everyone = Authorization(admins=(WILDCARD,), readers=(WILDCARD,), writers=(WILDCARD,))

    assert permissions.allows(operation, Resource(ResourceType.EVENT_TYPE, "x", everyone), subject())


def test_the_lists_of_a_subscription_have_no_writers(permissions):
    """A subscription's section has admins and readers, but no writers. (R53)"""
    section = Resource(ResourceType.SUBSCRIPTION, "id", Authorization(admins=(ANN,), readers=(BOB,)))

    assert not permissions.allows(Operation.WRITE, section, subject(ANN, BOB))


@pytest.mark.parametrize("operation", Operation)
def test_a_refusal_names_operation_and_resource(permissions, operation):
    """The refusal says which operation on which resource is denied. (R60)"""
    with pytest.raises(NotPermitted) as refusal:
        permissions.require(operation, LISTED, subject(Attribute("user", "dan")))

    assert refusal.value.detail == f"Access on {operation} event-type:order.created denied"


def test_a_refusal_can_give_its_reason():
    """If the reason for a refusal is known, it follows in the message. (R60)"""
    assert str(permission_denied_error(Operation.ADMIN, OPEN, "because")) == (
        "Access on ADMIN event-type:order.created denied; Reason : because"
    )


@pytest.mark.parametrize("operation", Operation)
def test_with_authentication_off_everything_is_allowed(permissions, operation):
    """While authentication is off, authorization sections have no effect. (R41, R49)"""
    assert permissions.allows(operation, LISTED, UNAUTHENTICATED)


def test_a_change_of_the_admins_takes_effect_at_once(permissions, admins):
    """A new administrator has all rights from the next request. (R65)"""
    dan = subject(Attribute("user", "dan"))
    assert not permissions.is_administrator(dan)

    admins.replace(Authorization(admins=(ROOT,), readers=(ROOT,), writers=(Attribute("user", "dan"),)))

    assert permissions.is_administrator(dan)


@pytest.mark.parametrize(
    ("kind", "name", "producing", "consuming"),
    [
        (BlockedKind.PRODUCER_APP, "ann", True, False),
        (BlockedKind.PRODUCER_EVENT_TYPE, "order.created", True, False),
        (BlockedKind.CONSUMER_APP, "ann", False, True),
        (BlockedKind.CONSUMER_EVENT_TYPE, "order.created", False, True),
        (BlockedKind.CONSUMER_EVENT_TYPE, "order.paid", False, True),
        (BlockedKind.PRODUCER_APP, "bob", False, False),
    ],
)
def test_the_blacklist_blocks_applications_and_event_types(permissions, blacklist, kind, name, producing, consuming):
    """An entry of the blacklist blocks publishing or consuming, either for an application or for an event type; a
    reader of several event types is blocked if one of them is. (R226, R227)
    """
    blacklist.block(kind, name)

    assert assert_denied(lambda: permissions.require_producer(subject(ANN), "order.created")) == producing
    assert (
        assert_denied(lambda: permissions.require_consumer(subject(ANN), ["order.created", "order.paid"])) == consuming
    )


def test_a_removed_block_has_no_effect(permissions, blacklist):
    """An entry that was removed from the blacklist has no effect any more. (R226)"""
    blacklist.block(BlockedKind.PRODUCER_APP, "ann")
    blacklist.unblock(BlockedKind.PRODUCER_APP, "ann")

    permissions.require_producer(subject(ANN), "order.created")


def assert_denied(step):
    try:
        step()
    except NotPermitted as refusal:
        return refusal.detail == "Application or event type is blocked"
    return False
