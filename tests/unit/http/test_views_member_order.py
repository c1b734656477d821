"""The order of members in answers: some clients compare answers as strings."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from tests.support.api import a_business_definition, attributes
from tests.support.http import make_client
from tests.support.subscriptions import a_request

NAME = "order.of.members"

EVENT_TYPE = (
    "name owning_application category enrichment_strategies partition_strategy partition_key_fields cleanup_policy "
    "ordering_key_fields ordering_instance_ids schema default_statistic options authorization annotations labels "
    "compatibility_mode updated_at created_at"
)
SUBSCRIPTION = (
    "owning_application event_types consumer_group read_from initial_cursors authorization annotations labels id "
    "created_at updated_at"
)
CURSOR = {"partition": "0", "offset": "BEGIN"}


@pytest.fixture(scope="module")
def api():
    with closing(open_broker(Settings())) as broker, make_client(make_application(broker)) as client:
        statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 1, "write_parallelism": 1}
        assert client.post(
            "/event-types", json=a_business_definition(name=NAME, default_statistic=statistic)
        ).is_success
        answer = client.post("/subscriptions", json=a_request(NAME))
        client.headers["x-subscription"] = answer.json()["id"]
        event = {"metadata": {"eid": "70779f46-950d-4e48-9fca-10c413845e7f", "occurred_at": "2026-11-21T12:00:00Z"}}
        assert client.post(f"/event-types/{NAME}/events", json=[event]).is_success
        # The offsets that this batch gets are used in the requests below.
        client.patch(f"/subscriptions/{answer.json()['id']}/cursors", json={"items": [CURSOR | {"event_type": NAME}]})
        yield client


def members(found):
    """The names of an object's members in their order; for a list, those of its first object."""
    return " ".join(found[0] if isinstance(found, list) else found)


@pytest.mark.parametrize(
    ("method", "path", "body", "within", "order"),
    [
        ("GET", f"/event-types/{NAME}", None, (), EVENT_TYPE),
        ("GET", f"/event-types/{NAME}", None, ("schema",), "type schema version created_at"),
        ("GET", f"/event-types/{NAME}/schemas/latest", None, (), "type schema version created_at"),
        ("GET", f"/event-types/{NAME}/schemas", None, (), "items _links"),
        (
            "GET",
            f"/event-types/{NAME}/timelines",
            None,
            (),
            "id event_type order storage_id topic created_at switched_at cleaned_up_at latest_position",
        ),
        (
            "GET",
            f"/event-types/{NAME}/partitions",
            None,
            (),
            "oldest_available_offset newest_available_offset partition",
        ),
        (
            "GET",
            f"/event-types/{NAME}/partitions/0?consumed_offset=001-0001--1",
            None,
            (),
            "oldest_available_offset newest_available_offset partition unconsumed_events",
        ),
        (
            "POST",
            f"/event-types/{NAME}/cursors-lag",
            [CURSOR],
            (),
            "partition oldest_available_offset newest_available_offset unconsumed_events",
        ),
        ("POST", f"/event-types/{NAME}/shifted-cursors", [CURSOR | {"shift": 0}], (), "partition offset"),
        (
            "POST",
            f"/event-types/{NAME}/cursor-distances",
            [{"initial_cursor": CURSOR, "final_cursor": CURSOR}],
            (),
            "initial_cursor final_cursor distance",
        ),
        ("POST", f"/event-types/{NAME}/events", [{}], (), "publishing_status detail step eid partition"),
        ("GET", "/subscriptions", None, (), "items _links"),
        ("GET", "/subscriptions", None, ("items",), SUBSCRIPTION),
        ("GET", "/subscriptions?show_status=true", None, ("items",), f"{SUBSCRIPTION} status"),
        ("GET", "/subscriptions/{id}/cursors", None, ("items",), "partition offset event_type cursor_token"),
        ("GET", "/subscriptions/{id}/stats", None, ("items",), "event_type partitions"),
        (
            "GET",
            "/subscriptions/{id}/stats?show_time_lag=true",
            None,
            ("items", 0, "partitions"),
            "partition state unconsumed_events consumer_lag_seconds stream_id",
        ),
        ("GET", "/storages", None, (), "id default embedded_configuration storage_type"),
        ("GET", "/event-types/no.such", None, (), "type title status detail"),
        ("POST", "/event-types", {}, (), "type status detail title"),
        ("POST", f"/event-types/{NAME}/schemas", {"a": 1}, (), "violations type status title"),
    ],
)
def test_members_come_in_the_order_that_clients_know(api, method, path, body, within, order):
    """The members of every answer have the reference's order, except that a Problem also has a `type`, which the
    reference leaves out.

    (R17, R67, R136, R233, R240, C5, C30, S280)
    """
    answer = api.request(method, path.replace("{id}", api.headers["x-subscription"]), json=body)

    found = json.loads(answer.content)
    for step in within:
        found = found[step]
    assert members(found) == order


def test_a_link_to_the_next_page_can_be_read(api):
    """In a link, the colon in the parameter `reader` stays unescaped, and characters that would break a query are
    escaped. (S46, S50)
    """
    reader, application = "service:a b&c/d", "shop+ü"
    both = {"admins": attributes("ann"), "readers": [{"data_type": "service", "value": "a b&c/d"}]}
    for group in "xy":
        request = a_request(NAME, owning_application=application, consumer_group=group, authorization=both)
        assert api.post("/subscriptions", json=request).is_success

    parameters = {"reader": reader, "owning_application": application, "limit": 1}
    first = api.get("/subscriptions", params=parameters).json()
    link = first["_links"]["next"]["href"]

    assert link == "/subscriptions?reader=service:a+b%26c/d&owning_application=shop%2B%C3%BC&offset=1&limit=1"
    [following] = api.get(link).json()["items"]
    assert {following["consumer_group"], first["items"][0]["consumer_group"]} == {"x", "y"}
