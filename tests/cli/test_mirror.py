"""`nakadi mirror`, between two brokers."""

import itertools
import json
import re
import signal
import sys
import threading

import httpx
import pytest

from nakadi_cli.mirroring import events
from nakadi_cli.mirroring.events import event_for_target
from tests.support.api import a_business_definition, create_event_type
from tests.support.avro import schema_draft
from tests.support.builders import a_name
from tests.support.consumer import Consumer
from tests.support.patience import PATIENCE, until
from tests.support.processes import ROOT_ENVIRONMENT, run_process
from tests.support.served import ServedBroker
from tests.support.subscriptions import create_subscription


@pytest.fixture(scope="module")
def brokers():
    with (
        ServedBroker() as there,
        ServedBroker() as here,
        httpx.Client(base_url=there.url, timeout=PATIENCE) as source,
        httpx.Client(base_url=here.url, timeout=PATIENCE) as target,
    ):
        yield source, target


@pytest.fixture
def source(brokers):
    return brokers[0]


@pytest.fixture
def target(brokers):
    return brokers[1]


@pytest.fixture
def mirror(run, source, target, tmp_path):
    """Run the command for one event type."""

    def mirror(name, *options, state="state.json"):
        places = ["--from", str(source.base_url), "--to", str(target.base_url), "--state", str(tmp_path / state)]
        return run("mirror", *places, "--event-types", name, *options)

    return mirror


def create(api, partitions=1, **changes):
    one = dict.fromkeys(("messages_per_minute", "message_size"), 1)
    statistic = one | {"read_parallelism": partitions, "write_parallelism": partitions}
    definition = a_business_definition(default_statistic=statistic, **changes)
    return create_event_type(api, definition)["name"]


def keyed(api, partitions=4):
    return create(api, partitions, partition_strategy="hash", partition_key_fields=["key"])


def publish(api, name, numbers):
    events = [
        {
            "metadata": {"eid": f"00000000-0000-4000-8000-{n:012d}", "occurred_at": f"2026-11-27T10:{n % 60:02d}:00Z"},
            "n": n,
            "key": str(n % 7),
        }
        for n in numbers
    ]
    answer = api.post(f"/event-types/{name}/events", json=events)
    assert answer.status_code == 200, answer.text


def contents(api, name):
    """The numbers of the events, by partition."""
    found = {}
    for partition in api.get(f"/event-types/{name}/partitions").json():
        count = int(partition["newest_available_offset"].removeprefix("001-0001-")) + 1
        cursors = json.dumps([{"partition": partition["partition"], "offset": "BEGIN"}])
        numbers = []
        if count > 0:
            answer = api.get(
                f"/event-types/{name}/events",
                params={"stream_limit": count, "batch_limit": count, "batch_flush_timeout": 1},
                headers={"X-Nakadi-Cursors": cursors},
            )
            lines = [json.loads(line) for line in answer.text.splitlines()]
            numbers = [event["n"] for line in lines for event in line.get("events", [])]
        found[partition["partition"]] = numbers
    return found


def test_an_event_type_is_copied_with_its_events_in_order(mirror, source, target):
    """Each partition of the target has the events of the source's, in their order, and the mirror goes on where it
    stopped. (M1, M2, M3)"""
    name = keyed(source)
    publish(source, name, range(50))

    first = mirror(name, "--once")

    assert (first.code, first.err) == (0, "Copied 50 events of 1 event type.\n")
    assert contents(target, name) == contents(source, name)
    assert sum(map(len, contents(target, name).values())) == 50
    publish(source, name, range(50, 80))
    assert mirror(name, "--once").err == "Copied 30 events of 1 event type.\n"
    assert mirror(name, "--once").err == "Copied 0 events of 1 event type.\n"
    verified = mirror(name, "--verify")
    assert verified.code == 0
    assert re.fullmatch(f"{name}: 80 events, 0 stored more than once, 0 of 7. minutes differ\n", verified.out)
    there, here = (api.get(f"/event-types/{name}").json() for api in (source, target))
    assert there["schema"]["schema"] == here["schema"]["schema"]


def test_events_without_metadata_are_copied(mirror, source, target):
    """Events of the category `undefined` are copied byte by byte. (M2)"""
    name = create_event_type(source)["name"]
    source.post(f"/event-types/{name}/events", json=[{"n": 1}, {"n": 2}, {"n": 1}]).raise_for_status()

    assert mirror(name, "--once").code == 0
    assert contents(target, name) == {"0": [1, 2, 1]}


def test_numbers_keep_their_digits():
    """What a publisher may not set is left out; all values stay as they were written. (M2)"""
    metadata = b'{"eid":"e","occurred_at":"o","received_at":"r","partition":"3","version":"1.0.0","published_by":"p"}'
    event = b'{"metadata":' + metadata + b',"price":1.10000000000000000001}'

    def copied(strategy):
        return event_for_target(event, {"category": "business", "partition_strategy": strategy})

    assert copied("hash") == b'{"metadata":{"eid":"e","occurred_at":"o"},"price":1.10000000000000000001}'
    assert b'"partition":"3"' in copied("user_defined")


def test_a_changed_schema_and_new_partitions_follow(mirror, source, target):
    """When the source gets another schema or more partitions, the target gets them before the events. (M1)"""
    name = create(source, schema={"type": "object", "properties": {"n": {"type": "number"}, "key": {"type": "string"}}})
    publish(source, name, [1])
    assert mirror(name, "--once").code == 0
    properties = {"n": {"type": "number"}, "key": {"type": "string"}, "more": {"type": "string"}}
    change_schema(source, name, {"type": "object", "properties": properties})
    assert source.put(f"/event-types/{name}/partition-count", json={"partition_count": 3}).status_code == 204

    assert mirror(name, "--once").code == 0

    assert json.loads(target.get(f"/event-types/{name}").json()["schema"]["schema"])["properties"] == properties
    assert len(target.get(f"/event-types/{name}/partitions").json()) == 3


def test_a_killed_mirror_repeats_and_counts(mirror, source, target, tmp_path):
    """What was published after the last saved state is published again, and counted. (M4)"""
    name = create(source)
    publish(source, name, range(10))
    mirror(name, "--once")
    saved = (tmp_path / "state.json").read_bytes()
    publish(source, name, range(10, 15))
    mirror(name, "--once")
    (tmp_path / "state.json").write_bytes(saved)

    assert mirror(name, "--verify").out == f"{name}: 15 events, 5 stored more than once, 0 of 15 minutes differ\n"
    assert contents(target, name) == {"0": [*range(15), *range(10, 15)]}


def test_a_killed_mirror_with_deduplication_repeats_nothing(mirror, source, target, tmp_path):
    """With `--deduplicate`, each event is in the target once, whatever happens to the mirror. (M4)"""
    name = create(source)
    publish(source, name, range(10))
    mirror(name, "--once", "--deduplicate")
    (tmp_path / "state.json").unlink()

    mirror(name, "--once", "--deduplicate")

    assert contents(target, name) == {"0": [*range(10)]}


def test_differences_are_found(mirror, source, target):
    """An event that only one broker has is found, with its partition and minute. (M5)"""
    name = create(source)
    publish(source, name, range(5))
    mirror(name, "--once")
    publish(target, name, [66])

    verified = mirror(name, "--verify")

    assert verified.code == 1
    assert verified.out == (
        f"{name}: 5 events, 0 stored more than once, 1 of 6 minutes differ\n"
        "  partition 0, 2026-11-27T10:06: 0 there, 1 here\n"
    )


def test_verifying_does_not_mind_events_that_come_meanwhile(mirror, source):
    """Only what was copied is compared, though publishers go on in the source. (M5)"""
    name = keyed(source, 2)
    done = threading.Event()

    def go_on():
        number = 0
        while not done.is_set():
            publish(source, name, range(number, number + 20))
            number += 20
            done.wait(0.005)

    publisher = threading.Thread(target=go_on)
    publisher.start()
    try:
        verified = [mirror(name, "--verify") for _ in range(3)]
    finally:
        done.set()
        publisher.join()
    assert [(each.code, "0 stored more than once, 0 of" in each.out) for each in verified] == [(0, True)] * 3


def change_schema(api, name, schema):
    definition = api.get(f"/event-types/{name}").json()
    definition["schema"]["schema"] = json.dumps(schema)
    assert api.put(f"/event-types/{name}", json=definition).status_code == 200


def consume(api, subscription, count):
    """Consume and commit so many events, and leave the subscription."""
    with Consumer(api, subscription, batch_limit=1, stream_limit=count, batch_flush_timeout=1) as stream:
        numbers = [each["n"] for each in stream.consumed(count)]
        stream.rest()
    return numbers


@pytest.mark.parametrize(("committed", "batch_events"), [(0, 500), (17, 500), (17, 2), (17, 1), (40, 3)])
def test_a_subscription_moves_without_a_lost_or_doubled_event(
    mirror, source, target, monkeypatch, committed, batch_events
):
    """A moved subscription goes on with the first event that is not committed, in each partition. (M6)"""
    monkeypatch.setattr(events, "BATCH_EVENTS", batch_events)
    name = keyed(source)
    subscription = create_subscription(source, name, read_from="begin")
    publish(source, name, range(30))
    mirror(name, "--once")
    publish(source, name, range(30, 40))
    before = consume(source, subscription, committed) if committed else []

    moved = mirror(name, "--move", subscription["id"])
    publish(source, name, range(40, 50))
    mirror(name, "--once")

    assert moved.code == 0, moved.err
    assert f"{40 - committed} event" in moved.err
    assert "and 0 come again" in moved.err
    there = target.get(f"/subscriptions/{moved.out.strip()}").json()
    assert there["consumer_group"] == subscription["consumer_group"]
    assert sorted(before + consume(target, there, 50 - committed)) == list(range(50))


def test_a_subscription_that_was_never_consumed_begins_as_it_says(mirror, source, target):
    """What has no cursor yet begins at its end, or at the cursors that it was created with. (M6)"""
    name = create(source)
    publish(source, name, range(5))
    at_end = create_subscription(source, name, read_from="end")
    cursor = {"event_type": name, "partition": "0", "offset": "001-0001-000000000000000002"}
    at_cursor = create_subscription(source, name, read_from="cursors", initial_cursors=[cursor])

    first, second = (mirror(name, "--move", each["id"]) for each in (at_end, at_cursor))

    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert "2 events wait there, and 0 come again" in second.err
    assert consume(target, {"id": second.out.strip()}, 2) == [3, 4]
    publish(source, name, [5])
    with Consumer(target, {"id": first.out.strip()}, batch_limit=1, stream_limit=1) as stream:
        until(lambda: stream.status == 200)
        mirror(name, "--once")
        assert [each["n"] for each in stream.consumed(1)] == [5]


@pytest.mark.parametrize("batch_events", [1, 500])
def test_a_subscription_to_random_partitions_loses_nothing(mirror, source, target, monkeypatch, batch_events):
    """Where chance decides about partitions, no event is lost; those that come again are counted. (M6)"""
    monkeypatch.setattr(events, "BATCH_EVENTS", batch_events)
    name = create(source, 3)
    subscription = create_subscription(source, name, read_from="begin")
    publish(source, name, range(30))
    mirror(name, "--once")
    before = consume(source, subscription, 12)

    moved = mirror(name, "--move", subscription["id"])

    doubled = int(moved.err.rpartition("and ")[2].split()[0])
    there = target.get(f"/subscriptions/{moved.out.strip()}").json()
    after = consume(target, there, 18 + doubled)
    assert set(before + after) == set(range(30))


def test_a_subscription_that_is_consumed_stays(mirror, source):
    """As long as somebody consumes a subscription, it does not move. (M6)"""
    name = create(source)
    subscription = create_subscription(source, name, read_from="begin")
    publish(source, name, range(3))

    with Consumer(source, subscription, batch_limit=1) as stream:
        stream.batch()
        moved = mirror(name, "--move", subscription["id"])

    assert moved.code == 3
    assert "stop its consumers first" in moved.err


def test_an_event_that_the_target_refuses_stops_its_event_type_only(mirror, source, target):
    """A refused event is named, and nothing passes it; other event types go on, and so does this one later. (M7)"""
    prefix = a_name()
    bad, good = (create(source, name=f"{prefix}.{each}", compatibility_mode="none") for each in ("a", "b"))
    for name in (bad, good):
        publish(source, name, range(5))
    change_schema(source, bad, {"properties": {"n": {"maximum": 2}}})

    first = mirror(f"{prefix}.*", "--once")

    assert first.code == 7
    assert f"The target refuses event 4 of the 5 up to offset 001-0001-000000000000000004 in partition 0 of {bad}" in (
        first.err
    )
    assert contents(target, good) == {"0": [0, 1, 2, 3, 4]}
    assert contents(target, bad) == {"0": []}
    change_schema(source, bad, {})
    assert mirror(f"{prefix}.*", "--once").code == 0
    assert contents(target, bad) == {"0": [0, 1, 2, 3, 4]}


def test_the_state_belongs_to_two_brokers(mirror, run, source, target, tmp_path):
    """The state of one mirror is not taken for that of another, and no two mirrors use one at a time. (M8)"""
    name = create(source)
    mirror(name, "--once")
    swapped = ["--from", str(target.base_url), "--to", str(source.base_url), "--state", str(tmp_path / "state.json")]

    done = run("mirror", *swapped, "--once")

    assert done.code == 2
    assert "choose another --state" in done.err
    (tmp_path / "state.json").write_text("{}")
    assert mirror(name, "--once").code == 2
    same = ["--from", str(source.base_url), "--to", str(source.base_url)]
    assert "the same broker" in run("mirror", *same).err


def test_no_token_reaches_another_broker(mirror, source, monkeypatch):
    """`NAKADI_TOKEN` belongs to one broker, and is sent to neither; contexts have the tokens of both. (M8)"""
    name = create(source)
    monkeypatch.setenv("NAKADI_TOKEN", "never\nsent")

    assert mirror(name, "--once").code == 0


def test_it_follows_until_it_is_interrupted(source, target, tmp_path):
    """Without `--once`, the mirror copies what comes until Ctrl-C. (M3)"""
    name = create(source)
    places = ["--from", str(source.base_url), "--to", str(target.base_url), "--state", str(tmp_path / "state.json")]
    command = [sys.executable, "-m", "nakadi_cli", "mirror", *places, "--event-types", name]
    with run_process(command, ROOT_ENVIRONMENT) as process:
        until(lambda: target.get(f"/event-types/{name}").status_code == 200)
        publish(source, name, range(3))
        until(lambda: contents(target, name) == {"0": [0, 1, 2]})
        publish(source, name, range(3, 5))
        until(lambda: contents(target, name) == {"0": [0, 1, 2, 3, 4]})
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)

    assert (process.returncode, said.strip()) == (-signal.SIGINT, "")
    state = json.loads((tmp_path / "state.json").read_text())
    assert state["event_types"][name]["copied"] == 5


def test_a_partition_is_read_to_its_end_though_it_seems_to_have_nothing_more(mirror, source, target, monkeypatch):
    """The newest offset decides when everything is copied: a stream that has nothing for a moment may go on. (M3)"""
    name = keyed(source)
    publish(source, name, range(40))
    read, turns = events._read_once, []

    def read_little(*arguments):
        turns.append(1)
        return itertools.islice(read(*arguments), len(turns) % 3)

    monkeypatch.setattr(events, "_read_once", read_little)

    assert mirror(name, "--once").err == "Copied 40 events of 1 event type.\n"
    assert contents(target, name) == contents(source, name)


def test_events_that_do_not_arrive_are_an_error(mirror, source, monkeypatch):
    """If a broker does not send what it says that it has, nothing is taken for complete. (M3)"""
    name = create(source)
    publish(source, name, range(3))
    monkeypatch.setattr(events, "_read_once", lambda *_: ())

    done = mirror(name, "--once")

    assert done.code == 7
    assert "Partition 0 of" in done.err
    assert "which do not arrive" in done.err


def test_events_in_avro_are_not_copied(mirror, source, target):
    """The command names the event type, and copies the others. (M7)"""
    definition = a_business_definition() | {"schema": schema_draft()}
    name = create_event_type(source, definition)["name"]

    refused = mirror(name, "--once")

    assert refused.code == 7
    assert f"{name}: Its schema is an Avro schema; only events in JSON are copied." in refused.err
    assert target.get(f"/event-types/{name}").status_code == 404
