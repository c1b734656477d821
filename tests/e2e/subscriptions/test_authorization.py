"""The permissions for subscriptions."""

import httpx
import pytest

from nakadi.local import Broker
from tests.support.api import an_authorization, create_event_type, problem
from tests.support.patience import PATIENCE
from tests.support.subscriptions import (
    a_cursor,
    a_request,
    a_subscription_authorization,
    change_request,
    create_subscription,
    reset,
)

STREAM = "70779f46-950d-4e48-9fca-10c413845e7f"


def commit(api, subscription_id, *items, stream_id=STREAM):
    headers = {"X-Nakadi-StreamId": stream_id}
    return api.post(f"/subscriptions/{subscription_id}/cursors", json={"items": list(items)}, headers=headers)


def test_event_types_must_be_visible(ann_client, bob_client):
    """A client that may not see an event type may not subscribe to it; this is reported before anything about its
    partitions. (S22, S78, S81, R258)
    """
    hidden = create_event_type(ann_client, authorization=an_authorization())["name"]
    request = a_request(hidden, read_from="cursors", authorization=a_subscription_authorization("bob", "bob"))
    assert problem(bob_client.post("/subscriptions", json=request), 403) == f"Access on VIEW event-type:{hidden} denied"


def test_what_is_there_is_shown_to_those_who_may_see_it(ann_client, bob_client):
    """Reading an existing subscription needs the right to see it, whatever lists the request contains. (S19, R259)"""
    subscription = create_subscription(ann_client, authorization=a_subscription_authorization())
    request = {each: subscription[each] for each in ("owning_application", "event_types")}
    answer = bob_client.post(
        "/subscriptions", json=request | {"authorization": a_subscription_authorization("bob", "bob")}
    )
    assert problem(answer, 403) == f"Access on VIEW subscription:{subscription['id']} denied"


def test_no_one_makes_what_he_could_not_see(ann_client, bob_client):
    """A creator who is not in the lists is refused, and nothing is created. (S35, R263)

    So no subscription is hidden from its creator."""
    request = a_request(create_event_type(ann_client)["name"], authorization=a_subscription_authorization())
    assert "Access on VIEW subscription:" in problem(bob_client.post("/subscriptions", json=request), 403)
    assert ann_client.post("/subscriptions", json=request).status_code == 201


VIEWING = ("", "/cursors", "/stats")


@pytest.mark.parametrize(
    ("admins", "readers", "who", "view", "admin"),
    [
        ("ann", "ann", "bob", False, False),
        ("ann", "bob", "bob", True, False),
        ("bob", "ann", "bob", True, True),
        ("ann", "ann", "the-admin", True, True),
    ],
)
def test_lists_say_who_may_see_and_who_may_change(broker_with_tokens, ann_client, admins, readers, who, view, admin):
    """Admins and readers may see a subscription; admins, and administrators of the broker, may change it.
    (S61, S77, S78, S80, S81, R260, R262)"""
    subscription = create_subscription(ann_client, authorization=a_subscription_authorization(admins, readers))
    url, denied = f"/subscriptions/{subscription['id']}", f"subscription:{subscription['id']} denied"
    refusal = f"Access on {'ADMIN' if view else 'VIEW'} {denied}"
    with broker_with_tokens.client(who) as client:
        for path in VIEWING:
            answer = client.get(url + path)
            assert answer.status_code == (200 if view else 403)
            assert view or problem(answer, 403) == f"Access on VIEW {denied}"
        answers = [
            client.put(
                url, json=change_request(subscription, authorization=a_subscription_authorization(admins, readers))
            ),
            reset(client, subscription),
            client.delete(url),
        ]
    for answer in answers:
        assert answer.status_code == (204 if admin else 403)
        assert admin or problem(answer, 403) == refusal


@pytest.mark.parametrize(
    ("who", "refusal"),
    [
        ("carl", "Access on VIEW subscription:{} denied"),
        ("bob", "Access on READ subscription:{} denied"),
        ("ann", None),
        ("the-archiver", "Access on VIEW subscription:{} denied"),
    ],
)
def test_committing_takes_the_right_to_read(broker_with_tokens, ann_client, who, refusal):
    """To commit, a client needs the rights to see and read the subscription; its event types do not matter. (S78, S83,
    R262)
    """
    name = create_event_type(ann_client, authorization=an_authorization("ann", "ann", "ann"))["name"]
    subscription = create_subscription(ann_client, name, authorization=a_subscription_authorization("bob ann", "ann"))
    with broker_with_tokens.client(who) as client:
        answer = commit(client, subscription["id"], a_cursor(name, "0", 0))
    # A subject that may commit learns that there is no such stream.
    expected = (
        (403, refusal.format(subscription["id"])) if refusal else (422, f"Session with stream id {STREAM} not found")
    )
    assert (answer.status_code, problem(answer, answer.status_code)) == expected


@pytest.mark.parametrize(
    ("who", "refusal"),
    [
        ("carl", "Access on VIEW subscription:{} denied"),
        ("bob", "Access on READ subscription:{} denied"),
        ("ann", None),
    ],
)
def test_leaving_and_extending_take_the_right_to_read(broker_with_tokens, ann_client, who, refusal):
    """A subject that may commit for a stream may end it, and give it more time. (S325)"""
    subscription = create_subscription(ann_client, authorization=a_subscription_authorization("bob ann", "ann"))
    where = f"/subscriptions/{subscription['id']}/streams/{STREAM}"
    with broker_with_tokens.client(who) as client:
        left, extended = client.delete(where), client.post(f"{where}/extend")
    if refusal is None:
        assert (left.status_code, extended.status_code) == (204, 404)
    else:
        assert problem(left, 403) == problem(extended, 403) == refusal.format(subscription["id"])


def test_all_data_access_reads_what_it_may_see(broker_with_tokens, ann_client):
    """A subject that may read all data may commit for every subscription that it may see. (S80)"""
    name = create_event_type(ann_client)["name"]
    lists_ = a_subscription_authorization("the-archiver", "ann")
    with broker_with_tokens.client("the-archiver") as client:
        subscription = create_subscription(client, name, authorization=lists_)
        assert problem(commit(client, subscription["id"], a_cursor(name)), 422).startswith("Session with")


def test_without_lists_everyone_may(ann_client, bob_client):
    """A subscription without authorization is open to every client with a token. (S69, S79, R260)"""
    subscription = create_subscription(ann_client)
    url = f"/subscriptions/{subscription['id']}"
    assert [bob_client.get(url + path).status_code for path in VIEWING] == [200, 200, 200]
    assert bob_client.put(url, json=change_request(subscription, labels={"a": "b"})).status_code == 204
    assert reset(bob_client, subscription).status_code == 204
    assert (
        bob_client.put(
            url, json=change_request(subscription, authorization=a_subscription_authorization("bob", "bob"))
        ).status_code
        == 204
    )
    assert problem(ann_client.delete(url), 403) == f"Access on VIEW subscription:{subscription['id']} denied"


def test_stats_show_event_types_that_one_may_see(ann_client, bob_client):
    """Stats need the right to see the subscription, and then each event type. (S78, S289)"""
    hidden = create_event_type(ann_client, authorization=an_authorization())["name"]
    subscription = create_subscription(ann_client, hidden)
    answer = bob_client.get(f"/subscriptions/{subscription['id']}/stats")
    assert problem(answer, 403) == f"Access on VIEW event-type:{hidden} denied"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/subscriptions"),
        ("POST", "/subscriptions"),
        *((method, "/subscriptions/1") for method in ("GET", "PUT", "DELETE")),
        *((method, "/subscriptions/1/cursors") for method in ("GET", "POST", "PATCH")),
        ("GET", "/subscriptions/1/stats"),
    ],
)
def test_every_operation_needs_a_token_with_its_scope(broker_with_tokens, method, path):
    """Without a token, the answer is 401. Reading, creating, committing and deleting need the scope for reading events;
    changing needs only `uid`. (S86)
    """
    with httpx.Client(base_url=broker_with_tokens.broker.url, timeout=PATIENCE) as nobody:
        assert nobody.request(method, path, json={}).status_code == 401
    with broker_with_tokens.client("ann", scope="uid") as client:
        assert (client.request(method, path, json={}).status_code == 403) == (method not in ("PUT", "PATCH"))
    with broker_with_tokens.client("ann", scope="nakadi.event_stream.read") as client:
        assert (client.request(method, path, json={}).status_code == 403) == (method in ("PUT", "PATCH"))


BLOCKED = "Application or subscription is blocked"


@pytest.mark.parametrize("kind", ["CONSUMER_ET", "CONSUMER_APP"])
def test_any_client_that_is_blocked_keeps_off_the_cursors(kind):
    """While the application, or any of the event types, is blocked, cursors are neither returned nor moved; once the
    block is lifted, they are, at once. (S106, S112, S132, S306, S308)

    A block of any event type counts, not only of the first."""
    with Broker(cache_seconds=0) as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        names = sorted(create_event_type(api)["name"] for _ in range(2))
        subscription = create_subscription(api, *names)
        name = {"CONSUMER_ET": names[1], "CONSUMER_APP": "unauthenticated"}[kind]
        assert api.put(f"/settings/blacklist/{kind}/{name}").status_code == 204
        url = f"/subscriptions/{subscription['id']}"
        for answer in (
            api.get(f"{url}/cursors"),
            commit(api, subscription["id"], a_cursor(names[0]), stream_id="x"),
            reset(api, subscription),
        ):
            assert problem(answer, 403) == BLOCKED
        if kind == "CONSUMER_APP":
            assert problem(api.get("/subscriptions/unknown/cursors"), 403) == BLOCKED
        # Meaningless cursors are reported before the block; a meaningless reset is reported only after it.
        assert problem(commit(api, subscription["id"], a_cursor("no.such.thing")), 422)
        assert problem(commit(api, subscription["id"]), 422) == "Cursors are empty"
        assert problem(reset(api, subscription, a_cursor("no.such.thing")), 403) == BLOCKED
        assert api.get(f"{url}/stats").status_code == 200
        assert api.delete(f"/settings/blacklist/{kind}/{name}").status_code == 204
        assert api.get(f"{url}/cursors").status_code == 200
