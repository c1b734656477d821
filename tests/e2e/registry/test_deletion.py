"""DELETE /event-types/{name}."""

from tests.support.api import a_definition, an_authorization, create_event_type, problem


def test_a_deleted_event_type_is_gone(api):
    """Deletion answers 200 without body; afterwards the name is unknown, and free. (R131, R135)"""
    definition = a_definition()
    create_event_type(api, definition)

    answer = api.delete(f"/event-types/{definition['name']}")

    assert (answer.status_code, answer.content) == (200, b"")
    problem(api.get(f"/event-types/{definition['name']}"), 404)
    assert create_event_type(api, definition)["schema"]["version"] == "1.0.0"


def test_events_go_with_their_event_type(api):
    """An event type that is created again under a deleted name begins empty. (R131)"""
    definition = a_definition()
    create_event_type(api, definition)
    events = f"/event-types/{definition['name']}/events"
    assert api.post(events, json=[{"a": 1}]).status_code == 200

    api.delete(f"/event-types/{definition['name']}")
    create_event_type(api, definition)

    [partition] = api.get(f"/event-types/{definition['name']}/partitions").json()
    assert partition["newest_available_offset"] == "001-0001--1"


def test_old_schema_versions_go_too(api):
    """Schema versions of a deleted event type do not come back with its name. (R131)"""
    definition = a_definition()
    create_event_type(api, definition)
    api.post(f"/event-types/{definition['name']}/schemas", json={"type": "json_schema", "schema": "{ }"})

    api.delete(f"/event-types/{definition['name']}")
    create_event_type(api, definition)

    assert len(api.get(f"/event-types/{definition['name']}/schemas").json()["items"]) == 1


def test_what_does_not_exist_cannot_be_deleted(api):
    """Deleting an unknown event type gets 404. (R132)"""
    assert problem(api.delete("/event-types/no.such.thing"), 404) == 'EventType "no.such.thing" does not exist.'


def test_deletion_can_be_switched_off(api, switch_on):
    """While deletion is disabled, a request gets 403, even for a missing event type. (R132)"""
    switch_on("disable_event_type_deletion")

    assert problem(api.delete("/event-types/no.such.thing"), 403) == "Event Type deletion is disabled"


def test_administrators_delete_what_others_may_not(admin, ann_client):
    """An administrator of the broker may delete even while deletion is disabled. (R132)"""
    event_type = create_event_type(ann_client, authorization=an_authorization())
    admin.post("/settings/features", json={"feature": "disable_event_type_deletion", "enabled": True})
    try:
        assert (
            problem(ann_client.delete(f"/event-types/{event_type['name']}"), 403) == "Event Type deletion is disabled"
        )
        assert admin.delete(f"/event-types/{event_type['name']}").status_code == 200
    finally:
        admin.post("/settings/features", json={"feature": "disable_event_type_deletion", "enabled": False})


def test_a_read_only_registry_deletes_nothing(api, switch_on):
    """While writing is disabled, deletion gets 503. (R132, R231)"""
    event_type = create_event_type(api)
    switch_on("disable_db_write_operations")

    assert problem(api.delete(f"/event-types/{event_type['name']}"), 503) == "Database is currently in read-only mode"


def test_open_event_types_are_protected_when_authorization_is_mandatory(api, switch_on):
    """If authorization is mandatory, an event type without it cannot be deleted. (R132)"""
    event_type = create_event_type(api)
    switch_on("force_event_type_authz")

    assert problem(api.delete(f"/event-types/{event_type['name']}"), 403) == (
        f"Access on ADMIN event-type:{event_type['name']} denied; "
        "Reason : You cannot delete event-type without authorization."
    )
