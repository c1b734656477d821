"""Authorization lists."""

import pytest

from nakadi.auth import authorization
from nakadi.model.authorization import Attribute, AttributeDraft, Authorization, AuthorizationDraft
from nakadi.model.outcomes import Invalid, Violation
from nakadi.openapi.checks import openapi_violations

ANN = AttributeDraft("user", "ann")
A, B, C = Attribute("user", "ann"), Attribute("service", "shop"), Attribute("*", "*")


def violations_of(draft, schema="EventTypeDraft", under="authorization") -> list[tuple[str, str]]:
    found = openapi_violations(schema, {"authorization": authorization.authorization_body(draft)})
    return [(each.path, each.message) for each in found if each.path.startswith(under)]


def test_complete_lists_have_no_violations():
    """Lists with complete attributes are valid, including the wildcard. (R49, R50, R52)"""
    assert (
        violations_of(AuthorizationDraft(admins=(ANN,), readers=(AttributeDraft("*", "*"),), writers=(ANN, ANN))) == []
    )


def test_missing_and_empty_lists_have_violations():
    """Every list is mandatory and has at least one attribute. (R52)"""
    assert violations_of(AuthorizationDraft(admins=(), readers=(ANN,))) == [
        ("authorization.admins", "must contain at least one attribute"),
        ("authorization.writers", "must not be null"),
    ]


def test_subscriptions_have_no_writers():
    """The authorization section of a subscription has two lists. (R53)"""
    assert violations_of(AuthorizationDraft(admins=(ANN,), readers=(ANN,)), "SubscriptionDraft") == []
    assert violations_of(AuthorizationDraft(), "SubscriptionDraft") == [
        ("authorization.admins", "must not be null"),
        ("authorization.readers", "must not be null"),
    ]


def test_violations_have_the_given_path():
    """Lists outside an authorization section are reported by their own names. (R220)"""
    lists = authorization.authorization_body(AuthorizationDraft(admins=(ANN,), readers=(), writers=(ANN,)))
    assert openapi_violations("AdminLists", lists) == (Violation("readers", "must contain at least one attribute"),)


def test_incomplete_attributes_have_violations():
    """Both members of an attribute are mandatory; a missing one is reported with the attribute's index. (R19, R49)"""
    readers = (ANN, AttributeDraft("user"), AttributeDraft(value="ann"))
    assert violations_of(AuthorizationDraft(readers=readers), under="authorization.readers") == [
        ("authorization.readers[1].value", "must not be null"),
        ("authorization.readers[2].data_type", "must not be null"),
    ]


def test_attributes_may_be_in_several_lists():
    """An attribute may be in each of the lists, once in each. (R61)"""
    authorization.check_no_duplicates_in_lists(Authorization(admins=(A, B), readers=(A, B, C), writers=(A,)))


def test_attributes_may_not_be_repeated():
    """Repeated attributes are reported once each, list by list, under the operation's name. (R61)"""
    with pytest.raises(Invalid) as refused:
        authorization.check_no_duplicates_in_lists(Authorization(admins=(A, B, A, A, B), readers=(A,), writers=(C, C)))
    assert refused.value.detail == (
        "authorization property 'ADMIN' contains duplicated attribute(s): user:ann, service:shop; "
        "authorization property 'WRITE' contains duplicated attribute(s): *:*"
    )


def test_an_authorization_must_not_be_removed():
    """Authorization may be added and replaced, but never removed. (R62)"""
    section = Authorization(admins=(A,), readers=(A,))
    for old, new in ((None, None), (None, section), (section, section)):
        authorization.check_authorization_not_removed(old, new)
    with pytest.raises(Invalid) as refused:
        authorization.check_authorization_not_removed(section, None)
    assert refused.value.detail == "Changing authorization object to `null` is not possible due to existing one"
