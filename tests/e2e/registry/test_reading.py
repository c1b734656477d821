"""GET /event-types and GET /event-types/{name}."""

import pytest

from tests.support.api import a_definition, an_authorization, attributes, create_event_type, problem
from tests.support.builders import a_name


def names(answer):
    assert answer.status_code == 200
    return [each["name"] for each in answer.json()]


def test_the_list_holds_every_event_type_by_name(api):
    """The list is a plain array of whole event types, sorted by name. (R67, R87, R91)"""
    stored = [create_event_type(api, name=a_name(prefix)) for prefix in ("list.b", "list.a", "list.C")]

    listed = api.get("/event-types").json()

    assert [each["name"] for each in listed] == sorted(each["name"] for each in listed)
    assert all(each in listed for each in stored)


def test_the_list_can_be_narrowed_to_an_application(api):
    """With a filter by application, only event types of exactly that application are listed. (R89)"""
    application = a_name("app")
    mine = create_event_type(api, owning_application=application)
    create_event_type(api, owning_application=application + "x")

    assert names(api.get("/event-types", params={"owning_application": application})) == [mine["name"]]


def test_the_list_can_be_narrowed_to_a_writer(api):
    """With a filter by writer, only event types that name the writer itself are listed; a wildcard is not a
    name. (R89)
    """
    writer = a_name("writer")
    everybody = an_authorization() | {"writers": [{"data_type": "*", "value": "*"}]}
    mine = create_event_type(api, authorization=an_authorization() | {"writers": attributes("x", writer)})
    create_event_type(api, authorization=an_authorization() | {"readers": attributes(writer)})
    create_event_type(api, authorization=everybody)

    assert names(api.get("/event-types", params={"writer": f"user:{writer}"})) == [mine["name"]]


def test_both_filters_have_to_match(api):
    """With a filter for the application and one for the writer, only event types that match both are listed. (R89)"""
    application, writer = a_name("app"), a_name("writer")
    section = an_authorization() | {"writers": attributes(writer)}
    both = create_event_type(api, owning_application=application, authorization=section)
    create_event_type(api, owning_application=application)
    create_event_type(api, authorization=section)

    found = api.get("/event-types", params={"owning_application": application, "writer": f"user:{writer}"})

    assert names(found) == [both["name"]]


def test_no_match_is_an_empty_list(api):
    """Filters that match nothing return an empty array. (R91)"""
    assert names(api.get("/event-types", params={"owning_application": a_name("nobody")})) == []


def test_the_list_can_be_had_in_parts(api):
    """A part of the list has the requested number of items after a name; filters apply before counting. (R87)"""
    application = a_name("app")
    prefix = a_name("parts")
    stored = [create_event_type(api, name=f"{prefix}.{n}", owning_application=application)["name"] for n in range(5)]
    create_event_type(api, name=f"{prefix}.2x")
    mine = {"owning_application": application}

    assert names(api.get("/event-types", params={"after": stored[0], "limit": 2})) == stored[1:3]
    assert names(api.get("/event-types", params=mine | {"limit": 4})) == stored[:4]
    assert names(api.get("/event-types", params=mine | {"after": stored[3], "limit": 4})) == stored[4:]
    assert names(api.get("/event-types", params=mine | {"after": stored[4]})) == []


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "many"])
def test_a_part_of_the_list_has_between_one_and_a_thousand(api, limit):
    """A `limit` that is not a number from 1 to 1000 is a bad request. (R87)"""
    assert "limit" in problem(api.get("/event-types", params={"limit": limit}), 400)


@pytest.mark.parametrize(
    ("writer", "reason"),
    [
        ("", "Authorization query is empty"),
        ("ann", "Authorization format is incorrect. Should be data_type:value"),
        ("user:ann:x", "Authorization format is incorrect. Should be data_type:value"),
        ("user:", "Authorization format is incorrect. Should be data_type:value"),
    ],
)
def test_a_writer_is_a_pair(api, writer, reason):
    """A `writer` parameter that is not one pair is answered with 400 and the reason. (R90)"""
    assert reason in problem(api.get("/event-types", params={"writer": writer}), 400)


def test_an_unknown_event_type_is_reported_by_name(api):
    """An unknown event type gets 404 with its name. (R16, R17, R107)"""
    answer = api.get("/event-types/no.such.thing")

    assert problem(answer, 404) == 'EventType "no.such.thing" does not exist.'
    assert answer.json() == {
        "type": "http://httpstatus.es/404",
        "title": "Not Found",
        "status": 404,
        "detail": 'EventType "no.such.thing" does not exist.',
    }


def test_what_was_written_is_read_at_once(api):
    """A read after a write sees the written state. (R108)"""
    definition = a_definition()
    create_event_type(api, definition)
    api.put(f"/event-types/{definition['name']}", json=definition | {"owning_application": "other"})

    assert api.get(f"/event-types/{definition['name']}").json()["owning_application"] == "other"


def test_head_is_a_get_without_its_body(api):
    """HEAD answers as GET would, without body. (R27)"""
    event_type = create_event_type(api)

    answer = api.head(f"/event-types/{event_type['name']}")

    assert answer.status_code == 200
    assert answer.content == b""
    assert answer.headers["content-type"] == "application/json"
