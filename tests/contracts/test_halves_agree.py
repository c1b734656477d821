"""After any operations, a log of two halves returns the same as a log of one half."""

import random
from collections import Counter
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest

from nakadi.app.engines import open_event_log
from nakadi.common.waiting import run_blocking
from nakadi.engines.archive import object_keys
from nakadi.engines.archive.archive_worker import ArchiveWorker
from nakadi.engines.archive.policy import ArchivePolicy, EmptyTopicCatalog
from nakadi.engines.archive.segment_cache import read_segment
from nakadi.engines.archive.segments import archived_segments_from
from nakadi.model.authorization import Attribute
from nakadi.model.events import Record
from nakadi.ports.event_log import OffsetUnavailable, SealedTopic, UnknownTopic
from tests.support.clock import HandMovedClock
from tests.support.engines import HOUR
from tests.support.everything import seeds
from tests.support.tiers import ARCHIVE_MANUALLY, TieredLogParts

TOPICS = ("first", "second")
PARTITIONS = 2
STEPS = 70

RELUCTANT = ArchivePolicy(archive_after=inf, hot_retention=2 * 3600, unreferenced_grace=0, new_share_to_compact=0.5)
"""The hot log keeps two hours, and the archive is compacted only now and then."""

WEIGHTS = {
    "append": 30,
    "time_passes": 14,
    "archive": 10,
    "archive_only": 4,
    "trim_hot_half": 6,
    "merge": 3,
    "read": 16,
    "find_a_moment": 12,
    "trim": 4,
    "compact": 5,
    "sweep": 3,
    "start_again": 3,
    "grow": 1,
    "seal": 1,
    "delete": 1,
}


def comparable_answer(answer):
    """A form of the result that shows where two results differ."""
    if isinstance(answer, list | tuple):
        return [
            (each.offset, each.stored_at, each.record._replace(value=(each.record.value or b"-")[:3]))
            for each in answer
        ]
    return answer


class RandomWalk:
    """Two logs with the same clock and the same calls: one in memory, and one of two halves."""

    def __init__(self, seed: str, folder: Path, hot: str, tiers: ArchivePolicy) -> None:
        self.dice = random.Random(seed)
        self.clock = HandMovedClock()
        self.began = self.clock.now()
        self.made = (hot, folder, self.clock, tiers)
        self.hot = hot
        self.plain = open_event_log("memory:", self.clock)
        self.open_halves()
        self.seen: Counter[str] = Counter()
        for topic in TOPICS:
            self.do_to_both(lambda log, topic=topic: log.create_topic(topic, PARTITIONS))

    def open_halves(self) -> None:
        """Open a log of two halves, with an archiver between them that works only on request."""
        hot, folder, clock, tiers = self.made
        self.parts = TieredLogParts(hot, folder, clock)
        self.halves = self.parts.log(tiers)
        self.worker = ArchiveWorker(
            self.parts.hot, self.parts.index, self.parts.store, clock, EmptyTopicCatalog(), tiers
        )

    def close(self) -> None:
        self.plain.close()
        self.close_halves()

    def close_halves(self) -> None:
        self.worker.stop()
        self.halves.close()

    def do_to_both(self, work):
        """Call both logs, and require the same result or the same refusal."""
        answers = []
        for log in (self.plain, self.halves):
            try:
                answers.append(work(log))
            except (UnknownTopic, SealedTopic, OffsetUnavailable) as refusal:
                answers.append(type(refusal))
        assert comparable_answer(answers[0]) == comparable_answer(answers[1])
        return answers[0]

    def place(self) -> tuple[str, int]:
        return self.dice.choices(TOPICS, [5, 1])[0], self.dice.choices(range(PARTITIONS), [4, 1])[0]

    def moment(self) -> datetime:
        passed = int((self.clock.now() - self.began) / HOUR)
        return self.began + self.dice.randint(0, max(passed, 0)) * HOUR

    def record(self) -> Record:
        size = self.dice.choice([1, 10, 3_000, 70_000])
        value = self.dice.choices([None, b'"' + b"x" * size + b'"'], [1, 3])[0]
        key = self.dice.choices([None, "", "é", "a", "b", "c"], [2, 1, 1, 3, 3, 3])[0]
        owner = self.dice.choices([None, Attribute("team", "é")], [5, 1])[0]
        return Record(value, key, owner, self.dice.choices([None, "subscription"], [5, 1])[0])

    def append(self) -> None:
        topic, partition = self.place()
        batch = [self.record() for _ in range(self.dice.randint(1, 4))]
        self.do_to_both(lambda log: run_blocking(log.append(topic, {partition: batch})))

    def time_passes(self) -> None:
        self.clock.move(3600 * self.dice.choice([1, 1, 1, 2, -1]))

    def archive(self) -> None:
        self.halves.archive()

    def archive_only(self) -> None:
        with suppress(UnknownTopic):
            self.worker.archive_partition(*self.place())

    def trim_hot_half(self) -> None:
        self.worker.trim_hot_partitions()

    def merge(self) -> None:
        self.worker.merge_segments(lambda: None)

    def read(self) -> None:
        """Compare the first events, because a log may return fewer events than the limit, but not an empty slice."""
        topic, partition = self.place()
        bounds = self.do_to_both(lambda log: log.bounds(topic, [partition]))
        end = bounds[partition].next_offset if isinstance(bounds, dict) else 0
        start, limit = self.dice.randint(-1, end + 1), self.dice.randint(1, 5)

        def look(log):
            events = log.read(topic, partition, start, limit=limit).events
            assert len(events) <= limit
            return events[:1]

        found = self.do_to_both(look)
        self.seen["read"] += isinstance(found, tuple) and bool(found) and not self.is_hot(topic, partition, start)

    def is_hot(self, topic: str, partition: int, offset: int) -> bool:
        return offset >= self.parts.hot.bounds(topic, [partition])[partition].oldest

    def find_a_moment(self) -> None:
        topic, partition = self.place()
        moment = self.moment()
        found = self.do_to_both(lambda log: log.first_offset_since(topic, partition, moment))
        self.seen["found"] += isinstance(found, int) and not self.is_hot(topic, partition, found)

    def trim(self) -> None:
        topic, partition = self.place()
        moment = self.moment()
        self.do_to_both(lambda log: log.trim(topic, partition, moment))

    def compact(self) -> None:
        topic, partition = self.place()
        stored_before, tombstones_before = self.moment(), self.moment()
        self.do_to_both(
            lambda log: log.compact(topic, partition, stored_before=stored_before, tombstones_before=tombstones_before)
        )

    def sweep(self) -> None:
        self.halves.sweep()

    def start_again(self) -> None:
        if self.hot == "sqlite":
            self.close_halves()
            self.open_halves()

    def grow(self) -> None:
        self.do_to_both(lambda log: log.add_partitions(TOPICS[0], PARTITIONS))

    def seal(self) -> None:
        self.do_to_both(lambda log: log.seal_topic(TOPICS[1]))

    def delete(self) -> None:
        self.do_to_both(lambda log: log.delete_topic(TOPICS[1]))

    def step(self) -> None:
        getattr(self, self.dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0])()

    def see_that_they_show_the_same(self) -> None:
        for topic in TOPICS:
            bounds = self.do_to_both(lambda log, topic=topic: log.bounds(topic, range(PARTITIONS)))
            for partition in range(PARTITIONS) if isinstance(bounds, dict) else ():
                self.do_to_both(lambda log, place=(topic, partition): read_all(log, *place))

    def see_that_the_index_tells_the_truth(self) -> None:
        """Check that segments follow each other without a gap, and that each is in the archive unchanged."""
        index, store = self.parts.index, self.parts.store
        for topic in index.topic_names():
            for partition in range(PARTITIONS):
                segments = list(archived_segments_from(index, topic, partition))
                assert all(one.end_offset == following.first_offset for one, following in pairwise(segments))
                for segment in segments:
                    read_segment(store, topic, partition, segment)

    def see_that_nothing_is_left_over(self) -> None:
        self.halves.sweep()
        index, store = self.parts.index, self.parts.store
        kept = {
            each.key
            for folder in (object_keys.LOG_FOLDER, object_keys.REWRITTEN_FOLDER)
            for each in store.list_objects(folder)
        }
        assert kept == set(index.referenced_archive_keys())


def read_all(log, topic, partition):
    found = []
    bounds = log.bounds(topic, [partition])[partition]
    place = bounds.oldest
    while place < bounds.next_offset:
        piece = log.read(topic, partition, place, limit=7)
        assert place < piece.next_offset
        found += piece.events
        place = piece.next_offset
    return found


@pytest.mark.parametrize(("hot", "walks"), [("memory", seeds(10, 60)), ("sqlite", seeds(3, 12))])
def test_two_halves_show_what_one_shows(hot, walks, tmp_path):
    """After any sequence of appends, archiving, trimming, compaction and restarts, both logs return the same events;
    the objects to which the index refers exist, and no others do."""
    seen: Counter[str] = Counter()
    for number in walks:
        walk = RandomWalk(f"{hot} {number}", tmp_path / str(number), hot, ARCHIVE_MANUALLY)
        try:
            for _ in range(STEPS):
                walk.step()
                walk.see_that_they_show_the_same()
            walk.see_that_the_index_tells_the_truth()
            walk.see_that_nothing_is_left_over()
        finally:
            walk.close()
        seen += walk.seen
    # The test would show little if most sequences had archived no event that was read or found.
    assert seen["read"] > len(walks) / 2
    assert seen["found"] > len(walks) / 2


@pytest.mark.parametrize(("hot", "walks"), [("memory", seeds(10, 60)), ("sqlite", seeds(2, 12))])
def test_a_cold_half_that_is_seldom_compacted_brings_nothing_back(hot, walks, tmp_path):
    """However seldom the archive is compacted, a reader of the whole log ends with the newest event of every key."""
    for number in walks:
        walk = RandomWalk(f"{hot} {number}", tmp_path / str(number), hot, RELUCTANT)
        walk.read = walk.find_a_moment = walk.trim = lambda: None  # an event type that is only compacted is not trimmed
        try:
            for _ in range(STEPS):
                walk.step()
                for place in ((topic, partition) for topic in TOPICS for partition in range(PARTITIONS)):
                    walk.do_to_both(lambda log, place=place: final_state(log, *place))
            walk.see_that_the_index_tells_the_truth()
        finally:
            walk.close()


def final_state(log, topic, partition):
    """The offset of each key's newest event, as a reader knows it that has read everything and dropped deleted keys."""
    newest = {event.record.key: event for event in read_all(log, topic, partition)}
    return {key: event.offset for key, event in newest.items() if key is not None and event.record.value is not None}
