"""GET, POST and PATCH /subscriptions/{id}/cursors, without streams."""

from uuid import UUID

import pytest

from tests.support.api import create_event_type, problem, violations
from tests.support.subscriptions import a_cursor, committed_offsets, create_subscription, offset_text, publish, reset

STREAM = "70779f46-950d-4e48-9fca-10c413845e7f"


def cursors_url(subscription):
    return f"/subscriptions/{subscription['id']}/cursors"


def two_partitions(api):
    statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 2, "write_parallelism": 2}
    return create_event_type(api, default_statistic=statistic)["name"]


def test_cursors_are_reported_with_fresh_tokens(api):
    """Every partition has a cursor, with a token that has no meaning and is new every time. (S103, S105, S302)"""
    one, two = create_event_type(api)["name"], two_partitions(api)
    subscription = create_subscription(api, one, two)
    reset(api, subscription)
    answers = [api.get(cursors_url(subscription)) for _ in range(2)]
    assert all(each.status_code == 200 for each in answers)
    first, second = (each.json()["items"] for each in answers)
    tokens = [str(UUID(each.pop("cursor_token"))) for each in (*first, *second)]
    assert len(set(tokens)) == 6
    assert first == second
    assert sorted(first, key=str) == sorted(
        [
            {"partition": partition, "offset": offset_text(-1), "event_type": name}
            for name, partition in ((one, "0"), (two, "0"), (two, "1"))
        ],
        key=str,
    )


# Where the first stream begins


@pytest.mark.parametrize(
    ("read_from", "wanted"),
    [("begin", offset_text(-1)), ("end", offset_text(2)), ("cursors", offset_text(1))],
)
def test_a_reset_without_cursors_fixes_the_beginning(api, read_from, wanted):
    """An empty reset gives a subscription its first offsets according to `read_from`, as of that time; later empty
    resets change nothing. (S88, S95, S96, S97, S98, S100, S135)
    """
    name = create_event_type(api)["name"]
    publish(api, name, 2)
    listed = [{"event_type": name, "partition": "0", "offset": "1"}] if read_from == "cursors" else []
    subscription = create_subscription(api, name, read_from=read_from, initial_cursors=listed)
    publish(api, name, 1)
    answer = reset(api, subscription)
    assert (answer.status_code, answer.content) == (204, b"")
    publish(api, name, 1)
    assert reset(api, subscription).status_code == 204
    assert committed_offsets(api, subscription) == {(name, "0"): wanted}


@pytest.mark.parametrize(
    ("offset", "wanted"),
    [("BEGIN", -1), ("begin", -1), ("-1", -1), ("0", 0), ("000000000000000001", 1), (offset_text(1), 1)],
)
def test_initial_cursors_are_reported_as_what_they_mean(api, offset, wanted):
    """However an initial cursor was written, its offset is returned in one form. (S88, S90, S98, S99, S121)

    The client's own words are not kept as the offset."""
    name = create_event_type(api)["name"]
    publish(api, name, 2)
    cursor = {"event_type": name, "partition": "0", "offset": offset}
    subscription = create_subscription(api, name, read_from="cursors", initial_cursors=[cursor])
    reset(api, subscription)
    assert committed_offsets(api, subscription) == {(name, "0"): offset_text(wanted)}


# Setting cursors


def test_a_reset_moves_in_both_directions(api):
    """Partitions move to where the request says, backward or forward. Of several positions of a partition, the last one
    counts; other partitions do not move. (S131, S133, S134, S303)
    """
    name = two_partitions(api)
    subscription = create_subscription(api, name, read_from="begin")
    statuses = [api.post(f"/event-types/{name}/events", json=[{}] * 20).status_code]
    newest = {
        each["partition"]: int(each["newest_available_offset"][-18:])
        for each in api.get(f"/event-types/{name}/partitions").json()
        if not each["newest_available_offset"].endswith("--1")
    }
    partition, last = max(newest.items(), key=lambda each: each[1])
    other = "1" if partition == "0" else "0"
    for offset, wanted in ((last, last), (0, 0), ("BEGIN", -1), ("begin", -1), (str(last), last)):
        ignored = a_cursor(name, partition, 0)
        answer = reset(api, subscription, ignored, a_cursor(name, partition, offset))
        statuses.append(answer.status_code)
        assert committed_offsets(api, subscription) == {
            (name, partition): offset_text(wanted),
            (name, other): offset_text(-1),
        }
    assert statuses == [200, *[204] * 5]


def test_a_reset_gives_the_other_partitions_their_beginning(api):
    """On a subscription that was never streamed, all partitions get their offsets, and then the given ones move.
    (S136)"""
    name = create_event_type(api)["name"]
    other = create_event_type(api)["name"]
    publish(api, name, 3)
    publish(api, other, 3)
    subscription = create_subscription(api, name, other)
    assert reset(api, subscription, a_cursor(name, "0", 0)).status_code == 204
    assert committed_offsets(api, subscription) == {(name, "0"): offset_text(0), (other, "0"): offset_text(2)}


@pytest.mark.parametrize(
    ("cursor", "detail"),
    [
        (("no.such.thing", "0", 0), 'EventType "no.such.thing" does not exist.'),
        ((None, "0", "abc"), "invalid offset abc for partition 0"),
        ((None, "9", "BEGIN"), "non existing partition 9"),
        ((None, "9", 0), "non existing partition 9"),
        ((None, "x", 0), "non existing partition x"),
        ((None, "0", 3), "offset 000000000000000003 for partition 0 event type {} is unavailable as retention time"),
        ((None, "0", "3"), "offset 000000000000000003 for partition 0 event type {} is unavailable as retention time"),
        ((None, "0", "001-0007-0"), "offset null for partition null event type {} is unavailable as retention time"),
        ((None, "0", "001-"), "invalid offset null for partition null"),
    ],
)
def test_places_that_are_not_there_are_refused(api, cursor, detail):
    """A reset to a position where nothing can be read gets 422, and moves nothing. (S93, S94, S132, S133, S300)"""
    name = create_event_type(api)["name"]
    publish(api, name, 3)
    subscription = create_subscription(api, name)
    reset(api, subscription)
    answer = reset(api, subscription, a_cursor(name, "0", 0), a_cursor(cursor[0] or name, *cursor[1:]))
    assert problem(answer, 422).startswith(detail.format(name))
    assert committed_offsets(api, subscription) == {(name, "0"): offset_text(2)}


def test_foreign_event_types_cannot_be_reset(api):
    """Event types that do not belong to the subscription are reported all at once, before positions are
    checked. (S132)"""
    subscription = create_subscription(api)
    one, two = sorted(create_event_type(api)["name"] for _ in range(2))
    answer = reset(api, subscription, a_cursor(two, "0", 7), a_cursor(one), a_cursor(subscription["event_types"][0]))
    assert problem(answer, 422) == f"Event type does not belong to subscription: [{one}, {two}]"


def test_resets_are_judged_in_order(api):
    """Meaningless cursors are reported before an unknown id. (S132)"""
    unknown = {"id": "unknown"}
    assert problem(reset(api, unknown, a_cursor("no.such.thing")), 422) == 'EventType "no.such.thing" does not exist.'
    name = create_event_type(api)["name"]
    assert problem(reset(api, unknown, a_cursor(name)), 404) == 'Subscription with id "unknown" does not exist'


# Committing


@pytest.mark.parametrize(
    ("item", "lines"),
    [
        ({}, {"event_type", "partition", "offset", "cursor_token"}),
        ({"event_type": "a", "partition": "0", "offset": "0"}, {"cursor_token"}),
        ({"partition": "0", "offset": "0", "cursor_token": "x"}, {"event_type"}),
    ],
)
def test_members_that_are_missing_are_reported(api, item, lines):
    """Every member of a cursor is required. (S111, S17)"""
    good = a_cursor("no.such.thing")
    answer = api.post("/subscriptions/unknown/cursors", json={"items": [good, item]})
    assert violations(answer) == {f'Field "items[1].{each}" must not be null' for each in lines}


def test_empty_members_and_missing_lists_are_reported(api):
    """The answer names empty members of cursors, and a missing list of cursors. (S111, S132)"""
    empty = {"event_type": "a", "partition": "", "offset": "", "cursor_token": ""}
    wanted = {
        'Field "items[0].partition" cursor partition cannot be empty',
        'Field "items[0].offset" cursor offset cannot be empty',
    }
    for send in (api.post, api.patch):
        assert violations(send("/subscriptions/unknown/cursors", json={"items": [empty]})) == wanted
        assert violations(send("/subscriptions/unknown/cursors", json={})) == {'Field "items" must not be null'}


def test_a_reset_needs_no_token_and_no_stream(api):
    """Neither a token nor the header of a stream is needed for a reset. (S131)"""
    name = create_event_type(api)["name"]
    subscription = create_subscription(api, name, read_from="begin")
    cursor = a_cursor(name, "0", -1)
    del cursor["cursor_token"]
    assert reset(api, subscription, cursor).status_code == 204


@pytest.mark.parametrize("body", ["", "{", "[]", '{"items": {}}', '{"items": [1]}', '{"items": [{"partition": []}]}'])
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_what_cannot_be_read_is_malformed(api, method, body):
    """Bad JSON and wrong types get 400. (S110, S132)"""
    headers = {"content-type": "application/json"}
    problem(api.request(method, "/subscriptions/unknown/cursors", content=body, headers=headers), 400)


def test_the_stream_has_to_be_named(api):
    """A commit without the header that names its stream gets 400, once its body is valid. (S109, S110)"""
    subscription = create_subscription(api)
    assert violations(api.post(cursors_url(subscription), json={}))
    assert "X-Nakadi-StreamId" in problem(api.post(cursors_url(subscription), json={"items": []}), 400)


def test_commits_are_judged_in_order(api):
    """Mistakes in a commit are reported in a fixed order. (S93, S112, S114, S115, S127)"""
    name = create_event_type(api)["name"]
    subscription = create_subscription(api, name)

    def assert_refused(*items, stream="x", to=subscription["id"], status=422):
        headers = {"X-Nakadi-StreamId": stream}
        answer = api.post(f"/subscriptions/{to}/cursors", json={"items": list(items)}, headers=headers)
        return problem(answer, status)

    good = a_cursor(name)
    assert assert_refused(good, a_cursor("no.such.thing"), to="unknown") == 'EventType "no.such.thing" does not exist.'
    assert assert_refused(good, a_cursor(name, "0", "abc"), to="unknown") == "invalid offset abc for partition 0"
    assert assert_refused(to="unknown") == "Cursors are empty"
    assert (
        assert_refused(a_cursor(name, "x", 0), to="unknown", status=404)
        == 'Subscription with id "unknown" does not exist'
    )
    assert assert_refused(good, a_cursor(name, "x", 0)) == "non existing partition x"
    assert assert_refused(good, a_cursor(name, "9", 0)) == "Stream id has to be valid UUID, but `x was provided"
    assert assert_refused(a_cursor(name, "9", 0), stream=STREAM) == f"Session with stream id {STREAM} not found"
    assert (
        assert_refused(a_cursor(name, "0", 99), stream=STREAM.upper())
        == f"Session with stream id {STREAM.upper()} not found"
    )
