"""POST /subscriptions."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.api import create_event_type, problem, violations
from tests.support.builders import a_name
from tests.support.subscriptions import a_cursor, a_request, create_subscription, offset_text

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def post_subscription(api, body):
    return api.post("/subscriptions", json=body)


def test_a_subscription_has_defaults(api):
    """Omitted members have their defaults, and the server sets an id and times. (S1, S2, S3, S4, S7, S8, S21)"""
    event_type = create_event_type(api)["name"]

    answer = post_subscription(api, {"owning_application": "shop", "event_types": [event_type]})

    body = answer.json()
    assert answer.status_code == 201
    assert UUID.fullmatch(body["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", body["created_at"])
    assert body == {
        "id": body["id"],
        "owning_application": "shop",
        "event_types": [event_type],
        "consumer_group": "default",
        "read_from": "end",
        "initial_cursors": [],
        "authorization": None,
        "annotations": {},
        "labels": {},
        "created_at": body["created_at"],
        "updated_at": body["created_at"],
    }
    assert answer.headers["location"] == answer.headers["content-location"] == f"/subscriptions/{body['id']}"


def test_a_subscription_is_found_again(api):
    """A created subscription reads back unchanged. (S59)"""
    subscription = create_subscription(api)
    answer = api.get(f"/subscriptions/{subscription['id']}")
    assert (answer.status_code, answer.json()) == (200, subscription)


def test_ids_times_and_strangers_in_a_request_mean_nothing(api):
    """Members that the server sets, and unknown members, are ignored. (S2)"""
    body = a_request(
        create_event_type(api)["name"], id="mine", created_at="yesterday", updated_at=1, status=[], colour="red"
    )
    answer = post_subscription(api, body)
    assert answer.status_code == 201
    assert UUID.fullmatch(answer.json()["id"])
    assert "colour" not in answer.json()


def test_event_types_are_a_set(api):
    """Event types are the same set in any order, with any repetitions, and returned sorted. (S6, S11)"""
    first, second = sorted((create_event_type(api)["name"], create_event_type(api)["name"]))
    request = a_request(second, first, second)
    subscription = post_subscription(api, request).json()
    assert subscription["event_types"] == [first, second]
    again = post_subscription(api, request | {"event_types": [first, second]})
    assert (again.status_code, again.json()["id"]) == (200, subscription["id"])


@pytest.mark.parametrize("word", ["begin", "end", "BEGIN", "End"])
def test_read_from_is_read_in_any_case(api, word):
    """The letter case of `read_from` does not matter in a request, and answers have lower case. (S5)"""
    assert create_subscription(api, read_from=word)["read_from"] == word.lower()


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", '"text"', *(f'{{"owning_application": "a", {each}}}' for each in (
        '"event_types": "a"', '"event_types": null', '"event_types": [{}]', '"read_from": "middle"',
        '"initial_cursors": 7', '"initial_cursors": ["BEGIN"]', '"authorization": []', '"labels": []'))],
)  # fmt: skip
def test_what_cannot_be_read_is_malformed(api, body):
    """Bad JSON, wrong types, `event_types` as null, and unknown words get 400. (S5, S13, S15)"""
    answer = api.post("/subscriptions", content=body, headers={"content-type": "application/json"})
    detail = problem(answer, 400)
    if "middle" in body:
        assert detail == "Illegal enum value: 'middle'. Possible values: [begin, end, cursors] (at read_from)"


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"owning_application": None}, ('Field "owning_application" must not be null',)),
        ({"owning_application": ""}, ('Field "owning_application" must contain at least one character',)),
        ({"event_types": []}, ('Field "event_types" must contain at least one element',)),
        ({"consumer_group": ""}, ('Field "consumer_group" must contain at least one character',)),
        ({"consumer_group": None}, ('Field "consumer_group" must not be null',)),
        ({"read_from": None}, ('Field "read_from" must not be null',)),
        (
            {"authorization": {"admins": [], "readers": None}},
            (
                'Field "authorization.admins" must contain at least one attribute',
                'Field "authorization.readers" must not be null',
            ),
        ),
        (
            {"authorization": {"admins": [{"data_type": "user"}], "readers": [{"value": "ann"}]}},
            (
                'Field "authorization.admins[0].value" must not be null',
                'Field "authorization.readers[0].data_type" must not be null',
            ),
        ),
        (
            {"initial_cursors": [{"partition": "", "offset": ""}]},
            (
                'Field "initial_cursors[0].event_type" must not be null',
                'Field "initial_cursors[0].partition" cursor partition cannot be empty',
                'Field "initial_cursors[0].offset" cursor offset cannot be empty',
            ),
        ),
        (
            {"annotations": {"-a": "b"}},
            ('Field "annotations[-a]" Key name should start and end with a letter or a digit',),
        ),
        ({"annotations": {"a": "x" * 1001}}, ('Field "annotations[a]" size must be between 0 and 1000',)),
        ({"labels": {"a": "x" * 64}}, ('Field "labels[a]" size must be between 0 and 63',)),
        ({"labels": {"a": "-"}}, ('Field "labels[a]" Should contain only allowed symbols',)),
    ],
)  # fmt: skip
def test_fields_at_fault_are_reported_one_by_one(api, changes, lines):
    """Each field that breaks a rule is named with the rule. (S9, S10, S14, S15, S16, S17, R53)"""
    assert violations(post_subscription(api, a_request("no.such.thing", **changes))) == set(lines)


def test_a_request_without_anything_names_what_is_missing(api):
    """An empty request is told that application and event types are missing, because these have no default. (S14)"""
    assert violations(post_subscription(api, {})) == {
        'Field "owning_application" must not be null',
        'Field "event_types" must not be null',
    }


def test_writers_are_nothing_to_a_subscription(api):
    """An authorization section has admins and readers, and needs no writers. (R53, S77)"""
    lists = {
        "admins": [{"data_type": "user", "value": "ann"}],
        "readers": [{"data_type": "*", "value": "*"}],
    }
    assert create_subscription(api, authorization=lists | {"writers": []})["authorization"] == lists


SEND_COUNT = "nakadi.zalando.org/subscription-max-event-send-count"
POLICY = "nakadi.zalando.org/subscription-unprocessable-event-policy"


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({SEND_COUNT: "many", POLICY: "SKIP_EVENT"}, f"{SEND_COUNT} must be an integer"),
        ({SEND_COUNT: "2.5", POLICY: "SKIP_EVENT"}, f"{SEND_COUNT} must be an integer"),
        ({SEND_COUNT: "1", POLICY: "SKIP_EVENT"}, f"{SEND_COUNT} must be between 2 and 10"),
        ({SEND_COUNT: "1"}, f"{SEND_COUNT} must be between 2 and 10"),
        ({SEND_COUNT: "many", POLICY: "skip_event"}, f"{SEND_COUNT} must be an integer"),
        ({SEND_COUNT: "11", POLICY: "SKIP_EVENT"}, f"{SEND_COUNT} must be between 2 and 10"),
        ({SEND_COUNT: "3"}, f"{POLICY} must be also set when setting {SEND_COUNT}"),
        ({SEND_COUNT: "3", POLICY: "skip_event"}, f"{POLICY} must be one of: SKIP_EVENT, DEAD_LETTER_QUEUE, PARK_KEY"),
        ({POLICY: "SKIP_EVENT"}, f"{SEND_COUNT} must be also set when setting {POLICY}"),
    ],
)
def test_dead_letter_annotations_come_together_and_make_sense(api, annotations, message):
    """Each annotation is checked, and whether both are present; the answer reports only the first mistake. (S250, S251,
    R257)
    """
    [line] = violations(post_subscription(api, a_request("no.such.thing", annotations=annotations)))
    assert line.endswith(message)


@pytest.mark.parametrize("count", ["2", "10"])
@pytest.mark.parametrize("policy", ["SKIP_EVENT", "DEAD_LETTER_QUEUE", "PARK_KEY"])
def test_dead_letter_annotations_are_accepted(api, count, policy):
    """The broker accepts a send count from 2 to 10, with any policy in upper case. (S250, S251, R257)"""
    annotations = {SEND_COUNT: count, POLICY: policy}
    assert create_subscription(api, annotations=annotations)["annotations"] == annotations


# Repeated requests


def test_asking_again_finds_it(api):
    """There is one subscription for an application, a set of event types and a group; a repeated request returns it,
    and the rest of the request has no effect. (S11, S18, S126)"""
    subscription = create_subscription(api, labels={"a": "b"})
    again = {
        "owning_application": subscription["owning_application"],
        "event_types": subscription["event_types"],
        "read_from": "cursors",
        "labels": {"c": "d"},
    }

    answer = post_subscription(api, again)

    assert (answer.status_code, answer.json()) == (200, subscription)
    assert answer.headers["location"] == f"/subscriptions/{subscription['id']}"
    assert "content-location" not in answer.headers


@pytest.mark.parametrize("changes", [{"consumer_group": "other"}, {"owning_application": "somebody-else"}])
def test_another_group_or_application_is_another_subscription(api, changes):
    """A request with another application or another consumer group creates another subscription. (S11)"""
    first = create_subscription(api)
    second = create_subscription(
        api, *first["event_types"], **{"owning_application": first["owning_application"]} | changes
    )
    assert second["id"] != first["id"]


@pytest.mark.parametrize(
    "feature", ["disable_subscription_creation", "disable_db_write_operations", "force_subscription_authz"]
)
def test_what_is_there_is_found_whatever_is_switched(api, switch_on, feature):
    """An existing subscription is returned before any check but the body's. (S20)"""
    subscription = create_subscription(api)
    switch_on(feature)
    again = {each: subscription[each] for each in ("owning_application", "event_types")}
    assert post_subscription(api, again).status_code == 200


def test_only_one_of_many_simultaneous_requests_creates_a_subscription(api):
    """One of several simultaneous requests creates the subscription; the others lose the race or find it. (S34)"""
    request = a_request(create_event_type(api)["name"])
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: post_subscription(api, request), range(8)))
    statuses = sorted(each.status_code for each in answers)
    assert statuses.count(201) == 1
    assert set(statuses) <= {200, 201, 409}
    for each in answers:
        if each.status_code == 409:
            assert problem(each, 409) == "Subscription with the same key properties already exists"
    assert post_subscription(api, request).status_code == 200


# The order of checks


def test_creation_can_be_switched_off(api, switch_on):
    """While creation is switched off, a request gets 503, before any other check. (S22, S307)"""
    switch_on("disable_subscription_creation")
    answer = post_subscription(api, a_request("no.such.thing"))
    assert problem(answer, 503) == "Subscription creation is temporarily unavailable"


def test_a_read_only_registry_takes_no_subscriptions(api, switch_on):
    """In read-only mode, creation gets 503. (S22, S307)"""
    switch_on("disable_db_write_operations")
    switch_on("force_subscription_authz")
    assert problem(post_subscription(api, a_request("no.such.thing")), 503) == "Database is currently in read-only mode"


def test_authorization_can_be_mandatory(api, switch_on):
    """If authorization is mandatory, a request without it gets 422, before its event types are checked. (S22, S307,
    R261)"""
    switch_on("force_subscription_authz")
    assert problem(post_subscription(api, a_request("no.such.thing")), 422) == "Authorization section is mandatory"


def test_event_types_must_exist(api):
    """Unknown event types are reported all at once, sorted. (S22, S23, R258)"""
    request = a_request("unknown.b", create_event_type(api)["name"], "unknown.a")
    assert problem(post_subscription(api, request), 422) == (
        "Failed to create subscription, event type(s) not found: 'unknown.a', 'unknown.b'"
    )


def test_there_is_a_limit_to_partitions(api):
    """The number of partitions of all event types together is limited, for any number of event types. (S22, S25)"""
    statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 8, "write_parallelism": 8}
    large = [create_event_type(api, default_statistic=statistic)["name"] for _ in range(13)]
    assert problem(post_subscription(api, a_request(*large)), 422) == (
        "total partition count for subscription is 104, but the maximum partition count is 100"
    )
    small = [create_event_type(api)["name"] for _ in range(4)]
    assert post_subscription(api, a_request(*large[:12], *small)).status_code == 201


def test_a_hundred_event_types_are_not_too_many(api):
    """A subscription may name as many event types as it may have partitions, and is found and deleted like any other.
    (S25)"""
    names = [create_event_type(api)["name"] for _ in range(100)]
    subscription = create_subscription(api, *names)
    assert subscription["event_types"] == sorted(names)
    for name in (names[0], names[-1]):
        [found] = api.get("/subscriptions", params={"event_type": name}).json()["items"]
        assert found["id"] == subscription["id"]
        assert api.delete(f"/event-types/{name}").status_code == 409
    assert api.delete(f"/subscriptions/{subscription['id']}").status_code == 204
    assert api.get("/subscriptions", params={"event_type": names[50]}).json()["items"] == []
    assert api.delete(f"/event-types/{names[50]}").status_code == 200


# Initial cursors

GONE = (
    "event type {} is unavailable as retention time of data elapsed. "
    "PATCH partition offset with valid and available offset"
)


def two_partitions(api):
    statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 2, "write_parallelism": 2}
    return create_event_type(api, default_statistic=statistic)["name"]


@pytest.mark.parametrize(
    ("cursors", "detail"),
    [
        (None, "initial_cursors should contain cursors for all partitions of subscription"),
        ([("0", "BEGIN")], "initial_cursors should contain cursors for all partitions of subscription"),
        (
            [("0", "BEGIN"), ("1", "BEGIN"), ("2", "BEGIN")],
            "initial_cursors should contain cursors only for partitions of this subscription",
        ),
        (
            [("0", "BEGIN"), ("1", "BEGIN"), ("1", "BEGIN")],
            "there should be no more than 1 cursor for each partition in initial_cursors",
        ),
        # First missing, then foreign, then repeated cursors.
        (
            [("0", "BEGIN"), ("0", "BEGIN"), ("2", "BEGIN")],
            "initial_cursors should contain cursors for all partitions of subscription",
        ),
        (
            [("0", "BEGIN"), ("1", "BEGIN"), ("1", "BEGIN"), ("x", "BEGIN")],
            "initial_cursors should contain cursors only for partitions of this subscription",
        ),
        ([("0", "BEGIN"), ("1", "abc")], "invalid offset abc for partition 1"),
        ([("0", "BEGIN"), ("1", "001-xyz")], "invalid offset null for partition null"),
        (
            [("0", "BEGIN"), ("1", "7")],
            f"offset 000000000000000007 for partition 1 {GONE}",
        ),
        (
            [("0", "BEGIN"), ("1", "001-0009-0")],
            f"offset null for partition null {GONE}",
        ),
    ],
    ids=str,
)
def test_initial_cursors_are_checked(api, cursors, detail):
    """Each partition needs exactly one cursor from which it can be read, and other cursors are refused. (S26, S27, S28,
    S29, S30, S93, S94)
    """
    name = two_partitions(api)
    listed = None if cursors is None else [a_cursor(name, *each) for each in cursors]
    request = a_request(name, read_from="cursors", initial_cursors=listed)
    assert problem(post_subscription(api, request), 422) == detail.format(name)


@pytest.mark.parametrize(
    "offset", ["BEGIN", "begin", "Begin", "-1", offset_text(-1), offset_text(0), "1", offset_text(1)]
)
def test_initial_cursors_lie_between_before_the_oldest_and_the_newest(api, offset):
    """An initial cursor may be at any position from before the oldest event to the newest one, and is returned as it
    was sent. (S30, S90)"""
    name = create_event_type(api)["name"]
    api.post(f"/event-types/{name}/events", json=[{}, {}])
    cursor = {"event_type": name, "partition": "0", "offset": offset}
    assert create_subscription(api, name, read_from="cursors", initial_cursors=[cursor])["initial_cursors"] == [cursor]


def test_initial_cursors_without_use_are_only_kept(api):
    """If the first stream does not begin at them, initial cursors are stored without a check. (S31)"""
    cursor = {"event_type": "whatever", "partition": "x", "offset": "y"}
    assert create_subscription(api, read_from="end", initial_cursors=[cursor])["initial_cursors"] == [cursor]
    assert create_subscription(api, initial_cursors=None)["initial_cursors"] == []


def test_duplicates_in_lists_are_reported(api):
    """A list has an attribute only once; duplicates of all lists are reported at once. (S32, S33)"""
    ann, bob = ({"data_type": "user", "value": name} for name in ("ann", "bob"))
    request = a_request(
        create_event_type(api)["name"], authorization={"admins": [ann, bob, ann], "readers": [bob, bob]}
    )
    assert problem(post_subscription(api, request), 422) == (
        "authorization property 'ADMIN' contains duplicated attribute(s): user:ann; "
        "authorization property 'READ' contains duplicated attribute(s): user:bob"
    )


def test_cursors_are_looked_at_before_lists(api):
    """Initial cursors are checked before the authorization section. (S22)"""
    ann = {"data_type": "user", "value": "ann"}
    lists = {"admins": [ann, ann], "readers": [ann]}
    request = a_request(create_event_type(api)["name"], read_from="cursors", authorization=lists)
    assert problem(post_subscription(api, request), 422).startswith("initial_cursors should contain")


def test_creation_resolves_nothing(api):
    """Until its first stream, a subscription has no offsets. (S12, S36, S104)"""
    subscription = create_subscription(api, read_from="begin")
    assert api.get(f"/subscriptions/{subscription['id']}/cursors").json() == {"items": []}


def test_a_name_that_no_one_has_used_stays_free(api):
    """A refused request leaves nothing behind. (S22)"""
    name = a_name()
    request = a_request(name)
    problem(post_subscription(api, request), 422)
    create_event_type(api, name=name)
    assert post_subscription(api, request).status_code == 201
