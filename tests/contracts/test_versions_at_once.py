"""Two versions of the broker at the same time, as during a deployment: with tables in DynamoDB and a stream in Kinesis,
emulated."""

import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest

from infra.laptop.cloud import Cloud
from nakadi.engines.dynamodb.tables import TABLES
from tests.support.api import a_business_definition, create_event_type
from tests.support.consumer import Consumer, owners
from tests.support.earlier_versions import VERSION_BEFORE, package_at
from tests.support.environment import plain_environment
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE, until
from tests.support.subscriptions import create_subscription

NAME = "rolling"

# The program needs the class that has started a broker since the first version.
SERVER = """
import sys
from nakadi.local import Broker

with Broker(**dict(each.split("=", 1) for each in sys.argv[1:])) as broker:
    print(broker.url, flush=True)
    sys.stdin.read()
"""

INDEXER = """
import sys
from nakadi.app.engines import open_log_index
from nakadi.engines.archive.stores import open_archive
from nakadi.engines.kinesis.opening import open_indexer

settings = dict(each.split("=", 1) for each in sys.argv[1:])
indexer = open_indexer(settings["event_log"], open_log_index(settings["registry"]), open_archive(settings["archive"]))
print(indexer.catch_up("shardId-000000000000").event_count)
"""


class SharedStores:
    """Tables, a stream with one shard and a bucket, which processes of any version use."""

    def __init__(self, cloud):
        self._variables = cloud.environment()
        region = self._variables["AWS_REGION"]
        for table in TABLES:
            cloud.client("dynamodb").create_table(**table.create_request(NAME))
        kinesis = cloud.client("kinesis")
        kinesis.create_stream(StreamName=NAME, ShardCount=1)
        kinesis.get_waiter("stream_exists").wait(StreamName=NAME, WaiterConfig={"Delay": 1})
        cloud.client("s3").create_bucket(Bucket=NAME, CreateBucketConfiguration={"LocationConstraint": region})
        tables = f"dynamodb://{NAME}?region={region}"
        self._settings = [
            *(f"{each}={tables}" for each in ("registry", "coordination", "log_index")),
            f"event_log=kinesis://{NAME}?region={region}&lease=0.05&poll=0.1&reads_per_second=10000",
            f"archive=s3://{NAME}/?region={region}",
        ]

    def command(self, program):
        return [sys.executable, "-c", program, *self._settings]

    def environment(self, package):
        return plain_environment(PYTHONPATH=str(package), **self._variables)

    @contextmanager
    def broker(self, package):
        with subprocess.Popen(
            self.command(SERVER),
            env=self.environment(package),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            url = process.stdout.readline().strip()
            assert url, "the broker did not start"
            with httpx.Client(base_url=url, timeout=PATIENCE) as api:
                yield api
            process.stdin.close()

    def index(self, package):
        done = subprocess.run(
            self.command(INDEXER),
            env=self.environment(package),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)


@pytest.fixture
def versions(tmp_path):
    """The shared stores, and the folders of the package of the earlier and of this version."""
    before = package_at(VERSION_BEFORE, tmp_path / "before")
    logs = tmp_path / "logs"
    logs.mkdir()
    with Cloud(logs) as cloud:
        yield SharedStores(cloud), before, ROOT / "layers/nakadi/python"


def publish(api, name, *numbers):
    events = [
        {
            "metadata": {"eid": f"00000000-0000-4000-8000-{n:012d}", "occurred_at": "2026-11-27T10:00:00Z"},
            "n": n,
        }
        for n in numbers
    ]
    answer = api.post(f"/event-types/{name}/events", json=events)
    assert answer.status_code == 200, answer.text


def consume(api, subscription, count):
    with Consumer(api, subscription, batch_limit=1, stream_limit=count, batch_flush_timeout=1) as stream:
        found = [each["n"] for each in stream.consumed(count)]
        stream.rest()
    until(lambda: set(owners(api, subscription).values()) == {""})
    return found


@pytest.mark.long("tests/contracts/test_stored_documents.py::test_what_is_stored_keeps_its_names_and_its_form")
def test_two_versions_share_event_types_events_and_subscriptions(versions):
    """While a version is rolled out, each version reads what the other has written: event types, schemas, events in the
    stream and in the archive, cursors, ids of events and assignments."""
    stores, before, now = versions
    with stores.broker(before) as old, stores.broker(now) as new:
        one = dict.fromkeys(("messages_per_minute", "message_size", "read_parallelism", "write_parallelism"), 1)
        definition = a_business_definition(default_statistic=one, deduplication={"window_seconds": 3600})
        name = create_event_type(old, definition)["name"]
        subscription = create_subscription(old, name, read_from="begin")
        for number, api in enumerate((old, new, old, new)):
            publish(api, name, 2 * number, 2 * number + 1)
        publish(new, name, 0)
        publish(old, name, 3)
        assert consume(new, subscription, 3) == [0, 1, 2]
        assert consume(old, subscription, 3) == [3, 4, 5]
        assert stores.index(now) == 8
        changed = old.get(f"/event-types/{name}").json()
        changed["annotations"] = {"nakadi.io/of": "now"}
        new.put(f"/event-types/{name}", json=changed).raise_for_status()
        until(lambda: old.get(f"/event-types/{name}").json()["annotations"] == {"nakadi.io/of": "now"})
        later = create_subscription(new, name, read_from="begin", consumer_group="later")
        publish(old, name, 8)
        assert consume(old, later, 9) == [*range(9)]
        assert consume(new, subscription, 3) == [6, 7, 8]
    with stores.broker(before) as back:
        publish(back, name, 9)
        assert consume(back, subscription, 1) == [9]
