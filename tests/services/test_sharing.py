"""Two streaming services share a subscription: on one DynamoDB, as on AWS, and on one data file."""

import signal
import threading
from contextlib import ExitStack, contextmanager
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from standardwebhooks import Webhook

from nakadi.local import Broker
from tests.support.api import create_event_type
from tests.support.aws import REGION
from tests.support.aws_targets import ACCOUNT, a_client, receive_all
from tests.support.consumer import Consumer, owners
from tests.support.dynamodb_service import CREDENTIALS, a_dynamodb
from tests.support.patience import PATIENCE, until
from tests.support.receiver import ON_LOOPBACK_VARIABLES, Receiver
from tests.support.streaming_service import run_service, variables
from tests.support.subscriptions import create_subscription, publish

FOUR = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 4, "write_parallelism": 4}


@contextmanager
def dynamodb_settings(folder):
    with a_dynamodb() as url:
        yield {"registry": url, "event_log": f"sqlite:///{folder / 'events.db'}"}


@contextmanager
def file_settings(folder):
    url = f"sqlite:///{folder / 'nakadi.db'}"
    yield {"registry": url, "event_log": url}


class DeliveryChecks:
    """Keeps the events that consumers have got and the commits, and checks each against the promises."""

    def __init__(self):
        self._lock = threading.Lock()
        self._committed = {}
        self.numbers = set()
        self.wrong = []

    def take(self, name, last, batch):
        """Check that offsets grow within a stream, and that no committed event comes again."""
        partition, events = batch["cursor"]["partition"], batch["events"]
        offset = batch["cursor"]["offset"]
        with self._lock:
            if offset <= max(last.get(partition, ""), self._committed.get(partition, "")):
                self.wrong.append((name, partition, offset))
            self.numbers |= {each["n"] for each in events}
        last[partition] = offset

    def record_commit(self, batch):
        cursor = batch["cursor"]
        with self._lock:
            self._committed[cursor["partition"]] = max(self._committed.get(cursor["partition"], ""), cursor["offset"])


class ConsumingThread:
    """A consumer that reads from one service, and commits through a server that all consumers share, until its
    stream ends.
    """

    def __init__(self, service, api, subscription, delivered):
        # Requests for streams go to one server, and commits to another.
        with httpx.Client(base_url=service.url, timeout=PATIENCE) as streams:
            self.consumer = Consumer(streams, subscription, batch_flush_timeout=1, batch_limit=5)
        self.consumer.api = api
        self._delivered = delivered
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self):
        last = {}
        try:
            while (batch := self.consumer.batch()) is not None:
                self._delivered.take(self.consumer.id, last, batch)
                if self.consumer.commit(batch).status_code == 204:
                    self._delivered.record_commit(batch)
        except (OSError, EOFError, ValueError):
            return  # its server was killed
        finally:
            self.consumer.close()

    def join(self):
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.mark.parametrize(
    ("place", "how"),
    [
        pytest.param(dynamodb_settings, signal.SIGKILL, id="dynamodb, killed", marks=pytest.mark.long),
        pytest.param(file_settings, signal.SIGTERM, id="file, stopped"),
    ],
)
def test_two_services_share_a_subscription(place, how, tmp_path):
    """Streams of two processes share the partitions; when one process is stopped or killed, the other gets all
    partitions. Every event comes, in the order of its partition, and no committed event comes again. (S169, S170,
    S198, S222, S224, S239, S312, S315)
    """
    delivered = DeliveryChecks()
    with ExitStack() as stack:
        settings = stack.enter_context(place(tmp_path))
        broker = stack.enter_context(Broker(**settings))
        api = stack.enter_context(httpx.Client(base_url=broker.url, timeout=PATIENCE))
        name = create_event_type(api, default_statistic=FOUR)["name"]
        subscription = create_subscription(api, name, read_from="begin")
        published = set()

        def publish(first, count):
            numbers = range(first, first + count)
            answer = api.post(f"/event-types/{name}/events", json=[{"n": number} for number in numbers])
            assert answer.status_code == 200, answer.text
            published.update(numbers)

        def count_partitions_per_owner():
            held = list(owners(api, subscription).values())
            return sorted(held.count(each) for each in set(held) - {""})

        environment = {**CREDENTIALS, **variables(settings)}
        publish(0, 100)
        one, two = (stack.enter_context(run_service(environment)) for _ in range(2))
        first = ConsumingThread(one, api, subscription, delivered)
        until(lambda: delivered.numbers == published)
        second = ConsumingThread(two, api, subscription, delivered)
        until(lambda: count_partitions_per_owner() == [2, 2])
        publish(100, 100)
        until(lambda: delivered.numbers == published)
        one.process.send_signal(how)
        publish(200, 100)
        until(lambda: owners(api, subscription) == {(name, str(each)): second.consumer.id for each in range(4)})
        until(lambda: delivered.numbers == published)
        first.join()
        two.end(signal.SIGTERM)
        second.join()
    assert delivered.wrong == []


@pytest.mark.long
def test_tasks_deliver_to_sinks_and_take_them_over(tmp_path):
    """KMS seals secrets. A task may deliver to a sink that was registered with another task, and takes over its
    sinks when that task is killed. (X5, X7, X31, X32, X47, X48)
    """
    with ExitStack() as stack:
        url = stack.enter_context(a_dynamodb())
        [endpoint] = parse_qs(urlsplit(url).query)["endpoint"]
        kms, sqs = (stack.enter_context(a_client(service, endpoint)) for service in ("kms", "sqs"))
        stores = {"registry": url, "event_log": f"sqlite:///{tmp_path / 'events.db'}"}
        sinks = {"sink_key": kms.create_key()["KeyMetadata"]["Arn"], "sink_targets": "arn:aws:sqs:*"}
        environment = {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": endpoint,
            **variables(stores, **sinks),
            **ON_LOOPBACK_VARIABLES,
        }
        # This broker has no key, so it does not deliver to sinks.
        events = stack.enter_context(httpx.Client(base_url=stack.enter_context(Broker(**stores)).url, timeout=PATIENCE))
        one, two = (stack.enter_context(run_service(environment, "--direct")) for _ in range(2))
        first, second = (stack.enter_context(httpx.Client(base_url=each.url, timeout=PATIENCE)) for each in (one, two))
        name = create_event_type(events)["name"]

        def register(sink):
            subscription = create_subscription(events, name, read_from="begin")
            answer = first.put(f"/subscriptions/{subscription['id']}/sink", json=sink)
            assert answer.status_code == 201, answer.text
            return f"/subscriptions/{subscription['id']}/sink", answer.json()

        receiver = stack.enter_context(Receiver())
        path, stored = register({"type": "http", "url": receiver.url})
        assert second.post(f"{path}/test").json()["status"] == 204
        [trial] = receiver.received
        assert Webhook(stored["secret"]).verify(trial.body, dict(trial.headers))["events"] == []

        queues = {}
        for number in range(5):
            queue = f"orders-{number}.fifo"
            queues[queue] = sqs.create_queue(QueueName=queue, Attributes={"FifoQueue": "true"})["QueueUrl"]
            register({"type": "sqs", "queue": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}"})
        found = {queue: [] for queue in queues}

        def all_have(count):
            for queue, queue_url in queues.items():
                found[queue] += [each["Body"] for each in receive_all(sqs, queue_url)]
            return all(len(each) == count for each in found.values()) and len(receiver.accepted) >= count

        publish(events, name, 2)
        until(lambda: all_have(2))
        one.process.kill()
        publish(events, name, 3)
        until(lambda: all_have(5))
        assert set(map(tuple, found.values())) == {tuple(f'{{"n":{number}}}' for number in (0, 1, 0, 1, 2))}
