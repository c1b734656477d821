"""Erasing a value also removes it from the events that consumers failed to process."""

import json
from contextlib import closing

import httpx
import pytest

from tests.support.api import a_definition, create_event_type
from tests.support.bytes_left import find_files_with_text, list_files_in
from tests.support.consumer import Consumer
from tests.support.parking import COUNT, PARKING, POLICY, a_keyed_definition, give_up_on_the_next, parked_ids
from tests.support.patience import PATIENCE, until
from tests.support.served import ServedBroker
from tests.support.subscriptions import create_subscription

NAME = "customer-4711-of-the-long-name"
QUEUE, REDRIVE = "nakadi.dead.letter.queue", "nakadi.dead.letter.redrive"
EID = "70779f46-950d-4e48-9fca-000000000000"
AT = "2026-11-21T12:00:00Z"


@pytest.fixture
def broker(data):
    """A broker that runs in the data folder, and archives at once."""
    file = f"sqlite:///{data.folder / 'nakadi.db'}"
    places = {"registry": file, "event_log": file, "log_index": file, "archive": data.archive}
    with ServedBroker(**places, archive_after_seconds=0) as broker:
        yield broker


@pytest.fixture
def api(broker):
    with httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
        yield client


def event_of(key, name=NAME):
    return {"key": key, "customer": {"id": name}}


def a_letter(event_type):
    """A dead letter as the broker writes it."""
    return {
        "metadata": {"eid": EID, "occurred_at": AT},
        "subscription_id": EID,
        "event_type": event_type,
        "partition": "0",
        "offset": "001-0001-000000000000000000",
        "error": {"message": "skipped"},
        "event": {"metadata": {"event_type": event_type, "eid": EID, "occurred_at": AT}, **event_of("a")},
    }


def publish_events(api, event_type, *events):
    answer = api.post(f"/event-types/{event_type}/events", json=events)
    assert answer.status_code == 200, answer.text


def archived_all(data, name, count):
    """Wait until this number of events of an event type with one partition is in the archive."""
    place = (data.event_types.get(name).timeline.topic, 0)
    until(lambda: data.index.index_heads([place])[place].state.next_offset >= count)


def letters_about(api):
    """The event types of the failed events that dead letters contain, as far as these arrive within a second."""
    cursors = json.dumps([{"partition": "0", "offset": "BEGIN"}])
    parameters = {"batch_limit": 100, "batch_flush_timeout": 1, "stream_timeout": 1}
    answer = api.get(f"/event-types/{QUEUE}/events", params=parameters, headers={"X-nakadi-cursors": cursors})
    return [each["event_type"] for line in answer.iter_lines() for each in json.loads(line).get("events", ())]


def erase(jobs, event_type, tmp_path):
    reports = tmp_path / event_type
    arguments = ("--event-type", event_type, "--path", "customer.id", "--value", NAME, "--report", str(reports))
    told = jobs.drop_before("--do", "erase", *arguments)
    [report] = reports.iterdir()
    return told, json.loads(report.read_text())


def test_an_erasure_takes_what_consumers_failed_at(jobs, data, broker, api, tmp_path):
    """An erasure removes dead letters about the event type and its parked events, and unblocks the parked key. The
    report names the event type for redriving, whose events may come from any event type. Dead letters about other event
    types stay until a value is erased from those.
    """
    name, other = create_event_type(api, a_keyed_definition())["name"], create_event_type(api, a_definition())["name"]
    create_event_type(api, {**a_definition(), "name": REDRIVE})
    policies = (PARKING, {COUNT: "2", POLICY: "DEAD_LETTER_QUEUE"})
    parking, lettering = (create_subscription(api, name, read_from="begin", annotations=policy) for policy in policies)
    publish_events(api, name, event_of("a"), event_of("b", "another"))
    for subscription in (parking, lettering):
        give_up_on_the_next(broker.services, api, subscription)
        with closing(Consumer(api, subscription)) as stream:
            assert [each["key"] for each in stream.consumed(1)] == ["b"]
    until(lambda: len(parked_ids(api, parking)) == 1)
    publish_events(api, QUEUE, a_letter(other))
    publish_events(api, REDRIVE, event_of("a"))
    for event_type, count in ((name, 2), (QUEUE, 2), (REDRIVE, 1)):
        archived_all(data, event_type, count)
    until(lambda: letters_about(api) == [name, other])

    told, report = erase(jobs, name, tmp_path)
    assert (told.code, report["verified_gone"], report["skipped_parked_events"]) == (3, False, 1), told.told
    assert report["left_in"] == [
        f"the event type {REDRIVE} (it may be an event of another event type: erase it from there too)"
    ]
    until(lambda: letters_about(api) == [other])
    assert parked_ids(api, parking) == []
    publish_events(api, name, event_of("a", "another"))
    with closing(Consumer(api, parking)) as stream:
        assert [each["key"] for each in stream.consumed(1)] == ["a"]

    for event_type in (REDRIVE, other):
        told, report = erase(jobs, event_type, tmp_path)
        assert (told.code, report["verified_gone"]) == (0, True), told.told
    until(lambda: letters_about(api) == [])
    until(lambda: find_files_with_text(NAME, list_files_in(data.folder)) == [])


def test_a_parked_event_for_redriving_is_named(jobs, data, broker, api, tmp_path):
    """A parked event for redriving may come from any event type, so erasing it is left to the owner of the event
    type for redriving.
    """
    create_event_type(api, {**a_keyed_definition(), "name": REDRIVE})
    other = create_event_type(api, a_definition())["name"]
    subscription = create_subscription(api, REDRIVE, read_from="begin", annotations=PARKING)
    publish_events(api, REDRIVE, event_of("a"), event_of("b", "another"))
    give_up_on_the_next(broker.services, api, subscription)
    with closing(Consumer(api, subscription)) as stream:
        assert [each["key"] for each in stream.consumed(1)] == ["b"]
    until(lambda: len(parked_ids(api, subscription)) == 1)
    archived_all(data, REDRIVE, 2)

    _, report = erase(jobs, other, tmp_path)
    [parked] = parked_ids(api, subscription)
    assert report["left_in"][0].startswith(f"parked event {parked} of subscription {subscription['id']} (")

    told, report = erase(jobs, REDRIVE, tmp_path)
    assert (told.code, report["verified_gone"]) == (0, True), told.told
    assert parked_ids(api, subscription) == []
