"""GET /subscriptions."""

import pytest

from tests.support.api import an_authorization, create_event_type, problem
from tests.support.builders import a_name
from tests.support.subscriptions import a_subscription_authorization, create_subscription


def list_subscriptions(api, **query):
    answer = api.get("/subscriptions", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def listed_ids(page):
    return [each["id"] for each in page["items"]]


@pytest.fixture
def five_subscriptions(api):
    """The name of an event type, and its five subscriptions, the newest first."""
    name = create_event_type(api)["name"]
    return name, [create_subscription(api, name) for _ in range(5)][::-1]


def test_the_newest_come_first(api, five_subscriptions):
    """Subscriptions are listed unchanged, from the newest to the oldest. (S39, S43)"""
    name, subscriptions = five_subscriptions
    assert list_subscriptions(api, event_type=name) == {"items": subscriptions, "_links": {}}
    everything = listed_ids(list_subscriptions(api, limit=1000))
    assert [each for each in everything if each in listed_ids({"items": subscriptions})] == listed_ids(
        {"items": subscriptions}
    )


def test_nothing_is_a_page_too(api):
    """A page without subscriptions has no links. (S39)"""
    assert list_subscriptions(api, owning_application="nobody") == {"items": [], "_links": {}}


def test_applications_are_matched_exactly(api):
    """With a filter by application, only the subscriptions of exactly that application are listed. (S44)"""
    application = a_name("owner")
    subscription = create_subscription(api, owning_application=application)
    create_subscription(api, owning_application=application + "x")
    assert listed_ids(list_subscriptions(api, owning_application=application)) == [subscription["id"]]


@pytest.mark.parametrize("separately", [True, False])
def test_several_event_types_have_to_be_there_all(api, separately):
    """A listed subscription has all requested event types, which are repeated or separated by commas. (S38, S45)"""
    first, second, third = (create_event_type(api)["name"] for _ in range(3))
    both = create_subscription(api, first, second)
    all_three = create_subscription(api, third, first, second)
    create_subscription(api, first)
    wanted = [first, second] if separately else f"{first},{second}"
    assert listed_ids(list_subscriptions(api, event_type=wanted)) == [all_three["id"], both["id"]]


def test_readers_are_matched_literally(api):
    """With a filter by reader, only subscriptions whose lists name the reader are listed; a wildcard or a missing list
    names no one. (S46)
    """
    name = create_event_type(api)["name"]
    mine = create_subscription(api, name, authorization=a_subscription_authorization(admins="ann", readers="bob carl"))
    wild = a_subscription_authorization()
    wild["readers"] = [{"data_type": "*", "value": "*"}]
    create_subscription(api, name, authorization=wild)
    create_subscription(api, name, authorization=a_subscription_authorization(admins="bob", readers="ann"))
    create_subscription(api, name)
    assert listed_ids(list_subscriptions(api, event_type=name, reader="user:bob")) == [mine["id"]]


def test_filters_add_up(api, five_subscriptions):
    """A listed subscription matches every filter. (S47)"""
    name, subscriptions = five_subscriptions
    application = subscriptions[2]["owning_application"]
    assert listed_ids(list_subscriptions(api, event_type=name, owning_application=application)) == [
        subscriptions[2]["id"]
    ]
    assert listed_ids(list_subscriptions(api, event_type=name, owning_application=application, reader="user:x")) == []


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ({"limit": 0, "offset": -1}, "'limit' parameter should have value between 1 and 1000"),
        ({"limit": 1001}, "'limit' parameter should have value between 1 and 1000"),
        ({"offset": -1}, "'offset' parameter can't be lower than 0"),
        ({"limit": "many"}, None),
        ({"offset": "x"}, None),
        ({"show_status": "perhaps"}, None),
        ({"reader": "ann"}, None),
        ({"reader": "a:b:c"}, None),
        ({"token": "X123"}, None),
    ],
)
def test_parameters_make_sense(api, query, detail):
    """Limits and offsets out of range get 400, and so do parameters that cannot be parsed. (S40, S41, S42, S53)"""
    told = problem(api.get("/subscriptions", params=query), 400)
    assert detail in (None, told)


def test_parameters_that_no_one_knows_mean_nothing(api, five_subscriptions):
    """There is no filter by group, and unknown parameters are ignored. (S38)"""
    name, subscriptions = five_subscriptions
    assert len(list_subscriptions(api, event_type=name, consumer_group="none", colour="red")["items"]) == len(
        subscriptions
    )


def test_pages_follow_each_other(api, five_subscriptions):
    """A full page has a link to the next one, even if that is empty; every page but the first has a link to the
    previous one. (S48, S49, S50)
    """
    name, subscriptions = five_subscriptions
    query = f"event_type={name}"
    first = list_subscriptions(api, event_type=name, limit=2)
    assert first["items"] == subscriptions[:2]
    assert first["_links"] == {"next": {"href": f"/subscriptions?{query}&offset=2&limit=2"}}
    second = api.get(first["_links"]["next"]["href"]).json()
    assert second["items"] == subscriptions[2:4]
    assert second["_links"] == {
        "prev": {"href": f"/subscriptions?{query}&offset=0&limit=2"},
        "next": {"href": f"/subscriptions?{query}&offset=4&limit=2"},
    }
    third = api.get(second["_links"]["next"]["href"]).json()
    assert third["items"] == subscriptions[4:]
    assert third["_links"] == {"prev": {"href": f"/subscriptions?{query}&offset=2&limit=2"}}
    assert list_subscriptions(api, event_type=name, limit=5)["_links"]["next"]["href"].endswith("offset=5&limit=5")
    beyond = list_subscriptions(api, event_type=name, limit=5, offset=5)
    assert beyond == {"items": [], "_links": {"prev": {"href": f"/subscriptions?{query}&offset=0&limit=5"}}}


def test_links_repeat_what_was_asked(api):
    """Links name the filters in a fixed order, properly escaped. (S50)"""
    first, second = (create_event_type(api)["name"] for _ in range(2))
    application = a_name("an application & more")
    for group in ("a", "b"):
        create_subscription(
            api,
            first,
            second,
            owning_application=application,
            consumer_group=group,
            authorization=a_subscription_authorization(),
        )
    query = {
        "show_status": "true",
        "owning_application": application,
        "reader": "user:ann",
        "event_type": [first, second],
        "limit": 1,
    }
    href = list_subscriptions(api, **query)["_links"]["next"]["href"]
    escaped = application.replace(" ", "+").replace("&", "%26")
    assert href == (
        f"/subscriptions?event_type={first}&event_type={second}&reader=user:ann&owning_application={escaped}"
        "&show_status=true&offset=1&limit=1"
    )
    assert len(api.get(href).json()["items"]) == 1


def token_of(page, name):
    return page["_links"][name]["href"].partition("token=")[2].partition("&")[0]


def test_tokens_lead_from_page_to_page(api, five_subscriptions):
    """With a token, pages are in the order of ids, and there is a link to the next one only if it is not empty. (S51,
    S52)
    """
    name, subscriptions = five_subscriptions
    ordered = sorted(subscriptions, key=lambda each: each["id"])
    first = list_subscriptions(api, event_type=name, limit=2, token="new", offset=3)
    assert first["items"] == ordered[:2]
    assert first["_links"] == {"next": {"href": f"/subscriptions?event_type={name}&token=F{ordered[1]['id']}&limit=2"}}
    second = api.get(first["_links"]["next"]["href"]).json()
    assert second["items"] == ordered[2:4]
    third = api.get(second["_links"]["next"]["href"]).json()
    assert third["items"] == ordered[4:]
    assert set(third["_links"]) == {"prev"}
    back = api.get(third["_links"]["prev"]["href"]).json()
    assert back["items"] == second["items"]
    assert set(back["_links"]) == {"prev", "next"}
    start = api.get(back["_links"]["prev"]["href"]).json()
    assert (start["items"], set(start["_links"])) == (first["items"], {"next"})
    exactly = list_subscriptions(api, event_type=name, limit=5, token="new")
    assert (exactly["items"], exactly["_links"]) == (ordered, {})


@pytest.mark.parametrize(
    ("letter", "at", "wanted"),
    [("F", 1, [2, 3]), ("W", 1, [1, 2]), ("B", 3, [1, 2]), ("I", 3, [2, 3]), ("B", 1, [0]), ("W", 4, [4])],
)
def test_tokens_name_a_side_of_an_id(api, five_subscriptions, letter, at, wanted):
    """The first letter of a token says whether the page comes before or after the id, and whether it includes the id.
    (S52)
    """
    name, subscriptions = five_subscriptions
    ordered = sorted(subscriptions, key=lambda each: each["id"])
    page = list_subscriptions(api, event_type=name, limit=2, token=f"{letter}{ordered[at]['id']}")
    assert page["items"] == [ordered[each] for each in wanted]


@pytest.mark.parametrize(("letter", "at", "way", "back"), [("F", 4, "prev", [3, 4]), ("B", 0, "next", [0, 1])])
def test_empty_pages_lead_back(api, five_subscriptions, letter, at, way, back):
    """A client that has gone beyond the last page gets a link back. (S52)"""
    name, subscriptions = five_subscriptions
    ordered = sorted(subscriptions, key=lambda each: each["id"])
    page = list_subscriptions(api, event_type=name, limit=2, token=f"{letter}{ordered[at]['id']}")
    assert (page["items"], set(page["_links"])) == ([], {way})
    assert api.get(page["_links"][way]["href"]).json()["items"] == [ordered[each] for each in back]


def test_tokens_can_be_the_rule(api, five_subscriptions, switch_on):
    """If the feature for pages by token is on, a request for the first page gets tokens; one with an offset continues
    with offsets. (S51, S307)"""
    switch_on("token_subscriptions_iteration")
    name, _ = five_subscriptions
    assert "token=F" in list_subscriptions(api, event_type=name, limit=2)["_links"]["next"]["href"]
    assert "offset=3" in list_subscriptions(api, event_type=name, limit=2, offset=1)["_links"]["next"]["href"]


def test_status_is_reported_when_asked_for(api):
    """With `show_status`, each subscription shows the readers of its own partitions, and no counts. (S1, S55, S57,
    S282, S283)

    The partitions of other event types are not mixed in."""
    statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 2, "write_parallelism": 2}
    one, two = sorted((create_event_type(api)["name"], create_event_type(api, default_statistic=statistic)["name"]))
    if len(api.get(f"/event-types/{one}/partitions").json()) == 2:
        one, two = two, one
    subscription = create_subscription(api, one, two)
    api.patch(f"/subscriptions/{subscription['id']}/cursors", json={"items": []})
    [found] = list_subscriptions(api, event_type=one, show_status=True)["items"]
    unread = {"state": "unassigned", "stream_id": ""}
    assert {each["event_type"]: each["partitions"] for each in found["status"]} == {
        one: [{"partition": "0"} | unread],
        two: [{"partition": "0"} | unread, {"partition": "1"} | unread],
    }
    assert "status" not in list_subscriptions(api, event_type=one)["items"][0]
    assert "status" not in api.get(f"/subscriptions/{subscription['id']}").json()


def test_statistics_of_a_whole_page_are_reported(api):
    """With `show_stats`, each subscription shows its stats, with lags on request. (S320)

    Links repeat these parameters, and a page has no more subscriptions than the broker can answer in time."""
    name = create_event_type(api)["name"]
    api.post(f"/event-types/{name}/events", json=[{"n": n} for n in range(3)])
    for application in (read := [a_name("owner") for _ in range(3)]):
        subscription = create_subscription(api, name, owning_application=application, read_from="begin")
        if application != read[0]:
            api.patch(f"/subscriptions/{subscription['id']}/cursors", json={"items": []})
    page = list_subscriptions(api, event_type=name, show_stats=True, show_time_lag=True, limit=1000)
    waiting = [each["status"][0]["partitions"][0].pop("consumer_lag_seconds", None) for each in page["items"]]
    assert waiting[2] is None
    assert all(seconds >= 0 for seconds in waiting[:2])
    without = list_subscriptions(api, event_type=name, show_stats=True, limit=2)
    assert page["items"][:2] == without["items"]
    for each in page["items"]:
        assert each["status"] == api.get(f"/subscriptions/{each['id']}/stats").json()["items"]
    assert without["_links"]["next"]["href"] == f"/subscriptions?event_type={name}&show_stats=true&offset=2&limit=2"
    first = list_subscriptions(api, event_type=name, show_stats=True, show_time_lag=True, limit=1000, token="new")
    assert [each["id"] for each in first["items"]] == listed_ids(page)


def test_everyone_sees_all_definitions(ann_client, bob_client):
    """Authorization lists do not hide a subscription from the listing. (S54)"""
    subscription = create_subscription(ann_client, authorization=a_subscription_authorization("ann", "ann"))
    assert listed_ids(list_subscriptions(bob_client, event_type=subscription["event_types"][0])) == [subscription["id"]]


def test_status_of_what_one_may_not_see_is_left_out(ann_client, bob_client):
    """An event type that the caller may not see is missing from the status; the list is still returned. (S56)

    The listing is not refused as a whole because of one of its subscriptions."""
    hidden = create_event_type(ann_client, authorization=an_authorization("ann", "ann", "ann"))["name"]
    subscription = create_subscription(ann_client, hidden)
    [mine] = list_subscriptions(ann_client, event_type=hidden, show_status=True)["items"]
    [his] = list_subscriptions(bob_client, event_type=hidden, show_status=True)["items"]
    assert [each["event_type"] for each in mine["status"]] == [hidden]
    assert (his["id"], his["status"]) == (subscription["id"], [])
