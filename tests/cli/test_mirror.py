"""`nakadi mirror`, between two brokers."""

import itertools
import json
import re
import signal
import sys
import threading
from datetime import timedelta
from decimal import Decimal
from uuid import uuid4

import httpx
import pytest

from nakadi_cli.failures import NotAnswered
from nakadi_cli.mirroring import events
from nakadi_cli.mirroring.avro_publishing import AvroDestination
from nakadi_cli.mirroring.events import event_for_target
from nakadi_client import NoAnswer
from nakadi_client.answers import Answer
from tests.support.api import a_business_definition, create_event_type
from tests.support.avro import (
    AN_ORDER,
    ORDER,
    a_batch,
    a_decimal,
    a_field,
    a_record,
    an_envelope,
    encode,
    read_batches,
    schema_draft,
)
from tests.support.builders import a_name
from tests.support.consumer import Consumer
from tests.support.patience import PATIENCE, until
from tests.support.processes import ROOT_ENVIRONMENT, run_process
from tests.support.served import ServedBroker
from tests.support.subscriptions import create_subscription


@pytest.fixture(scope="module")
def two_brokers():
    with ServedBroker() as there, ServedBroker() as here:
        yield there, here


@pytest.fixture(scope="module")
def two_clients(two_brokers):
    there, here = two_brokers
    with (
        httpx.Client(base_url=there.url, timeout=PATIENCE) as source,
        httpx.Client(base_url=here.url, timeout=PATIENCE) as target,
    ):
        yield source, target


@pytest.fixture
def source(two_clients):
    return two_clients[0]


@pytest.fixture
def target(two_clients):
    return two_clients[1]


@pytest.fixture
def run_mirror(run, source, target, tmp_path):
    """A function that runs `nakadi mirror` for one event type."""

    def mirror(name, *options, state="state.json"):
        places = ["--from", str(source.base_url), "--to", str(target.base_url), "--state", str(tmp_path / state)]
        return run("mirror", *places, "--event-types", name, *options)

    return mirror


def create(api, partitions=1, **changes):
    one = dict.fromkeys(("messages_per_minute", "message_size"), 1)
    statistic = one | {"read_parallelism": partitions, "write_parallelism": partitions}
    definition = a_business_definition(default_statistic=statistic, **changes)
    return create_event_type(api, definition)["name"]


def create_keyed(api, partitions=4):
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


def numbers_by_partition(api, name):
    """The numbers in an event type's events, by partition."""
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


def test_an_event_type_is_copied_with_its_events_in_order(run_mirror, source, target):
    """Each partition of the target gets the events of the same partition of the source, in order, and the mirror
    continues where it stopped. (M1, M2, M3)
    """
    name = create_keyed(source)
    publish(source, name, range(50))

    first = run_mirror(name, "--once")

    assert (first.code, first.err) == (0, "Copied 50 events of 1 event type.\n")
    assert numbers_by_partition(target, name) == numbers_by_partition(source, name)
    assert sum(map(len, numbers_by_partition(target, name).values())) == 50
    publish(source, name, range(50, 80))
    assert run_mirror(name, "--once").err == "Copied 30 events of 1 event type.\n"
    assert run_mirror(name, "--once").err == "Copied 0 events of 1 event type.\n"
    verified = run_mirror(name, "--verify")
    assert verified.code == 0
    assert re.fullmatch(f"{name}: 80 events, 0 stored more than once, 0 of 7. minutes differ\n", verified.out)
    there, here = (api.get(f"/event-types/{name}").json() for api in (source, target))
    assert there["schema"]["schema"] == here["schema"]["schema"]


def test_events_without_metadata_are_copied(run_mirror, source, target):
    """Events of the category `undefined` are copied byte by byte. (M2)"""
    name = create_event_type(source)["name"]
    source.post(f"/event-types/{name}/events", json=[{"n": 1}, {"n": 2}, {"n": 1}]).raise_for_status()

    assert run_mirror(name, "--once").code == 0
    assert numbers_by_partition(target, name) == {"0": [1, 2, 1]}


def test_numbers_keep_their_digits():
    """The mirror leaves out members that a publisher may not set; all other values stay as they were written. (M2)"""
    metadata = b'{"eid":"e","occurred_at":"o","received_at":"r","partition":"3","version":"1.0.0","published_by":"p"}'
    event = b'{"metadata":' + metadata + b',"price":1.10000000000000000001}'

    def copy_for(strategy):
        return event_for_target(event, {"category": "business", "partition_strategy": strategy})

    assert copy_for("hash") == b'{"metadata":{"eid":"e","occurred_at":"o"},"price":1.10000000000000000001}'
    assert b'"partition":"3"' in copy_for("user_defined")


def test_a_changed_schema_and_new_partitions_follow(run_mirror, source, target):
    """When the source gets another schema or more partitions, the mirror adds them to the target before the events.
    (M1)
    """
    name = create(source, schema={"type": "object", "properties": {"n": {"type": "number"}, "key": {"type": "string"}}})
    publish(source, name, [1])
    assert run_mirror(name, "--once").code == 0
    properties = {"n": {"type": "number"}, "key": {"type": "string"}, "more": {"type": "string"}}
    change_schema(source, name, {"type": "object", "properties": properties})
    assert source.put(f"/event-types/{name}/partition-count", json={"partition_count": 3}).status_code == 204

    assert run_mirror(name, "--once").code == 0

    assert json.loads(target.get(f"/event-types/{name}").json()["schema"]["schema"])["properties"] == properties
    assert len(target.get(f"/event-types/{name}/partitions").json()) == 3


def test_a_killed_mirror_repeats_and_counts(run_mirror, source, target, tmp_path):
    """After a kill, the mirror publishes the events after its last saved state again, and `--verify` counts
    them. (M4)
    """
    name = create(source)
    publish(source, name, range(10))
    run_mirror(name, "--once")
    saved = (tmp_path / "state.json").read_bytes()
    publish(source, name, range(10, 15))
    run_mirror(name, "--once")
    (tmp_path / "state.json").write_bytes(saved)

    assert run_mirror(name, "--verify").out == f"{name}: 15 events, 5 stored more than once, 0 of 15 minutes differ\n"
    assert numbers_by_partition(target, name) == {"0": [*range(15), *range(10, 15)]}


def test_a_killed_mirror_with_deduplication_repeats_nothing(run_mirror, source, target, tmp_path):
    """With `--deduplicate`, the target has each event once, however often the mirror is killed. (M4)"""
    name = create(source)
    publish(source, name, range(10))
    run_mirror(name, "--once", "--deduplicate")
    (tmp_path / "state.json").unlink()

    run_mirror(name, "--once", "--deduplicate")

    assert numbers_by_partition(target, name) == {"0": [*range(10)]}


def test_differences_are_found(run_mirror, source, target):
    """`--verify` finds an event that only one broker has, with its partition and minute. (M5)"""
    name = create(source)
    publish(source, name, range(5))
    run_mirror(name, "--once")
    publish(target, name, [66])

    verified = run_mirror(name, "--verify")

    assert verified.code == 1
    assert verified.out == (
        f"{name}: 5 events, 0 stored more than once, 1 of 6 minutes differ\n"
        "  partition 0, 2026-11-27T10:06: 0 there, 1 here\n"
    )


def test_verifying_does_not_mind_events_that_come_meanwhile(run_mirror, source):
    """`--verify` compares only copied events, so publishers may continue in the source. (M5)"""
    name = create_keyed(source, 2)
    done = threading.Event()

    def publish_until_done():
        number = 0
        while not done.is_set():
            publish(source, name, range(number, number + 20))
            number += 20
            done.wait(0.005)

    publisher = threading.Thread(target=publish_until_done)
    publisher.start()
    try:
        verified = [run_mirror(name, "--verify") for _ in range(3)]
    finally:
        done.set()
        publisher.join()
    assert [(each.code, "0 stored more than once, 0 of" in each.out) for each in verified] == [(0, True)] * 3


def change_schema(api, name, schema):
    definition = api.get(f"/event-types/{name}").json()
    definition["schema"]["schema"] = json.dumps(schema)
    assert api.put(f"/event-types/{name}", json=definition).status_code == 200


def consume(api, subscription, count):
    """Consume and commit this many events, and leave the subscription."""
    with Consumer(api, subscription, batch_limit=1, stream_limit=count, batch_flush_timeout=1) as stream:
        numbers = [each["n"] for each in stream.consumed(count)]
        stream.rest()
    return numbers


@pytest.mark.parametrize(("committed", "batch_events"), [(0, 500), (17, 500), (17, 2), (17, 1), (40, 3)])
def test_a_subscription_moves_without_a_lost_or_doubled_event(
    run_mirror, source, target, monkeypatch, committed, batch_events
):
    """A moved subscription continues with the first uncommitted event of each partition. (M6)"""
    monkeypatch.setattr(events, "BATCH_EVENTS", batch_events)
    name = create_keyed(source)
    subscription = create_subscription(source, name, read_from="begin")
    publish(source, name, range(30))
    run_mirror(name, "--once")
    publish(source, name, range(30, 40))
    before = consume(source, subscription, committed) if committed else []

    moved = run_mirror(name, "--move", subscription["id"])
    publish(source, name, range(40, 50))
    run_mirror(name, "--once")

    assert moved.code == 0, moved.err
    assert f"{40 - committed} event" in moved.err
    assert "and 0 come again" in moved.err
    there = target.get(f"/subscriptions/{moved.out.strip()}").json()
    assert there["consumer_group"] == subscription["consumer_group"]
    assert sorted(before + consume(target, there, 50 - committed)) == list(range(50))


def test_a_subscription_that_was_never_consumed_begins_as_it_says(run_mirror, source, target):
    """In a moved subscription, a partition without a committed cursor begins at its end, or at the cursor that the
    subscription was created with. (M6)
    """
    name = create(source)
    publish(source, name, range(5))
    at_end = create_subscription(source, name, read_from="end")
    cursor = {"event_type": name, "partition": "0", "offset": "001-0001-000000000000000002"}
    at_cursor = create_subscription(source, name, read_from="cursors", initial_cursors=[cursor])

    first, second = (run_mirror(name, "--move", each["id"]) for each in (at_end, at_cursor))

    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert "2 events wait there, and 0 come again" in second.err
    assert consume(target, {"id": second.out.strip()}, 2) == [3, 4]
    publish(source, name, [5])
    with Consumer(target, {"id": first.out.strip()}, batch_limit=1, stream_limit=1) as stream:
        until(lambda: stream.status == 200)
        run_mirror(name, "--once")
        assert [each["n"] for each in stream.consumed(1)] == [5]


@pytest.mark.parametrize("batch_events", [1, 500])
def test_a_subscription_to_random_partitions_loses_nothing(run_mirror, source, target, monkeypatch, batch_events):
    """If partitions are chosen at random, no event is lost; repeated events are counted. (M6)"""
    monkeypatch.setattr(events, "BATCH_EVENTS", batch_events)
    name = create(source, 3)
    subscription = create_subscription(source, name, read_from="begin")
    publish(source, name, range(30))
    run_mirror(name, "--once")
    before = consume(source, subscription, 12)

    moved = run_mirror(name, "--move", subscription["id"])

    doubled = int(moved.err.rpartition("and ")[2].split()[0])
    there = target.get(f"/subscriptions/{moved.out.strip()}").json()
    after = consume(target, there, 18 + doubled)
    assert set(before + after) == set(range(30))


def test_a_subscription_that_is_consumed_stays(run_mirror, source):
    """As long as a client consumes a subscription, it does not move. (M6)"""
    name = create(source)
    subscription = create_subscription(source, name, read_from="begin")
    publish(source, name, range(3))

    with Consumer(source, subscription, batch_limit=1) as stream:
        stream.batch()
        moved = run_mirror(name, "--move", subscription["id"])

    assert moved.code == 3
    assert "stop its consumers first" in moved.err


def test_an_event_that_the_target_refuses_stops_its_event_type_only(run_mirror, source, target):
    """The mirror names a refused event, and no later event overtakes it. Other event types continue, and so does
    this one once the target accepts the event. (M7)
    """
    prefix = a_name()
    bad, good = (create(source, name=f"{prefix}.{each}", compatibility_mode="none") for each in ("a", "b"))
    for name in (bad, good):
        publish(source, name, range(5))
    change_schema(source, bad, {"properties": {"n": {"maximum": 2}}})

    first = run_mirror(f"{prefix}.*", "--once")

    assert first.code == 7
    assert f"The target refuses event 4 of the 5 up to offset 001-0001-000000000000000004 in partition 0 of {bad}" in (
        first.err
    )
    assert numbers_by_partition(target, good) == {"0": [0, 1, 2, 3, 4]}
    assert numbers_by_partition(target, bad) == {"0": []}
    change_schema(source, bad, {})
    assert run_mirror(f"{prefix}.*", "--once").code == 0
    assert numbers_by_partition(target, bad) == {"0": [0, 1, 2, 3, 4]}


def test_the_state_belongs_to_two_brokers(run_mirror, run, source, target, tmp_path):
    """A mirror refuses the state of another mirror, and a state that another mirror is using. (M8)"""
    name = create(source)
    run_mirror(name, "--once")
    swapped = ["--from", str(target.base_url), "--to", str(source.base_url), "--state", str(tmp_path / "state.json")]

    done = run("mirror", *swapped, "--once")

    assert done.code == 2
    assert "choose another --state" in done.err
    (tmp_path / "state.json").write_text("{}")
    assert run_mirror(name, "--once").code == 2
    same = ["--from", str(source.base_url), "--to", str(source.base_url)]
    assert "the same broker" in run("mirror", *same).err


def test_no_token_reaches_another_broker(run_mirror, source, monkeypatch):
    """`NAKADI_TOKEN` belongs to one broker, so the mirror sends it to neither; each broker's context has its token.
    (M8)
    """
    name = create(source)
    monkeypatch.setenv("NAKADI_TOKEN", "never\nsent")

    assert run_mirror(name, "--once").code == 0


def copied_events(state, name):
    return json.loads(state.read_text())["event_types"][name]["copied"]


def test_the_mirror_copies_new_events_until_it_is_interrupted(source, target, tmp_path):
    """Without `--once`, the mirror copies new events until Ctrl-C. (M3)"""
    name = create(source)
    state = tmp_path / "state.json"
    places = ["--from", str(source.base_url), "--to", str(target.base_url), "--state", str(state)]
    command = [sys.executable, "-m", "nakadi_cli", "mirror", *places, "--event-types", name]
    with run_process(command, ROOT_ENVIRONMENT) as process:
        until(lambda: target.get(f"/event-types/{name}").status_code == 200)
        publish(source, name, range(3))
        until(lambda: numbers_by_partition(target, name) == {"0": [0, 1, 2]})
        publish(source, name, range(3, 5))
        until(lambda: numbers_by_partition(target, name) == {"0": [0, 1, 2, 3, 4]})
        # The target has stored the events, but the mirror may not have read its answer yet.
        until(lambda: copied_events(state, name) == 5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)

    assert (process.returncode, said.strip()) == (-signal.SIGINT, "")
    assert copied_events(state, name) == 5


def test_a_partition_is_read_to_its_end_though_it_seems_to_have_nothing_more(run_mirror, source, target, monkeypatch):
    """The mirror reads a partition up to its newest offset, because a stream may pause for a moment before it
    continues. (M3)
    """
    name = create_keyed(source)
    publish(source, name, range(40))
    read, turns = events._read_once, []

    def read_in_small_parts(*arguments):
        turns.append(1)
        return itertools.islice(read(*arguments), len(turns) % 3)

    monkeypatch.setattr(events, "_read_once", read_in_small_parts)

    assert run_mirror(name, "--once").err == "Copied 40 events of 1 event type.\n"
    assert numbers_by_partition(target, name) == numbers_by_partition(source, name)


def test_events_that_do_not_arrive_are_an_error(run_mirror, source, monkeypatch):
    """If a broker does not send the events that it claims to have, the copy is incomplete, and the mirror fails.
    (M3)
    """
    name = create(source)
    publish(source, name, range(3))
    monkeypatch.setattr(events, "_read_once", lambda *_: ())

    done = run_mirror(name, "--once")

    assert done.code == 7
    assert "Partition 0 of" in done.err
    assert "which do not arrive" in done.err


def test_all_versions_of_a_schema_are_copied_in_their_order(run_mirror, source, target):
    """The target has each version of the source's schema, with the same numbers, and the mirror adds later versions.
    (M1, M5)
    """
    name = create(source, schema={"type": "object", "properties": {"n": {"type": "number"}, "key": {"type": "string"}}})
    shape = {"n": {"type": "number"}, "key": {"type": "string"}}
    for number in range(3):
        shape[f"more{number}"] = {"type": "string"}
        change_schema(source, name, {"type": "object", "properties": dict(shape)})
        if number == 1:
            assert run_mirror(name, "--once").code == 0

    verified = run_mirror(name, "--verify")

    assert verified.code == 0, verified.out + verified.err
    assert schema_versions(target, name) == schema_versions(source, name)
    assert len(schema_versions(source, name)) == 4


def schema_versions(api, name):
    return [
        (each["version"], each["type"], json.loads(each["schema"]))
        for each in api.get(f"/event-types/{name}/schemas").json()["items"]
    ]


def test_a_version_that_the_target_refuses_is_left_out(run_mirror, source):
    """If the target refuses a version of the schema, the mirror reports it and leaves it out; `--verify` names it.
    (M1, M5)
    """
    name = create(source, compatibility_mode="none", schema={"properties": {"n": {"type": "number"}}})
    change_schema(source, name, {"properties": {"n": {"type": "string"}}})
    change_schema(source, name, {"properties": {"n": {"type": "number"}, "key": {"type": "string"}}})
    definition = source.get(f"/event-types/{name}").json()
    source.put(f"/event-types/{name}", json=definition | {"compatibility_mode": "forward"}).raise_for_status()

    done = run_mirror(name, "--once")

    assert done.code == 0, done.err
    assert f"{name}: version 2.0.0 of its schema is left out: " in done.err
    verified = run_mirror(name, "--verify")
    assert verified.code == 1
    assert "  version 2.0.0 of the schema is not there\n" in verified.out


def create_compacted(api):
    return create(api, cleanup_policy="compact")


def publish_state(api, name, key, n, path="events"):
    metadata = {
        "eid": str(uuid4()),
        "occurred_at": "2026-11-27T10:00:00Z",
        "partition_compaction_key": key,
    }
    answer = api.post(f"/event-types/{name}/{path}", json=[{"metadata": metadata, "n": n}])
    assert answer.status_code == 200, answer.text


@pytest.fixture
def compact_source_or_target(two_brokers, monkeypatch):
    """A function that makes the source or the target compact an event type at once."""
    monkeypatch.setattr(events, "EMPTY_READS_OF_COMPACTED", 1)

    def compact(name, which=0):
        broker = two_brokers[which]
        [event_type] = [each for each in broker.services.event_types.all() if each.name == name]
        now = broker.services.clock.now() + timedelta(seconds=1)
        broker.log.compact(event_type.timeline.topic, 0, stored_before=now, tombstones_before=now)

    return compact


def test_keys_that_the_source_has_removed_are_deleted(run_mirror, source, target, compact_source_or_target):
    """Once the source has compacted a deletion, `--tombstones` deletes the key in the target, and nothing else. (M9)"""
    name = create_compacted(source)
    for key, n in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        publish_state(source, name, key, n)
    assert run_mirror(name, "--once").code == 0
    publish_state(source, name, "b", 0, "deleted-events")
    publish_state(source, name, "a", 5)
    kept = run_mirror(name, "--tombstones")
    assert f"{name}: deleted 0 keys that the source has removed." in kept.err
    compact_source_or_target(name)

    done = run_mirror(name, "--tombstones")

    assert (done.code, f"{name}: deleted 1 key that the source has removed." in done.err) == (0, True), done.err
    compact_source_or_target(name, 1)
    assert state_by_key(target, name) == state_by_key(source, name) == {"a": 5, "c": 4}
    verified = run_mirror(name, "--verify")
    assert verified.out.startswith(f"{name}: 2 events, "), verified.out
    assert verified.code == 0


def state_by_key(api, name):
    """The current events of a compacted event type, by key."""
    cursors = json.dumps([{"partition": "0", "offset": "BEGIN"}])
    answer = api.get(
        f"/event-types/{name}/events",
        params={"stream_timeout": 1, "batch_limit": 100, "batch_flush_timeout": 1},
        headers={"X-Nakadi-Cursors": cursors},
    )
    events = [each for line in answer.text.splitlines() for each in json.loads(line).get("events", [])]
    return {each["metadata"]["partition_compaction_key"]: each["n"] for each in events}


def test_a_compacted_event_type_is_compared_by_its_newest_events(run_mirror, source, compact_source_or_target):
    """`--verify` compares the newest event of each key, because brokers compact at different times. (M5)"""
    name = create_compacted(source)
    for key, n in (("a", 1), ("b", 2), ("a", 3)):
        publish_state(source, name, key, n)
    run_mirror(name, "--once")
    compact_source_or_target(name)

    verified = run_mirror(name, "--verify")

    assert (verified.code, verified.out) == (0, f"{name}: 2 events, 0 stored more than once, 0 of 1 minute differ\n")


EID = "00000000-0000-4000-8000-0000000000{:02d}"


def publish_avro(api, name, schema, *orders, version="1.0.0", **metadata):
    envelopes = [
        an_envelope(name, encode(schema, order), eid=EID.format(n), version=version, **metadata) for n, order in orders
    ]
    answer = api.post(
        f"/event-types/{name}/events",
        content=a_batch(*envelopes),
        headers={"Content-Type": "application/avro-binary"},
    )
    assert answer.status_code == 200, answer.text


def read_avro(api, name, count):
    """The payloads and schema versions of the events, as a consumer of Avro gets them."""
    subscription = create_subscription(api, name, read_from="begin")
    answer = api.get(
        f"/subscriptions/{subscription['id']}/events",
        params={"stream_limit": count, "batch_limit": count, "batch_flush_timeout": 1, "commit_timeout": 1},
        headers={"Accept": "application/avro-binary"},
    )
    batches = read_batches(answer.content)
    return {
        each["metadata"]["eid"]: (each["payload"], each["metadata"]["version"])
        for batch in batches
        for each in batch["events"]
    }


LATER_ORDER = a_record(
    a_field("id"),
    a_field("lines", {"type": "array", "items": "int"}),
    a_field("note", ["null", "string"], default=None),
)
KIND = {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}
PRICED = a_record(a_field("id"), a_field("price", a_decimal(30, 2)), a_field("kind", ["string", KIND]))


def test_events_in_avro_are_copied_byte_by_byte(run_mirror, source, target):
    """Events in Avro keep their payload and schema version, for all versions; the mirror continues where it stopped,
    and compares the events. (M1, M3, M5, M10)
    """
    name = create_event_type(source, a_business_definition() | {"schema": schema_draft()})["name"]
    publish_avro(source, name, ORDER, (1, AN_ORDER), (2, {"id": "", "lines": []}))
    assert run_mirror(name, "--once").err == "Copied 2 events of 1 event type.\n"
    definition = source.get(f"/event-types/{name}").json()
    source.put(f"/event-types/{name}", json=definition | {"schema": schema_draft(LATER_ORDER)}).raise_for_status()
    [latest, _] = schema_versions(source, name)
    publish_avro(source, name, LATER_ORDER, (3, {"id": "x", "lines": [1], "note": "n"}), version=latest[0])
    publish_avro(source, name, ORDER, (4, AN_ORDER))

    verified = run_mirror(name, "--verify")

    assert verified.code == 0, verified.out + verified.err
    assert schema_versions(target, name) == schema_versions(source, name)
    assert read_avro(target, name, 4) == read_avro(source, name, 4)


def test_payloads_that_json_does_not_say_all_of_are_copied(run_mirror, source, target):
    """If the JSON form of an event cannot express the Avro payload, it also has the payload's bytes, and the mirror
    publishes these. (M10)
    """
    name = create_event_type(source, a_business_definition() | {"schema": schema_draft(PRICED)})["name"]
    orders = [
        {"id": "a", "price": Decimal("12345678901234567890.12"), "kind": "NEW"},
        {"id": "b", "price": Decimal("0.50"), "kind": ("shop.Kind", "NEW")},
    ]
    publish_avro(source, name, PRICED, *enumerate(orders))

    assert run_mirror(name, "--once").code == 0

    assert read_avro(target, name, 2) == read_avro(source, name, 2)


def test_events_from_before_an_avro_schema_stay_json(run_mirror, source, target):
    """If an event type had a JSON schema before its Avro schema, the mirror copies the events of both kinds, in order.
    (M10)
    """
    name = create(source)
    publish(source, name, [1, 2])
    definition = source.get(f"/event-types/{name}").json()
    source.put(f"/event-types/{name}", json=definition | {"schema": schema_draft()}).raise_for_status()
    [latest, _] = version_numbers(source, name)
    publish_avro(source, name, ORDER, (3, AN_ORDER), version=latest)
    publish(source, name, [4])

    done = run_mirror(name, "--verify")

    assert done.code == 0, done.out + done.err
    assert version_numbers(target, name) == version_numbers(source, name)
    there, here = (list(read_avro(api, name, 4).values()) for api in (source, target))
    assert here[2] == there[2]
    assert [json.loads(payload)["n"] for payload, _ in (*here[:2], here[3])] == [1, 2, 4]


def version_numbers(api, name):
    return [each["version"] for each in api.get(f"/event-types/{name}/schemas").json()["items"]]


class ScriptedTarget:
    """A target that gives these answers, one after the other."""

    def __init__(self, *answers):
        self._answers = list(answers)

    def attempt(self, _request):
        return self._answers.pop(0)

    def items(self, _where):
        return [{"version": "1.0.0", "type": "avro_schema", "schema": json.dumps(ORDER)}]


def items(*statuses):
    return json.dumps([{"publishing_status": each, "detail": f"it {each}"} for each in statuses]).encode()


@pytest.mark.parametrize(
    ("answers", "problem", "pauses"),
    [
        ([Answer(200)], None, 0),
        ([Answer(503), Answer(429), NoAnswer("gone"), Answer(200)], None, 3),
        ([Answer(207, items("aborted", "failed"))], (1, "it failed"), 0),
        ([Answer(207, items("submitted", "failed")), Answer(200)], None, 1),
        ([Answer(422, items("failed", "aborted"))], (0, "it failed"), 0),
    ],
)
def test_a_batch_in_avro_is_sent_until_it_is_stored(answers, problem, pauses):
    """The mirror retries while the target is busy; an event that the target rejects for good stops the event type.
    (M7, M10)
    """
    waited = []
    broker = ScriptedTarget(*answers)
    definition = {"name": "n", "category": "business"}
    destination = AvroDestination(broker, broker, definition, waited.append)
    event = {"metadata": {"eid": EID.format(1), "occurred_at": "2026-11-27T10:00:00Z", "version": "1.0.0"}, **AN_ORDER}

    assert destination.publish([json.dumps(event).encode()] * 2) == problem
    assert len(waited) == pauses


def test_a_target_that_stays_busy_is_an_error():
    """If the target stays busy, the mirror fails after twenty attempts, and reports why it makes no progress. (M7)"""
    broker = ScriptedTarget(*[Answer(503)] * 21)
    destination = AvroDestination(broker, broker, {"name": "n", "category": "business"}, lambda _: None)
    event = {"metadata": {"eid": EID.format(1), "occurred_at": "2026-11-27T10:00:00Z", "version": "1.0.0"}, **AN_ORDER}

    with pytest.raises(NotAnswered):
        destination.publish([json.dumps(event).encode()])
