"""After any operations, an event log returns the same as the one in memory."""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nakadi.app.engines import open_event_log
from nakadi.common.waiting import run_blocking
from nakadi.model.authorization import Attribute
from nakadi.model.events import Record
from nakadi.ports.event_log import OffsetUnavailable, SealedTopic, UnknownTopic
from tests.support.clock import HandMovedClock
from tests.support.engines import HOUR
from tests.support.everything import choose_by_suite

PARTITIONS = 2

names = st.sampled_from(["a", "b", "", "é"])
records = st.builds(
    Record,
    value=st.none() | st.sampled_from([1, 10, 3_000, 70_000]).map(lambda size: b'"' + b"x" * size + b'"'),
    key=st.none() | names,
    owner=st.none() | st.builds(Attribute, names, names),
    directed_to=st.none() | names,
)
topics = st.sampled_from(["first", "second"])
partitions = st.integers(0, PARTITIONS - 1)
hours = st.integers(0, 8)


class TwoLogs(RuleBasedStateMachine):
    """Two logs, one of them in memory, with the same clock and the same calls."""

    @initialize()
    def open(self):
        self.clock = HandMovedClock()
        self.hours = 0
        self.folder = tempfile.TemporaryDirectory()
        self.url = f"sqlite:///{Path(self.folder.name)}/nakadi.db"
        self.memory = open_event_log("memory:", self.clock)
        self.sqlite = open_event_log(self.url, self.clock)
        for topic in ("first", "second"):
            self.do_to_both(lambda log, topic=topic: log.create_topic(topic, PARTITIONS))

    def teardown(self):
        self.memory.close()
        self.sqlite.close()
        self.folder.cleanup()

    def do_to_both(self, work):
        """Call both logs, and require the same result or the same refusal."""
        answers = []
        for log in (self.memory, self.sqlite):
            try:
                answers.append(work(log))
            except (UnknownTopic, SealedTopic, OffsetUnavailable) as refusal:
                answers.append(type(refusal))
        assert answers[0] == answers[1]
        return answers[0]

    @rule(topic=topics, batches=st.dictionaries(partitions, st.lists(records, max_size=6), min_size=1))
    def append(self, topic, batches):
        self.do_to_both(lambda log: run_blocking(log.append(topic, batches)))

    @rule(moved=st.integers(0, 3))
    def time_passes(self, moved):
        self.clock.move(3600 * moved)
        self.hours += moved

    @rule(topic=topics, partition=partitions, back=hours)
    def trim(self, topic, partition, back):
        self.do_to_both(lambda log: log.trim(topic, partition, self.moment(back)))

    @rule(topic=topics, partition=partitions, back=hours, tombstones=hours)
    def compact(self, topic, partition, back, tombstones):
        stored_before, tombstones_before = self.moment(back), self.moment(tombstones)
        self.do_to_both(
            lambda log: log.compact(topic, partition, stored_before=stored_before, tombstones_before=tombstones_before)
        )

    @rule(topic=topics, partition=partitions, start=st.integers(-1, 60), limit=st.integers(1, 5))
    def read(self, topic, partition, start, limit):
        """Compare the first events, because a log may return fewer events than the limit, but not an empty slice."""

        def look(log):
            events = log.read(topic, partition, start, limit=limit).events
            assert len(events) <= limit
            return events[:1]

        self.do_to_both(look)

    @rule(topic=topics, partition=partitions, back=hours)
    def find_a_moment(self, topic, partition, back):
        self.do_to_both(lambda log: log.first_offset_since(topic, partition, self.moment(back)))

    @rule(topic=topics)
    def grow(self, topic):
        self.do_to_both(lambda log: log.add_partitions(topic, PARTITIONS))

    @rule()
    def seal(self):
        self.do_to_both(lambda log: log.seal_topic("second"))

    @rule()
    def delete(self):
        self.do_to_both(lambda log: log.delete_topic("second"))

    @rule()
    def start_again(self):
        self.sqlite.close()
        self.sqlite = open_event_log(self.url, self.clock)

    @invariant()
    def show_the_same(self):
        for topic in ("first", "second"):
            bounds = self.do_to_both(lambda log, topic=topic: log.bounds(topic, range(PARTITIONS)))
            for partition in range(PARTITIONS) if isinstance(bounds, dict) else ():
                self.do_to_both(lambda log, place=(topic, partition): read_all(log, *place))

    def moment(self, back):
        """A time between the beginning of the test and now, drawn by `back`."""
        return self.clock.now() - min(back, self.hours) * HOUR


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


TestAgreement = TwoLogs.TestCase
TestAgreement.settings = settings(
    max_examples=choose_by_suite(20, 40), stateful_step_count=25, suppress_health_check=list(HealthCheck)
)
