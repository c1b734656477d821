"""GET /event-types/{name}/events: its checks, their order, and the beginning of a stream."""

import json
import time

import orjson
import pytest

from tests.support.api import an_authorization, create_event_type, problem
from tests.support.builders import a_name
from tests.support.expected_lines import batch, cursors, event, keep_alive, position
from tests.support.open_stream import OpenStream
from tests.support.patience import PATIENCE, run_in_threads

NOT_THERE = "001-0001-000000000000000099"


def read_refusal_detail(api, name, status, query="", header=None, **headers):
    """The detail of the Problem with which a stream is refused."""
    given = headers if header is None else {**headers, "X-nakadi-cursors": header}
    answer = api.get(f"/event-types/{name}/events?{query}", headers=given)
    return problem(answer, status)


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("batch_limit=10&stream_limit=5", "stream_limit can't be lower than batch_limit"),
        ("stream_timeout=5", "stream_timeout can't be lower than batch_flush_timeout"),
        ("stream_timeout=5&batch_flush_timeout=6", "stream_timeout can't be lower than batch_flush_timeout"),
        ("batch_limit=0", "batch_limit can't be lower than 1"),
        ("stream_timeout=5&batch_limit=0", "stream_timeout can't be lower than batch_flush_timeout"),
        ("batch_flush_timeout=-1", "batch_flush_timeout can't be lower than 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(api, event_type, query, detail):
    """Contradictory limits get 422 with the first broken rule. (L3, L4, L5, L6, L7, L11, L18)"""
    assert read_refusal_detail(api, event_type, 422, query) == detail


@pytest.mark.parametrize(
    "name", ["batch_limit", "stream_limit", "batch_flush_timeout", "stream_timeout", "stream_keep_alive_limit"]
)
@pytest.mark.parametrize("text", ["x", "1.5", "0x1", "%2B-1"])
def test_a_parameter_that_is_no_number_is_malformed(api, name, text):
    """A parameter that is not a number gets 400, before any other check. (L10, L12)"""
    assert text.replace("%2B", "+") in read_refusal_detail(api, a_name(), 400, f"{name}={text}")


def test_an_empty_parameter_counts_as_missing(open_stream):
    """An empty value counts as missing, and unknown names have no effect. (L2, L10)"""
    assert open_stream("batch_limit=&stream_timeout=&batch_timeout=1&max_uncommitted_events=0").status == 200


def test_an_unknown_event_type_has_its_own_words(api):
    """A missing event type gets 404 with `topic not found`. (L15, L18)"""
    assert read_refusal_detail(api, a_name(), 404) == "topic not found"


def test_an_unknown_event_type_beats_bad_cursors_and_limits(api):
    """The event type is checked before cursors and limits. (L12)"""
    assert read_refusal_detail(api, a_name(), 404, "batch_limit=0", "garbage") == "topic not found"


def test_bad_cursors_beat_bad_limits(api, event_type):
    """Cursors are checked before limits. (L12, L13)"""
    read_refusal_detail(api, event_type, 400, "batch_limit=0", "garbage")
    read_refusal_detail(api, event_type, 412, "batch_limit=0", "[]")


def test_being_blocked_beats_everything_but_numbers(api):
    """Blocked consumption gets 403, even for a name that does not exist; an invalid number is reported first. (L12,
    L14)
    """
    name = a_name()
    blocked = f"/settings/blacklist/CONSUMER_ET/{name}"
    assert api.put(blocked).status_code == 204
    try:
        assert read_refusal_detail(api, name, 403) == "Application or event type is blocked"
        read_refusal_detail(api, name, 400, "batch_limit=x")
    finally:
        api.delete(blocked)


def test_a_blocked_application_may_not_stream(broker_with_tokens, admin, ann_client):
    """An application on the blacklist gets 403 for every event type. (L14)"""
    name = create_event_type(ann_client, authorization=an_authorization())["name"]
    with broker_with_tokens.client("rogue") as rogue:
        assert admin.put("/settings/blacklist/CONSUMER_APP/rogue").status_code == 204
        try:
            assert read_refusal_detail(rogue, name, 403) == "Application or event type is blocked"
        finally:
            admin.delete("/settings/blacklist/CONSUMER_APP/rogue")


def test_viewing_is_checked_before_reading(ann_client, bob_client):
    """Without any right, VIEW is reported as missing; with another right, READ is. (L12, L16)"""
    name = create_event_type(ann_client, authorization=an_authorization())["name"]
    assert read_refusal_detail(bob_client, name, 403) == f"Access on VIEW event-type:{name} denied"
    name = create_event_type(ann_client, authorization=an_authorization(writers="ann bob"))["name"]
    assert read_refusal_detail(bob_client, name, 403) == f"Access on READ event-type:{name} denied"


def test_an_administrator_may_see_and_not_read(ann_client, admin):
    """Administrators pass VIEW, and still need READ. (L17)"""
    name = create_event_type(ann_client, authorization=an_authorization())["name"]
    assert read_refusal_detail(admin, name, 403) == f"Access on READ event-type:{name} denied"


def test_an_event_type_without_lists_is_open(ann_client, bob_client):
    """Without an authorization section every client may read. (L17)"""
    name = create_event_type(ann_client)["name"]
    assert bob_client.get(f"/event-types/{name}/events?stream_timeout=1&batch_flush_timeout=1").status_code == 200


def test_who_may_read_all_data_may_read(broker_with_tokens, ann_client):
    """Subjects with access to all data need no READ, but they need VIEW like all others. (L17)"""
    name = create_event_type(ann_client, authorization=an_authorization(writers="ann the-archiver"))["name"]
    with broker_with_tokens.client("the-archiver") as archiver:
        assert archiver.get(f"/event-types/{name}/events?stream_timeout=1&batch_flush_timeout=1").status_code == 200


# Cursors


@pytest.mark.parametrize("header", ["garbage", "", "{}", "[1]", "null", "[null]", '[{"partition":"0"'])
def test_cursors_that_are_no_list_of_objects_are_malformed(api, event_type, header):
    """A cursors header that cannot be read gets 400. (L21, L31, L36a)"""
    assert read_refusal_detail(api, event_type, 400, header=header) == "incorrect syntax of X-nakadi-cursors header"


@pytest.mark.parametrize(
    ("header", "detail"),
    [
        ("[]", "invalid cursor format, partition: null offset: null"),
        ('[{"offset":"BEGIN"}]', "partition must not be null"),
        ('[{"partition":"0"}]', "offset must not be null"),
        ('[{"partition":"7","offset":"x"},{"partition":"0"}]', "offset must not be null"),
        (cursors(_7=position(0)), "non existing partition 7"),
        (cursors(x="0"), "non existing partition x"),
        (cursors(_7="BEGIN"), "non existing partition 7"),
        (cursors(_0="zero"), "invalid offset zero for partition 0"),
        (cursors(_0="001-1"), "invalid offset null for partition null"),
        (cursors(_0="001-0001-9999999999999999999"), "invalid cursor format, partition: 0 offset: 9999999999999999999"),
        (cursors(_7="0", _0="zero"), "invalid offset zero for partition 0"),
    ],
)
def test_cursors_that_lead_nowhere_are_refused(api, event_type, header, detail):
    """Cursors that can be parsed but name no position that can be read get 412, each with its own message. (L22, L23,
    L24, L25, L26, L29, L36a)
    """
    assert read_refusal_detail(api, event_type, 412, header=header) == detail


@pytest.mark.parametrize(
    ("offset", "digits"),
    [(NOT_THERE, "000000000000000099"), ("99", "000000000000000099"), ("001-0001-99", "99"), ("001-0001--2", "-2")],
)
def test_a_cursor_where_nothing_is_left_or_yet_is_refused(api, event_type, offset, digits):
    """Too old and too new cursors get the same 412, with the number as it was sent. (L28)"""
    detail = read_refusal_detail(api, event_type, 412, header=cursors(_0=offset))
    assert detail == (
        f"offset {digits} for partition 0 event type {event_type} is unavailable as retention time of data elapsed. "
        "PATCH partition offset with valid and available offset"
    )


def test_a_timeline_that_never_was_is_refused_without_names(api, event_type):
    """An unknown timeline gets 412 with a message without partition and offset. (L27)"""
    detail = read_refusal_detail(api, event_type, 412, header=cursors(_0="001-0009-0"))
    assert detail.startswith(f"offset null for partition null event type {event_type} is unavailable")


def test_a_partition_twice_is_refused(api, event_type):
    """Naming the same partition twice is a client error, not a server error. (L30)"""
    twice = [{"partition": "0", "offset": "BEGIN"}] * 2
    assert "duplicate" in read_refusal_detail(api, event_type, 422, header=json.dumps(twice))


@pytest.mark.parametrize("offset", ["BEGIN", "begin", "Begin", "001-0001--1", "-1", position(-1)])
def test_the_beginning_has_many_names(open_stream, publish, offset):
    """A cursor before the first event may have the new form or the old form, or be a word; the stream begins with that
    event. (L33, L34, L35, L43)
    """
    publish("0", "a")
    with open_stream("stream_limit=1", cursors(_0=offset)) as open_until_served:
        assert open_until_served.rest() == batch("0", 0, "a")


@pytest.mark.parametrize("offset", [position(1), "1", "001-0001-1"])
def test_delivery_begins_behind_the_cursor(open_stream, publish, offset):
    """A cursor names the last event that the client has received, so the stream begins after that event. (L32, L33)"""
    publish("0", "a", "b", "c")
    header = f'[{{"partition":0,"offset":"{offset}","event_type":"x","more":{{}}}}] and so on'
    with open_stream("stream_limit=1", header) as open_until_served:
        assert open_until_served.rest() == batch("0", 2, "c")


def test_a_cursor_at_the_newest_event_waits(open_stream, publish):
    """A stream that begins at the newest event sends nothing until another one is published. (L35)"""
    publish("0", "a")
    with open_stream("stream_limit=1", cursors(_0=position(0))) as open_until_served:
        publish("0", "b")
        assert open_until_served.rest() == batch("0", 1, "b")


def test_only_the_listed_partitions_are_read(open_stream, publish):
    """A stream with cursors has their partitions and no others. (L20)"""
    for partition in "012":
        publish(partition, partition)
    with open_stream("batch_flush_timeout=1", cursors(_0="BEGIN", _2="BEGIN")) as open_until_served:
        lines = []
        while not {batch("0", 0, "0"), batch("2", 0, "2")} <= set(lines):
            lines.append(open_until_served.line())
        lines += [open_until_served.line() for _ in range(2)]
    assert not any(b'"partition":"1"' in line for line in lines)


def test_without_cursors_only_new_events_come(open_stream, publish):
    """A stream without a cursors header has only the events that are published after its request, of all partitions.
    (L36)
    """
    for partition in "012":
        publish(partition, "old")
    with open_stream("stream_limit=3") as open_until_served:
        for partition in "012":
            publish(partition, "new")
        assert sorted(open_until_served.rest().splitlines(keepends=True)) == [batch(each, 1, "new") for each in "012"]


def test_a_stream_can_begin_at_a_point_in_time(open_stream, publish):
    """A cursor whose offset is a time begins with the first event stored then or later. (C5, L33)"""
    publish("0", "before")
    time.sleep(0.05)  # the two events must be stored at different times
    moment = time.time()
    time.sleep(0.05)
    publish("0", "after")
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1000):03d}Z"
    with open_stream("stream_limit=1", cursors(_0=stamp)) as open_until_served:
        assert open_until_served.rest() == batch("0", 1, "after")


# Timelines


def test_a_stream_follows_into_a_new_timeline(api, open_stream, publish, event_type):
    """An open stream continues in the next timeline, and so does every cursor of the old one. (L67, L68)"""
    publish("0", "a", "b")
    with open_stream("stream_limit=3", cursors(_0="BEGIN")) as open_until_served:
        assert open_until_served.line() + open_until_served.line() == batch("0", 0, "a") + batch("0", 1, "b")
        assert api.post(f"/event-types/{event_type}/timelines", json={"storage_id": "default"}).status_code == 201
        publish("0", "c")
        assert open_until_served.rest() == batch("0", 0, "c", timeline=2)
    for start, rest in (("0", batch("0", 1, "b")), ("1", b"")):
        with open_stream(f"stream_limit={2 - int(start)}", cursors(_0=start)) as open_until_served:
            assert open_until_served.rest() == rest + batch("0", 0, "c", timeline=2)


def test_without_cursors_the_newest_timeline_counts(api, open_stream, publish, event_type):
    """A stream without cursors begins at the end of the newest timeline, even if that is empty. (L69)"""
    publish("0", "a")
    assert api.post(f"/event-types/{event_type}/timelines", json={"storage_id": "default"}).status_code == 201
    with open_stream("stream_timeout=1&batch_flush_timeout=1") as open_until_served:
        assert sorted(open_until_served.rest().splitlines(keepends=True)) == [
            keep_alive(each, -1, timeline=2) for each in "012"
        ]


MANY_STREAMS = 40


def test_many_streams_that_are_opened_at_once_are_opened_or_told_when_to_come_back(running_broker, publish, event_type):
    """Each of forty streams that are opened at once is opened, or refused with the seconds to wait; those that come
    back are opened. (L76)"""
    publish("0", "a")

    def open_until_served(_: int) -> bytes:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            target = f"/event-types/{event_type}/events?stream_limit=1&batch_flush_timeout=1"
            with OpenStream(running_broker.url, target, {"X-nakadi-cursors": cursors(_0="BEGIN")}) as stream:
                if stream.status == 200:
                    return stream.line()
                assert stream.status == 503
                time.sleep(int(stream.headers["retry-after"]))
        raise AssertionError("it was never opened")

    lines = run_in_threads(open_until_served, MANY_STREAMS)

    assert all(orjson.loads(line)["events"] == [orjson.loads(event("0", "a"))] for line in lines)
