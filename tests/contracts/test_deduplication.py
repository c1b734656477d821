"""The promises of every log that recognizes events by their ids: the sentences of `nakadi.ports.deduplication`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta

import pytest

from nakadi.common.waiting import begin_task, run_blocking
from nakadi.model.events import (
    AppendStored,
    AppendStoredExcept,
    DuplicateEvent,
    EventPlace,
    OffsetBounds,
    Record,
    RecordLines,
)
from nakadi.ports.deduplication import EventIds
from nakadi.ports.event_log import AppendResultByPartition, SealedTopic, UnknownTopic
from tests.support.engines import DEDUPLICATING_LOGS, LogUnderTest, a_log
from tests.support.patience import PATIENCE, run_in_threads

WINDOW = timedelta(minutes=30)


@pytest.fixture(params=DEDUPLICATING_LOGS)
def log(request, tmp_path):
    with a_log(DEDUPLICATING_LOGS[request.param], tmp_path) as opened:
        opened.has_claims = request.param == "claims"
        yield opened


def eid_of(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, name)


def an_event(name: str, padding: str = "") -> Record:
    """An event whose id is derived from its name."""
    return Record(json.dumps({"metadata": {"eid": str(eid_of(name))}, "name": name, "padding": padding}).encode())


def names_in(log: LogUnderTest, topic: str, partition: int = 0) -> list[str]:
    return [json.loads(str(value))["name"] for value in log.values(topic, partition)]


def ids_of(
    *names: str,
    partitions: Sequence[int] | None = None,
    scope: str = "a type",
    timeline: int = 1,
    window: timedelta = WINDOW,
) -> EventIds:
    partitions = partitions or [0] * len(names)
    eids = b"".join(eid_of(name).bytes for name in names)
    return EventIds(scope=scope, timeline=timeline, window=window, packed_eids=eids, partitions=partitions)


def append_once(
    log: LogUnderTest, topic: str, *names: str, only: Sequence[int] | None = None, **how: object
) -> AppendResultByPartition:
    """Append events whose ids are derived from their texts, which are names."""
    ids = ids_of(*names, **how)  # type: ignore[arg-type]
    return run_blocking(log.deduplicating.append_once(topic, records_of(names, ids.partitions, only), ids))


def records_of(
    names: Sequence[str], partitions: Sequence[int], only: Sequence[int] | None = None
) -> Mapping[int, Sequence[Record]]:
    batches: dict[int, list[Record]] = {}
    for name, partition in zip(names, partitions, strict=True):
        if only is None or partition in only:
            batches.setdefault(partition, []).append(an_event(name))
    return batches


def stored_except_duplicates(**places: tuple[int, int, int]) -> AppendStoredExcept:
    """`_0=(1, 0, 7)` says that the first event is a duplicate of the event in timeline 1, partition 0, at offset 7."""
    return AppendStoredExcept({int(index[1:]): DuplicateEvent(EventPlace(*place)) for index, place in places.items()})


def test_stores_what_is_new(log):
    """Events with ids that were never seen are stored in their order."""
    topic = log.a_topic(partitions=2)
    assert append_once(log, topic, "a", "b", "c", partitions=[1, 0, 1]) == {1: AppendStored(), 0: AppendStored()}
    assert [names_in(log, topic, partition) for partition in range(2)] == [["b"], ["a", "c"]]


def test_leaves_out_what_is_there(log):
    """An event whose id is already stored is not stored again, and the outcome contains the place of the stored event.
    (P157)"""
    topic = log.a_topic()
    log.store(topic, *map(an_event, ["without an id"]))
    append_once(log, topic, "a", "b")
    assert append_once(log, topic, "c", "b", "d", "a") == {0: stored_except_duplicates(_1=(1, 0, 2), _3=(1, 0, 1))}
    assert names_in(log, topic) == ["without an id", "a", "b", "c", "d"]


def test_leaves_out_a_whole_batch(log):
    """If a whole batch is sent again, nothing is stored."""
    topic = log.a_topic(partitions=2)
    append_once(log, topic, "a", "b", partitions=[0, 1])
    again = append_once(log, topic, "a", "b", partitions=[0, 1])
    assert again == {0: stored_except_duplicates(_0=(1, 0, 0)), 1: stored_except_duplicates(_0=(1, 1, 0))}
    assert log.log.bounds(topic, [0, 1]) == {0: OffsetBounds(0, 1), 1: OffsetBounds(0, 1)}


def test_finds_the_first_in_another_partition(log):
    """An event is a duplicate even if the second attempt sends it to another partition. (P158)"""
    topic = log.a_topic(partitions=3)
    append_once(log, topic, "a", "b", partitions=[0, 2])
    assert append_once(log, topic, "b", "a", "c", partitions=[1, 1, 1]) == {
        1: stored_except_duplicates(_0=(1, 2, 0), _1=(1, 0, 0))
    }
    assert [names_in(log, topic, partition) for partition in range(3)] == [["a"], ["c"], ["b"]]


def test_finds_the_first_in_the_same_batch(log):
    """If several events of a batch have the same id, the first one is stored, whatever their partitions. (P157)"""
    topic = log.a_topic(partitions=2)
    fates = append_once(log, topic, "a", "a", "b", "a", partitions=[1, 0, 0, 1])
    assert fates == {1: stored_except_duplicates(_1=(1, 1, 0)), 0: stored_except_duplicates(_0=(1, 1, 0))}
    assert [names_in(log, topic, partition) for partition in range(2)] == [["b"], ["a"]]


def test_finds_the_first_in_another_topic(log):
    """Ids belong to the event type: those in its earlier timelines count, too. (P158)"""
    before, after = log.a_topic(), log.a_topic()
    append_once(log, before, "a")
    log.log.seal_topic(before)
    assert append_once(log, after, "a", "b", timeline=2) == {0: stored_except_duplicates(_0=(1, 0, 0))}
    assert append_once(log, after, "b", timeline=2) == {0: stored_except_duplicates(_0=(2, 0, 0))}
    assert names_in(log, after) == ["b"]


def test_keeps_scopes_apart(log):
    """Event types do not share ids."""
    topic = log.a_topic()
    append_once(log, topic, "a", scope="one")
    assert append_once(log, topic, "a", scope="another") == {0: AppendStored()}
    assert names_in(log, topic) == ["a", "a"]


def test_ends_with_the_window(log):
    """When the window has passed, the id is new, and an event that is stored then starts another window. (P158)"""
    topic = log.a_topic()
    append_once(log, topic, "a")
    log.passes(WINDOW - timedelta(seconds=1))
    assert append_once(log, topic, "a") == {0: stored_except_duplicates(_0=(1, 0, 0))}
    log.passes(timedelta(seconds=1))
    assert append_once(log, topic, "a") == {0: AppendStored()}
    log.passes(WINDOW - timedelta(seconds=1))
    assert append_once(log, topic, "a") == {0: stored_except_duplicates(_0=(1, 0, 1))}


def test_goes_by_the_window_of_now(log):
    """A shortened window also applies to events that were stored before. (P158)"""
    topic = log.a_topic()
    append_once(log, topic, "a")
    log.passes(timedelta(minutes=2))
    assert append_once(log, topic, "a", window=timedelta(minutes=1)) == {0: AppendStored()}
    assert names_in(log, topic) == ["a", "a"]


def test_remembers_nothing_of_a_refused_append(log):
    """Ids of events that were not stored are not remembered. (P159)"""
    topic, sealed = log.a_topic(), log.a_topic()
    log.log.seal_topic(sealed)
    with pytest.raises(SealedTopic):
        append_once(log, sealed, "a")
    with pytest.raises(UnknownTopic):
        append_once(log, topic, "a", "b", partitions=[0, 1])
    assert append_once(log, topic, "a", "b") == {0: AppendStored()}


def test_passes_over_ids_of_partitions_that_are_missing(log):
    """Partitions that are not part of the append are neither searched nor changed."""
    topic = log.a_topic(partitions=2)
    assert append_once(log, topic, "a", "b", partitions=[0, 1], only=[1]) == {1: AppendStored()}
    assert append_once(log, topic, "a", "b", partitions=[0, 1]) == {
        0: AppendStored(),
        1: stored_except_duplicates(_0=(1, 1, 0)),
    }


def test_removes_duplicates_from_record_lines(log):
    """The log also removes duplicates if records come as lines of bytes, for which no `Record` was ever built."""
    topic = log.a_topic()
    append_once(log, topic, "b")
    fates = run_blocking(
        log.deduplicating.append_once(
            topic, {0: RecordLines(b"\n".join(an_event(name).value or b"" for name in "abc"), 3)}, ids_of("a", "b", "c")
        )
    )
    assert fates == {0: stored_except_duplicates(_1=(1, 0, 0))}
    assert names_in(log, topic) == ["b", "a", "c"]


def test_takes_long_records(log):
    """The log also removes duplicates from batches that it stores in several frames."""
    topic = log.a_topic()
    names = [f"{number:05}" for number in range(40)]
    append_once(log, topic, names[3], names[30])
    records = [an_event(name, "x" * 5_000) for name in names]
    fates = run_blocking(log.deduplicating.append_once(topic, {0: records}, ids_of(*names)))
    assert fates == {0: stored_except_duplicates(_3=(1, 0, 0), _30=(1, 0, 1))}
    assert names_in(log, topic) == [
        names[3],
        names[30],
        *names[:3],
        *names[4:30],
        *names[31:],
    ]


def test_stores_once_what_many_append(log):
    """If many processes append the same events at once, each event is stored by only one of them. (P158)"""
    topic = log.a_topic(partitions=4)
    names = [f"event {number}" for number in range(60)]

    def publish(thread: int) -> int:
        stored = 0
        for start in range(0, 60, 10):
            fates = append_once(
                log, topic, *names[start : start + 10], partitions=[(thread + n) % 4 for n in range(10)]
            )
            stored += sum(
                10 // 4
                + (1 if (partition - thread) % 4 < 10 % 4 else 0)
                - (len(fate.exceptions) if isinstance(fate, AppendStoredExcept) else 0)
                for partition, fate in fates.items()
            )
        return stored

    assert sum(run_in_threads(publish, 6)) == 60
    found = [value for partition in range(4) for value in names_in(log, topic, partition)]
    assert sorted(found) == sorted(names)


def test_mixes_with_appends_without_ids(log):
    """The reported places of duplicates are correct, whatever else is appended at the same time."""
    topic = log.a_topic()

    def publish(thread: int) -> None:
        for number in range(20):
            if thread % 2:
                log.store(topic, *map(an_event, ["other", "other"]))
            else:
                append_once(log, topic, f"{thread}/{number}/a", f"{thread}/{number}/b")

    run_in_threads(publish, 6)
    found = names_in(log, topic)
    for thread in range(0, 6, 2):
        for number in range(20):
            [fate] = append_once(log, topic, f"{thread}/{number}/b").values()
            assert isinstance(fate, AppendStoredExcept)
            [duplicate] = fate.exceptions.values()
            assert isinstance(duplicate, DuplicateEvent)
            assert found[duplicate.first.offset] == f"{thread}/{number}/b"


def test_begins_without_waiting(log):
    """An append for which nobody waits has the same outcomes and the same errors."""
    topic = log.a_topic()
    append_once(log, topic, "a")
    assert begin_append(log, topic, "a", "b").result(PATIENCE) == {0: stored_except_duplicates(_0=(1, 0, 0))}
    with pytest.raises(UnknownTopic):
        begin_append(log, "nowhere", "c").result(PATIENCE)


def begin_append(log: LogUnderTest, topic: str, *names: str) -> Future[AppendResultByPartition]:
    outcome: Future[AppendResultByPartition] = Future()

    def done(found: AppendResultByPartition | Exception) -> None:
        if isinstance(found, Exception):
            outcome.set_exception(found)
        else:
            outcome.set_result(found)

    begin_task(log.deduplicating.append_once(topic, {0: [an_event(name) for name in names]}, ids_of(*names)), done)
    return outcome
