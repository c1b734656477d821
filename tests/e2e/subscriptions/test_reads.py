"""Subscriptions that declare the members that they read."""

import json

import jsonpatch
import pytest

from tests.support.api import (
    a_business_definition,
    a_definition,
    an_authorization,
    create_event_type,
    problem,
    violations,
)
from tests.support.builders import a_name
from tests.support.own_events import own_events
from tests.support.subscriptions import a_request, a_subscription_authorization, change_request, create_subscription

CUSTOMER = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id"]}
ITEM = {"type": "object", "properties": {"sku": {"type": "string"}, "price": {"type": "number"}}}
ORDER = {
    "type": "object",
    "definitions": {"item": ITEM},
    "properties": {
        "order_number": {"type": "string"},
        "customer": CUSTOMER,
        "items": {"type": "array", "items": {"$ref": "#/definitions/item"}},
        "prices": {"type": "object", "additionalProperties": {"type": "number"}},
    },
    "required": ["order_number", "customer"],
}
READS = ["order_number", "customer.id", "items.sku"]


def schema_without(name, schema=ORDER):
    kept = {key: value for key, value in schema["properties"].items() if key != name}
    return schema | {"properties": kept, "required": [each for each in schema["required"] if each != name]}


def with_member(name, member):
    return ORDER | {"properties": ORDER["properties"] | {name: member}}


FRACTIONAL_ID = with_member("customer", CUSTOMER | {"properties": {**CUSTOMER["properties"], "id": {"type": "number"}}})


def submit_schema(api, event_type, schema, **parameters):
    draft = {"type": "json_schema", "schema": json.dumps(schema)}
    return api.post(f"/event-types/{event_type['name']}/schemas", json=draft, params=parameters)


def forecast(api, event_type, schema, **parameters):
    answer = submit_schema(api, event_type, schema, dry_run="true", **parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def get_subscription(api, subscription):
    return api.get(f"/subscriptions/{subscription['id']}").json()


def update_subscription(api, subscription, **changes):
    return api.put(f"/subscriptions/{subscription['id']}", json=change_request(subscription, **changes))


def publish(api, event_type, *events):
    answer = api.post(f"/event-types/{event_type['name']}/events", json=events)
    assert answer.status_code == 200, answer.text


def schema_version(api, event_type):
    return api.get(f"/event-types/{event_type['name']}").json()["schema"]["version"]


@pytest.fixture
def event_type(api):
    return create_event_type(api, schema=ORDER, compatibility_mode="forward")


@pytest.fixture
def subscription(api, event_type):
    return create_subscription(api, event_type["name"], reads=READS)


# The declaration


def test_a_declaration_is_shown_changed_and_withdrawn(api, event_type):
    """A declaration stays unless a change names it, and null withdraws it. (D1, D4)"""
    created = create_subscription(api, event_type["name"], reads=["order_number", "items", "items"], projection=True)
    assert (created["reads"], created["projection"]) == (["order_number", "items"], True)

    assert update_subscription(api, created, labels={"a": "b"}).status_code == 204
    assert (get_subscription(api, created)["reads"], get_subscription(api, created)["projection"]) == (
        ["order_number", "items"],
        True,
    )

    assert update_subscription(api, created, reads=[]).status_code == 204
    assert (get_subscription(api, created)["reads"], get_subscription(api, created)["projection"]) == ([], True)

    assert update_subscription(api, created, reads=None).status_code == 204
    assert {"reads", "projection"}.isdisjoint(get_subscription(api, created))


@pytest.mark.parametrize(
    ("declared", "line"),
    [
        (
            ["custmer.id"],
            'Field "reads[0]" `custmer.id` is in no schema of the event types; the nearest is `customer.id`',
        ),
        (["order_number", "customer.id.x"], 'Field "reads[1]" `customer.id.x` is in no schema of the event types'),
        (["items", "items", "missing"], 'Field "reads[2]" `missing` is in no schema of the event types'),
        (["a..b"], 'Field "reads[0]" must be names with dots between them'),
        ([""], 'Field "reads[0]" must contain at least one character'),
        (["x" * 1001], 'Field "reads[0]" size must be between 0 and 1000'),
        (["order_number"] * 201, 'Field "reads" size must be between 0 and 200'),
        ([None], 'Field "reads[0]" must not be null'),
    ],
)
def test_what_is_in_no_schema_is_refused(api, event_type, declared, line):
    """A subscription that declares an unknown member is not created, and the Problem names the path. (D2, D3)"""
    found = violations(api.post("/subscriptions", json=a_request(event_type["name"], reads=declared)))
    assert any(each.startswith(line) for each in found), found
    answer = api.get("/subscriptions", params={"event_type": event_type["name"]})
    assert answer.json()["items"] == []


def test_many_unknown_paths_are_refused_at_once(api):
    """Only some unknown paths are named, and similar members are searched only for short paths. (D3)"""
    event_type = create_event_type(api, schema={"properties": {f"{n}" + "m" * 90: {} for n in range(300)}})
    declared = [f"{n}" + "x" * 90 for n in range(199)] + ["m" * 1000]
    assert len(violations(api.post("/subscriptions", json=a_request(event_type["name"], reads=declared)))) == 10


def test_who_may_not_see_an_event_type_does_not_learn_its_members(ann_client, bob_client):
    """The administrator of a subscription may keep, withdraw and change the declaration, but does not learn the
    content of a schema. (D3)
    """
    hidden = create_event_type(ann_client, schema=ORDER, authorization=an_authorization())
    section = a_subscription_authorization(admins="ann bob", readers="ann bob")
    subscription = create_subscription(ann_client, hidden["name"], reads=READS, authorization=section)
    path = f"/subscriptions/{subscription['id']}"
    for declared in (["custmer.id"], READS):
        refused = bob_client.put(path, json=change_request(subscription, authorization=section, reads=declared))
        assert problem(refused, 403) == f"Access on VIEW event-type:{hidden['name']} denied"
    assert bob_client.put(path, json=change_request(subscription, authorization=section)).status_code == 204
    assert bob_client.put(path, json=change_request(subscription, authorization=section, reads=None)).status_code == 204


def test_who_may_not_see_an_event_type_does_not_learn_what_changed_in_it(ann_client, bob_client):
    """The administrator of a subscription sees all of the subscription except changes in event types that the
    administrator may not see. (D10)
    """
    hidden = create_event_type(ann_client, schema=ORDER, compatibility_mode="none", authorization=an_authorization())
    section = a_subscription_authorization(admins="ann bob", readers="ann bob")
    subscription = create_subscription(ann_client, hidden["name"], reads=["customer.id"], authorization=section)
    assert submit_schema(ann_client, hidden, FRACTIONAL_ID).status_code == 200

    assert [each["change"] for each in get_subscription(ann_client, subscription)["changed_reads"]] == ["retyped"]
    assert "changed_reads" not in get_subscription(bob_client, subscription)


def test_a_path_is_in_the_schema_of_one_of_the_event_types(api, event_type):
    """A declared path has to be in the schema of only one of the subscription's event types; all of them have metadata.
    (D3)
    """
    other = create_event_type(api, a_business_definition(schema={"properties": {"reason": {"type": "string"}}}))
    names = [event_type["name"], other["name"]]
    reads = ["order_number", "reason", "metadata.eid", "metadata.received_at", "prices.EUR"]
    assert create_subscription(api, *names, reads=reads)["reads"] == reads


def test_a_projection_needs_a_declaration(api, event_type):
    """A projection without a declaration is refused. (D4)"""
    request = a_request(event_type["name"], projection=True)
    assert violations(api.post("/subscriptions", json=request)) == {
        'Field "projection" needs `reads`, which say what is to be sent'
    }


# Changes of schemas


def test_a_schema_that_changes_what_is_read_is_refused(api, event_type, subscription):
    """The Problem names the subscription, its owner and the change, and the schema is not stored. (D5, D9)"""
    answer = submit_schema(api, event_type, FRACTIONAL_ID)

    owner, group = subscription["owning_application"], subscription["consumer_group"]
    assert problem(answer, 422).startswith(
        f"The schema changes what subscriptions read: {subscription['id']} ({owner}, {group})."
    )
    explanation = "`customer.id` may now be a fraction, but was always an integer."
    affected = {
        "subscription_id": subscription["id"],
        "owning_application": owner,
        "consumer_group": group,
        "changes": [
            {"path": "customer.id", "member": "customer.id", "change": "retyped", "explanation": explanation},
        ],
    }
    assert answer.json()["readers"] == [affected]
    [reason] = answer.json()["reasons"]
    assert (reason["rule"], reason["path"]) == ("MEMBER_READ", "customer.id")
    assert schema_version(api, event_type) == "1.0.0"
    assert "changed_reads" not in get_subscription(api, subscription)

    found = forecast(api, event_type, FRACTIONAL_ID)
    assert (found["accepted"], found["refusals"], found["readers"]) == (False, [problem(answer, 422)], [affected])


def test_a_change_of_the_event_type_is_refused_in_the_same_way(api, event_type, subscription):
    """A change of the event type is refused like a new schema, and its dry run says so. (D5, D9)"""
    path = f"/event-types/{event_type['name']}"
    definition = event_type | {"schema": {"type": "json_schema", "schema": json.dumps(FRACTIONAL_ID)}}
    answer = api.put(path, json=definition)
    assert subscription["id"] in problem(answer, 422)
    found = api.put(path, json=definition, params={"dry_run": "true"}).json()
    assert (found["refusals"], found["readers"]) == ([problem(answer, 422)], answer.json()["readers"])
    assert api.put(path, json=definition, params={"force": subscription["id"]}).status_code == 200


def test_what_the_mode_refuses_names_the_readers_too(api, event_type, subscription):
    """If the mode also refuses the schema, the Problem keeps the mode's message, and names the readers. (D5)"""
    answer = submit_schema(api, event_type, schema_without("order_number"))
    assert problem(answer, 422).startswith(
        "Invalid schema: #/properties/order_number: schema properties cannot be removed"
    )
    [reader] = answer.json()["readers"]
    assert [each["change"] for each in reader["changes"]] == ["removed"]
    assert reader["subscription_id"] == subscription["id"]


@pytest.mark.usefixtures("subscription")
def test_what_nobody_reads_is_judged_by_the_mode_alone(api, event_type):
    """If no reader is affected, neither the refusal nor the dry run names any. (D5, D9)"""
    assert "readers" not in submit_schema(api, event_type, schema_without("prices")).json()
    larger = with_member("note", {"type": "string"})
    assert "readers" not in forecast(api, event_type, larger)
    assert "warning" not in submit_schema(api, event_type, larger).headers


ITEM_WITH_ANY_SKU = ITEM | {"properties": ITEM["properties"] | {"sku": {}}}


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize(
    "schema",
    [
        FRACTIONAL_ID,
        with_member("order_number", {"type": ["string", "null"]}),
        with_member("customer", {"type": "object"}),
        schema_without("customer"),
        ORDER | {"required": ["customer"]},
        ORDER | {"definitions": {"item": ITEM_WITH_ANY_SKU}},
        ORDER | {"properties": {}, "required": []},
    ],
)
def test_a_schema_that_takes_from_readers_gets_a_proposal(api, event_type, subscription, schema, adds):
    """The proposal for a refused schema is accepted, and has what the refused schema adds elsewhere. (R297, D5, D9)"""
    if adds:
        schema = schema | {"properties": schema["properties"] | {"added": {"type": "string"}}}
    found = forecast(api, event_type, schema)
    assert not found["accepted"]
    assert [each["subscription_id"] for each in found["readers"]] == [subscription["id"]]

    patched = jsonpatch.apply_patch(schema, found["proposal"])

    again = forecast(api, event_type, patched)
    assert (again["accepted"], again.get("readers", [])) == (True, [])
    assert ("added" in patched["properties"]) is adds
    assert submit_schema(api, event_type, patched).status_code == 200


def test_a_forced_change_needs_no_proposal(api, event_type, subscription):
    """A forced change needs no proposal, because no reader objects to it any more. (R297, D7)"""
    assert "proposal" not in forecast(api, event_type, FRACTIONAL_ID, force=subscription["id"])


def test_force_lets_a_change_pass(api, event_type, subscription):
    """If `force` names all affected subscriptions, the schema is stored, and the answer warns. (D7, D8)"""
    other = create_subscription(api, event_type["name"], reads=["customer"])
    assert other["id"] in problem(submit_schema(api, event_type, FRACTIONAL_ID, force=subscription["id"]), 422)
    both = f"{subscription['id']},{other['id']}"
    assert forecast(api, event_type, FRACTIONAL_ID, force=both)["accepted"]

    answer = submit_schema(api, event_type, FRACTIONAL_ID, force=both)

    assert answer.status_code == 200, answer.text
    warning = answer.headers["warning"]
    assert warning.startswith('299 nakadi "The schema changes what subscriptions read: ')
    assert f"{subscription['id']} ({subscription['owning_application']})" in warning
    assert other["id"] in warning
    assert schema_version(api, event_type) != "1.0.0"


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (schema_without("order_number"), "removed"),
        (with_member("order_number", {"type": "integer"}), "retyped"),
        (ORDER | {"required": ["customer"]}, "optional"),
    ],
)
@pytest.mark.parametrize("mode", ["forward", "compatible"])
def test_force_lifts_the_mode_for_what_is_read(api, schema, kind, mode):
    """Members that the affected subscriptions read may be removed, once the request names all readers. (D7)"""
    event_type = create_event_type(api, schema=ORDER, compatibility_mode=mode)
    declared = create_subscription(api, event_type["name"], reads=["order_number"])
    silent = create_subscription(api, event_type["name"])

    answer = submit_schema(api, event_type, schema, force=declared["id"])
    assert problem(answer, 422).startswith("Invalid schema: ")
    readers = {each["subscription_id"]: [one["change"] for one in each["changes"]] for each in answer.json()["readers"]}
    assert readers == {declared["id"]: [kind], silent["id"]: []}

    both = [declared["id"], silent["id"]]
    assert forecast(api, event_type, schema, force=both)["accepted"]
    assert submit_schema(api, event_type, schema, force=both).status_code == 200
    assert schema_version(api, event_type) == "2.0.0"


def test_force_lifts_nothing_else(api, event_type):
    """Members that the affected subscriptions do not read stay protected. (D7)"""
    subscription = create_subscription(api, event_type["name"], reads=["order_number"])
    answer = submit_schema(
        api, event_type, schema_without("prices", schema_without("order_number")), force=subscription["id"]
    )
    assert problem(answer, 422).startswith("Invalid schema: #/properties/prices")
    assert "order_number" not in problem(answer, 422)


def test_in_mode_none_the_answer_warns(api):
    """In the mode `none`, the schema is stored, and the answer warns which readers miss members. (D8)"""
    event_type = create_event_type(api, schema=ORDER, compatibility_mode="none")
    subscription = create_subscription(api, event_type["name"], reads=["customer.name"])
    found = forecast(api, event_type, schema_without("customer"))
    assert (found["accepted"], [each["subscription_id"] for each in found["readers"]]) == (True, [subscription["id"]])
    answer = submit_schema(api, event_type, schema_without("customer"))
    assert answer.status_code == 200
    assert f"{subscription['id']} ({subscription['owning_application']})" in answer.headers["warning"]

    definition = event_type | {"schema": {"type": "json_schema", "schema": json.dumps({})}}
    create_subscription(api, event_type["name"], reads=["order_number"])
    answer = api.put(f"/event-types/{event_type['name']}", json=definition)
    assert "The schema changes what subscriptions read: " in answer.headers["warning"]


def test_owners_find_what_changed(api, switch_on):
    """Changes are in the subscription until it declares its reads again, and in the audit log. (D10)"""
    event_type = create_event_type(api, schema=ORDER, compatibility_mode="none")
    subscription = create_subscription(api, event_type["name"], reads=["order_number", "items.sku"])
    switch_on("audit_log_collection")
    renamed = with_member("number", ORDER["properties"]["order_number"])
    assert submit_schema(api, event_type, schema_without("order_number", renamed)).status_code == 200

    changed = {
        "event_type": event_type["name"],
        "version": "2.0.0",
        "path": "order_number",
        "member": "order_number",
        "change": "renamed",
        "explanation": "`order_number` was renamed to `number`.",
    }
    assert get_subscription(api, subscription)["changed_reads"] == [changed]
    records = [each["data"] for each in own_events(api, "nakadi.audit.log")]
    [record] = [each for each in records if each["resource_id"] == subscription["id"]]
    assert record["resource_type"] == "subscription"
    assert "changed_reads" not in record["previous_object"]
    assert record["new_object"]["changed_reads"] == [changed]

    assert update_subscription(api, subscription, labels={"a": "b"}, reads=["number", "items.sku"]).status_code == 204
    assert "changed_reads" not in get_subscription(api, subscription)


def test_who_declares_again_has_seen_what_changed(api):
    """Only a declaration clears changes, even one of the same members. (D10)"""
    event_type = create_event_type(api, schema=ORDER, compatibility_mode="none")
    subscription = create_subscription(api, event_type["name"], reads=["customer.id"])
    assert submit_schema(api, event_type, FRACTIONAL_ID).status_code == 200
    assert update_subscription(api, subscription, labels={"a": "b"}).status_code == 204
    assert [each["change"] for each in get_subscription(api, subscription)["changed_reads"]] == ["retyped"]
    assert update_subscription(api, subscription, reads=["customer.id"]).status_code == 204
    assert "changed_reads" not in get_subscription(api, subscription)


def test_force_lifts_the_mode_for_data_change_events(api):
    """Declared paths begin with the envelope, and paths in the schema do not. (D7)"""
    event_type = create_event_type(
        api, a_definition(category="data", enrichment_strategies=["metadata_enrichment"], schema=ORDER)
    )
    subscription = create_subscription(api, event_type["name"], reads=["data.order_number"])
    assert submit_schema(api, event_type, schema_without("order_number")).status_code == 422
    assert submit_schema(api, event_type, schema_without("order_number"), force=subscription["id"]).status_code == 200


# The projection


ORDERS = [
    {
        "order_number": "1",
        "customer": {"id": 7, "name": "Ann"},
        "items": [{"sku": "a", "price": 1.5}, {"price": 2}],
        "prices": {"EUR": 3},
    },
    {"order_number": "2", "customer": {"id": 8, "name": "Bob"}},
]
CUT_ORDERS = [
    {"order_number": "1", "customer": {"id": 7}, "items": [{"sku": "a"}, {}]},
    {"order_number": "2", "customer": {"id": 8}},
]


def test_a_projection_sends_what_is_read(api, event_type, open_consumer):
    """Streams get the declared members only, and low-level streams whole events. (D11, D12)"""
    subscription = create_subscription(api, event_type["name"], reads=READS, projection=True, read_from="begin")
    publish(api, event_type, *ORDERS)
    with open_consumer(subscription, batch_limit=2) as stream:
        assert stream.batch()["events"] == CUT_ORDERS
    cursors = json.dumps([{"partition": "0", "offset": "BEGIN"}])
    answer = api.get(
        f"/event-types/{event_type['name']}/events",
        headers={"X-Nakadi-Cursors": cursors},
        params={"batch_limit": 2, "stream_limit": 2},
    )
    assert json.loads(answer.text.splitlines()[0])["events"] == ORDERS


def test_metadata_is_always_sent(api, open_consumer):
    """Whatever is declared, streams get the metadata, and the other members of the envelope of data change events.
    (D11)
    """
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
    event_type = create_event_type(
        api, a_definition(category="data", enrichment_strategies=["metadata_enrichment"], schema=schema)
    )
    subscription = create_subscription(api, event_type["name"], reads=["data.id"], projection=True, read_from="begin")
    metadata = {"eid": "0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11", "occurred_at": "2026-11-21T12:00:00Z"}
    event = {"metadata": metadata, "data_type": "person", "data_op": "C", "data": {"id": 1, "name": "Ann"}}
    publish(api, event_type, event)
    with open_consumer(subscription) as stream:
        [found] = stream.batch()["events"]
    assert found["metadata"].items() >= metadata.items()
    assert {"data_type", "data_op", "metadata", "data"} == set(found)
    assert found["data"] == {"id": 1}


# Readers


def test_readers_of_an_event_type(api, event_type, subscription):
    """The answer has each subscription with its reads of this event type, and the members that no one reads. (D13)"""
    other = create_event_type(api, schema={"properties": {"reason": {"type": "string"}}})
    both = create_subscription(api, event_type["name"], other["name"], reads=["reason", "prices"])
    silent = create_subscription(api, event_type["name"])

    found = api.get(f"/event-types/{event_type['name']}/readers").json()

    assert [(each["subscription_id"], each["reads"]) for each in found["readers"]] == [
        (silent["id"], None),
        (both["id"], ["prices"]),
        (subscription["id"], READS),
    ]
    assert found["unread"] == ["customer.name", "items.price"]
    assert api.get(f"/event-types/{other['name']}/readers").json()["unread"] == []


def test_who_may_not_see_an_event_type_does_not_see_its_readers(ann_client, bob_client):
    """Readers are shown to subjects with VIEW on the event type, and nothing else is needed. (D13)"""
    hidden = create_event_type(ann_client, authorization=an_authorization())
    path = f"/event-types/{hidden['name']}/readers"
    assert problem(bob_client.get(path), 403) == f"Access on VIEW event-type:{hidden['name']} denied"
    assert ann_client.get(path).json() == {"readers": [], "unread": []}


def test_readers_of_an_event_type_that_does_not_exist(api):
    """A request for the readers of an event type that does not exist gets 404. (D13)"""
    name = a_name()
    assert problem(api.get(f"/event-types/{name}/readers"), 404) == f'EventType "{name}" does not exist.'
