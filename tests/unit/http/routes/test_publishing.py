import json
import re

import httpx
import pytest

from nakadi.auth.admins import Admins
from nakadi.auth.blacklist import Blacklist
from nakadi.auth.permissions import Permissions
from nakadi.auth.settings_document import SettingsDocument
from nakadi.common.caching import Cache
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.http.application import Application
from nakadi.http.routes import publishing as routes
from nakadi.model.authorization import UNAUTHENTICATED, Attribute, Authorization, BlockedKind, Feature, Subject
from nakadi.model.event_type import CleanupPolicy
from nakadi.model.outcomes import Unavailable
from nakadi.publishing.system_events import KPI_QUEUE_MAX_AGE_SECONDS
from tests.support.builders import a_schema, an_event_type
from tests.support.http import make_client
from tests.support.publishing import EID, PublisherInMemory, a_business_type, metadata
from tests.support.registry import settings_document

ID = "0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11"


class PublishingClient:
    """The two routes of a publisher; `subject` is the client."""

    def __init__(self, house: PublisherInMemory) -> None:
        self.house = house
        self.subject: Subject | None = None
        found = routes.routes(house.publisher, house.permissions, house.figures)
        self._client = make_client(Application(found, self._authenticate))

    def _authenticate(self, _):
        return self.subject or UNAUTHENTICATED

    def post(self, name: str, body: bytes = b"[{}]", to: str = "events", **headers: str) -> httpx.Response:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return self._client.post(f"/event-types/{name}/{to}", content=body, headers=named)


@pytest.fixture
def publishing_client(house) -> PublishingClient:
    return PublishingClient(house)


@pytest.fixture
def event_type(house):
    return house.add(an_event_type(schema=a_schema('{"properties": {"a": {"type": "string"}}}'), partitions=2))


def problem(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["status"] == answer.status_code
    assert body["title"]
    return body["status"], body["detail"]


def test_success_is_200_without_a_body(publishing_client, event_type):
    """A stored batch is answered with 200 and nothing else. (P1, P3, P110)"""
    answer = publishing_client.post(event_type.name, b'[{"a":"x"}]')
    assert (answer.status_code, answer.content) == (200, b"")
    assert publishing_client.house.texts(event_type) == ['{"a":"x"}']


def test_a_rejected_batch_is_422_with_items(publishing_client, event_type):
    """Failures before storing are answered with 422 and an array with all members of each item. (P3, P116, P117, P118,
    P119, P121)"""
    answer = publishing_client.post(
        event_type.name, json.dumps([{"metadata": {"eid": EID}}, {"a": 1}, {"metadata": 1}]).encode()
    )
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == [
        {"eid": EID, "partition": None, "publishing_status": "aborted", "step": "validating", "detail": ""},
        {
            "eid": "",
            "partition": None,
            "publishing_status": "failed",
            "step": "validating",
            "detail": "#/a: expected type: String, found: Integer",
        },
        {"eid": "", "partition": None, "publishing_status": "aborted", "step": "none", "detail": ""},
    ]


def test_a_failing_write_is_207_with_items(publishing_client, event_type):
    """Failures while storing are answered with 207 and an array, even if every item failed. (P3, P111, P112)"""
    publishing_client.house.log.refusing = {1: "timed out"}
    publishing_client.house.draws = [0.0, 0.5, 0.9]
    answer = publishing_client.post(event_type.name, b"[{},{}]")
    assert answer.status_code == 207
    assert answer.headers["content-type"] == "application/json"
    assert [item["publishing_status"] for item in answer.json()] == ["submitted", "failed"]
    assert answer.json()[1] == {
        "eid": "",
        "partition": "1",
        "publishing_status": "failed",
        "step": "publishing",
        "detail": "timed out",
    }
    assert publishing_client.post(event_type.name, b"[{}]").status_code == 207


def test_everything_else_is_one_problem(publishing_client):
    """A failure that is not one of single events is answered with a Problem whose title is the reason phrase. (P4,
    P5)
    """
    answer = publishing_client.post("not.there")
    assert problem(answer) == (404, 'EventType "not.there" does not exist.')
    assert answer.json()["title"] == "Not Found"


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/json", "application/json; charset=utf-8", "json", "a, b", ""]
)
def test_the_content_type_does_not_matter(publishing_client, event_type, content_type):
    """With any content type, or none, the body is read as JSON in UTF-8. (P6, P7)"""
    answer = publishing_client.post(event_type.name, '[{"a":"é"}]'.encode(), content_type=content_type)
    assert answer.status_code == 200
    assert publishing_client.house.texts(event_type) == ['{"a":"é"}']


@pytest.mark.parametrize("charset", ["iso-8859-1", "utf-16"])
def test_the_charset_does_not_matter(publishing_client, event_type, charset):
    """The body is read as UTF-8, even if the content type states or implies another charset. (P7)"""
    answer = publishing_client.post(
        event_type.name, '[{"a":"é"}]'.encode(), content_type=f"text/plain; charset={charset}"
    )
    assert answer.status_code == 200
    assert publishing_client.house.texts(event_type) == ['{"a":"é"}']


def test_a_form_is_read_as_what_it_holds(publishing_client, event_type):
    """A body with the content type that curl sends by default is read as JSON. (P8)"""
    answer = publishing_client.post(event_type.name, content_type="application/x-www-form-urlencoded")
    assert answer.status_code == 200


@pytest.mark.parametrize("accept", ["text/html", "application/json", "image/gif, */*; q=.2", ""])
def test_what_is_accepted_does_not_matter(publishing_client, event_type, accept):
    """A successful answer has no body, so every client can accept it. (P1)"""
    assert publishing_client.post(event_type.name, accept=accept).status_code == 200


@pytest.mark.parametrize("to", ["events", "deleted-events"])
@pytest.mark.parametrize("content_type", ["application/avro-binary", "application/avro-binary; charset=utf-8"])
def test_the_content_type_selects_avro(publishing_client, event_type, content_type, to):
    """With the content type of Avro, with or without a charset, the body is read as Avro. (P145, P6)"""
    status, detail = problem(publishing_client.post(event_type.name, b"\xc3\x01", to, content_type=content_type))
    if to == "events":
        assert (status, detail) == (400, "Error occurred when parsing avro. A length is 8, and 0 bytes follow")
    else:
        assert (status, detail) == (422, "It is not allowed to delete events from non compacted event type")


@pytest.mark.parametrize("to", ["events", "deleted-events"])
def test_a_body_is_required(publishing_client, to):
    """A missing body is malformed, even if something else is wrong as well. (P27, P14)"""
    status, detail = problem(publishing_client.post("not.there", b"", to, X_CONSUMER_TAG=""))
    assert status == 400
    assert detail.startswith("Required request body is missing")


def test_blanks_are_no_body(publishing_client, event_type):
    """A body of whitespace is malformed, not an internal error. (P28)"""
    assert problem(publishing_client.post(event_type.name, b" \n"))[0] == 400


def test_unreadable_bodies(publishing_client, event_type):
    """A body that cannot be parsed is answered with 400 and a message with the prefix that all such messages have.
    (P22)
    """
    assert problem(publishing_client.post(event_type.name, b'[{"a":}]'))[1].startswith(
        "Error occurred when parsing event(s). "
    )


def test_a_body_is_read_before_its_event_type_is_looked_for(publishing_client):
    """A malformed body for an unknown event type is answered with 400. (P15, P14)"""
    assert problem(publishing_client.post("not.there", b"{}"))[0] == 400


@pytest.mark.parametrize("to", ["events", "deleted-events"])
@pytest.mark.parametrize(
    ("kind", "name"), [(BlockedKind.PRODUCER_EVENT_TYPE, "blocked"), (BlockedKind.PRODUCER_APP, "ann")]
)
def test_blocked_producers(publishing_client, to, kind, name):
    """Requests of blocked applications and for blocked event types are answered with 403 before the body is read,
    whether the event type exists or not.

    (P14, P16, P48, P135)
    """
    publishing_client.subject = Subject("ann")
    publishing_client.house.blacklist.block(kind, name)
    assert problem(publishing_client.post("blocked", b"{}", to)) == (403, "Application or event type is blocked")
    publishing_client.house.blacklist.unblock(kind, name)
    assert problem(publishing_client.post("blocked", b"{}", to))[0] == 400


def test_the_tag_is_read_before_producers_are_blocked(publishing_client):
    """An invalid consumer tag is answered with 422 and a Problem, before any other check. (P14, P126)"""
    publishing_client.house.blacklist.block(BlockedKind.PRODUCER_EVENT_TYPE, "blocked")
    answer = publishing_client.post("blocked", b"{}", X_CONSUMER_TAG=" ")
    assert problem(answer) == (422, "X-CONSUMER-TAG: is empty!")
    assert answer.json()["title"] == "Unprocessable Entity"


def test_a_tagged_batch(publishing_client, event_type):
    """The tag addresses the batch to one subscription; without it, a batch is for all subscriptions. (P125, P127)"""
    publishing_client.post(event_type.name, X_CONSUMER_TAG=f"CONSUMER_SUBSCRIPTION_ID={ID}")
    publishing_client.post(event_type.name)
    assert [record.directed_to for record in publishing_client.house.records(event_type)] == [ID, None]


def test_tags_say_nothing_of_tombstones(publishing_client):
    """When deleting, the tag is ignored, whether it is valid or not. (P128)"""
    compacted = publishing_client.house.add(an_event_type(cleanup_policy=CleanupPolicy.COMPACT))
    body = json.dumps([{"metadata": metadata(partition_compaction_key="k")}]).encode()
    for tag in ("", f"CONSUMER_SUBSCRIPTION_ID={ID}"):
        assert publishing_client.post(compacted.name, body, "deleted-events", X_CONSUMER_TAG=tag).status_code == 200
    assert [record.directed_to for record in publishing_client.house.records(compacted)] == [None, None]


def test_permission_comes_after_existence(publishing_client):
    """Without permission, the answer is 404 for an unknown event type and 403 for a known one, even for empty batches.
    (P14, P24, P50)"""
    nobody = (Attribute("user", "nobody"),)
    closed = publishing_client.house.add(
        an_event_type(authorization=Authorization(admins=nobody, readers=nobody, writers=nobody))
    )
    publishing_client.subject = Subject("ann")
    assert problem(publishing_client.post("not.there", b"[]"))[0] == 404
    assert problem(publishing_client.post(closed.name, b"[]")) == (
        403,
        f"Access on WRITE event-type:{closed.name} denied",
    )


def test_maintenance_is_503(publishing_client, event_type):
    """An event type that stays in maintenance is answered with 503, and the client may try again. (P53)"""
    publishing_client.house.log.seal_topic(event_type.timeline.topic)
    answer = publishing_client.post(event_type.name)
    assert problem(answer) == (503, "Event type is currently in maintenance, please repeat request")
    assert answer.headers["retry-after"]


def test_an_unexpected_error_is_500(publishing_client, event_type):
    """An unexpected failure is answered with 500 and a ticket, without internal details. (P55)"""
    publishing_client.house.log.troubles = [RuntimeError("a secret")]
    status, detail = problem(publishing_client.post(event_type.name))
    assert status == 500
    assert re.fullmatch(r"An internal error happened\. Please report it\. \(ETI[A-Za-z0-9]{24}\)", detail)


def test_permissions_that_cannot_be_asked_are_503(house, event_type):
    """If the source of permissions does not answer, the client may try again; the reason is in the log. (P52)"""

    class SilentRegistry(MemoryRegistry):
        def get(self, *_):
            raise Unavailable("The registry did not answer")

    blacklist = Blacklist(SettingsDocument(SilentRegistry(), "blacklist", Cache(house.clock, 1)))
    house.permissions = Permissions(Admins(settings_document("admins"), house.features, ()), blacklist, ())
    status, detail = problem(PublishingClient(house).post(event_type.name))
    assert status == 503
    assert re.fullmatch(r"A part of the broker does not answer at the moment, .* \(ETI[A-Za-z0-9]{24}\)", detail)


def test_the_flow_id_comes_back_and_is_stored(publishing_client):
    """The request's flow id is returned and stored with the events; without one, both have a new flow id. (P9, P100)"""
    event_type = publishing_client.house.add(a_business_type())
    body = json.dumps([{"metadata": metadata()}]).encode()
    mine, new = (
        publishing_client.post(event_type.name, body, X_Flow_ID="mine"),
        publishing_client.post(event_type.name, body),
    )
    assert mine.headers["x-flow-id"] == "mine"
    assert len(new.headers["x-flow-id"]) == 24
    stored = [event["metadata"]["flow_id"] for event in publishing_client.house.stored(event_type)]
    assert stored == ["mine", new.headers["x-flow-id"]]


def test_tombstones_over_http(publishing_client):
    """Deleting is answered with 200 without a body; without compaction, with 422 and aborted items. (P2, P138, P139,
    P144)"""
    compacted = publishing_client.house.add(an_event_type(cleanup_policy=CleanupPolicy.COMPACT_AND_DELETE))
    body = json.dumps([{"metadata": metadata(partition_compaction_key="k")}]).encode()
    stored = publishing_client.post(compacted.name, body, "deleted-events")
    assert (stored.status_code, stored.content) == (200, b"")
    other = publishing_client.house.add(an_event_type())
    answer = publishing_client.post(other.name, body, "deleted-events")
    assert (answer.status_code, [item["publishing_status"] for item in answer.json()]) == (422, ["aborted"])
    assert publishing_client.post(other.name, b"[]", "deleted-events").json() == []


def test_batches_that_are_stored_are_figures(publishing_client, event_type):
    """A batch with status 200 is recorded with its events and bytes; a batch with 207 or 422 is not. (P153)"""
    publishing_client.house.features.switch(Feature.KPI_COLLECTION, on=True)
    assert publishing_client.post(event_type.name, b'[{"a":"x"},{}]').status_code == 200
    assert publishing_client.post(event_type.name, b'[{"a":1}]').status_code == 422
    publishing_client.house.log.refusing[0] = "no"
    assert publishing_client.post(event_type.name, b"[{}]").status_code == 207

    publishing_client.house.clock.move(KPI_QUEUE_MAX_AGE_SECONDS)
    publishing_client.house.figures.flush_if_due()
    publishing_client.house.figures.close()

    [figure] = publishing_client.house.told
    assert (figure["event_type"], figure["app"]) == (event_type.name, "unauthenticated")
    assert (figure["number_of_events"], figure["batch_size"]) == (2, 14)
