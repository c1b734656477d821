"""/settings: administrators, the blacklist, features."""

import pytest

from tests.support.api import a_definition, an_authorization, attributes, create_event_type, problem, violations
from tests.support.builders import a_name

FEATURES = [
    "disable_event_type_creation",
    "disable_event_type_deletion",
    "delete_event_type_with_subscriptions",
    "event_type_deletion_only_admins",
    "disable_subscription_creation",
    "remote_tokeninfo",
    "kpi_collection",
    "audit_log_collection",
    "disable_db_write_operations",
    "force_event_type_authz",
    "force_subscription_authz",
    "repartitioning",
    "event_owner_selector_authz",
    "access_log_enabled",
    "token_subscriptions_iteration",
    "return_body_on_create_update_event_type",
    "validate_subscription_owning_application",
    "validate_event_type_owning_application",
    "skip_misplaced_events",
    "dlq_redrive_event_type_attachment_job",
    "force_data_lake_annotations",
]

DEFAULT_ADMIN = {"data_type": "service", "value": "nakadi_admin"}


def test_the_default_admin_is_in_every_list(api):
    """The configured administrator is in the lists of admins, readers and writers. (R219)"""
    answer = api.get("/settings/admins")

    assert answer.status_code == 200
    assert all(DEFAULT_ADMIN in answer.json()[name] for name in ("admins", "readers", "writers"))


def test_admins_are_replaced_as_a_whole(api):
    """New lists replace the old ones, with an empty answer; the default admin stays. (R220, R221)"""
    first, second = an_authorization("cat", "dan", "eve"), an_authorization("fay", "gus", "hal")
    api.post("/settings/admins", json=first)

    answer = api.post("/settings/admins", json=second)

    assert (answer.status_code, answer.content) == (200, b"")
    assert api.get("/settings/admins").json() == {name: [DEFAULT_ADMIN, *listed] for name, listed in second.items()}


def test_an_attribute_is_listed_once(api):
    """Repeated attributes, including the default one, are kept once. (R221, R223)"""
    twice = [*attributes("cat", "cat"), DEFAULT_ADMIN]
    api.post("/settings/admins", json=dict.fromkeys(("admins", "readers", "writers"), twice))

    assert api.get("/settings/admins").json()["admins"] == [DEFAULT_ADMIN, *attributes("cat")]


def test_every_list_of_admins_has_someone(api):
    """Missing and empty lists, and incomplete attributes, are reported field by field. (R220)"""
    answer = api.post("/settings/admins", json={"admins": [], "readers": [{"data_type": "user"}]})

    assert violations(answer) == {
        'Field "admins" must contain at least one attribute',
        'Field "readers[0].value" must not be null',
        'Field "writers" must not be null',
    }


def test_a_read_only_registry_keeps_its_admins(api, switch_on):
    """While writing is disabled, the lists cannot be replaced. (R222, R231)"""
    switch_on("disable_db_write_operations")

    assert (
        problem(api.post("/settings/admins", json=an_authorization()), 503) == "Database is currently in read-only mode"
    )


def test_the_blacklist_has_all_four_lists(api):
    """The blacklist shows consumers and producers, by event type and by application. (R224)"""
    answer = api.get("/settings/blacklist").json()

    assert set(answer) == {"consumers", "producers"}
    assert all(set(each) == {"event_types", "apps"} for each in answer.values())


@pytest.mark.parametrize(
    ("kind", "side", "what"),
    [
        ("CONSUMER_APP", "consumers", "apps"),
        ("CONSUMER_ET", "consumers", "event_types"),
        ("PRODUCER_APP", "producers", "apps"),
        ("PRODUCER_ET", "producers", "event_types"),
    ],
)
def test_an_entry_comes_and_goes(api, kind, side, what):
    """Blocking and unblocking get 204, even if repeated; the name need not exist. (R225)"""
    name = a_name("blocked")
    path = f"/settings/blacklist/{kind}/{name}"

    for _ in range(2):
        assert api.put(path).status_code == 204
    assert api.get("/settings/blacklist").json()[side][what].count(name) == 1
    for _ in range(2):
        assert api.delete(path).status_code == 204
    assert name not in api.get("/settings/blacklist").json()[side][what]


def test_a_blocked_event_type_is_not_published_to(api):
    """A blocked event type refuses producers until the block is lifted. (R226)"""
    name = create_event_type(api)["name"]
    api.put(f"/settings/blacklist/PRODUCER_ET/{name}")

    assert problem(api.post(f"/event-types/{name}/events", json=[]), 403) == "Application or event type is blocked"
    api.delete(f"/settings/blacklist/PRODUCER_ET/{name}")
    assert api.post(f"/event-types/{name}/events", json=[]).status_code == 200


@pytest.mark.parametrize("kind", ["consumer_app", "APP", "CONSUMER_EVENT_TYPE"])
def test_an_entry_has_one_of_four_kinds(api, kind):
    """The kinds of entries on the blacklist are written in upper case; any other kind is a bad request. (R225, R277)"""
    assert problem(api.put(f"/settings/blacklist/{kind}/x"), 400).startswith(f"Illegal enum value: '{kind}'")
    problem(api.delete(f"/settings/blacklist/{kind}/x"), 400)


def test_features_have_an_order(api):
    """The list of features always has the same order. (R228, R230)"""
    items = api.get("/settings/features").json()["items"]

    assert [each["feature"] for each in items] == FEATURES
    assert {type(each["enabled"]) for each in items} == {bool}


def test_a_feature_is_switched(api):
    """Switching a feature gets 204, even if repeated; a missing `enabled` means off. (R229)"""

    def is_on():
        items = api.get("/settings/features").json()["items"]
        return next(each["enabled"] for each in items if each["feature"] == "skip_misplaced_events")

    for _ in range(2):
        answer = api.post("/settings/features", json={"feature": "SKIP_MISPLACED_EVENTS", "enabled": True})
        assert (answer.status_code, answer.content) == (204, b"")
        assert is_on()
    api.post("/settings/features", json={"feature": "skip_misplaced_events"})
    assert not is_on()


def test_an_unknown_feature_is_a_bad_request(api):
    """A feature that does not exist gets 400 with the existing ones. (R4, R229)"""
    assert problem(api.post("/settings/features", json={"feature": "odd"}), 400).startswith(
        "Illegal enum value: 'odd'. Possible values: [disable_event_type_creation, "
    )


def test_a_missing_feature_is_listed(api):
    """A request that names no feature gets 400 with a list of violations. (R22, R229)"""
    answer = api.post("/settings/features", json={"enabled": True})

    assert answer.status_code == 400
    assert answer.json()["violations"] == [{"field": "feature", "message": "must not be null"}]


def test_read_only_can_be_switched_off_again(api):
    """Features and the blacklist can be changed while writing is disabled. (R231)"""
    api.post("/settings/features", json={"feature": "disable_db_write_operations", "enabled": True})

    assert api.put("/settings/blacklist/CONSUMER_APP/x").status_code == 204
    assert api.delete("/settings/blacklist/CONSUMER_APP/x").status_code == 204
    off = api.post("/settings/features", json={"feature": "disable_db_write_operations", "enabled": False})
    assert off.status_code == 204
    create_event_type(api)


def test_a_feature_is_in_force_for_the_next_request(api):
    """The next request sees a feature that was switched on or off, each time. (R229, R295)"""
    statuses = []
    for enabled in (True, False, True, False):
        switch = {"feature": "disable_event_type_creation", "enabled": enabled}
        assert api.post("/settings/features", json=switch).status_code == 204
        statuses.append(api.post("/event-types", json=a_definition()).status_code)

    assert statuses == [501, 201, 501, 201]
