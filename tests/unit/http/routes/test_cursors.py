"""The operations on cursors, answered by an application without a whole broker."""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from nakadi.model.authorization import Operation
from tests.support.builders import A_MOMENT
from tests.support.cursor_api import NAME, TIMELINE_NOT_FOUND, Api, cursor, pair, read_refusal
from tests.support.places import TimelineWithPast


def test_distances_are_returned_with_their_cursors():
    """Pairs are returned in order, with the cursors as they were sent, and the number of events after the first up to
    the last. (C37, C38)"""
    asked = [pair("BEGIN", "001-0001-1"), pair("4", "001-0001-00002"), pair("001-0001-1", "001-0001-1", "1")]
    response = Api(TimelineWithPast([5, 5])).post("cursor-distances", asked)
    assert response.status_code == 200
    assert response.json() == [{**each, "distance": way} for each, way in zip(asked, [2, -2, 0], strict=True)]


def test_distance_crosses_timelines():
    """Across timelines, whole sizes are added, and the end of a timeline is the same position as the start of the next
    one. (C39)
    """
    asked = [pair("001-0001-0", "001-0003-0"), pair("2", "001-0002--1"), pair("001-0003-0", "BEGIN")]
    response = Api(TimelineWithPast([3]), TimelineWithPast([4]), TimelineWithPast([1])).post("cursor-distances", asked)
    assert [each["distance"] for each in response.json()] == [7, 0, -8]


def test_distance_between_times_counts_what_was_stored():
    """For two date-times, the distance is the number of events stored between them; the answer has the date-times as
    they were sent.
    """
    first, last = (A_MOMENT + timedelta(minutes=minutes) for minutes in (61, 121))
    asked = [pair(first.isoformat(), last.isoformat())]
    response = Api(TimelineWithPast([3]), TimelineWithPast([4])).post("cursor-distances", asked)
    assert response.json() == [{**asked[0], "distance": 3}]


def test_distance_between_partitions_is_refused():
    """Both cursors of a pair must be in one partition. (C40)"""
    response = Api(TimelineWithPast([3, 3])).post("cursor-distances", [pair("0", "1", "0", "1")])
    detail = "Cursors with different partition. Pairs of cursors should have matching partitions."
    assert read_refusal(response) == (422, detail)


@pytest.mark.parametrize("offset", ["xer", "001-1-1", "001-0009-1", "0012", "9" * 20, "2026-99-99T00:00:00Z"])
@pytest.mark.parametrize("operation", ["cursor-distances", "cursors-lag", "shifted-cursors"])
def test_cursor_that_cannot_be_converted_is_refused(operation, offset):
    """An offset that is no position in the event type cannot be converted, and neither can a number beyond 64 bits.
    (C41, C49, C55, C66)
    """
    body = [pair("0", offset)] if operation == "cursor-distances" else [cursor("0"), cursor(offset)]
    assert read_refusal(Api(TimelineWithPast([3])).post(operation, body)) == (422, "problem converting cursors")


def test_distance_in_an_unknown_partition_is_refused():
    """A partition that a timeline between the two positions does not have is refused. (C43)"""
    response = Api(TimelineWithPast([3]), TimelineWithPast([3])).post(
        "cursor-distances", [pair("0", "001-0002-0", "9")]
    )
    assert read_refusal(response) == (422, "Partition not found.")


def test_distances_do_not_require_stored_events():
    """Positions beyond the end, expired positions, and unknown partitions have distances, too. (C44, C45)"""
    asked = [pair("1", "1000"), pair("-1", "0"), pair("001-0001-3", "001-0001-7", "9")]
    response = Api(TimelineWithPast([9], expired=[5]), refused=[Operation.READ]).post("cursor-distances", asked)
    assert [each["distance"] for each in response.json()] == [999, 1, 4]


def test_distances_need_view():
    """Distances require the permission to view the event type. (C45)"""
    response = Api(TimelineWithPast([9]), refused=[Operation.VIEW]).post("cursor-distances", [])
    assert read_refusal(response) == (403, f"Access on VIEW event-type:{NAME} denied")


def test_distances_are_unavailable_while_the_log_does_not_answer():
    """While the log does not answer, the client may retry later; in the original, this was an internal error. (C50,
    C68)"""
    api = Api(TimelineWithPast([9]))
    api.logs.down = True
    expected = (503, "Error occurred when fetching partitions offsets")
    assert read_refusal(api.post("cursor-distances", [pair("BEGIN", "1")])) == expected
    assert read_refusal(api.post("shifted-cursors", [cursor("BEGIN")])) == expected
    assert read_refusal(api.post("cursors-lag", [cursor("BEGIN")])) == expected


def test_missing_members_of_a_pair_are_listed():
    """Every missing member of every pair is listed with its path. (C47)"""
    asked = [pair("0", "1"), {"initial_cursor": cursor(""), "final_cursor": {}}, {"final_cursor": cursor("1", "")}]
    response = Api(TimelineWithPast([9])).post("cursor-distances", asked, name="unknown")
    assert response.status_code == 400
    assert response.json() == {
        "type": "https://zalando.github.io/problem/constraint-violation",
        "title": "Constraint Violation",
        "status": 400,
        "violations": [
            {"field": "list[1].final_cursor.offset", "message": "must not be null"},
            {"field": "list[1].final_cursor.partition", "message": "must not be null"},
            {"field": "list[1].initial_cursor.offset", "message": "cursor offset cannot be empty"},
            {"field": "list[2].final_cursor.partition", "message": "cursor partition cannot be empty"},
            {"field": "list[2].initial_cursor", "message": "must not be null"},
        ],
    }


@pytest.mark.parametrize("operation", ["cursors-lag", "shifted-cursors"])
def test_missing_members_of_a_cursor_are_listed(operation):
    """Every missing member of every cursor is listed with its path. (C47, C58, C66)"""
    response = Api(TimelineWithPast([9])).post(operation, [cursor("1"), cursor(None, "")])
    assert response.status_code == 400
    assert response.json()["violations"] == [
        {"field": "list[1].offset", "message": "must not be null"},
        {"field": "list[1].partition", "message": "cursor partition cannot be empty"},
    ]


OPERATIONS = pytest.mark.parametrize("operation", ["cursor-distances", "cursors-lag", "shifted-cursors"])


@OPERATIONS
@pytest.mark.parametrize(
    "text", [b"{}", b"7", b"null", b"[", b"[7]", b"[[]]", b"[null]", b'[{"partition": []}, {"initial_cursor": 7}]']
)
def test_unreadable_body_is_malformed(operation, text):
    """A body that is not an array of the right objects is malformed; null elements are malformed, too. (C48, C49, C58,
    C66)"""
    assert Api(TimelineWithPast([9])).send(operation, text).status_code == 400


@OPERATIONS
def test_missing_body_is_malformed(operation):
    """If there is no body, the Problem says that it is missing. (C48, C58, C66)"""
    status, detail = read_refusal(Api(TimelineWithPast([9])).send(operation, b""))
    assert status == 400
    assert detail.startswith("Required request body is missing")


@OPERATIONS
def test_body_has_to_be_json_by_its_content_type(operation):
    """A body with another media type is not read. (C48, C58, C66)"""
    assert Api(TimelineWithPast([9])).send(operation, b"[]", "text/plain").status_code == 415


@OPERATIONS
def test_an_empty_list_has_an_empty_response(operation):
    """An empty array is answered with an empty array if the event type exists. (C46, C56, C66)"""
    api = Api(TimelineWithPast([9]))
    assert (api.post(operation, []).status_code, api.post(operation, []).json()) == (200, [])
    assert read_refusal(api.post(operation, [], name="unknown")) == (404, 'EventType "unknown" does not exist.')


# POST .../cursors-lag


def test_lag_counts_events_behind_cursors():
    """The answer has an entry for each cursor, in order, with the ends of its partition and the number of events after
    it. (C51, C52, C56)"""
    response = Api(TimelineWithPast([2, 0])).post("cursors-lag", [cursor("BEGIN", "1"), cursor("BEGIN"), cursor("0")])
    assert response.status_code == 200
    fresh, whole, rest = response.json()
    assert fresh == {
        "partition": "1",
        "oldest_available_offset": "001-0001-000000000000000000",
        "newest_available_offset": "001-0001--1",
        "unconsumed_events": 0,
    }
    assert whole == {
        "partition": "0",
        "oldest_available_offset": "001-0001-000000000000000000",
        "newest_available_offset": "001-0001-000000000000000001",
        "unconsumed_events": 2,
    }
    assert rest == {**whole, "unconsumed_events": 1}


def test_timeline_switch_without_events_changes_no_lag():
    """An empty new timeline changes no lag; later, its events are added. (C53)"""
    asked = [cursor("BEGIN"), cursor("001-0001-1")]
    before = Api(TimelineWithPast([3])).post("cursors-lag", asked).json()
    assert Api(TimelineWithPast([3]), TimelineWithPast([0])).post("cursors-lag", asked).json() == before
    after = Api(TimelineWithPast([3]), TimelineWithPast([0]), TimelineWithPast([4])).post("cursors-lag", asked).json()
    assert [each["unconsumed_events"] for each in after] == [7, 5]


def test_lag_of_expired_and_future_cursors():
    """A cursor beyond the newest event has a negative lag; the lag of an expired cursor counts from its number. (C54,
    C57)"""
    response = Api(TimelineWithPast([9], expired=[6])).post("cursors-lag", [cursor("11"), cursor("1"), cursor("BEGIN")])
    assert [each["unconsumed_events"] for each in response.json()] == [-3, 7, 3]


def test_lag_of_an_unknown_partition():
    """A missing partition has one message with a number, and another one with BEGIN, which cannot be converted there.
    (C55)
    """
    api = Api(TimelineWithPast([9]))
    assert read_refusal(api.post("cursors-lag", [cursor("1", "4")])) == (422, "Partition not found.")
    assert read_refusal(api.post("cursors-lag", [cursor("BEGIN", "4")])) == (422, "problem converting cursors")


@pytest.mark.parametrize("operation", ["cursors-lag", "shifted-cursors"])
def test_lag_and_shift_need_view_and_read(operation):
    """Lags and shifts require the permissions to view and to read. (C56, C66)"""

    def refused(*operations: Operation) -> tuple[int, str]:
        return read_refusal(Api(TimelineWithPast([5]), refused=operations).post(operation, []))

    assert refused(Operation.READ) == (403, f"Access on READ event-type:{NAME} denied")
    assert refused(Operation.READ, Operation.VIEW) == (403, f"Access on VIEW event-type:{NAME} denied")


# POST .../shifted-cursors


@pytest.mark.parametrize(
    ("offset", "shift", "reached"),
    [
        ("BEGIN", 0, "001-0001--1"),
        ("BEGIN", 1, "001-0002-000000000000000000"),
        ("BEGIN", 2, "001-0002-000000000000000001"),
        ("BEGIN", 3, "001-0003-000000000000000000"),
        ("001-0003-000000000000000001", -1, "001-0003-000000000000000000"),
        ("001-0003-000000000000000001", -2, "001-0003--1"),
        ("001-0003-000000000000000001", -3, "001-0002-000000000000000000"),
        ("001-0003-000000000000000001", -4, "001-0002--1"),
        ("001-0003-000000000000000001", 7, "001-0003-000000000000000008"),
    ],
)
def test_shifts_have_known_answers(offset, shift, reached):
    """Shifts across timelines have the results that clients expect. (C59, C61, C62, C64)"""
    api = Api(TimelineWithPast([0]), TimelineWithPast([2]), TimelineWithPast([2]))
    response = api.post("shifted-cursors", [{**cursor(offset), "shift": shift}])
    assert response.status_code == 200
    assert response.json() == [cursor(reached)]


def test_shifts_are_returned_in_order():
    """Shifted cursors are returned in the order of the request, with only partition and offset. (C10, C59)"""
    asked = [{**cursor("1", "1"), "shift": 1}, {**cursor("4", "0"), "shift": -2}]
    expected = [cursor("001-0001-000000000000000002", "1"), cursor("001-0001-000000000000000002", "0")]
    assert Api(TimelineWithPast([9, 9])).post("shifted-cursors", asked).json() == expected


@pytest.mark.parametrize(
    ("more", "reached"),
    [
        ({}, "001-0001-000000000000000004"),
        ({"shift": None}, "001-0001-000000000000000004"),
        ({"shift": 0, "offset": "001-0001-4"}, "001-0001-4"),
        ({"offset": "001-0001-0004"}, "001-0001-0004"),
        ({"offset": "001-0001--1"}, "001-0001--1"),
        ({"shift": 1, "offset": "001-0001-4"}, "001-0001-000000000000000005"),
        ({"shift": "3"}, "001-0001-000000000000000007"),
        ({"shift": 2**62}, f"001-0001-{2**62 + 4}"),
    ],
)
def test_shift_is_optional(more, reached):
    """Without a shift, a cursor stays the same, and a short number stays short; a shift may have 64 bits. (C59, C60)"""
    assert Api(TimelineWithPast([9])).post("shifted-cursors", [{**cursor("4"), **more}]).json() == [cursor(reached)]


@pytest.mark.parametrize("shift", [True, "x", [], 2**63])
def test_shift_is_a_number(shift):
    """A shift that is not a 64-bit number is malformed. (C60)"""
    assert Api(TimelineWithPast([9])).post("shifted-cursors", [{**cursor("4"), "shift": shift}]).status_code == 400


def test_shift_ignores_retention_and_the_end():
    """Positions whose events are removed or not stored yet are valid. (C61, C63)"""
    asked = [{**cursor("BEGIN"), "shift": -3}, {**cursor("8"), "shift": 100}]
    reached = Api(TimelineWithPast([9], expired=[6])).post("shifted-cursors", asked).json()
    assert [each["offset"] for each in reached] == ["001-0001-000000000000000002", "001-0001-000000000000000108"]


def test_shift_before_the_first_timeline_is_refused():
    """Before the first timeline, there are no positions. (C42, C62, C65)"""
    asked = [{**cursor("BEGIN"), "shift": -1}]
    assert read_refusal(Api(TimelineWithPast([9])).post("shifted-cursors", asked)) == (422, TIMELINE_NOT_FOUND)


def test_shift_does_not_require_the_partition():
    """Within the open timeline, a cursor is shifted even if its partition does not exist. (C67)"""
    asked = [{**cursor("4", "7"), "shift": 1}]
    expected = [cursor("001-0001-000000000000000005", "7")]
    assert Api(TimelineWithPast([9])).post("shifted-cursors", asked).json() == expected


# Any input

NUMBERS = some.integers(-(2**70), 2**70).map(str)
OFFSETS = some.one_of(
    some.text(max_size=12),
    NUMBERS,
    some.sampled_from(
        ["BEGIN", "begin", "2026-11-21T12:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"]
    ),
    some.builds("001-{:04x}-{}".format, some.integers(0, 4), NUMBERS),
)
SCALARS = some.one_of(
    some.none(), some.booleans(), some.integers(-(2**66), 2**66), some.floats(), some.text(max_size=5)
)
CURSORS = some.fixed_dictionaries(
    {"partition": some.one_of(some.sampled_from(["0", "1", "9"]), SCALARS), "offset": some.one_of(OFFSETS, SCALARS)},
    optional={"shift": SCALARS, "initial_cursor": SCALARS},
)
PAIRS = some.fixed_dictionaries({"initial_cursor": CURSORS, "final_cursor": CURSORS})
ANYTHING = some.recursive(
    SCALARS, lambda inner: some.lists(inner, max_size=2) | some.dictionaries(some.text(max_size=9), inner, max_size=2)
)
BODIES = some.one_of(
    some.lists(CURSORS, max_size=3), some.lists(PAIRS, max_size=3), some.lists(ANYTHING, max_size=2), ANYTHING
)


@given(operation=some.sampled_from(["cursor-distances", "cursors-lag", "shifted-cursors"]), body=BODIES)
def test_random_bodies_are_answered_without_a_fault(operation, body):
    """For any JSON, the answer is a result, 400 or 422, and never an internal error. (C37, C48, C49, C51, C59)"""
    api = Api(TimelineWithPast([3, 0]), TimelineWithPast([0, 2], expired=[0, 1]))
    assert api.send(operation, json.dumps(body).encode()).status_code in (200, 400, 422)


@given(
    text=some.one_of(BODIES.map(json.dumps), some.text(max_size=30)),
    offset=OFFSETS,
    partition=some.sampled_from(["0", "1", "9"]),
)
def test_random_queries_are_answered_without_a_fault(text, offset, partition):
    """For any query about partitions, the answer is a result, 404 or 422, and never an internal error. (C21, C28,
    C35)
    """
    api = Api(TimelineWithPast([3, 0]), TimelineWithPast([0, 2], expired=[0, 1]))
    assert api.get(f"{NAME}/partitions", cursors=text).status_code in (200, 422)
    assert api.get(f"{NAME}/partitions/{partition}", consumed_offset=offset).status_code in (200, 404, 422)
