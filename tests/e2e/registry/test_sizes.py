"""The limits of lengths that clients choose."""

import json

import pytest

from tests.support.api import a_definition, an_authorization, attributes, create_event_type, problem
from tests.support.builders import a_name

LONG = "x" * 1001
TOO_LONG = "size must be between 0 and 1000"
MANY = {f"k{number}": "v" for number in range(101)}


def authorization_with(**changes):
    return {"authorization": {**an_authorization(), **changes}}


EVENT_TYPES = {
    "owning_application": ({"owning_application": LONG}, f'Field "owning_application" {TOO_LONG}'),
    "an attribute's type": (
        authorization_with(readers=[{"data_type": LONG, "value": "ann"}]),
        f'Field "authorization.readers[0].data_type" {TOO_LONG}',
    ),
    "an attribute's value": (
        authorization_with(writers=attributes("ann", LONG)),
        f'Field "authorization.writers[1].value" {TOO_LONG}',
    ),
    "attributes": (
        authorization_with(admins=attributes(*map(str, range(1001)))),
        f'Field "authorization.admins" {TOO_LONG}',
    ),
    "a field": ({"partition_key_fields": ["a", LONG]}, f'Field "partition_key_fields[1]" {TOO_LONG}'),
    "fields": ({"ordering_key_fields": ["a"] * 101}, 'Field "ordering_key_fields" size must be between 0 and 100'),
    "instances": ({"ordering_instance_ids": [LONG]}, f'Field "ordering_instance_ids[0]" {TOO_LONG}'),
    "strategies": (
        {"enrichment_strategies": ["metadata_enrichment"] * 101},
        'Field "enrichment_strategies" size must be between 0 and 100',
    ),
    "an owner's name": (
        {"event_owner_selector": {"type": "static", "name": LONG, "value": "x"}},
        f'Field "event_owner_selector.name" {TOO_LONG}',
    ),
    "an owner's value": (
        {"event_owner_selector": {"type": "static", "name": "x", "value": LONG}},
        f'Field "event_owner_selector.value" {TOO_LONG}',
    ),
    "annotations": ({"annotations": MANY}, 'Field "annotations" size must be between 0 and 100'),
    "labels": ({"labels": MANY}, 'Field "labels" size must be between 0 and 100'),
}


@pytest.mark.parametrize("what", EVENT_TYPES)
def test_an_event_type_has_no_endless_texts_and_lists(api, what):
    """A value of an event type beyond a limit is reported with the limit, on creation and on a change. (R21)"""
    changes, detail = EVENT_TYPES[what]
    name = create_event_type(api)["name"]

    assert problem(api.post("/event-types", json=a_definition(**changes)), 422).strip() == detail
    assert problem(api.put(f"/event-types/{name}", json=a_definition(name=name, **changes)), 422).strip() == detail


SUBSCRIPTIONS = {
    "owning_application": ({"owning_application": LONG}, f'Field "owning_application" {TOO_LONG}'),
    "consumer_group": ({"consumer_group": LONG}, f'Field "consumer_group" {TOO_LONG}'),
    "event types": (
        {"event_types": [f"n{number}" for number in range(10_001)]},
        'Field "event_types" size must be between 0 and 10000',
    ),
    "an offset": (
        {"read_from": "cursors", "initial_cursors": [{"event_type": "x", "partition": "0", "offset": "0" * 1001}]},
        f'Field "initial_cursors[0].offset" {TOO_LONG}',
    ),
    "an attribute": (authorization_with(admins=attributes(LONG)), f'Field "authorization.admins[0].value" {TOO_LONG}'),
    "annotations": ({"annotations": MANY}, 'Field "annotations" size must be between 0 and 100'),
}


@pytest.mark.parametrize("what", SUBSCRIPTIONS)
def test_a_subscription_has_no_endless_texts_and_lists(api, what):
    """A value of a subscription beyond a limit is reported with the limit. (S10)"""
    changes, detail = SUBSCRIPTIONS[what]
    asked = {"owning_application": "me", "event_types": [a_name()], **changes}

    assert problem(api.post("/subscriptions", json=asked), 422).strip() == detail


def test_committed_cursors_are_short(api):
    """The texts of a cursor have limits, even if they are only compared. (S110)"""
    cursor = {"event_type": "x", "partition": "0", "offset": "0" * 1001, "cursor_token": "t"}

    refused = api.post("/subscriptions/x/cursors", json={"items": [cursor]}, headers={"X-Nakadi-StreamId": "s"})

    assert problem(refused, 422).strip() == f'Field "items[0].offset" {TOO_LONG}'


def test_administrators_are_so_many(api):
    """The lists of administrators have the limits of every authorization section. (R221)"""
    refused = api.post("/settings/admins", json=an_authorization(admins=" ".join(map(str, range(1001)))))

    assert problem(refused, 422).strip() == f'Field "admins" {TOO_LONG}'


def test_names_on_the_blacklist_are_short(api):
    """The blacklist refuses a name of more than a thousand characters. (R223)"""
    refused = api.put(f"/settings/blacklist/CONSUMER_APP/{LONG}")

    assert problem(refused, 422) == "A name on the blacklist has at most 1000 characters"


def test_the_configuration_of_a_storage_is_short(api):
    """The length of a storage's configuration has a limit, although the broker keeps the configuration unchanged.
    (R237)
    """
    storage = {"id": a_name()[:30], "storage_type": "embedded", "embedded_configuration": {"a": "x" * 10_000}}

    assert problem(api.post("/storages", json=storage), 422).endswith("has more than 10000 bytes.")


def test_a_flow_id_is_short(api):
    """A flow id that is too long is refused, and the answer has a new one. (R38, P9)"""
    refused = api.get("/event-types", headers={"X-Flow-Id": LONG})

    assert problem(refused, 400) == "X-Flow-Id has more than 1000 characters"
    assert len(refused.headers["x-flow-id"]) == 24
    assert api.get("/event-types", headers={"X-Flow-Id": LONG[1:]}).headers["x-flow-id"] == LONG[1:]


@pytest.mark.parametrize("path", ["/event-types", "/subscriptions", "/storages", "/subscriptions/x/cursors"])
def test_a_body_that_is_no_batch_has_two_megabytes(api, path):
    """Request bodies of the registry have a limited length, and a limited number of values. (R9)"""
    long = json.dumps({"owning_application": "x" * 2_100_000}).encode()
    dense = b'{"a":[' + b"[]," * 60_000 + b"[]]}"
    headers = {"Content-Type": "application/json"}

    assert problem(api.post(path, content=long, headers=headers), 413) == "The body is longer than 2097152 bytes"
    assert problem(api.post(path, content=dense, headers=headers), 413) == "The body has too many values within it"
