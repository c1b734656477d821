"""The broker's own event types: the audit log, and changes of event types."""

import json

from tests.support.api import a_definition, an_authorization, create_event_type
from tests.support.own_events import own_events


def changes_of(events, resource):
    return [each["data"] | {"op": each["data_op"]} for each in events if each["data"]["resource_id"] == resource]


def test_changes_are_reported_while_the_feature_is_on(api, switch_on):
    """Creation, change and deletion of an event type are reported with the state before and after. (R106, R250,
    R251)"""
    before = a_definition()
    create_event_type(api, before)
    switch_on("audit_log_collection")
    definition = a_definition()

    create_event_type(api, definition)
    api.put(f"/event-types/{definition['name']}", json=definition | {"owning_application": "other"})
    api.delete(f"/event-types/{definition['name']}")

    events = own_events(api, "nakadi.audit.log")
    creation, change, deletion = changes_of(events, definition["name"])
    assert [each["op"] for each in (creation, change, deletion)] == ["C", "U", "D"]
    assert all(each["resource_type"] == "event_type" for each in (creation, change, deletion))
    assert all(each["user"] == "unauthenticated" for each in (creation, change, deletion))
    assert "previous_object" not in creation
    assert change["previous_object"]["owning_application"] == "shop"
    assert json.loads(change["new_text"])["owning_application"] == "other"
    assert "new_object" not in deletion
    assert changes_of(events, before["name"]) == []


def test_the_log_begins_with_itself(api, switch_on):
    """Switching the audit log on is its first record, and creates its event type. (R250, R251)"""
    switch_on("audit_log_collection")

    assert changes_of(own_events(api, "nakadi.audit.log"), "audit_log_collection")
    assert api.get("/event-types/nakadi.audit.log").json()["category"] == "data"


def test_settings_and_storages_are_reported_too(api, switch_on, a_storage):
    """Features, admins, blacklist, storages and timelines are recorded by their kind. (R251)"""
    switch_on("audit_log_collection")
    name = create_event_type(api)["name"]
    api.post("/settings/admins", json=an_authorization("zoe"))
    api.put("/settings/blacklist/CONSUMER_APP/audited")
    api.delete("/settings/blacklist/CONSUMER_APP/audited")
    api.post("/storages", json=a_storage(id="audited"))
    api.delete("/storages/audited")
    api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"})

    kinds = {each["data"]["resource_type"] for each in own_events(api, "nakadi.audit.log")}

    assert kinds >= {"event_type", "admins", "blacklist_entry", "storage", "timeline", "feature"}


def test_what_failed_is_not_reported(api, switch_on):
    """A refused request changes nothing, and is not recorded. (R251)"""
    switch_on("audit_log_collection")
    definition = a_definition(partition_strategy="odd")

    assert api.post("/event-types", json=definition).status_code == 422
    assert api.post("/event-types", content="{", headers={"content-type": "application/json"}).status_code == 400
    assert changes_of(own_events(api, "nakadi.audit.log"), definition["name"]) == []


def test_telling_does_not_fail_the_request(api, switch_on):
    """If the broker cannot write the audit log, the request still succeeds. (R251)"""
    switch_on("audit_log_collection")
    taken = api.get("/event-types/nakadi.audit.log").json()
    unfit = {"type": "json_schema", "schema": '{"properties": {"user": {"type": "integer"}}}'}
    none = {"compatibility_mode": "none"}
    assert api.put("/event-types/nakadi.audit.log", json=taken | none).status_code == 200
    assert api.put("/event-types/nakadi.audit.log", json=taken | none | {"schema": unfit}).status_code == 200

    assert create_event_type(api)
    again = taken | none
    assert api.put("/event-types/nakadi.audit.log", json=again).status_code == 200


def test_what_becomes_of_event_types_is_a_figure(api, switch_on):
    """With KPI collection on, the creation and the deletion of an event type are recorded as events. (R106, R250)"""
    switch_on("kpi_collection")
    definition = a_definition(authorization=an_authorization())
    create_event_type(api, definition)
    api.delete(f"/event-types/{definition['name']}")

    events = [each for each in own_events(api, "nakadi.event.type.log") if each["event_type"] == definition["name"]]

    assert [each["status"] for each in events] == ["created", "deleted"]
    assert {each["authz"] for each in events} == {"enabled"}
