"""`nakadi publish`."""

import io
import json
import os
import signal
import threading

import pytest

from nakadi.local import Broker
from nakadi_cli.failures import BadInput
from nakadi_cli.reading_events import Event, batches, read_events
from nakadi_client import NoAnswer
from nakadi_client.connections import Api
from tests.support.api import create_event_type
from tests.support.builders import a_name
from tests.support.patience import PATIENCE

ORDERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture
def orders_event_type(api):
    """The name of an event type whose events have a number."""
    return create_event_type(api, schema=ORDERS)["name"]


def json_lines(*numbers):
    return "".join(f'{{"n": {number}}}\n' for number in numbers)


def read_stored_events(run, name):
    return sorted(event["n"] for event in run("tail", name, "--from", "begin", "--no-follow", "-o", "json").lines)


def test_events_are_published_line_by_line(run, orders_event_type):
    """If no file is named, the command reads standard input, and publishes it in batches."""
    done = run("publish", orders_event_type, "--batch-size", "3", stdin=json_lines(*range(10)))

    assert done.code == 0
    assert "10 published" in done.err
    assert read_stored_events(run, orders_event_type) == list(range(10))


def test_ctrl_c_says_how_many_are_published(run, orders_event_type, monkeypatch):
    """After an interruption, the command says how many events it has published."""
    send, sent, is_over = Api.send, [], threading.Event()

    def send_two_then_interrupt(api, request):
        sent.append(request)
        if len(sent) <= 2:
            return send(api, request)
        os.kill(os.getpid(), signal.SIGINT)
        is_over.wait(PATIENCE)
        return NoAnswer("The command has ended.")

    monkeypatch.setattr(Api, "send", send_two_then_interrupt)
    done = run("publish", orders_event_type, "--batch-size", "3", stdin=json_lines(*range(10)))
    is_over.set()
    monkeypatch.undo()

    assert done.code == 130
    assert "6 published" in done.err
    assert read_stored_events(run, orders_event_type) == list(range(6))


def test_an_array_is_published(run, orders_event_type, tmp_path):
    """A file may contain a JSON array instead of lines."""
    (tmp_path / "orders.json").write_text(json.dumps([{"n": n} for n in range(5)], indent=2))

    done = run("publish", orders_event_type, str(tmp_path / "orders.json"), "-o", "json")

    assert done.json == {"published": 5, "refused": [], "failed": [], "ended_at": None}
    assert read_stored_events(run, orders_event_type) == list(range(5))


def test_cloud_events_are_published(run, orders_event_type):
    """With `--cloudevents`, each input is a CloudEvent; one without an id is refused, with the reason."""
    event = {"specversion": "1.0", "id": "A-1", "source": "/shop", "type": "placed", "data": {"n": 7}}
    done = run("publish", orders_event_type, "--cloudevents", stdin=json.dumps(event))
    del event["id"]
    refused = run("publish", orders_event_type, "--cloudevents", stdin=json.dumps(event))

    assert done.code == 0
    assert read_stored_events(run, orders_event_type) == [7]
    assert "has no `id`" in refused.err
    assert refused.code != 0


def test_a_refused_event_ends_publishing(run, orders_event_type):
    """If an event is invalid, earlier batches are stored, but neither its own batch nor later ones."""
    text = json_lines(0, 1) + '{"n": "three"}\n' + json_lines(3, 4)

    done = run("publish", orders_event_type, "--batch-size", "2", "-o", "json", stdin=text)

    assert done.code == 7
    assert done.json["published"] == 2
    assert [each["event"] for each in done.json["refused"]] == [3]
    assert done.json["ended_at"] == 3
    assert read_stored_events(run, orders_event_type) == [0, 1]
    first = run("publish", orders_event_type, stdin=text)
    assert first.code == 3
    assert "event 3: " in first.err
    assert "expected type" in first.err


def test_refused_events_can_be_left_out(run, orders_event_type):
    """With --keep-going, the command publishes all events that the broker accepts, and its exit code says that some
    were refused.
    """
    done = run(
        "publish", orders_event_type, "--keep-going", stdin=json_lines(0, 1) + '{"n": "two"}\n{}\n' + json_lines(4)
    )

    assert done.code == 7
    assert "3 published, 2 refused" in done.err
    assert read_stored_events(run, orders_event_type) == [0, 1, 4]


def test_only_what_was_not_stored_is_sent_again(run):
    """After a 207, only the events of the failed partition are sent again, and nothing is stored twice."""
    with Broker(default_partitions=4) as own:
        name = a_name()
        definition = {
            "name": name,
            "owning_application": "shop",
            "category": "undefined",
            "schema": {"schema": ORDERS, "type": "json_schema"},
            "partition_strategy": "hash",
            "partition_key_fields": ["n"],
            "default_statistic": {
                "messages_per_minute": 1,
                "message_size": 1,
                "read_parallelism": 4,
                "write_parallelism": 4,
            },
        }
        assert run("event-types", "create", "-f", "-", stdin=json.dumps(definition), url=own.url).code == 0
        own.faults.refuse(event_type=name, partition="1", times=2)
        again = run("publish", name, stdin=json_lines(*range(40)), url=own.url)
        own.faults.refuse(event_type=name, partition="2", times=100)
        given_up = run("publish", name, "--retries", "1", "-o", "json", stdin=json_lines(*range(100, 140)), url=own.url)
        own.faults.clear()
        own.faults.throttle(event_type=name, times=1)
        throttled = run("publish", name, stdin=json_lines(200), url=own.url)
        found = run("tail", name, "--from", "begin", "--no-follow", "-o", "json", url=own.url).lines

    numbers = sorted(event["n"] for event in found)
    assert again.code == 0, again.err
    assert numbers[:40] == list(range(40))
    assert given_up.code == 7
    assert given_up.json["failed"]
    assert given_up.json["published"] + len(given_up.json["failed"]) == 40
    assert len(numbers) == 40 + given_up.json["published"] + 1
    assert throttled.code == 0, throttled.err


def test_what_was_refused_can_be_sent_again(run, orders_event_type, tmp_path):
    """--refused writes unpublished events unchanged to a file; once the user has corrected the file, it can be
    published.
    """
    kept = tmp_path / "refused.ndjson"
    text = '[{"n": 0}, {"n": 1.50, \n "x": "a\\nb"}, {"n": 2}]'

    done = run("publish", orders_event_type, "--keep-going", "--refused", str(kept), stdin=text)

    assert done.code == 7
    assert kept.read_text() == '{"n": 1.50,   "x": "a\\nb"}\n'
    kept.write_text(kept.read_text().replace("1.50", "1"))
    assert run("publish", orders_event_type, str(kept), "--refused", str(tmp_path / "none")).code == 0
    assert (tmp_path / "none").read_text() == ""
    assert read_stored_events(run, orders_event_type) == [0, 1, 2]


def test_where_publishing_ends_the_rest_is_kept(run, orders_event_type, tmp_path):
    """Without --keep-going, --refused writes the batch with the refused event, and everything after it, to its file."""
    kept = tmp_path / "refused.ndjson"
    text = json_lines(0, 1, 2) + '{"n": "three"}\n' + json_lines(4, 5)

    assert run("publish", orders_event_type, "--batch-size", "2", "--refused", str(kept), stdin=text).code == 7

    assert kept.read_text() == json_lines(2) + '{"n": "three"}\n' + json_lines(4, 5)
    assert read_stored_events(run, orders_event_type) == [0, 1]


def test_what_was_given_up_is_kept(run, tmp_path):
    """If no answer comes, --refused writes every event to its file. If the file already exists, or cannot be created,
    nothing is published.
    """
    kept = tmp_path / "kept.ndjson"
    gone = run(
        "publish",
        "any",
        "--retries",
        "0",
        "--refused",
        str(kept),
        stdin=json_lines(*range(5)),
        url="http://127.0.0.1:9",
    )
    unknown = run(
        "publish", a_name(), "--batch-size", "1", "--refused", str(tmp_path / "unknown"), stdin=json_lines(1, 2)
    )

    assert gone.code == 6
    assert kept.read_text() == json_lines(*range(5))
    assert unknown.code == 5
    assert (tmp_path / "unknown").read_text() == json_lines(1, 2)
    assert run("publish", "any", str(kept), "--refused", str(kept)).code == 2
    assert run("publish", "any", "--refused", str(tmp_path)).code == 2
    assert kept.read_text() == json_lines(*range(5))


def test_tombstones_are_published(run, api):
    """--tombstones deletes by key: a tombstone takes an offset that consumers do not see, and is possible only for
    compacted event types.
    """
    compacted = create_event_type(
        api, cleanup_policy="compact", category="business", enrichment_strategies=["metadata_enrichment"]
    )
    tombstone = json.dumps({"metadata": {"partition_compaction_key": "4711"}})

    done = run("publish", compacted["name"], "--tombstones", stdin=tombstone)
    of_another_policy = run("publish", create_event_type(api)["name"], "--tombstones", stdin=tombstone)

    assert done.code == 0, done.err
    [partition] = run("event-types", "partitions", compacted["name"], "-o", "json").json
    assert partition["newest_available_offset"] >= partition["oldest_available_offset"]
    assert read_stored_events(run, compacted["name"]) == []
    assert of_another_policy.code == 3
    assert "compacted" in of_another_policy.err
    assert run("publish", "any", "--tombstones", "--for", "x", stdin=tombstone).code == 2


def test_events_are_published_for_one_subscription(run, orders_event_type):
    """With --for, only the named subscription gets the events; an invalid id is refused."""
    chosen, other = (
        run("subscriptions", "create", orders_event_type, "--owner", a_name(), "--from", "begin").out.strip()
        for _ in range(2)
    )

    assert run("publish", orders_event_type, "--for", chosen, stdin=json_lines(1, 2)).code == 0
    assert run("publish", orders_event_type, stdin=json_lines(3)).code == 0

    assert [each["n"] for each in run("consume", chosen, "--no-follow").lines] == [1, 2, 3]
    assert [each["n"] for each in run("consume", other, "--no-follow").lines] == [3]
    assert run("publish", orders_event_type, "--for", "nothing", stdin=json_lines(4)).code == 3


def test_a_broker_that_is_not_there_is_exit_code_6(run):
    """If no broker answers, the command gives up after its retries, with exit code 6."""
    done = run("publish", "any", "--retries", "1", stdin=json_lines(1), url="http://127.0.0.1:9")

    assert done.code == 6
    assert "cannot be reached" in done.err


def test_an_event_type_that_does_not_exist_is_exit_code_5(run):
    """An event type that does not exist ends the command with exit code 5."""
    assert run("publish", a_name(), stdin=json_lines(1)).code == 5


@pytest.mark.parametrize(
    "text",
    [
        *(
            '{"n": 1',
            "1\n",
            '{"n": 1}\n[]',
            '[{"n": 1}',
            '[{"n": 1} {"n": 2}]',
            "[1]",
            '[{"n": 1}] {"n": 2}',
            "[{]",
            "[,]",
        ),
        pytest.param('{"n": ' + "[" * 100_000, id="a line with deep nesting"),
        pytest.param('[{"n": ' + "[" * 100_000, id="an array with deep nesting"),
    ],
)
def test_input_that_is_no_events_is_refused_with_its_place(text):
    """The message about a mistake in the input names the line or the event."""
    with pytest.raises(BadInput, match=r"line \d|event \d|array"):
        list(read_events(io.StringIO(text), "it.json"))


@pytest.mark.parametrize("text", ["", "\n\n", "[]", " [ ] \n"])
def test_no_events_are_fine(run, orders_event_type, text):
    """Publishing nothing succeeds."""
    assert run("publish", orders_event_type, stdin=text).code == 0


def test_events_are_sent_as_they_are_written():
    """Numbers keep their digits, in lines and in arrays."""
    text = '{"a": 1.10, "b": 12345678901234567890}'

    assert [event.text.decode() for event in read_events(io.StringIO(f"{text}\n{text}"), "-")] == [text, text]
    assert [event.text.decode() for event in read_events(io.StringIO(f"[\n{text} ,{text}\n]"), "-")] == [text, text]


def test_batches_stay_within_their_limits():
    """A batch has a limited number of events and bytes, and a large event has its own batch."""
    events = [Event(number, b"x" * size) for number, size in enumerate([1, 1, 1, 50, 4, 4, 4])]

    found = [[len(event.text) for event in batch] for batch in batches(events, 2, 10)]

    assert found == [[1, 1], [1], [50], [4, 4], [4]]
