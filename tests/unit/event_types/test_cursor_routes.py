"""The operations on partitions and cursors, answered by an application without a broker behind it."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as some

from nakadi.auth.permissions import denied
from nakadi.event_types.snapshot import Cursors
from nakadi.http.application import Application
from nakadi.http.routes import cursors as routes
from nakadi.http.security import Scopes, ScopeTable, no_authentication
from nakadi.model.authorization import Operation, Resource, Subject
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import NotFound
from tests.support.builders import A_MOMENT
from tests.support.http import client_of
from tests.support.places import Generation, a_past

NAME = "order.created"
TIMELINE_NOT_FOUND = (
    "Timeline not found. It might happen in case the cursor refers to a timeline that has already expired."
)


class OneEventType:
    def __init__(self, event_type: EventType) -> None:
        self._event_type = event_type

    def get(self, name: str) -> EventType:
        if name != self._event_type.name:
            raise NotFound(f'EventType "{name}" does not exist.')
        return self._event_type


class AllBut:
    def __init__(self, refused: Sequence[Operation]) -> None:
        self._refused = refused

    def require(self, operation: Operation, resource: Resource, _: Subject) -> None:
        if operation in self._refused:
            raise denied(operation, resource)


class Api:
    """The operations on one event type with a past."""

    def __init__(self, *generations: Generation, refused: Sequence[Operation] = ()) -> None:
        event_type, self.logs = a_past(*generations, name=NAME)
        found = routes.routes(OneEventType(event_type), AllBut(refused), Cursors(self.logs))
        self._client = client_of(Application(found, no_authentication))

    def get(self, path: str, **query: Any) -> httpx.Response:
        texts = {name: each if isinstance(each, str) else json.dumps(each) for name, each in query.items()}
        return self._client.get(f"/event-types/{path}", params=texts)

    def post(self, operation: str, body: Any, name: str = NAME) -> httpx.Response:
        return self._client.post(f"/event-types/{name}/{operation}", json=body)

    def send(self, operation: str, text: bytes, content_type: str = "application/json") -> httpx.Response:
        headers = {"content-type": content_type}
        return self._client.post(f"/event-types/{NAME}/{operation}", content=text, headers=headers)


def refusal(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["detail"]


def cursor(offset: Any = "001-0001-0", partition: Any = "0") -> dict[str, Any]:
    return {"partition": partition, "offset": offset}


def pair(first: str, last: str, partition: str = "0", other: str | None = None) -> dict[str, Any]:
    return {"initial_cursor": cursor(first, partition), "final_cursor": cursor(last, other or partition)}


# GET .../partitions


def test_partitions_are_listed_with_their_ends():
    """Each partition is listed with its oldest and newest offset, and nothing else. (C12, C13, C19, C20)"""
    api = Api(Generation([2, 0, 9], expired=[0, 0, 9]))
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


def test_partitions_named_in_cursors_tell_what_is_unconsumed():
    """The number of events behind a cursor is told for the partitions that are asked about. (C12, C19, C20, C27)"""
    asked = [cursor("BEGIN", "2"), cursor("001-0001-1", "0"), cursor("0", "3")]
    listed = Api(Generation([2, 5, 5, 3])).get(f"{NAME}/partitions", cursors=asked).json()
    assert [each.get("unconsumed_events") for each in listed] == [0, None, 5, 2]


def test_cursors_of_partitions_are_read_leniently():
    """Numbers are read as texts, members that nobody knows and what follows the array are passed over. (C20)"""
    text = '[{"partition": 0, "offset": 1, "event_type": "x"}] and more'
    listed = Api(Generation([5])).get(f"{NAME}/partitions", cursors=text).json()
    assert [each["unconsumed_events"] for each in listed] == [3]


def test_time_is_a_cursor_for_partitions():
    """A date-time asks for the events stored then or later."""
    moment = A_MOMENT + timedelta(hours=1, minutes=3)
    listed = Api(Generation([5])).get(f"{NAME}/partitions", cursors=[cursor(moment.isoformat())]).json()
    assert [each["unconsumed_events"] for each in listed] == [2]


@pytest.mark.parametrize(
    "text", ["x", "{}", "7", '"0"', "[", "[7]", "[[]]", '[{"partition": {}, "offset": "1"}]', "null", "[null]"]
)
def test_cursors_that_cannot_be_parsed_are_refused(text):
    """Cursors that are no array of cursors are refused, null included. (C21, C28)"""
    assert refusal(Api(Generation([5])).get(f"{NAME}/partitions", cursors=text)) == (422, "malformed cursors")


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
    """A cursor that leads nowhere is refused with what is wrong with it. (C22, C23, C24, C25)"""
    assert refusal(Api(Generation([5])).get(f"{NAME}/partitions", cursors=asked)) == (422, detail)


def test_begin_of_an_unknown_partition_is_refused_by_name():
    """Where no partition was told of old, the one that was asked for is told now. (C25, L25)"""
    response = Api(Generation([5])).get(f"{NAME}/partitions", cursors=[cursor("BEGIN", "7")])
    assert refusal(response) == (422, "non existing partition 7")


def test_partitions_are_checked_in_order():
    """Existence, permission, storage, parsing, missing members, duplicates, conversion and partition, in turn. (C26)"""
    asked: Any = [cursor("1", "9"), cursor("xer"), cursor("2", "9"), cursor(None)]
    blind = Api(Generation([5]), refused=[Operation.VIEW])
    api = Api(Generation([5]))
    silent = Api(Generation([5]))
    silent.logs.down = True
    statuses_and_details = [
        refusal(blind.get("unknown/partitions", cursors="x")),
        refusal(blind.get(f"{NAME}/partitions", cursors="x")),
        refusal(silent.get(f"{NAME}/partitions", cursors="x")),
        refusal(api.get(f"{NAME}/partitions", cursors="x")),
        refusal(api.get(f"{NAME}/partitions", cursors=asked)),
        refusal(api.get(f"{NAME}/partitions", cursors=asked[:3])),
        refusal(api.get(f"{NAME}/partitions", cursors=asked[:2])),
        refusal(api.get(f"{NAME}/partitions", cursors=asked[:1])),
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


def test_partitions_of_an_unknown_event_type():
    """The partitions of an event type that is not there are not found. (C16, C33)"""
    expected = (404, 'EventType "unknown" does not exist.')
    assert refusal(Api(Generation([5])).get("unknown/partitions")) == expected
    assert refusal(Api(Generation([5])).get("unknown/partitions/0")) == expected


def test_listing_partitions_needs_view_only():
    """Seeing the partitions takes the permission to see the event type, not to read it. (C17)"""
    assert Api(Generation([5]), refused=[Operation.READ]).get(f"{NAME}/partitions").status_code == 200
    blind = Api(Generation([5]), refused=[Operation.VIEW])
    assert refusal(blind.get(f"{NAME}/partitions")) == (403, f"Access on VIEW event-type:{NAME} denied")


def test_silent_log_makes_partitions_unavailable():
    """While the log does not answer, nothing is known of partitions. (C29)"""
    api = Api(Generation([5]))
    api.logs.down = True
    assert refusal(api.get(f"{NAME}/partitions")) == (503, "Error occurred when fetching partitions offsets")


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
    """With scopes, every operation on partitions and cursors needs the one for reading streams. (C18)"""
    scopes = Scopes(uid="u", config_write="c", event_type_write="t", event_stream_read="read", event_stream_write="w")
    assert ScopeTable(scopes).needed(method, f"/event-types/{NAME}/{operation}") == "read"


# GET .../partitions/{partition}


def test_one_partition_is_told_with_its_ends():
    """One partition looks like its entry in the list. (C30)"""
    api = Api(Generation([2, 7]))
    response = api.get(f"{NAME}/partitions/1")
    assert response.status_code == 200
    assert response.json() == api.get(f"{NAME}/partitions").json()[1]


def test_one_partition_tells_what_is_unconsumed():
    """With a consumed offset, the number of events behind it is told. (C34, C27)"""
    api = Api(Generation([2, 7]))
    assert api.get(f"{NAME}/partitions/1", consumed_offset="001-0001-000000000000000004").json() == {
        "partition": "1",
        "oldest_available_offset": "001-0001-000000000000000000",
        "newest_available_offset": "001-0001-000000000000000006",
        "unconsumed_events": 2,
    }
    assert api.get(f"{NAME}/partitions/1", consumed_offset="BEGIN").json()["unconsumed_events"] == 7
    assert api.get(f"{NAME}/partitions/1", consumed_offset="6").json()["unconsumed_events"] == 0


def test_one_partition_needs_view_and_read():
    """Looking at one partition takes the permissions to see and to read, asked for in this order. (C31)"""

    def refused(*operations: Operation) -> tuple[int, str]:
        return refusal(Api(Generation([5]), refused=operations).get(f"{NAME}/partitions/0"))

    assert refused(Operation.READ) == (403, f"Access on READ event-type:{NAME} denied")
    assert refused(Operation.READ, Operation.VIEW) == (403, f"Access on VIEW event-type:{NAME} denied")


@pytest.mark.parametrize("partition", ["1", "x", "-1", "00", "0x0", "%C3%BC"])
def test_unknown_partition_is_not_found(partition):
    """A partition that is not there is not found, whatever its name. (C32)"""
    assert refusal(Api(Generation([5])).get(f"{NAME}/partitions/{partition}")) == (404, "partition not found")


@pytest.mark.parametrize(
    ("consumed", "detail"),
    [
        ("xer", "invalid offset xer for partition 0"),
        ("001-0001-xer", "invalid offset null for partition null"),
        ("", "invalid offset  for partition 0"),
    ],
)
def test_bad_consumed_offset_is_refused(consumed, detail):
    """A consumed offset that is none is refused; an empty one is one, too. (C35)"""
    assert refusal(Api(Generation([5])).get(f"{NAME}/partitions/0", consumed_offset=consumed)) == (422, detail)


@pytest.mark.parametrize(
    ("consumed", "detail"), [("1", "invalid consumed_offset or partition"), ("BEGIN", "non existing partition 7")]
)
def test_consumed_offset_of_an_unknown_partition_is_refused(consumed, detail):
    """With a consumed offset, an unknown partition is invalid rather than not found; BEGIN names it. (C36, L25)"""
    assert refusal(Api(Generation([5])).get(f"{NAME}/partitions/7", consumed_offset=consumed)) == (422, detail)


# POST .../cursor-distances


def test_distances_come_back_with_their_cursors():
    """Pairs come back in order, cursors as sent, with the events after the first up to the last. (C37, C38)"""
    asked = [pair("BEGIN", "001-0001-1"), pair("4", "001-0001-00002"), pair("001-0001-1", "001-0001-1", "1")]
    response = Api(Generation([5, 5])).post("cursor-distances", asked)
    assert response.status_code == 200
    assert response.json() == [{**each, "distance": way} for each, way in zip(asked, [2, -2, 0], strict=True)]


def test_distance_crosses_timelines():
    """Across timelines whole sizes are added, and both sides of a border are one place. (C39)"""
    asked = [pair("001-0001-0", "001-0003-0"), pair("2", "001-0002--1"), pair("001-0003-0", "BEGIN")]
    response = Api(Generation([3]), Generation([4]), Generation([1])).post("cursor-distances", asked)
    assert [each["distance"] for each in response.json()] == [7, 0, -8]


def test_distance_between_times_counts_what_was_stored():
    """Two date-times ask how many events were stored between them; they come back as they were sent."""
    first, last = (A_MOMENT + timedelta(minutes=minutes) for minutes in (61, 121))
    asked = [pair(first.isoformat(), last.isoformat())]
    response = Api(Generation([3]), Generation([4])).post("cursor-distances", asked)
    assert response.json() == [{**asked[0], "distance": 3}]


def test_distance_between_partitions_is_refused():
    """A pair has to be of one partition. (C40)"""
    response = Api(Generation([3, 3])).post("cursor-distances", [pair("0", "1", "0", "1")])
    detail = "Cursors with different partition. Pairs of cursors should have matching partitions."
    assert refusal(response) == (422, detail)


@pytest.mark.parametrize("offset", ["xer", "001-1-1", "001-0009-1", "0012", "9" * 20, "2026-99-99T00:00:00Z"])
@pytest.mark.parametrize("operation", ["cursor-distances", "cursors-lag", "shifted-cursors"])
def test_cursor_that_cannot_be_converted_is_refused(operation, offset):
    """An offset that leads nowhere is a problem of converting, so is a number beyond 64 bits. (C41, C49, C55, C66)"""
    body = [pair("0", offset)] if operation == "cursor-distances" else [cursor("0"), cursor(offset)]
    assert refusal(Api(Generation([3])).post(operation, body)) == (422, "problem converting cursors")


def test_distance_of_a_partition_that_was_never_there():
    """A partition that is not in the timelines between is refused. (C43)"""
    response = Api(Generation([3]), Generation([3])).post("cursor-distances", [pair("0", "001-0002-0", "9")])
    assert refusal(response) == (422, "Partition not found.")


def test_distances_do_not_ask_whether_there_are_events():
    """Places beyond the end, expired ones, and partitions that are not there can be told apart. (C44, C45)"""
    asked = [pair("1", "1000"), pair("-1", "0"), pair("001-0001-3", "001-0001-7", "9")]
    response = Api(Generation([9], expired=[5]), refused=[Operation.READ]).post("cursor-distances", asked)
    assert [each["distance"] for each in response.json()] == [999, 1, 4]


def test_distances_need_view():
    """Distances take the permission to see the event type. (C45)"""
    response = Api(Generation([9]), refused=[Operation.VIEW]).post("cursor-distances", [])
    assert refusal(response) == (403, f"Access on VIEW event-type:{NAME} denied")


def test_silent_log_makes_distances_unavailable():
    """While the log does not answer, asking again later may help; of old this was an internal error. (C50, C68)"""
    api = Api(Generation([9]))
    api.logs.down = True
    expected = (503, "Error occurred when fetching partitions offsets")
    assert refusal(api.post("cursor-distances", [pair("BEGIN", "1")])) == expected
    assert refusal(api.post("shifted-cursors", [cursor("BEGIN")])) == expected
    assert refusal(api.post("cursors-lag", [cursor("BEGIN")])) == expected


def test_missing_members_of_a_pair_are_listed():
    """Every missing member of every pair is listed with its path. (C47)"""
    asked = [pair("0", "1"), {"initial_cursor": cursor(""), "final_cursor": {}}, {"final_cursor": cursor("1", "")}]
    response = Api(Generation([9])).post("cursor-distances", asked, name="unknown")
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
    response = Api(Generation([9])).post(operation, [cursor("1"), cursor(None, "")])
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
    """A body that is no array of the right objects is malformed, null elements included. (C48, C49, C58, C66)"""
    assert Api(Generation([9])).send(operation, text).status_code == 400


@OPERATIONS
def test_missing_body_is_malformed(operation):
    """A missing body is said to be missing. (C48, C58, C66)"""
    status, detail = refusal(Api(Generation([9])).send(operation, b""))
    assert status == 400
    assert detail.startswith("Required request body is missing")


@OPERATIONS
def test_body_has_to_be_json_by_its_content_type(operation):
    """A body of another media type is not read. (C48, C58, C66)"""
    assert Api(Generation([9])).send(operation, b"[]", "text/plain").status_code == 415


@OPERATIONS
def test_nothing_asked_nothing_answered(operation):
    """An empty array is answered by an empty array, if the event type is there. (C46, C56, C66)"""
    api = Api(Generation([9]))
    assert (api.post(operation, []).status_code, api.post(operation, []).json()) == (200, [])
    assert refusal(api.post(operation, [], name="unknown")) == (404, 'EventType "unknown" does not exist.')


# POST .../cursors-lag


def test_lag_counts_events_behind_cursors():
    """Each cursor is answered, in order, by its partition's ends and the events behind it. (C51, C52, C56)"""
    response = Api(Generation([2, 0])).post("cursors-lag", [cursor("BEGIN", "1"), cursor("BEGIN"), cursor("0")])
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
    """A new timeline that is still empty changes nothing, and then adds what is in it. (C53)"""
    asked = [cursor("BEGIN"), cursor("001-0001-1")]
    before = Api(Generation([3])).post("cursors-lag", asked).json()
    assert Api(Generation([3]), Generation([0])).post("cursors-lag", asked).json() == before
    after = Api(Generation([3]), Generation([0]), Generation([4])).post("cursors-lag", asked).json()
    assert [each["unconsumed_events"] for each in after] == [7, 5]


def test_lag_of_expired_and_future_cursors():
    """A cursor beyond the newest event has a negative lag; an expired one is counted from its number. (C54, C57)"""
    response = Api(Generation([9], expired=[6])).post("cursors-lag", [cursor("11"), cursor("1"), cursor("BEGIN")])
    assert [each["unconsumed_events"] for each in response.json()] == [-3, 7, 3]


def test_lag_of_an_unknown_partition():
    """A number in a partition that is not there is told from a beginning that cannot be converted. (C55)"""
    api = Api(Generation([9]))
    assert refusal(api.post("cursors-lag", [cursor("1", "4")])) == (422, "Partition not found.")
    assert refusal(api.post("cursors-lag", [cursor("BEGIN", "4")])) == (422, "problem converting cursors")


@pytest.mark.parametrize("operation", ["cursors-lag", "shifted-cursors"])
def test_lag_and_shift_need_view_and_read(operation):
    """Lags and shifts take the permissions to see and to read. (C56, C66)"""

    def refused(*operations: Operation) -> tuple[int, str]:
        return refusal(Api(Generation([5]), refused=operations).post(operation, []))

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
    """Moving over timelines ends where clients expect it. (C59, C61, C62, C64)"""
    api = Api(Generation([0]), Generation([2]), Generation([2]))
    response = api.post("shifted-cursors", [{**cursor(offset), "shift": shift}])
    assert response.status_code == 200
    assert response.json() == [cursor(reached)]


def test_shifts_come_back_in_order():
    """Moved cursors come back in the order of the request, as partition and offset only. (C10, C59)"""
    asked = [{**cursor("1", "1"), "shift": 1}, {**cursor("4", "0"), "shift": -2}]
    expected = [cursor("001-0001-000000000000000002", "1"), cursor("001-0001-000000000000000002", "0")]
    assert Api(Generation([9, 9])).post("shifted-cursors", asked).json() == expected


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
    """Without a shift a cursor stays where it is, and a short number short; a shift may have 64 bits. (C59, C60)"""
    assert Api(Generation([9])).post("shifted-cursors", [{**cursor("4"), **more}]).json() == [cursor(reached)]


@pytest.mark.parametrize("shift", [True, "x", [], 2**63])
def test_shift_is_a_number(shift):
    """A shift that is no 64-bit number is malformed. (C60)"""
    assert Api(Generation([9])).post("shifted-cursors", [{**cursor("4"), "shift": shift}]).status_code == 400


def test_shift_ignores_retention_and_the_end():
    """Places whose events are gone or not there yet are places. (C61, C63)"""
    asked = [{**cursor("BEGIN"), "shift": -3}, {**cursor("8"), "shift": 100}]
    reached = Api(Generation([9], expired=[6])).post("shifted-cursors", asked).json()
    assert [each["offset"] for each in reached] == ["001-0001-000000000000000002", "001-0001-000000000000000108"]


def test_shift_before_the_first_timeline_is_refused():
    """Before the first timeline there is no place. (C42, C62, C65)"""
    asked = [{**cursor("BEGIN"), "shift": -1}]
    assert refusal(Api(Generation([9])).post("shifted-cursors", asked)) == (422, TIMELINE_NOT_FOUND)


def test_shift_does_not_look_for_the_partition():
    """In the open timeline a partition that is not there goes unnoticed. (C67)"""
    asked = [{**cursor("4", "7"), "shift": 1}]
    expected = [cursor("001-0001-000000000000000005", "7")]
    assert Api(Generation([9])).post("shifted-cursors", asked).json() == expected


# Whatever is sent

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
def test_no_body_breaks_the_operations(operation, body):
    """Whatever JSON is sent, the answer is a result or a refusal that says what is wrong. (C37, C48, C49, C51, C59)"""
    api = Api(Generation([3, 0]), Generation([0, 2], expired=[0, 1]))
    assert api.send(operation, json.dumps(body).encode()).status_code in (200, 400, 422)


@given(
    text=some.one_of(BODIES.map(json.dumps), some.text(max_size=30)),
    offset=OFFSETS,
    partition=some.sampled_from(["0", "1", "9"]),
)
def test_no_query_breaks_the_partitions(text, offset, partition):
    """Whatever is asked of partitions, the answer is a result or a refusal that says what is wrong. (C21, C28, C35)"""
    api = Api(Generation([3, 0]), Generation([0, 2], expired=[0, 1]))
    assert api.get(f"{NAME}/partitions", cursors=text).status_code in (200, 422)
    assert api.get(f"{NAME}/partitions/{partition}", consumed_offset=offset).status_code in (200, 404, 422)
