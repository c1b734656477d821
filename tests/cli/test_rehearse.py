"""`nakadi schema rehearse`."""

import json
import uuid

import pytest

from nakadi_cli import schema_rehearsals
from nakadi_cli.api import Api
from tests.support.api import a_business_definition, create_event_type

SCHEMA = {"properties": {"order": {}}}
PROPOSED = {"properties": {"order": {"type": "string"}}}


@pytest.fixture
def event_type(api):
    name = create_event_type(api, a_business_definition(schema=SCHEMA, compatibility_mode="none"))["name"]
    metadata = {"eid": str(uuid.uuid4()), "occurred_at": "2026-11-21T12:00:00Z"}
    events = [{"metadata": metadata, "order": order} for order in ("1", 2, 3)]
    assert api.post(f"/event-types/{name}/events", json=events).status_code == 200
    return name


@pytest.fixture
def schema_file(tmp_path):
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(PROPOSED))
    return str(file)


def test_a_report_says_what_would_be_refused(run, event_type, schema_file):
    """The report begins with a line of counts, followed by rules, publishers and samples; the exit code is 1.
    (H1, H6)
    """
    done = run("schema", "rehearse", event_type, schema_file, "--last", "1h")

    first, rule, publisher, *samples = done.out.splitlines()
    assert (done.code, first) == (1, f"{event_type}: the schema would refuse 2 of 3 events.")
    assert rule.startswith("#/order: type: 2 events, from 20")
    assert publisher.startswith("Published by ")
    assert len(samples) == 2
    assert f"would refuse 2 events of {event_type}" in done.err


def test_a_schema_that_fits_all_events_is_0(run, event_type, tmp_path):
    """If a schema fits all events, the exit code is 0. The schema may be in the definition of an event type, with the
    category and the mode, and the result can be JSON. (H3)
    """
    definition = tmp_path / "definition.yaml"
    definition.write_text(
        json.dumps(a_business_definition(name=event_type, schema=SCHEMA, compatibility_mode="forward"))
    )
    done = run("schema", "rehearse", event_type, str(definition), "--events", "2", "-o", "json")
    assert (done.code, done.json["events_seen"], done.json["events"]) == (0, 2, 2)

    closed = run(
        "schema", "rehearse", event_type, str(definition), "--events", "2", "--category", "undefined", "-o", "json"
    )
    assert closed.json["state"] == "finished"


def test_a_span_is_said_once(run, event_type, schema_file):
    """More than one time span, or an invalid one, is refused by the command or by the broker. (H2)"""
    assert run("schema", "rehearse", event_type, schema_file).code == 2
    assert run("schema", "rehearse", event_type, schema_file, "--last", "1d", "--events", "1").code == 2
    assert run("schema", "rehearse", event_type, schema_file, "--last", "a week").code == 3


def pretend_still_running(monkeypatch):
    """Pretend that the broker does not have the result yet."""
    post = Api.post
    monkeypatch.setattr(Api, "post", lambda *arguments: post(*arguments) | {"state": "running"})
    monkeypatch.setattr(schema_rehearsals, "_POLL_SECONDS", 0.0)


def test_a_long_rehearsal_is_waited_for(run, event_type, schema_file, monkeypatch):
    """The command waits for the end, writes the progress to standard error, and shows the result. (H10)"""
    pretend_still_running(monkeypatch)
    done = run("schema", "rehearse", event_type, schema_file, "--last", "1h")
    assert "the schema would refuse 2 of 3 events" in done.out
    assert "of 3 events, " in done.err


def test_an_interrupted_rehearsal_is_removed(run, api, event_type, schema_file, monkeypatch):
    """Ctrl-C leaves no rehearsal behind. (H11)"""
    pretend_still_running(monkeypatch)
    monkeypatch.setattr(Api, "get", interrupt)
    assert run("schema", "rehearse", event_type, schema_file, "--last", "1h").code == 130
    assert api.get(f"/event-types/{event_type}/schemas/rehearsals").json() == {"items": []}


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_lost_rehearsal_is_no_result(run, event_type, schema_file, monkeypatch):
    """If the rehearsal gets lost, the command shows the findings so far, and its exit code says that they are
    incomplete. (H10)
    """
    post = Api.post
    lost = {"state": "lost", "detail": "gone"}
    monkeypatch.setattr(Api, "post", lambda *arguments: post(*arguments) | lost)
    done = run("schema", "rehearse", event_type, schema_file, "--last", "1h")
    assert done.code == 1
    assert "The rehearsal is lost: gone." in done.err
