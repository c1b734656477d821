"""The drill: a stage is backed up while it works, everything is deleted and restored elsewhere, and its streams
continue.
"""

import json
import re
import subprocess
import sys

import httpx
import pytest

from infra.laptop.laptop import Laptop
from nakadi.local.backups import backup, restore
from nakadi.local.stage_backups import stage as stage_module
from tests.support.api import a_business_definition, create_event_type
from tests.support.consumer import Consumer, owners
from tests.support.environment import plain_environment
from tests.support.laptop import FAST_SETTINGS, OPEN, STRICTNESS
from tests.support.patience import PATIENCE, until
from tests.support.processes import ROOT_ENVIRONMENT
from tests.support.stages import FIRST, NAME, SECOND, EmulatedStage, a_cloud
from tests.support.subscriptions import committed_offsets, create_subscription, offset_text


@pytest.fixture
def emulated_aws():
    with a_cloud():
        yield


def publish(api, name, *numbers):
    api.post(f"/event-types/{name}/events", json=[{"n": n} for n in numbers]).raise_for_status()


def newest(api, name):
    [partition] = api.get(f"/event-types/{name}/partitions").json()
    return partition["newest_available_offset"]


def consume(api, subscription, count):
    """Consume and commit this many events, and leave the subscription."""
    with Consumer(api, subscription, batch_limit=1, stream_limit=count, batch_flush_timeout=1) as stream:
        found = [each["n"] for each in stream.consumed(count)]
        stream.rest()
    until(lambda: set(owners(api, subscription).values()) == {""})
    return found


@pytest.fixture
def wait(monkeypatch):
    """A function that sets what happens while a backup waits for the log indexer."""
    return lambda publish_and_index: monkeypatch.setattr(
        stage_module.Stage.__init__, "__defaults__", (lambda _: publish_and_index(),)
    )


@pytest.mark.usefixtures("emulated_aws")
@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_everything_is_deleted_and_restored_elsewhere_and_streams_go_on(tmp_path, capsys, wait, kind):
    """In another region, no event is missing that was acknowledged before the backup began, and a stream continues
    after the cursor that was committed before it, with events that are published there. (B15, B19, B21)
    """
    first = EmulatedStage(FIRST)
    place = str(tmp_path / "backups") if kind == "folder" else first.create_bucket("backups")
    with first.broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        name = create_event_type(api)["name"]
        subscription = create_subscription(api, name, read_from="begin")
        publish(api, name, *range(7))
        first.index()
        publish(api, name, *range(7, 10))
        assert consume(api, subscription, 4) == [0, 1, 2, 3]

        def publish_and_index():
            publish(api, name, "later")
            first.index()

        wait(publish_and_index)
        assert backup.main([place, "--stage", NAME, "--region", FIRST]) == 0
    assert backup.main([place, "--stage", NAME, "--verify"]) == 0
    first.delete()
    second = EmulatedStage(SECOND, shards=1)
    capsys.readouterr()

    assert restore.main([place, "--stage", NAME, "--region", SECOND]) == 0

    said = capsys.readouterr().out
    assert re.search(r"acknowledged before \S+\. What was published or committed later is lost\.", said)
    with second.broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        assert newest(api, name) == offset_text(10)
        assert committed_offsets(api, subscription) == {(name, "0"): offset_text(3)}
        publish(api, name, "new")
        assert newest(api, name) == offset_text(11)
        assert consume(api, subscription, 8) == [4, 5, 6, 7, 8, 9, "later", "new"]
        second.index()
        publish(api, name, "newer")
    with second.broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        assert newest(api, name) == offset_text(12)
        other = create_subscription(api, name, read_from="begin", consumer_group="other")
        assert consume(api, other, 13) == [*range(10), "later", "new", "newer"]


@pytest.mark.usefixtures("emulated_aws")
def test_what_an_event_type_went_through_comes_along(tmp_path, wait):
    """Several timelines, more partitions, removed events and remembered ids are restored unchanged. (B15, B21)"""
    first = EmulatedStage(FIRST)
    wait(first.index)
    event = {"metadata": {"eid": "00000000-0000-4000-8000-000000000001", "occurred_at": "2026-11-27T10:00:00Z"}}
    with first.broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        name = create_event_type(api)["name"]
        publish(api, name, 1, 2)
        moved = api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"})
        assert moved.status_code == 201, moved.text
        publish(api, name, 3)
        api.put(f"/event-types/{name}/partition-count", json={"partition_count": 3}).raise_for_status()
        once = create_event_type(api, a_business_definition(deduplication={"window_seconds": 3600}))["name"]
        api.post(f"/event-types/{once}/events", json=[event]).raise_for_status()
        before = [api.get(f"/event-types/{each}/partitions").json() for each in (name, once)]
        assert backup.main([str(tmp_path), "--stage", NAME, "--region", FIRST]) == 0
    first.delete()
    second = EmulatedStage(SECOND)

    assert restore.main([str(tmp_path), "--stage", NAME, "--region", SECOND]) == 0

    with second.broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        assert [api.get(f"/event-types/{each}/partitions").json() for each in (name, once)] == before
        subscription = create_subscription(api, name, read_from="begin")
        assert consume(api, subscription, 3) == [1, 2, 3]
        assert api.post(f"/event-types/{once}/events", json=[event]).status_code == 200
        assert newest(api, once) == offset_text(0)


def run_nakadi(cloud, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "nakadi_cli", *arguments],
        env=plain_environment(PYTHONPATH=ROOT_ENVIRONMENT["PYTHONPATH"], **cloud.environment()),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long("tests/e2e/test_stage_backup.py::test_everything_is_deleted_and_restored_elsewhere_and_streams_go_on")
def test_the_drill_on_the_deployment(tmp_path):
    """The drill works between two accounts with the whole deployment, whose log indexer runs meanwhile. (B15, B16, B19,
    B21)
    """
    place = str(tmp_path / "backups")
    with Laptop(tmp_path / "first", FAST_SETTINGS, STRICTNESS) as laptop:
        front = laptop.front(authorizes=False, settings=OPEN)
        stage, region = laptop.deployment.name, laptop.cloud.environment()["AWS_REGION"]
        with httpx.Client(base_url=front.url, timeout=PATIENCE) as api:
            name = create_event_type(api)["name"]
            subscription = create_subscription(api, name, read_from="begin")
            publish(api, name, *range(10))
            assert consume(api, subscription, 4) == [0, 1, 2, 3]
            said = run_nakadi(laptop.cloud, "backup", place, "--stage", stage, "--region", region)
            assert re.match(r"The backup \S+ is complete: ", said)
            run_nakadi(laptop.cloud, "backup", place, "--stage", stage, "--verify")
    with Laptop(tmp_path / "second", FAST_SETTINGS, STRICTNESS) as laptop:
        run_nakadi(laptop.cloud, "restore", place, "--stage", stage, "--region", region)
        front = laptop.front(authorizes=False, settings=OPEN)
        with httpx.Client(base_url=front.url, timeout=PATIENCE) as api:
            publish(api, name, "new")
            assert consume(api, subscription, 7) == [4, 5, 6, 7, 8, 9, "new"]
            assert json.loads(api.get(f"/subscriptions/{subscription['id']}").text)["event_types"] == [name]
