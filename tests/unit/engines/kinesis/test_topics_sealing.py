"""Sealing: publishers rely on cached knowledge for the duration of a lease, and the order in the log decides."""

import time

import pytest

from nakadi.common import caching
from nakadi.common.waiting import run_blocking
from nakadi.engines.kinesis import envelopes, topics
from nakadi.engines.kinesis.event_log import KinesisOptions
from nakadi.model.events import AppendRefused, AppendStored, Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import SealedTopic, UnknownTopic
from tests.support.kinesis_faults import FaultyKinesis
from tests.support.patience import started_threads


def lease_options(seconds: float) -> KinesisOptions:
    return KinesisOptions(lease=seconds, shared_for=0.0, poll=0.02, give_up_after=1.0)


@pytest.fixture
def topic(faulty_kinesis: FaultyKinesis):
    faulty_kinesis.index.create_topic("t", 2)
    return "t"


class CallCountingIndex:
    """An index that counts the reads of topics and of changes."""

    def __init__(self, index) -> None:
        self._index = index
        self.times = 0
        self.changes_asked = 0

    def change_counters(self):
        self.changes_asked += 1
        return self._index.change_counters()

    def topic(self, topic):
        self.times += 1
        return self._index.topic(topic)

    def __getattr__(self, name):
        return getattr(self._index, name)


def test_a_publisher_does_not_ask_about_every_append(faulty_kinesis: FaultyKinesis, topic):
    """While a lease is valid, appends need no call to the index."""
    index = CallCountingIndex(faulty_kinesis.index)
    log = faulty_kinesis.a_log(lease_options(60), index=index)
    for _ in range(20):
        run_blocking(log.append(topic, {0: [Record(b"1")]}))
    assert index.times == 1


class MachineTime:
    """The machine's two clocks and the log's own clock."""

    def __init__(self, log_clock) -> None:
        self._log_clock = log_clock
        self.passed = 0.0
        self.sleep = self.move

    def move(self, seconds: float) -> None:
        self.passed += seconds
        self._log_clock.move(seconds)

    def monotonic(self) -> float:
        return self.passed

    def time(self) -> float:
        return self.passed


@pytest.fixture
def machine(faulty_kinesis: FaultyKinesis, monkeypatch):
    made = MachineTime(faulty_kinesis.clock)
    for module in (topics, caching):
        monkeypatch.setattr(module, "time", made)
    return made


def test_one_question_renews_all_leases(faulty_kinesis: FaultyKinesis, machine):
    """One read of the changes renews the expired leases of all topics."""
    index = CallCountingIndex(faulty_kinesis.index)
    log = faulty_kinesis.a_log(lease_options(2), index=index)
    names = [f"topic-{number}" for number in range(5)]
    for _ in range(4):
        for name in names:
            faulty_kinesis.index.create_topic(name, 1)
            run_blocking(log.append(name, {0: [Record(b"1")]}))
        machine.move(2)
    assert index.changes_asked == 4
    assert index.times == len(names)


def test_a_lease_is_not_renewed_after_a_seal(faulty_kinesis: FaultyKinesis, topic, machine):
    """Of many topics whose leases are renewed together, the sealed one is read again."""
    other = faulty_kinesis.a_log(lease_options(2))
    index = CallCountingIndex(faulty_kinesis.index)
    log = faulty_kinesis.a_log(lease_options(2), index=index)
    for _ in range(3):
        run_blocking(log.append(topic, {0: [Record(b"1")]}))
        machine.move(3)
    other.seal_topic(topic)
    with pytest.raises(SealedTopic):
        run_blocking(log.append(topic, {0: [Record(b"2")]}))
    assert other.bounds(topic, [0])[0].next_offset == 3


def test_a_renewed_lease_begins_with_the_question(faulty_kinesis: FaultyKinesis, topic, machine):
    """An answer that was true at the time of the request, but arrives after the topic is sealed, renews no lease."""
    other = faulty_kinesis.a_log(lease_options(2))
    index = SlowChanges(faulty_kinesis.index)
    log = faulty_kinesis.a_log(lease_options(2), index=index)
    run_blocking(log.append(topic, {0: [Record(b"1")]}))
    machine.move(3)
    index.meanwhile.append(lambda: other.seal_topic(topic))
    with pytest.raises(SealedTopic):
        run_blocking(log.append(topic, {0: [Record(b"2")]}))
    assert other.bounds(topic, [0])[0].next_offset == 1


class SlowChanges(CallCountingIndex):
    """An index that calls `meanwhile` after it has read the changes, and before it returns them."""

    def __init__(self, index) -> None:
        super().__init__(index)
        self.meanwhile = []

    def change_counters(self):
        found = super().change_counters()
        for each in self.meanwhile:
            each()
        return found


def test_other_processes_learn_of_a_seal_in_time(faulty_kinesis: FaultyKinesis, topic):
    """Once sealing has returned in one process, no other process accepts events."""
    sealing, publishing = faulty_kinesis.a_log(lease_options(0.2)), faulty_kinesis.a_log(lease_options(0.2))
    run_blocking(publishing.append(topic, {0: [Record(b"1")]}))
    sealing.seal_topic(topic)
    with pytest.raises(SealedTopic):
        run_blocking(publishing.append(topic, {0: [Record(b"2")]}))
    assert sealing.bounds(topic, [0])[0].next_offset == 1


class SlowClient:
    """A client that calls `meanwhile` before it sends records."""

    def __init__(self, client, meanwhile) -> None:
        self._client = client
        self._meanwhile = meanwhile

    def put_records(self, **asked):
        self._meanwhile()
        return self._client.put_records(**asked)

    def __getattr__(self, name):
        return getattr(self._client, name)


def publishing_while(faulty_kinesis: FaultyKinesis, meanwhile):
    """A log that calls `meanwhile` within each append, before its records are sent."""
    return faulty_kinesis.a_log(lease_options(0.05), client=SlowClient(faulty_kinesis.client, meanwhile))


def test_what_comes_behind_the_seal_is_not_acknowledged(faulty_kinesis: FaultyKinesis, topic):
    """An append that began before a seal and is stored after it does not count, and its publisher learns this."""
    other = faulty_kinesis.a_log(lease_options(0.05))
    log = publishing_while(faulty_kinesis, lambda: other.seal_topic(topic))
    with pytest.raises(SealedTopic):
        run_blocking(log.append(topic, {0: [Record(b"late")], 1: [Record(b"late")]}))
    assert {number: each.next_offset for number, each in other.bounds(topic, [0, 1]).items()} == {0: 0, 1: 0}


def test_what_comes_before_the_seal_is_acknowledged(faulty_kinesis: FaultyKinesis, topic):
    """An append that took longer than its lease, but is stored before the seal, counts, and its publisher learns
    this."""

    def note_and_wait() -> None:
        faulty_kinesis.index.seal_topic(topic)
        time.sleep(0.1)

    log = publishing_while(faulty_kinesis, note_and_wait)
    assert run_blocking(log.append(topic, {0: [Record(b"1")]})) == {0: AppendStored()}
    assert faulty_kinesis.a_log().bounds(topic, [0])[0].next_offset == 1


def test_each_partition_of_an_append_around_a_seal_has_its_own_fate(faulty_kinesis: FaultyKinesis, topic):
    """If only one partition was sealed before its events were stored, only that partition is refused."""

    def seal_one() -> None:
        faulty_kinesis.index.seal_topic(topic)
        data = envelopes.pack_seal(0)
        faulty_kinesis.client.put_records(
            StreamName=faulty_kinesis.name,
            Records=[{"Data": data, "PartitionKey": f"{topic}/1", "ExplicitHashKey": "0"}],
        )
        time.sleep(0.1)

    log = publishing_while(faulty_kinesis, seal_one)
    fates = run_blocking(log.append(topic, {0: [Record(b"1")], 1: [Record(b"2")]}))
    assert fates == {0: AppendStored(), 1: AppendRefused("timed out")}


def test_what_is_lost_with_its_topic_is_reported(faulty_kinesis: FaultyKinesis, topic):
    """An append during which its topic was deleted fails because the topic is missing."""
    log = publishing_while(faulty_kinesis, lambda: (faulty_kinesis.index.delete_topic(topic), time.sleep(0.1)))
    with pytest.raises(UnknownTopic):
        run_blocking(log.append(topic, {0: [Record(b"1")]}))


def test_a_frozen_process_does_not_trust_its_old_lease(faulty_kinesis: FaultyKinesis, topic, monkeypatch):
    """A process whose machine was suspended reads the lease again, even if its steady clock stood still as well."""
    index = CallCountingIndex(faulty_kinesis.index)
    log = faulty_kinesis.a_log(lease_options(60), index=index)
    run_blocking(log.append(topic, {0: [Record(b"1")]}))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    run_blocking(log.append(topic, {0: [Record(b"2")]}))
    assert index.times > 1


def test_sealing_waits_for_publishers_who_rely_on_their_lease(faulty_kinesis: FaultyKinesis, topic):
    """Between announcing the seal and writing it, sealing waits for the duration of a lease."""
    log = faulty_kinesis.a_log(lease_options(0.3))
    begun = time.monotonic()
    log.seal_topic(topic)
    assert time.monotonic() - begun >= 0.3


def test_other_processes_learn_of_a_deletion_in_time(faulty_kinesis: FaultyKinesis, topic):
    """Once a process has deleted a topic, no other process acknowledges events that are lost with the topic, even if it
    caches the topic."""
    deleting, publishing = faulty_kinesis.a_log(lease_options(0.2)), faulty_kinesis.a_log(lease_options(0.2))
    run_blocking(publishing.append(topic, {0: [Record(b"1")]}))
    deleting.delete_topic(topic)
    with pytest.raises(UnknownTopic):
        run_blocking(publishing.append(topic, {0: [Record(b"2")]}))


def test_what_is_deleted_again_is_not_waited_for(faulty_kinesis: FaultyKinesis, topic, monkeypatch):
    """A topic that was already deleted or closed has no publishers: deleting it does not wait for leases."""
    log = faulty_kinesis.a_log(lease_options(0.01))
    faulty_kinesis.index.create_topic("closed", 1)
    log.seal_topic("closed")
    log.delete_topic(topic)
    clock = MachineTime(faulty_kinesis.clock)
    monkeypatch.setattr(topics, "time", clock)
    log.delete_topic(topic)
    log.delete_topic("closed")
    assert clock.passed == 0


def test_closing_ends_everything(faulty_kinesis: FaultyKinesis, topic):
    """A closed log answers no calls, and leaves no thread behind."""
    with started_threads() as started:
        log = faulty_kinesis.a_log()
        end = log.add_change_listener(lambda *_: None)
        log.bounds(topic, [0])
        log.close()
        end()
        with pytest.raises(Unavailable):
            log.bounds(topic, [0])
        assert [each for each in started() if each.startswith("kinesis-")] == []
