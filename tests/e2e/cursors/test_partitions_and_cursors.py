"""Partitions and cursors of event types that really have events."""

import json
import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import httpx
import pytest

from tests.support.api import a_business_definition, a_definition, an_authorization, create_event_type, problem

NOON = "2026-11-21T12:00:00Z"


def an_event_type(api: httpx.Client, partitions: int = 1) -> str:
    """The name of a new event type whose events name their partition."""
    statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": partitions, "write_parallelism": 1}
    return create_event_type(
        api, a_business_definition(partition_strategy="user_defined", default_statistic=statistic)
    )["name"]


def publish(api: httpx.Client, name: str, count: int, partition: str = "0") -> None:
    events = [{"metadata": {"eid": str(uuid4()), "occurred_at": NOON, "partition": partition}} for _ in range(count)]
    answer = api.post(f"/event-types/{name}/events", json=events)
    assert answer.status_code == 200, answer.text


def switch_timeline(api: httpx.Client, name: str) -> None:
    answer = api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"})
    assert answer.status_code == 201, answer.text


def oldest_and_newest_offset(api: httpx.Client, name: str, partition: str = "0") -> tuple[str, str]:
    one = api.get(f"/event-types/{name}/partitions/{partition}").json()
    return one["oldest_available_offset"], one["newest_available_offset"]


def lags(api: httpx.Client, name: str, *offsets: str, partition: str = "0") -> list[int]:
    asked = [{"partition": partition, "offset": offset} for offset in offsets]
    answer = api.post(f"/event-types/{name}/cursors-lag", json=asked)
    assert answer.status_code == 200, answer.text
    return [each["unconsumed_events"] for each in answer.json()]


def shift_cursor(api: httpx.Client, name: str, offset: str, shift: int) -> str:
    asked = [{"partition": "0", "offset": offset, "shift": shift}]
    answer = api.post(f"/event-types/{name}/shifted-cursors", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()[0]["offset"]


def test_new_event_type_begins_at_zero(api):
    """Each partition of a new event type is empty, in the first timeline, from offset 0. (C2, C12, C13, C19)"""
    name = an_event_type(api, partitions=3)
    listed = api.get(f"/event-types/{name}/partitions").json()
    empty = {"oldest_available_offset": "001-0001-000000000000000000", "newest_available_offset": "001-0001--1"}
    assert listed == [{"partition": number, **empty} for number in ("0", "1", "2")]


def test_what_was_published_is_counted_at_once(api):
    """Directly after publishing, ends, lags and distances are exact. (C13, C27, C34, C52)"""
    name = an_event_type(api, partitions=2)
    publish(api, name, 2, "0")
    publish(api, name, 5, "1")
    assert oldest_and_newest_offset(api, name, "0") == ("001-0001-000000000000000000", "001-0001-000000000000000001")
    assert oldest_and_newest_offset(api, name, "1") == ("001-0001-000000000000000000", "001-0001-000000000000000004")
    asked = json.dumps([{"partition": "1", "offset": "BEGIN"}])
    listed = api.get(f"/event-types/{name}/partitions", params={"cursors": asked}).json()
    assert [each.get("unconsumed_events") for each in listed] == [None, 5]
    one = api.get(f"/event-types/{name}/partitions/1", params={"consumed_offset": "001-0001-000000000000000001"})
    assert one.json()["unconsumed_events"] == 3
    assert lags(api, name, "BEGIN", "0", "001-0001-000000000000000004", partition="1") == [5, 4, 0]


def test_lag_is_not_changed_by_an_empty_timeline(api):
    """A switch to another timeline changes no lag and no end until an event is published. (C15, C53)"""
    name = an_event_type(api)
    publish(api, name, 2)
    before = oldest_and_newest_offset(api, name), lags(api, name, "BEGIN", "0")
    switch_timeline(api, name)
    switch_timeline(api, name)
    assert (oldest_and_newest_offset(api, name), lags(api, name, "BEGIN", "0")) == before
    publish(api, name, 1)
    assert oldest_and_newest_offset(api, name) == ("001-0001-000000000000000000", "001-0003-000000000000000000")
    assert lags(api, name, "BEGIN", "0", "001-0001-000000000000000001", "001-0003--1") == [3, 2, 1, 1]


@pytest.mark.parametrize(
    ("offset", "shift", "reached"),
    [
        ("BEGIN", 1, "001-0002-000000000000000000"),
        ("BEGIN", 2, "001-0002-000000000000000001"),
        ("BEGIN", 3, "001-0003-000000000000000000"),
        ("001-0003-000000000000000001", -1, "001-0003-000000000000000000"),
        ("001-0003-000000000000000001", -2, "001-0003--1"),
        ("001-0003-000000000000000001", -3, "001-0002-000000000000000000"),
        ("001-0003-000000000000000001", -4, "001-0002--1"),
        ("001-0003-000000000000000001", 9, "001-0003-000000000000000010"),
    ],
)
def test_shifting_over_timelines(api, offset, shift, reached):
    """If the second and the third timeline have two events each, a shift counts these events, and may end in either
    timeline. (C61, C62, C64)
    """
    name = an_event_type(api)
    for count in (2, 2):
        switch_timeline(api, name)
        publish(api, name, count)
    assert shift_cursor(api, name, offset, shift) == reached


def test_shifting_before_the_first_event_is_refused(api):
    """A shift to before the beginning of the first timeline is refused. (C62, C65)"""
    name = an_event_type(api)
    asked = [{"partition": "0", "offset": "BEGIN", "shift": -1}]
    answer = api.post(f"/event-types/{name}/shifted-cursors", json=asked)
    assert problem(answer, 422).startswith("Timeline not found.")


def test_distances_across_timelines(api):
    """Distances include the events of all timelines between the cursors, and are returned with the cursors as sent.
    (C37, C38, C39)
    """
    name = an_event_type(api)
    for count in (3, 4, 1):
        publish(api, name, count)
        switch_timeline(api, name)
    ways = [("0", "001-0003-0", 7), ("001-0003-0", "begin", -8), ("001-0001-2", "001-0002--1", 0)]
    asked = [
        {"initial_cursor": {"partition": "0", "offset": first}, "final_cursor": {"partition": "0", "offset": last}}
        for first, last, _ in ways
    ]
    answer = api.post(f"/event-types/{name}/cursor-distances", json=asked)
    expected = [{**each, "distance": way} for each, (_, _, way) in zip(asked, ways, strict=True)]
    assert (answer.status_code, answer.json()) == (200, expected)


def test_partitions_can_be_added(api):
    """New partitions join the current timeline, empty from 0; the others stay unchanged. (C69, C71)"""
    name = an_event_type(api)
    publish(api, name, 2)
    switch_timeline(api, name)
    publish(api, name, 1)
    for _ in range(2):
        assert api.put(f"/event-types/{name}/partition-count", json={"partition_count": 3}).status_code == 204
    publish(api, name, 4, "2")
    assert oldest_and_newest_offset(api, name, "0") == ("001-0001-000000000000000000", "001-0002-000000000000000000")
    assert oldest_and_newest_offset(api, name, "1") == ("001-0002-000000000000000000", "001-0002--1")
    assert oldest_and_newest_offset(api, name, "2") == ("001-0002-000000000000000000", "001-0002-000000000000000003")
    assert lags(api, name, "BEGIN", "001-0001--1", "001-0002-000000000000000000", partition="2") == [4, 4, 3]


@pytest.mark.parametrize(
    ("count", "detail"),
    [(9, "Number of partitions should not be more than 8"), (1, "Number of partitions can not decrease")],
)
def test_partitions_have_limits(api, count, detail):
    """More partitions than allowed, or fewer than there are, are refused as invalid. (C70)"""
    name = an_event_type(api, partitions=2)
    assert problem(api.put(f"/event-types/{name}/partition-count", json={"partition_count": count}), 422) == detail


def test_time_leads_to_what_was_published_since(api):
    """A date-time as an offset means the position before the first event stored then or later, even across
    timelines.
    """
    name = an_event_type(api)
    publish(api, name, 3)
    first = a_moment_later()
    publish(api, name, 2)
    switch_timeline(api, name)
    second = a_moment_later()
    publish(api, name, 4)
    assert lags(api, name, "2000-01-01T00:00:00Z", first, second, a_moment_later()) == [9, 6, 4, 0]
    assert shift_cursor(api, name, second, 0) == "001-0002--1"


def a_moment_later() -> str:
    """Wait until a whole millisecond after everything stored so far, and return that time, which no later event
    precedes.
    """
    moment = (datetime.now(UTC) + timedelta(milliseconds=1)).isoformat(timespec="milliseconds")
    while datetime.now(UTC).isoformat(timespec="milliseconds") < moment:
        time.sleep(0.0002)
    return moment.replace("+00:00", "Z")


def test_stream_starts_behind_a_shifted_cursor(api):
    """A stream can begin at a shifted cursor, and continues after it. (C59, L33, L67)"""
    name = an_event_type(api)
    publish(api, name, 3)
    switch_timeline(api, name)
    publish(api, name, 2)
    cursor = {"partition": "0", "offset": shift_cursor(api, name, "BEGIN", 4)}
    assert cursor["offset"] == "001-0002-000000000000000000"
    query = {"stream_limit": 1, "batch_flush_timeout": 60, "stream_timeout": 60}
    headers = {"x-nakadi-cursors": json.dumps([cursor])}
    answer = api.get(f"/event-types/{name}/events", params=query, headers=headers)
    assert [json.loads(line)["cursor"]["offset"] for line in answer.text.splitlines()] == [
        "001-0002-000000000000000001"
    ]


def test_permissions_for_partitions_and_cursors(ann_client, bob_client, broker_with_tokens):
    """A subject that may see an event type may list partitions and measure distances; all other operations on cursors
    need the right to read. (C17, C31, C45, C56, C66)
    """
    name = create_event_type(ann_client, a_definition(authorization=an_authorization(writers="ann carl")))["name"]
    carl = broker_with_tokens.client("carl")
    path = f"/event-types/{name}"
    with carl:
        assert carl.get(f"{path}/partitions").status_code == 200
        assert carl.post(f"{path}/cursor-distances", json=[]).status_code == 200
        denied = f"Access on READ event-type:{name} denied"
        assert problem(carl.get(f"{path}/partitions/0"), 403) == denied
        assert problem(carl.post(f"{path}/cursors-lag", json=[]), 403) == denied
        assert problem(carl.post(f"{path}/shifted-cursors", json=[]), 403) == denied
    assert problem(bob_client.get(f"{path}/partitions"), 403) == f"Access on VIEW event-type:{name} denied"
    assert (
        problem(bob_client.post(f"{path}/cursor-distances", json=[]), 403) == f"Access on VIEW event-type:{name} denied"
    )
