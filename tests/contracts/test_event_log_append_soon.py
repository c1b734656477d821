"""The promises of every event log for appends for which no thread waits: `append` of the port `EventLog`, begun as a
task."""

import threading
from collections import Counter
from concurrent.futures import Future
from contextlib import suppress

import pytest

from nakadi.common.waiting import begin_task, run_blocking
from nakadi.model.events import AppendStored, Record, RecordLines
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import SealedTopic, UnknownTopic
from tests.support.engines import LogUnderTest, a_record, append_async, read_everything
from tests.support.patience import PATIENCE, run_in_threads


def test_append_soon_stores_what_append_would(log: LogUnderTest):
    """An append for which no thread waits has the same outcomes as `append`, and every read after the call of `done`
    sees the stored events."""
    topic = log.a_topic(partitions=2)
    fates = append_async(log.log, topic, {1: [a_record("x")], 0: [a_record("y"), a_record("z")]})
    assert fates.result(PATIENCE) == {1: AppendStored(), 0: AppendStored()}
    assert (log.values(topic, 0), log.values(topic, 1)) == (["y", "z"], ["x"])
    assert append_async(log.log, topic, {0: []}).result(PATIENCE) == {0: AppendStored()}


def test_what_append_would_raise_is_handed_on(log: LogUnderTest):
    """An unknown or sealed topic is an outcome like any other, and is not raised by the call itself."""
    topic = log.a_topic()
    for place, error in (("nowhere", UnknownTopic), (topic, SealedTopic)):
        log.log.seal_topic(topic)
        assert type(append_async(log.log, place, {0: [a_record("a")]}).exception(PATIENCE)) is error
    with pytest.raises(UnknownTopic):
        append_async(log.log, log.a_topic(), {7: [a_record("a")]}).result(PATIENCE)
    assert log.values(topic) == []


def test_one_that_fails_leaves_the_others_alone(log: LogUnderTest):
    """Each of several appends that run at the same time has its own outcome."""
    topic, sealed = log.a_topic(), log.a_topic()
    log.log.seal_topic(sealed)
    waiting = [
        append_async(log.log, sealed if number % 3 else topic, {0: [a_record(str(number))]}) for number in range(9)
    ]
    failed = [number for number, each in enumerate(waiting) if each.exception(PATIENCE)]
    assert failed == [number for number in range(9) if number % 3]
    assert sorted(map(int, log.values(topic))) == list(range(0, 9, 3))


def test_done_is_called_once_for_each(log: LogUnderTest):
    """However many appends are begun at once, each has its own outcome, and every event its own offset."""
    topic = log.a_topic(partitions=2)
    calls: Counter[str] = Counter()
    submitted = threading.Event()

    def publish(writer: int) -> None:
        for number in range(5):
            name = f"{writer}/{number}"

            def done(outcome, name=name):
                calls[name] += 1
                if isinstance(outcome, Exception) or len(calls) == 20:
                    submitted.set()

            begin_task(log.log.append(topic, {number % 2: [a_record(name), a_record(name)]}), done)

    run_in_threads(publish, 4)
    assert submitted.wait(PATIENCE)
    assert set(calls.values()) == {1}
    found = [(place, offset, text) for place in (0, 1) for offset, text in log.events(topic, place)]
    assert Counter(text for _, _, text in found) == Counter(dict.fromkeys(calls, 2))
    assert all(offset == index for place in (0, 1) for index, (offset, _) in enumerate(log.events(topic, place)))


def test_records_are_stored_to_the_byte(log: LogUnderTest):
    """Large, small and empty values, keys and tombstones are stored by one append that shares its commit with
    others."""
    topic = log.a_topic()
    records = [Record(b'"%s"' % (b"x" * size), f"k{size}") for size in (1, 70_000, 10)] + [Record(None, "k1")]
    waiting = [append_async(log.log, topic, {0: records}) for _ in range(5)]
    for each in waiting:
        each.result(PATIENCE)
    assert [event.record for event in read_everything(log.log, topic, 0, 0)] == records * 5


def test_a_log_that_closes_completes_every_append(log: LogUnderTest):
    """When the log closes, every append that has begun gets its outcome; later appends are refused."""
    topic = log.a_topic()
    waiting = [append_async(log.log, topic, {0: [a_record(str(number))]}) for number in range(10)]
    log.log.close()
    for each in waiting:
        with suppress(Unavailable):
            # `Refused` is an outcome, too: a slow service may not have answered in time.
            assert each.result(PATIENCE).keys() == {0}
    late: Future = append_async(log.log, topic, {0: [a_record("late")]})
    with pytest.raises(Unavailable, match=r"\bclosed\b"):
        late.result(PATIENCE)


def test_lines_are_records(log: LogUnderTest):
    """Records that come as lines are stored like others: few or many, alone, together with others, and at the same
    time."""
    topic = log.a_topic(partitions=2)
    few = [b'{"n":%d}' % number for number in range(3)]
    many = [b'{"n":%d,"x":"%b"}' % (number, b"x" * 700) for number in range(300)]
    run_blocking(log.log.append(topic, {0: RecordLines(b"\n".join(few), 3), 1: RecordLines(few[0], 1)}))
    run_blocking(log.log.append(topic, {0: RecordLines(b"\n".join(many), 300), 1: [Record(few[1], "a key")]}))
    waiting = [append_async(log.log, topic, {1: RecordLines(few[2], 1)}) for _ in range(5)]
    assert [each.result(PATIENCE) for each in waiting] == [{1: AppendStored()}] * 5

    assert [event.record for event in read_everything(log.log, topic, 0, 0)] == [Record(each) for each in few + many]
    assert [event.record for event in read_everything(log.log, topic, 1, 0)] == [
        Record(few[0]),
        Record(few[1], "a key"),
        *[Record(few[2])] * 5,
    ]


def test_lines_with_keys_are_records(log: LogUnderTest):
    """Records that come as lines with keys are stored like others: few or many, and together with those without
    keys."""
    topic = log.a_topic(partitions=2)
    few = [b'{"n":%d}' % number for number in range(3)]
    many = [b'{"n":%d,"x":"%b"}' % (number, b"x" * 700) for number in range(300)]
    keys = [f"é{number}" for number in range(300)]
    run_blocking(log.log.append(topic, {0: RecordLines(b"\n".join(few), 3, keys[:3])}))
    run_blocking(log.log.append(topic, {0: RecordLines(b"\n".join(many), 300, keys)}))
    waiting = [
        append_async(log.log, topic, {1: RecordLines(few[number % 3], 1, [keys[number]] if number % 4 else None)})
        for number in range(20)
    ]
    assert [each.result(PATIENCE) for each in waiting] == [{1: AppendStored()}] * 20

    assert [event.record for event in read_everything(log.log, topic, 0, 0)] == [
        *map(Record, few, keys),
        *map(Record, many, keys),
    ]
    stored = {event.record for event in read_everything(log.log, topic, 1, 0)}
    assert stored == {Record(few[number % 3], keys[number] if number % 4 else None) for number in range(20)}
