"""The operations on partitions, answered by an application without a whole broker."""

from datetime import timedelta
from typing import Any

import pytest

from nakadi.app.authentication import ScopeTable
from nakadi.app.settings import Settings
from nakadi.model.authorization import Operation
from tests.support.builders import A_MOMENT
from tests.support.cursor_api import NAME, Api, cursor, read_refusal
from tests.support.places import TimelineWithPast

# GET .../partitions


def test_partitions_are_listed_with_their_ends():
    """Each partition is listed with its oldest and newest offset, and nothing else. (C12, C13, C19, C20)"""
    api = Api(TimelineWithPast([2, 0, 9], expired=[0, 0, 9]))
    response = api.get(f"{NAME}/partitions", cursors="")
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert response.json() == [
        {
            "partition": "0",
            "oldest_available_offset": "001-0001-000000000000000000",
            "newest_available_offset": "001-0001-000000000000000001",
        },
        {
            "partition": "1",
            "oldest_available_offset": "001-0001-000000000000000000",
            "newest_available_offset": "001-0001--1",
        },
        {
            "partition": "2",
            "oldest_available_offset": "001-0001-000000000000000009",
            "newest_available_offset": "001-0001-000000000000000008",
        },
    ]
    assert api.get(f"{NAME}/partitions", cursors="[]").json() == response.json()


def test_partitions_of_given_cursors_have_unconsumed_events():
    """The number of events after a cursor is returned for the partitions of the request. (C12, C19, C20, C27)"""
    asked = [cursor("BEGIN", "2"), cursor("001-0001-1", "0"), cursor("0", "3")]
    listed = Api(TimelineWithPast([2, 5, 5, 3])).get(f"{NAME}/partitions", cursors=asked).json()
    assert [each.get("unconsumed_events") for each in listed] == [0, None, 5, 2]


def test_cursors_of_partitions_are_read_leniently():
    """Numbers are read as strings; unknown members, and text after the array, are ignored. (C20)"""
    text = '[{"partition": 0, "offset": 1, "event_type": "x"}] and more'
    listed = Api(TimelineWithPast([5])).get(f"{NAME}/partitions", cursors=text).json()
    assert [each["unconsumed_events"] for each in listed] == [3]


def test_a_time_is_a_valid_cursor_of_partitions():
    """With a date-time, the events that were stored then or later count as unconsumed."""
    moment = A_MOMENT + timedelta(hours=1, minutes=3)
    listed = Api(TimelineWithPast([5])).get(f"{NAME}/partitions", cursors=[cursor(moment.isoformat())]).json()
    assert [each["unconsumed_events"] for each in listed] == [2]


@pytest.mark.parametrize(
    "text", ["x", "{}", "7", '"0"', "[", "[7]", "[[]]", '[{"partition": {}, "offset": "1"}]', "null", "[null]"]
)
def test_cursors_that_cannot_be_parsed_are_refused(text):
    """Anything but an array of cursors is refused, including null. (C21, C28)"""
    assert read_refusal(Api(TimelineWithPast([5])).get(f"{NAME}/partitions", cursors=text)) == (
        422,
        "malformed cursors",
    )


@pytest.mark.parametrize(
    ("asked", "detail"),
    [
        ([{"offset": "1"}], "partition must not be null"),
        ([cursor("1", None)], "partition must not be null"),
        ([cursor("1", "")], "partition must not be null"),
        ([{"partition": "0"}], "offset must not be null"),
        ([cursor(None)], "offset must not be null"),
        ([cursor("")], "offset must not be null"),
        ([{}], "partition must not be null"),
        ([cursor("1"), cursor("2")], "duplicate partition ids provided in cursors"),
        ([cursor("1", "7")], "invalid consumed_offset or partition"),
        ([cursor("xer")], "invalid offset xer for partition 0"),
        ([cursor("001-xer")], "invalid offset null for partition null"),
        ([cursor("9" * 20)], f"invalid cursor format, partition: 0 offset: {'9' * 20}"),
    ],
)
def test_cursors_of_partitions_are_checked(asked, detail):
    """A cursor that is no position in the event type is refused with the reason. (C22, C23, C24, C25)"""
    assert read_refusal(Api(TimelineWithPast([5])).get(f"{NAME}/partitions", cursors=asked)) == (422, detail)


def test_begin_of_an_unknown_partition_is_refused_by_name():
    """The refusal of BEGIN in an unknown partition names that partition, which the reference leaves out. (C25, L25)"""
    response = Api(TimelineWithPast([5])).get(f"{NAME}/partitions", cursors=[cursor("BEGIN", "7")])
    assert read_refusal(response) == (422, "non existing partition 7")


def test_partitions_are_checked_in_order():
    """The checks come in this order: existence, permission, storage, parsing, missing members, duplicates, conversion
    and partition. (C26)"""
    asked: Any = [cursor("1", "9"), cursor("xer"), cursor("2", "9"), cursor(None)]
    blind = Api(TimelineWithPast([5]), refused=[Operation.VIEW])
    api = Api(TimelineWithPast([5]))
    silent = Api(TimelineWithPast([5]))
    silent.logs.down = True
    statuses_and_details = [
        read_refusal(blind.get("unknown/partitions", cursors="x")),
        read_refusal(blind.get(f"{NAME}/partitions", cursors="x")),
        read_refusal(silent.get(f"{NAME}/partitions", cursors="x")),
        read_refusal(api.get(f"{NAME}/partitions", cursors="x")),
        read_refusal(api.get(f"{NAME}/partitions", cursors=asked)),
        read_refusal(api.get(f"{NAME}/partitions", cursors=asked[:3])),
        read_refusal(api.get(f"{NAME}/partitions", cursors=asked[:2])),
        read_refusal(api.get(f"{NAME}/partitions", cursors=asked[:1])),
    ]
    assert statuses_and_details == [
        (404, 'EventType "unknown" does not exist.'),
        (403, f"Access on VIEW event-type:{NAME} denied"),
        (503, "Error occurred when fetching partitions offsets"),
        (422, "malformed cursors"),
        (422, "offset must not be null"),
        (422, "duplicate partition ids provided in cursors"),
        (422, "invalid offset xer for partition 0"),
        (422, "invalid consumed_offset or partition"),
    ]


def test_partitions_of_an_unknown_event_type_are_not_found():
    """The partitions of a missing event type are not found. (C16, C33)"""
    expected = (404, 'EventType "unknown" does not exist.')
    assert read_refusal(Api(TimelineWithPast([5])).get("unknown/partitions")) == expected
    assert read_refusal(Api(TimelineWithPast([5])).get("unknown/partitions/0")) == expected


def test_listing_partitions_needs_view_only():
    """Listing the partitions requires the permission to view the event type, not to read it. (C17)"""
    assert Api(TimelineWithPast([5]), refused=[Operation.READ]).get(f"{NAME}/partitions").status_code == 200
    blind = Api(TimelineWithPast([5]), refused=[Operation.VIEW])
    assert read_refusal(blind.get(f"{NAME}/partitions")) == (403, f"Access on VIEW event-type:{NAME} denied")


def test_partitions_are_unavailable_while_the_log_does_not_answer():
    """While the log does not answer, the partitions are unavailable. (C29)"""
    api = Api(TimelineWithPast([5]))
    api.logs.down = True
    assert read_refusal(api.get(f"{NAME}/partitions")) == (503, "Error occurred when fetching partitions offsets")


@pytest.mark.parametrize(
    ("method", "operation"),
    [
        ("GET", "partitions"),
        ("GET", "partitions/0"),
        ("POST", "cursor-distances"),
        ("POST", "cursors-lag"),
        ("POST", "shifted-cursors"),
    ],
)
def test_cursor_operations_need_the_scope_for_reading_streams(method, operation):
    """With scopes, every operation on partitions and cursors requires the scope for reading streams. (C18)"""
    table = ScopeTable(Settings(scope_event_stream_read="read"))
    assert table.needed_scopes(method, f"/event-types/{NAME}/{operation}") == ("read",)


# GET .../partitions/{partition}


def test_one_partition_is_returned_with_its_ends():
    """A single partition looks like its entry in the list. (C30)"""
    api = Api(TimelineWithPast([2, 7]))
    response = api.get(f"{NAME}/partitions/1")
    assert response.status_code == 200
    assert response.json() == api.get(f"{NAME}/partitions").json()[1]


def test_one_partition_has_its_unconsumed_events():
    """With a consumed offset, the number of events after it is returned. (C34, C27)"""
    api = Api(TimelineWithPast([2, 7]))
    assert api.get(f"{NAME}/partitions/1", consumed_offset="001-0001-000000000000000004").json() == {
        "partition": "1",
        "oldest_available_offset": "001-0001-000000000000000000",
        "newest_available_offset": "001-0001-000000000000000006",
        "unconsumed_events": 2,
    }
    assert api.get(f"{NAME}/partitions/1", consumed_offset="BEGIN").json()["unconsumed_events"] == 7
    assert api.get(f"{NAME}/partitions/1", consumed_offset="6").json()["unconsumed_events"] == 0


def test_one_partition_needs_view_and_read():
    """A request for one partition requires the permissions to view and to read, checked in this order. (C31)"""

    def refused(*operations: Operation) -> tuple[int, str]:
        return read_refusal(Api(TimelineWithPast([5]), refused=operations).get(f"{NAME}/partitions/0"))

    assert refused(Operation.READ) == (403, f"Access on READ event-type:{NAME} denied")
    assert refused(Operation.READ, Operation.VIEW) == (403, f"Access on VIEW event-type:{NAME} denied")


@pytest.mark.parametrize("partition", ["1", "x", "-1", "00", "0x0", "%C3%BC"])
def test_unknown_partition_is_not_found(partition):
    """A missing partition is not found, whatever its name. (C32)"""
    assert read_refusal(Api(TimelineWithPast([5])).get(f"{NAME}/partitions/{partition}")) == (
        404,
        "partition not found",
    )


@pytest.mark.parametrize(
    ("consumed", "detail"),
    [
        ("xer", "invalid offset xer for partition 0"),
        ("001-0001-xer", "invalid offset null for partition null"),
        ("", "invalid offset  for partition 0"),
    ],
)
def test_bad_consumed_offset_is_refused(consumed, detail):
    """An invalid consumed offset is refused, and so is an empty offset. (C35)"""
    assert read_refusal(Api(TimelineWithPast([5])).get(f"{NAME}/partitions/0", consumed_offset=consumed)) == (
        422,
        detail,
    )


@pytest.mark.parametrize(
    ("consumed", "detail"), [("1", "invalid consumed_offset or partition"), ("BEGIN", "non existing partition 7")]
)
def test_consumed_offset_of_an_unknown_partition_is_refused(consumed, detail):
    """With a consumed offset, an unknown partition is invalid rather than not found; with BEGIN, the message names it.
    (C36, L25)"""
    assert read_refusal(Api(TimelineWithPast([5])).get(f"{NAME}/partitions/7", consumed_offset=consumed)) == (
        422,
        detail,
    )


# POST .../cursor-distances
