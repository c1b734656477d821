"""Random requests: each of them gets an answer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from nakadi.http.application import Application
from nakadi.http.message import Request
from nakadi.http.routes import publishing as routes
from nakadi.model.event_type import Category, CleanupPolicy, PartitionStrategy
from tests.support.builders import an_event_type
from tests.support.everything import choose_by_suite
from tests.support.publishing import PublisherInMemory, a_business_type, metadata

BY_KEY = {"partition_strategy": PartitionStrategy.HASH, "partition_key_fields": ("k.l",)}
SCHEMA = {
    "properties": {"k": {"type": ["object", "string"], "maxProperties": 2}, "n": {"type": "integer", "minimum": 0}}
}

SCALARS = (
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats()
    | some.text(max_size=5)
    | some.sampled_from(["0", "1", "EUR", metadata()["eid"], metadata()["occurred_at"]])
)
NAMES = some.sampled_from(["metadata", "data", "data_op", "data_type", "k", "l", "n", "eid", "partition"]) | some.text(
    max_size=3
)
VALUES = some.recursive(
    SCALARS,
    lambda within: some.lists(within, max_size=3) | some.dictionaries(NAMES, within, max_size=4),
    max_leaves=12,
)
METADATA = some.just({}) | some.dictionaries(NAMES, VALUES, max_size=3).map(lambda more: metadata() | more)
EVENTS = some.dictionaries(NAMES, VALUES, max_size=4) | some.builds(
    lambda event, about: event | {"metadata": about}, some.dictionaries(NAMES, VALUES, max_size=4), METADATA
)


def mangle(text: str, at: int, inserted: str, cut: int) -> bytes:
    at = at % (len(text) + 1)
    return (text[:at] + inserted + text[at + cut :]).encode("utf-8", "surrogatepass")


BODIES = (
    some.binary(max_size=60)
    | some.text(alphabet='[]{},:"\\ae10.-+tfn \n\x00é', max_size=60).map(str.encode)
    | some.builds(
        lambda events, at, inserted, cut: mangle(json.dumps(events), at, inserted, cut),
        some.lists(EVENTS, max_size=4),
        some.integers(0, 400),
        some.sampled_from(["", "", "", ",", "}", "{", '"', "[", "\\", "0", "9" * 30, "\ud800", " "]),
        some.sampled_from([0, 0, 0, 1, 2]),
    )
)
HEADERS = some.dictionaries(
    some.sampled_from(["content-type", "accept", "x-consumer-tag", "content-encoding", "x-flow-id", "x-other"]),
    some.sampled_from(
        [
            "",
            "application/json",
            "application/avro-binary",
            "application/x-www-form-urlencoded",
            "text/html;charset=utf-16",
            "gzip",
            "zstd",
            "CONSUMER_SUBSCRIPTION_ID=0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11",
            "a=b,=,,",
        ]
    )
    | some.text(max_size=8),
    max_size=4,
)


ITEM = {"eid", "partition", "publishing_status", "step", "detail"}


def event_types():
    yield an_event_type(name="any")
    yield an_event_type(name="by.key", partitions=7, **BY_KEY)
    yield an_event_type(name="told", partitions=2, partition_strategy=PartitionStrategy.USER_DEFINED)
    yield a_business_type(name="business", schema=SCHEMA, partitions=3)
    yield a_business_type(name="compacted", schema=SCHEMA, cleanup_policy=CleanupPolicy.COMPACT)
    yield a_business_type(name="data", schema=SCHEMA, category=Category.DATA, partitions=3, **BY_KEY)


@pytest.fixture(scope="module")
def application():
    house = PublisherInMemory()
    for event_type in event_types():
        house.add(event_type)
    return Application(routes.routes(house.publisher, house.permissions, house.figures))


@settings(max_examples=choose_by_suite(150, 400))
@given(
    name=some.sampled_from([each.name for each in event_types()]) | some.just("not.there"),
    to=some.sampled_from(["events", "events", "deleted-events"]),
    body=BODIES,
    headers=HEADERS,
)
def test_every_request_is_answered(application, name, to, body, headers):
    """Any request is answered: with success, with the outcome of each event, or with a Problem. (P3, P4)"""
    path = f"/event-types/{name}/{to}"
    answer = application.answer(Request(method="POST", path=path, target=path, headers=headers, body=body))
    assert answer.status in (200, 400, 404, 415, 422), answer.body
    if answer.status == 200:
        assert answer.body == b""
    elif answer.headers["content-type"] == "application/json":
        assert answer.status == 422
        assert all(set(item) == ITEM for item in json.loads(answer.body))
    else:
        assert json.loads(answer.body)["status"] == answer.status
