"""What queues, topics and buses receive, and what follows from their answers."""

import asyncio
import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from nakadi.delivery.answers import Verdict
from nakadi.delivery.aws_calls import CallFailed
from nakadi.delivery.aws_clients import AwsClients
from nakadi.delivery.entry_sender import EntrySender
from nakadi.delivery.entry_services import ENTRY_SERVICES
from nakadi.delivery.targets import TargetRules
from nakadi.model.events import Record
from nakadi.model.sink import SinkFormat, SinkType
from tests.support.aws import REGION
from tests.support.aws_targets import ACCOUNT, a_client, aws_over_http, receive_all
from tests.support.chunks import a_chunk
from tests.support.clock import HandMovedClock
from tests.support.sinks import a_sink, an_attempt

FIFO = {"FifoQueue": "true"}


@contextmanager
def serve_errors(status, code):
    """The address of a server that answers each request with this error, or with something that is not an answer."""
    text = {None: b"<html>\xff", "{}": b"{}"}.get(code) or json.dumps({"__type": code, "message": "no"}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def endpoint():
    with aws_over_http() as address:
        yield address


@pytest.fixture(scope="module")
def sqs(endpoint):
    with a_client("sqs", endpoint) as client:
        yield client


@pytest.fixture(scope="module")
def clients(endpoint):
    assert endpoint  # the fixture puts it into an environment variable, which the client reads
    with closing(AwsClients()) as found:
        yield found


def events(*keys, start=0):
    records = [Record(json.dumps({"n": n}).encode(), key) for n, key in enumerate(keys, start)]
    return a_chunk(*records, start=start).run_from_offset(start)


def deliver(calls, sink, *runs, clock=None, timeout_seconds=30):
    async def attempt():
        service = ENTRY_SERVICES[sink.type]
        monotonic = (clock or HandMovedClock()).monotonic
        sender = EntrySender(service, TargetRules(("arn:*",)), lambda: calls, ThreadPoolExecutor(1), monotonic)
        try:
            return await sender.deliver(an_attempt(sink, *runs, timeout_seconds=timeout_seconds))
        finally:
            await sender.close()

    return asyncio.run(attempt())


def a_queue(sqs, name, **attributes):
    url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url, a_sink(SinkType.SQS, f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}")


def test_a_fifo_queue_gets_each_event_in_the_order_of_its_key(sqs, clients):
    """The group and the deduplication id follow from the event: an event that is sent again is not stored again. (X42,
    X43)"""
    url, sink = a_queue(sqs, "orders.fifo", **FIFO)
    batch = events("a", "b", "a", None, "ä" * 200)
    assert deliver(clients, sink, batch).verdict is Verdict.DELIVERED
    assert deliver(clients, sink, batch).verdict is Verdict.DELIVERED
    found = receive_all(sqs, url)
    groups = [each["Attributes"]["MessageGroupId"] for each in found]
    by_group = {}
    for group, each in zip(groups, found, strict=True):
        by_group.setdefault(group, []).append(json.loads(each["Body"])["n"])
    [hashed] = [each for each in by_group if len(each) == 64]
    assert by_group == {"a": [0, 2], "b": [1], "orders:0": [3], hashed: [4]}
    first = found[0]
    assert first["Attributes"]["MessageDeduplicationId"] == "a-subscription:orders:0:001-0001-000000000000000000"
    attributes = {name: each["StringValue"] for name, each in first["MessageAttributes"].items()}
    assert attributes == {"event_type": "orders", "partition": "0", "offset": "001-0001-000000000000000000"}


def test_two_subscriptions_may_share_a_fifo_queue(sqs, clients):
    """Each event arrives once for each of the two subscriptions: the queue does not deduplicate across subscriptions.
    (X43)
    """
    url, sink = a_queue(sqs, "shared.fifo", **FIFO)
    for each in ("first", "second", "first"):
        assert deliver(clients, replace(sink, subscription_id=each), events("a", "b")).verdict is Verdict.DELIVERED
    assert Counter(each["Body"] for each in receive_all(sqs, url)) == {'{"n": 0}': 2, '{"n": 1}': 2}


def test_a_deduplication_id_that_would_be_too_long_is_hashed(sqs, clients):
    """A deduplication id contains names that may be long; above the limit of SQS, its hash is sent instead. (X43)"""
    url, sink = a_queue(sqs, "long.fifo", **FIFO)
    for each in ("first", "second", "first"):
        named = replace(sink, subscription_id=each + "-" * 128)
        assert deliver(clients, named, events("a")).verdict is Verdict.DELIVERED
    ids = [each["Attributes"]["MessageDeduplicationId"] for each in receive_all(sqs, url)]
    assert len(ids) == len(set(ids)) == 2
    assert {len(each) for each in ids} == {64}


def test_a_standard_queue_gets_each_event_and_cloudevents_if_that_is_its_format(sqs, clients):
    """(X42)"""
    url, sink = a_queue(sqs, "plain")
    assert deliver(clients, sink, events(*[None] * 23)).verdict is Verdict.DELIVERED
    assert sorted(json.loads(each["Body"])["n"] for each in receive_all(sqs, url)) == list(range(23))
    deliver(clients, a_sink(SinkType.SQS, sink.target, SinkFormat.CLOUDEVENTS), events(None))
    [message] = receive_all(sqs, url)
    assert json.loads(message["Body"])["data"] == {"n": 0}


def test_a_trial_is_a_message_without_an_event(sqs, clients):
    """(X7)"""
    url, sink = a_queue(sqs, "trials.fifo", **FIFO)
    assert deliver(clients, sink).verdict is Verdict.DELIVERED
    [message] = receive_all(sqs, url)
    assert json.loads(message["Body"])["events"] == []
    assert message["Attributes"]["MessageGroupId"] == "nakadi.test"


def test_a_topic_gets_each_event(sqs, clients, endpoint):
    """(X42)"""
    url, queue = a_queue(sqs, "behind.fifo", **FIFO)
    with a_client("sns", endpoint) as sns:
        topic = sns.create_topic(Name="orders.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
        raw = {"RawMessageDelivery": "true"}
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.target, Attributes=raw)
        assert deliver(clients, a_sink(SinkType.SNS, topic), events("a", "a")).verdict is Verdict.DELIVERED
    assert [json.loads(each["Body"])["n"] for each in receive_all(sqs, url)] == [0, 1]


def test_a_bus_takes_events_and_one_that_is_missing_is_waited_for(clients, endpoint):
    """(X15, X44, X46)"""
    with a_client("events", endpoint) as eventbridge:
        bus = eventbridge.create_event_bus(Name="orders")["EventBusArn"]
    assert deliver(clients, a_sink(SinkType.EVENTBRIDGE, bus), events("a", "b")).verdict is Verdict.DELIVERED
    missing = bus.replace("orders", "nowhere")
    assert deliver(clients, a_sink(SinkType.EVENTBRIDGE, missing), events("a")).verdict is Verdict.LATER


def test_a_queue_that_is_missing_is_waited_for(clients):
    """(X15, X44)"""
    answer = deliver(clients, a_sink(SinkType.SQS, f"arn:aws:sqs:{REGION}:{ACCOUNT}:nowhere"), events("a", "b"))
    assert (answer.verdict, answer.delivered) == (Verdict.LATER, 0)
    assert "NonExistentQueue" in answer.text


# Tests with answers that moto never gives


class AnsweringQueue:
    """Plays the clients of a sender, and answers like a queue."""

    meta = SimpleNamespace(endpoint_url="https://sqs.example.org")

    def __init__(self, fail):
        self.sent = []
        self._fail = fail

    def call(self, _service, _region, _read_timeout, call):
        return call(self)

    def send_message_batch(self, **request):
        assert request["QueueUrl"] == f"https://sqs.example.org/{ACCOUNT}/orders.fifo"
        self.sent.append([int(each["Id"]) for each in request["Entries"]])
        failed = self._fail(self.sent[-1])
        return {
            "Successful": [{"Id": str(each)} for each in self.sent[-1] if each not in failed],
            "Failed": [{"Id": str(each), "Code": "X", "SenderFault": blamed} for each, blamed in failed.items()],
        }


ORDERS = a_sink(SinkType.SQS, f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders.fifo")


@pytest.mark.parametrize(("is_blamed", "verdict"), [(True, Verdict.FAILED), (False, Verdict.LATER)])
def test_nothing_is_sent_behind_an_entry_that_fails(is_blamed, verdict):
    """After an entry fails, no later event of its group is sent. (X43, X44)"""
    queue = AnsweringQueue(lambda sent: {1: is_blamed} if 1 in sent else {})
    answer = deliver(queue, ORDERS, events("a", "b", "a", "b"))
    assert queue.sent == [[0, 1]]
    assert (answer.verdict, answer.delivered) == (verdict, 1)


@pytest.mark.parametrize(
    "code", ["KMS.AccessDeniedException", "KmsThrottled", "AccessDenied", "RequestThrottled", "OverLimit"]
)
def test_permissions_and_rates_are_faults_of_no_event(code):
    """SQS reports these errors as the sender's fault, but the broker's permissions and rates cause them, and no event
    is to blame. (X15, X44)
    """

    class RefusingQueue(AnsweringQueue):
        def send_message_batch(self, **request):
            ids = [each["Id"] for each in request["Entries"]]
            failed = {"Id": ids[1], "Code": code, "SenderFault": True}
            return {"Successful": [{"Id": ids[0]}], "Failed": [failed]}

    answer = deliver(RefusingQueue(None), ORDERS, events("a", "b"))
    assert (answer.verdict, answer.delivered) == (Verdict.LATER, 1)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"Successful": [{"Id": "0"}]},
        {"Failed": []},
        {"Successful": [{"Id": "0"}, {"Id": "another"}, {}], "Failed": [{"Id": "7", "Code": "X", "SenderFault": True}]},
    ],
)
def test_what_an_answer_leaves_out_is_not_delivered(said):
    """An entry that an answer does not mention counts as not delivered, because otherwise an event could be lost.
    (X44)
    """

    class SilentQueue(AnsweringQueue):
        def send_message_batch(self, **_):
            return said

    answer = deliver(SilentQueue(None), ORDERS, events("a", "b"))
    assert (answer.verdict, answer.delivered) == (Verdict.LATER, int("Successful" in said))
    bus = AnsweringEventBus()
    assert deliver(bus, BUS, events("a")).verdict is Verdict.LATER


WRONG_ANSWERS = {
    "throttled": (400, "RequestThrottled"),
    "denied": (403, "AccessDeniedException"),
    "no key": (400, "KmsAccessDenied"),
    "gone": (400, "QueueDoesNotExist"),
    "broken": (500, "InternalFailure"),
    "garbage": (200, None),
    "another service": (200, "{}"),
}


@pytest.mark.parametrize("wrong", WRONG_ANSWERS)
@pytest.mark.parametrize("kind", [SinkType.SQS, SinkType.SNS, SinkType.EVENTBRIDGE])
def test_an_answer_that_is_wrong_blames_no_event(kind, wrong, monkeypatch):
    """If a server gives the SDK a wrong answer, events wait, and none counts as delivered or is to blame. (X15, X44)"""
    with serve_errors(*WRONG_ANSWERS[wrong]) as address, closing(AwsClients()) as calls:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        answer = deliver(calls, TARGETS[kind], events("a", "b"))
    assert (answer.verdict, answer.delivered) == (Verdict.LATER, 0), answer


def test_a_request_that_is_refused_as_a_whole_is_sent_entry_by_entry():
    """If a request is refused as a whole, its entries are sent one by one, which finds the entry that is to blame.
    (X44)
    """

    def refuse(sent):
        if 1 in sent:
            raise CallFailed("too long", status=400, blames_request=True)
        return {}

    queue = AnsweringQueue(refuse)
    answer = deliver(queue, ORDERS, events("a", "b", "c"))
    assert queue.sent == [[0, 1, 2], [0], [1]]
    assert (answer.verdict, answer.delivered, answer.text) == (Verdict.FAILED, 1, "too long")


def test_no_request_begins_when_the_time_is_over():
    """When the time for a delivery is over, the events that were already sent count as delivered, and the rest are sent
    later. (X45)
    """
    clock = HandMovedClock()

    def take_time(_):
        clock.move(20)
        return {}

    queue = AnsweringQueue(take_time)
    answer = deliver(queue, ORDERS, events("a", "a", "a"), clock=clock)
    assert queue.sent == [[0], [1]]
    assert (answer.verdict, answer.delivered) == (Verdict.LATER, 2)


class AnsweringEventBus:
    """Plays the clients of a sender, and answers like EventBridge."""

    def __init__(self, *codes):
        self.entries = []
        self._codes = codes

    def call(self, service, _region, _read_timeout, call):
        assert service == "events"
        return call(self)

    def put_events(self, **request):
        self.entries += request["Entries"]
        return {"Entries": [{"ErrorCode": each} if each else {"EventId": "1"} for each in self._codes]}


TARGETS = {
    SinkType.SQS: a_sink(SinkType.SQS, f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders"),
    SinkType.SNS: a_sink(SinkType.SNS, f"arn:aws:sns:{REGION}:{ACCOUNT}:orders"),
    SinkType.EVENTBRIDGE: a_sink(SinkType.EVENTBRIDGE, f"arn:aws:events:{REGION}:{ACCOUNT}:event-bus/orders"),
}
BUS = a_sink(SinkType.EVENTBRIDGE, f"arn:aws:events:{REGION}:{ACCOUNT}:event-bus/orders")


def test_a_bus_gets_the_event_type_and_the_event():
    """(X46)"""
    bus = AnsweringEventBus(None)
    assert deliver(bus, BUS, events("a")).verdict is Verdict.DELIVERED
    [entry] = bus.entries
    assert entry.pop("Time").year == 2026
    assert entry == {"EventBusName": BUS.target, "Source": "nakadi", "DetailType": "orders", "Detail": '{"n": 0}'}


@pytest.mark.parametrize(("code", "verdict"), [("MalformedDetail", Verdict.FAILED), ("Throttling", Verdict.LATER)])
def test_what_a_bus_does_not_take_is_sent_again(code, verdict):
    """(X44, X46)"""
    answer = deliver(AnsweringEventBus(None, code, None), BUS, events("a", "b", "c"))
    assert (answer.verdict, answer.delivered) == (verdict, 1)
