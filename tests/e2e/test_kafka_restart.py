"""A temporary outage of Kafka, as clients of the broker see it."""

import json
import signal
import sys

import httpx
import pytest

from nakadi.local import Broker
from tests.e2e.test_local_program import Program
from tests.support import kafka
from tests.support.api import create_event_type, problem
from tests.support.consumer import Consumer
from tests.support.open_stream import OpenStream
from tests.support.patience import PATIENCE, until
from tests.support.processes import ROOT, ROOT_ENVIRONMENT, run_process


class Publisher:
    """Publishes each number once, and remembers which were acknowledged."""

    def __init__(self, api, name):
        self._api, self._name = api, name
        self.acknowledged, self.tried = [], 0

    def publish(self):
        self.tried += 1
        answer = self._api.post(f"/event-types/{self._name}/events", json=[{"number": self.tried}])
        if answer.status_code == 200:
            self.acknowledged.append(self.tried)
        return answer

    def is_acknowledged(self):
        return self.publish().status_code == 200


@pytest.mark.long("tests/e2e/test_faults.py::test_a_log_that_is_stopped_is_reported_as_such")
def test_publishers_are_refused_and_streams_go_on(tmp_path, record_property):
    """While Kafka is away, publishing fails item by item and reads get 503, both in bounded time. Streams stay open,
    and deliver all acknowledged events, once and in order, when Kafka is back. (C29, P111)
    """
    with (
        kafka.a_server(tmp_path) as server,
        Broker(event_log=f"kafka://{server.address}?timeout=2") as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        name = create_event_type(api)["name"]
        application = {"owning_application": "tests", "event_types": [name]}
        subscription = api.post("/subscriptions", json=application | {"read_from": "begin"}).json()
        publisher = Publisher(api, name)
        assert publisher.publish().status_code == 200
        cursors = json.dumps([{"partition": "0", "offset": "BEGIN"}])
        path = f"/event-types/{name}/events?batch_flush_timeout=1"
        with (
            Consumer(api, subscription, batch_flush_timeout=1) as consumer,
            OpenStream(broker.url, path, {"X-Nakadi-Cursors": cursors}) as stream,
        ):
            numbers, seen = [consumer.consumed(1)[0]["number"]], []
            server.kill()
            answer = publisher.publish()
            assert answer.status_code == 207
            assert [each["publishing_status"] for each in answer.json()] == ["failed"]
            problem(api.get(f"/event-types/{name}/partitions"), 503)
            server.start()
            until(publisher.is_acknowledged)
            for _ in range(20):
                publisher.publish()
            until(publisher.is_acknowledged)
            while publisher.acknowledged[-1] not in numbers:
                numbers += [event["number"] for event in consumer.consumed(1)]
            while publisher.acknowledged[-1] not in seen:
                seen += [event["number"] for event in json.loads(stream.line()).get("events", ())]

    stored = len(set(seen) - set(publisher.acknowledged))
    record_property("figures", f"acknowledged {len(publisher.acknowledged)}, refused but stored {stored}")
    assert seen == numbers == sorted(set(numbers))
    assert set(publisher.acknowledged) <= set(seen)


@kafka.NOT_IN_EVERY_RUN
def test_the_program_with_a_kafka_of_its_own_keeps_what_it_was_given(tmp_path):
    """`make run ENGINE=kafka` starts a Kafka and a broker, ends both in order, and later continues with the existing
    data.
    """
    command = [sys.executable, "-m", "infra.laptop.kafka_local", "--port=0", "--data", str(tmp_path)]
    name = "kept.thing"
    for round_ in range(2):
        with run_process(command, ROOT_ENVIRONMENT, cwd=ROOT) as process:
            program = Program(process)
            with httpx.Client(base_url=program.url, timeout=PATIENCE) as api:
                if not round_:
                    create_event_type(api, name=name)
                assert api.post(f"/event-types/{name}/events", json=[{"number": round_}]).status_code == 200
                (partition,) = api.get(f"/event-types/{name}/partitions").json()
                assert int(partition["newest_available_offset"].rpartition("-")[2]) == round_
            assert program.end(signal.SIGTERM)[0] == 0
