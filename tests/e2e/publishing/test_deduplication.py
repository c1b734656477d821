"""Deduplication as clients see it."""

import uuid

import httpx
import pytest

from nakadi.local import Broker
from tests.e2e.publishing.test_publishing import events_in, publish, read_delivered_bytes
from tests.support.api import a_business_definition, a_definition, create_event_type, problem, violations
from tests.support.http import check_against_description
from tests.support.patience import PATIENCE
from tests.support.publishing import metadata

ONCE = {"deduplication": {"window_seconds": 300}}
ANNOTATION = "nakadi.io/deduplication-window-seconds"
FOUR_PARTITIONS = {
    "default_statistic": {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 4, "write_parallelism": 4}
}


@pytest.fixture
def deduplicating_type(api):
    """The name of an event type that deduplicates."""
    return create_event_type(api, a_business_definition(**ONCE))["name"]


def an_event(eid=None, **members):
    return {"metadata": metadata(eid=eid or str(uuid.uuid4())), **members}


def count_stored(api, name):
    partitions = api.get(f"/event-types/{name}/partitions").json()
    return sum(int(each["newest_available_offset"].split("-", 2)[2]) + 1 for each in partitions)


def test_a_batch_that_is_sent_again_is_stored_once(api, deduplicating_type):
    """If a batch is sent twice, the first answer has no body; the second names the place of each event that is already
    stored. (P110, P157)
    """
    events = [an_event(number=number) for number in range(3)]
    first = publish(api, deduplicating_type, events)
    assert (first.status_code, first.content) == (200, b"")
    again = publish(api, deduplicating_type, events)
    assert again.status_code == 200
    assert again.json() == [
        {
            "eid": event["metadata"]["eid"],
            "partition": "0",
            "publishing_status": "submitted",
            "step": "publishing",
            "detail": "",
            "duplicate": True,
            "cursor": {"partition": "0", "offset": f"001-0001-{number:018}"},
        }
        for number, event in enumerate(events)
    ]
    assert count_stored(api, deduplicating_type) == 3
    assert [each["number"] for each in events_in(read_delivered_bytes(api, deduplicating_type, 3))] == [0, 1, 2]


def test_only_duplicates_say_so(api, deduplicating_type):
    """New events beside duplicates are stored, and their items are as usual. (P117, P157)"""
    old, new = an_event(), an_event()
    publish(api, deduplicating_type, [old])
    items = publish(api, deduplicating_type, [new, old, new]).json()
    assert [item.get("duplicate") for item in items] == [None, True, True]
    assert [item["cursor"]["offset"][-1] for item in items[1:]] == ["0", "1"]
    assert set(items[0]) == {"eid", "partition", "publishing_status", "step", "detail"}
    assert count_stored(api, deduplicating_type) == 2


def test_the_case_of_an_eid_does_not_matter(api, deduplicating_type):
    """An `eid` in capital letters is the same id as in small letters. (P157)"""
    eid = str(uuid.uuid4())
    publish(api, deduplicating_type, [an_event(eid)])
    [item] = publish(api, deduplicating_type, [an_event(eid.upper())]).json()
    assert (item["eid"], item["duplicate"]) == (eid.upper(), True)


def test_a_second_attempt_may_meet_another_partition(api):
    """Events without a key go to random partitions, and are still recognized as duplicates. (P158)"""
    name = create_event_type(api, a_business_definition(**ONCE, **FOUR_PARTITIONS))["name"]
    events = [an_event() for _ in range(40)]
    assert publish(api, name, events).content == b""
    for _ in range(3):
        assert all(item["duplicate"] for item in publish(api, name, events).json())
    assert count_stored(api, name) == 40


def test_more_partitions_and_another_timeline_change_nothing(api, deduplicating_type):
    """An event is still a duplicate after partitions were added, and in a new timeline; its item has the cursor of the
    first event. (P158)
    """
    event = an_event()
    publish(api, deduplicating_type, [event])
    assert api.put(f"/event-types/{deduplicating_type}/partition-count", json={"partition_count": 3}).status_code == 204
    storage = api.get("/storages/default").json()["id"]
    assert api.post(f"/event-types/{deduplicating_type}/timelines", json={"storage_id": storage}).status_code == 201
    [item] = publish(api, deduplicating_type, [event]).json()
    assert item["cursor"] == {"partition": "0", "offset": "001-0001-000000000000000000"}
    new = an_event()
    publish(api, deduplicating_type, [new])
    [item] = publish(api, deduplicating_type, [new]).json()
    assert item["cursor"]["offset"].startswith("001-0002-")


def test_a_refused_batch_claims_nothing(api, deduplicating_type):
    """After a 422, the good events of the batch are new. (P159)"""
    good, bad = an_event(), {"metadata": metadata(eid="none")}
    assert publish(api, deduplicating_type, [good, bad]).status_code == 422
    assert publish(api, deduplicating_type, [good]).content == b""
    assert count_stored(api, deduplicating_type) == 1


def test_directed_events_are_apart(api, deduplicating_type):
    """A directed event is stored once for each subscription that it is directed to. (P160)"""
    event, tags = an_event(), [f"CONSUMER_SUBSCRIPTION_ID={uuid.uuid4()}" for _ in range(2)]
    publish(api, deduplicating_type, [event])
    for tag in tags:
        assert publish(api, deduplicating_type, [event], X_CONSUMER_TAG=tag).content == b""
        assert publish(api, deduplicating_type, [event], X_CONSUMER_TAG=tag).json()[0]["duplicate"] is True
    assert count_stored(api, deduplicating_type) == 3


def test_deletions_are_never_duplicates(api):
    """A tombstone is stored each time, and an event whose key was deleted is still a duplicate. (P160)"""
    name = create_event_type(api, a_business_definition(**ONCE, cleanup_policy="compact"))["name"]
    event = {"metadata": metadata(partition_compaction_key="k")}
    publish(api, name, [event])
    for _ in range(2):
        assert publish(api, name, [event], to="deleted-events").content == b""
    assert publish(api, name, [event]).json()[0]["duplicate"] is True
    assert count_stored(api, name) == 3


def test_without_it_events_are_stored_each_time(api):
    """An event type without deduplication stores an event as often as it is sent. (P77)"""
    name = create_event_type(api, a_business_definition())["name"]
    event = an_event()
    assert [publish(api, name, [event, event]).content for _ in range(2)] == [b"", b""]
    assert count_stored(api, name) == 4


def test_what_is_shown_and_changed(api, deduplicating_type):
    """The field for the deduplication window is shown only if it is set; PUT changes the window, keeps it if the member
    is missing, and removes it if the member is null. (P156)
    """
    path = f"/event-types/{deduplicating_type}"
    shown = api.get(path).json()
    assert shown["deduplication"] == {"window_seconds": 300}
    kept = {name: value for name, value in shown.items() if name != "deduplication"}
    assert api.put(path, json=kept).status_code == 200
    assert api.get(path).json()["deduplication"] == {"window_seconds": 300}
    assert api.put(path, json=kept | {"deduplication": {"window_seconds": 604_800}}).status_code == 200
    assert api.get(path).json()["deduplication"] == {"window_seconds": 604_800}
    event = an_event()
    publish(api, deduplicating_type, [event])
    assert api.put(path, json=kept | {"deduplication": None}).status_code == 200
    assert "deduplication" not in api.get(path).json()
    assert publish(api, deduplicating_type, [event]).content == b""


def test_an_annotation_says_the_same(api):
    """An annotation sets the window for clients that cannot send the field; the broker does not warn that it is
    unknown. (P156)
    """
    definition = a_business_definition(annotations={ANNOTATION: "300"})
    answer = api.post("/event-types", json=definition)
    assert ANNOTATION not in answer.headers["warning"]
    event = an_event()
    publish(api, definition["name"], [event])
    assert publish(api, definition["name"], [event]).json()[0]["duplicate"] is True
    definition["annotations"] = {}
    assert api.put(f"/event-types/{definition['name']}", json=definition).status_code == 200
    assert publish(api, definition["name"], [event]).content == b""


@pytest.mark.parametrize("seconds", [0, -1, 604_801, None])
def test_the_window_has_limits(api, seconds):
    """The window lasts from a second to seven days. (P156)"""
    answer = api.post("/event-types", json=a_business_definition(deduplication={"window_seconds": seconds}))
    expected = "must not be null" if seconds is None else "must be between 1 and 604800"
    assert violations(answer) == {f'Field "deduplication.window_seconds" {expected}'}


@pytest.mark.parametrize("text", ["0", "604801", "1e3", "5 minutes", "", None])
def test_an_annotation_has_limits(api, text):
    """The value of the annotation is a number within the limits of the field. (P156)"""
    answer = api.post("/event-types", json=a_business_definition(annotations={ANNOTATION: text}))
    if text is None:
        assert answer.status_code == 201
    else:
        assert problem(answer, 422).startswith(f"Annotation {ANNOTATION} is not valid.")


@pytest.mark.parametrize("how", [ONCE, {"annotations": {ANNOTATION: "300"}}])
def test_events_need_an_eid(api, how):
    """Deduplication is refused for the category undefined, whose events have no eid. (P156)"""
    answer = api.post("/event-types", json=a_definition(**how))
    assert problem(answer, 422) == "deduplication is not available for 'undefined' event type category"


class TestFaults:
    @pytest.fixture
    def broker(self):
        with Broker(event_log="memory:") as broker:
            yield broker

    @pytest.fixture
    def client(self, broker):
        with check_against_description(httpx.Client(base_url=broker.url, timeout=PATIENCE)) as client:
            yield client

    @pytest.fixture
    def name(self, client):
        by_key = {"partition_strategy": "hash", "partition_key_fields": ["a"]}
        schema = {"properties": {"a": {"type": "string"}}}
        two = FOUR_PARTITIONS["default_statistic"] | {"read_parallelism": 2, "write_parallelism": 2}
        definition = a_business_definition(**ONCE, **by_key, schema=schema, default_statistic=two)
        return create_event_type(client, definition)["name"]

    def test_a_partial_append_remembers_what_was_stored(self, broker, client, name):
        """After a 207, events that failed are new and those that were stored are duplicates. (P157, P159)"""
        events = [an_event(a="a"), an_event(a="b")]
        broker.faults.refuse(event_type=name, partition="0", times=1)
        first = publish(client, name, events)
        assert first.status_code == 207
        failed = [item["publishing_status"] == "failed" for item in first.json()]
        assert sorted(failed) == [False, True]
        again = publish(client, name, events)
        assert again.status_code == 200
        assert [item.get("duplicate", False) for item in again.json()] == [not each for each in failed]
        assert count_stored(client, name) == 2

    def test_an_answer_that_was_lost_is_made_good(self, broker, client, name):
        """An event that was stored although the log gave no answer in time is a duplicate when it is sent again.
        (P158)"""
        events = [an_event(a="a"), an_event(a="b")]
        broker.faults.time_out(event_type=name, times=2)
        first = publish(client, name, events)
        assert (first.status_code, {item["detail"] for item in first.json()}) == (207, {"timed out"})
        assert all(item["duplicate"] for item in publish(client, name, events).json())
        assert count_stored(client, name) == 2


def test_ids_survive_a_restart(tmp_path):
    """A broker recognizes the events that its predecessor stored. (P158)"""
    settings = {"registry": f"sqlite:///{tmp_path}/nakadi.db", "event_log": f"sqlite:///{tmp_path}/nakadi.db"}
    event = an_event()
    definition = a_business_definition(**ONCE)
    for attempt in range(2):
        with Broker(**settings) as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
            if attempt == 0:
                create_event_type(client, definition)
            answer = publish(client, definition["name"], [event])
            assert answer.status_code == 200
            assert (answer.content == b"") == (attempt == 0)
            assert count_stored(client, definition["name"]) == 1


def test_one_line_for_each_event(api, deduplicating_type):
    """If duplicates lie between the new events of a batch, the new events are stored in their order. (P108, P157)"""
    events = [an_event(number=number) for number in range(30)]
    publish(api, deduplicating_type, events[::3])
    assert publish(api, deduplicating_type, events).status_code == 200
    numbers = [each["number"] for each in events_in(read_delivered_bytes(api, deduplicating_type, 30))]
    assert numbers == [*range(0, 30, 3), *(number for number in range(30) if number % 3)]
