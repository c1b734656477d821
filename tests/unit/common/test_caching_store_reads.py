"""The reads from DynamoDB that keep a broker's cache up to date."""

from contextlib import closing, contextmanager
from itertools import count

import pytest

from nakadi.app.broker import BrokerServices, open_broker
from nakadi.app.settings import Settings
from nakadi.common import caching
from nakadi.engines.kinesis import topics
from nakadi.event_types.documents import event_type_body
from nakadi.event_types.repository import EVENT_TYPES_KIND as EVENT_TYPES
from nakadi.model.authorization import UNAUTHENTICATED, BlockedKind, Feature
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import NotPermitted
from nakadi.ports.registry import ABSENT_REVISION, PutDocument
from nakadi.publishing.batch import BatchStatus
from nakadi.streaming.access import AccessBlocked, MonitoredReaders, StreamAccessMonitor
from tests.support.aws import EmulatedAws, aws
from tests.support.builders import an_event_type
from tests.support.clock import HandMovedClock
from tests.support.kinesis import REGION, create_stream, session, use_fast_clients

TABLES = f"dynamodb://test?region={REGION}"


class MachineTime:
    """The two clocks of the machine, which move with the brokers' clock."""

    def __init__(self, clock: HandMovedClock) -> None:
        self._clock = clock
        self.sleep = clock.move

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def time(self) -> float:
        return self._clock.now().timestamp()


class BrokersOnAws:
    """Emulated AWS, and brokers whose clocks the test moves."""

    def __init__(self, service: EmulatedAws, stream: str, monkeypatch) -> None:
        self.service = service
        self.stream = stream
        self.clock = HandMovedClock()
        for module in (caching, topics):
            monkeypatch.setattr(module, "time", MachineTime(self.clock))
        self._names = (f"event.type.{number}" for number in count())

    @contextmanager
    def a_broker(self):
        event_log = f"kinesis://{self.stream}?region={REGION}&reads_per_second=10000"
        settings = Settings(registry=TABLES, log_index=TABLES, event_log=event_log, archive="")
        with closing(open_broker(settings, self.clock)) as broker:
            yield broker

    def calls(self, act) -> dict[str, int]:
        self.service.calls.clear()
        act()
        return dict(self.service.calls)

    def make_event_types(self, broker: BrokerServices, number: int, *, topics: bool = True) -> list[str]:
        made = [an_event_type(name=next(self._names)) for _ in range(number)]
        for each in made:
            if topics:
                broker.logs.for_storage("default").create_topic(each.timeline.topic, each.timeline.partitions)
            broker.registry.write(PutDocument(EVENT_TYPES, each.name, event_type_body(each), ABSENT_REVISION))
        return [each.name for each in made]


@pytest.fixture
def brokers(monkeypatch):
    with aws() as service, use_fast_clients():
        service.create_tables("test")
        yield BrokersOnAws(service, create_stream(session().create_client("kinesis", REGION), shards=1), monkeypatch)


def publish(broker: BrokerServices, name: str) -> None:
    broker.permissions.require_producer(UNAUTHENTICATED, name)
    outcome = broker.publisher.publish(name, b"[{}]", UNAUTHENTICATED, flow_id="")
    assert outcome.status is BatchStatus.STORED


class TestPublishing:
    def test_asks_one_question_when_what_is_remembered_is_too_old(self, brokers: BrokersOnAws):
        """However many event types a process publishes to, one query renews settings, event types and leases
        together."""
        with brokers.a_broker() as broker:
            names = brokers.make_event_types(broker, 3)
            for name in names:
                publish(broker, name)
            for _ in range(3):
                brokers.clock.move(3)
                assert brokers.calls(lambda: [publish(broker, name) for name in names]) == {
                    "GetItem": 1,
                    "PutRecords": len(names),
                }

    def test_asks_nothing_while_everything_is_fresh(self, brokers: BrokersOnAws):
        """Within a second, a publish is one call to Kinesis and nothing else."""
        with brokers.a_broker() as broker:
            [name] = brokers.make_event_types(broker, 1)
            publish(broker, name)
            brokers.clock.move(0.9)
            assert brokers.calls(lambda: publish(broker, name)) == {"PutRecords": 1}

    def test_goes_by_a_block_in_time(self, brokers: BrokersOnAws):
        """A block that another process has set takes effect within a second."""
        with brokers.a_broker() as broker, brokers.a_broker() as elsewhere:
            [name] = brokers.make_event_types(broker, 1)
            broker.permissions.require_producer(UNAUTHENTICATED, name)
            elsewhere.blacklist.block(BlockedKind.PRODUCER_EVENT_TYPE, name)
            brokers.clock.move(1)
            with pytest.raises(NotPermitted):
                broker.permissions.require_producer(UNAUTHENTICATED, name)

    def test_goes_on_in_the_new_timeline_in_time(self, brokers: BrokersOnAws):
        """After another process has switched the timeline, the next events go to the new one, however long their
        publisher has cached the old one.
        """
        with brokers.a_broker() as broker, brokers.a_broker() as elsewhere:
            [name] = brokers.make_event_types(broker, 1)
            publish(broker, name)
            for order in (2, 3):
                for _ in range(5):
                    brokers.clock.move(3)
                    publish(broker, name)
                elsewhere.timelines.move_to_new_timeline(name, "default", UNAUTHENTICATED)
                publish(broker, name)
                assert broker.event_types.cached(name).timeline.order == order
            timelines = broker.event_types.get(name).timelines
            assert [each.latest_positions for each in timelines] == [{0: 5}, {0: 5}, None]


class TestStreaming:
    @staticmethod
    def _verdicts(broker: BrokerServices, names: list[str]):
        oversight = StreamAccessMonitor(broker.event_streams._monitor._access)
        known = [MonitoredReaders(UNAUTHENTICATED, broker.event_types.get(name)) for name in names]
        return lambda: oversight._access_changes(known)

    @pytest.mark.parametrize("number", [1, 100])
    def test_idle_asks_as_often_for_many_event_types_as_for_one(self, brokers: BrokersOnAws, number):
        """A task that streams idle event types reads the change numbers once a second, however many event types
        there are.
        """
        with brokers.a_broker() as broker:
            verdicts = self._verdicts(broker, brokers.make_event_types(broker, number, topics=False))
            verdicts()

            def a_minute() -> None:
                for _ in range(60):
                    brokers.clock.move(1)
                    assert verdicts() == [None] * number

            assert brokers.calls(a_minute) == {"GetItem": 60}

    def test_sees_what_other_processes_change(self, brokers: BrokersOnAws):
        """Of many event types, one that another process has changed is read again, and one that it has blocked is
        refused; the others stay cached.
        """
        with brokers.a_broker() as broker, brokers.a_broker() as elsewhere:
            names = brokers.make_event_types(broker, 20, topics=False)
            verdicts = self._verdicts(broker, names)
            verdicts()
            changed = elsewhere.event_types.get(names[7])
            elsewhere.event_types.replace(changed, changed)
            elsewhere.blacklist.block(BlockedKind.CONSUMER_EVENT_TYPE, names[3])
            brokers.clock.move(1)
            found = verdicts()
            assert isinstance(found[7], EventType)
            assert isinstance(found[3], AccessBlocked)
            assert [at for at, each in enumerate(found) if each] == [3, 7]


class TestWriting:
    def test_what_changes_often_is_not_counted(self, brokers: BrokersOnAws):
        """Registering event types and subscriptions, measuring event types and storing events does not empty any
        cache."""
        with brokers.a_broker() as broker:
            before = broker.registry.change_counters()
            [name] = brokers.make_event_types(broker, 1)
            publish(broker, name)
            broker.registry.write(PutDocument("measured", name, {}))
            broker.features.is_on(Feature.KPI_COLLECTION)
            assert broker.registry.change_counters() == before
