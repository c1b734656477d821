"""Tables have every published event, even after the log has removed some."""

from contextlib import closing
from datetime import timedelta

import pytest

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.common.waiting import run_blocking
from nakadi.model.annotations import MATERIALIZE_ANNOTATION
from nakadi.model.event_type import Category, CleanupPolicy, EnrichmentStrategy
from nakadi.model.events import Record
from tests.support.builders import A_MOMENT, a_schema, a_timeline, an_event_type
from tests.support.clock import HandMovedClock

MINUTE = 60.0
HOUR = 60 * MINUTE
NAMES = '{"type": "object", "properties": {"name": {"type": "string"}}}'


class LiveBroker:
    """A broker on the data folder of the jobs, with the compacted event type `customer.changed`."""

    def __init__(self, data, **settings):
        file = f"sqlite:///{data.folder / 'nakadi.db'}"
        self.clock = HandMovedClock(A_MOMENT)
        stores = {"registry": file, "event_log": file, "archive": data.archive}
        self.broker = open_broker(Settings(**stores, **settings), self.clock)
        self.log = self.broker.logs.for_storage("default")
        self.published = 0

    def event_type(self, **changes):
        made = an_event_type(
            name="customer.changed",
            schema=a_schema(NAMES),
            category=Category.BUSINESS,
            enrichment_strategies=(EnrichmentStrategy.METADATA,),
            cleanup_policy=CleanupPolicy.COMPACT,
            timelines=(a_timeline(topic="customers", partitions=1),),
            **changes,
        )
        self.log.create_topic("customers", 1)
        self.broker.event_types.add(made)

    def publish(self, count):
        """Publish events with the same key, of which a compacted log keeps only one."""
        for _ in range(count):
            text = b'{"metadata":{"eid":"e","published_by":"shop"},"name":"%d"}' % self.published
            run_blocking(self.log.append("customers", {0: [Record(text, key="k")]}))
            self.published += 1
            self.clock.move(1)

    def archive_and_follow(self, after=2 * HOUR):
        self.clock.move(after)
        self.log.archive()
        self.broker.run_housekeeping()

    def offsets(self):
        """The offsets that remain in the log."""
        oldest = self.log.bounds("customers", [0])[0].oldest
        return [event.offset for event in self.log.read("customers", 0, oldest).events]


@pytest.fixture
def live_broker(data):
    made = LiveBroker(data)
    with closing(made.broker):
        yield made


@pytest.mark.long
def test_compaction_leaves_events_alone_until_they_are_in_their_table(jobs, live_broker):
    """A job that runs late, for the first time or after others, finds all published events; only then does the log
    remove replaced ones. Statistics count every event.
    """
    live_broker.event_type()
    live_broker.publish(5)
    live_broker.archive_and_follow()
    live_broker.archive_and_follow()
    assert jobs.compact().code == 0
    assert jobs.rows("customer_changed", "nakadi_offset", "name") == [(each, str(each)) for each in range(5)]

    live_broker.publish(4)
    live_broker.archive_and_follow()
    # The events that are in the table were removed from the log, except for the newest.
    assert live_broker.offsets() == [4, 5, 6, 7, 8]
    live_broker.publish(1)
    live_broker.archive_and_follow(after=2 * MINUTE)
    assert live_broker.offsets() == [4, 5, 6, 7, 8, 9]
    assert jobs.compact().code == 0
    live_broker.archive_and_follow()

    assert live_broker.offsets() == [9]
    assert jobs.rows("customer_changed", "nakadi_offset", "name") == [(each, str(each)) for each in range(10)]
    assert jobs.rows("customer_changed__latest", "nakadi_offset") == [(9,)]
    until = (A_MOMENT + timedelta(days=1)).replace(minute=0, second=0, microsecond=0)
    assert jobs.measured("--until", until.isoformat(), "--hours", "30").code == 0
    counted = jobs.table("nakadi__statistics").where("event_type = 'customer.changed'").agg({"events": "sum"}).first()
    assert counted[0] == live_broker.published


def test_compaction_does_not_wait_for_ever(live_broker):
    """If no job runs, events are compacted two days after they were stored."""
    live_broker.event_type()
    live_broker.publish(3)
    live_broker.archive_and_follow(after=47 * HOUR)
    assert live_broker.offsets() == [0, 1, 2]
    live_broker.archive_and_follow(after=2 * HOUR)
    assert live_broker.offsets() == [2]


@pytest.mark.parametrize(
    ("settings", "changes"),
    [({"compaction_wait_hours": 0}, {}), ({}, {"annotations": {MATERIALIZE_ANNOTATION: "off"}})],
)
def test_compaction_waits_for_no_table_that_is_not_to_be(data, settings, changes):
    """If no job fills tables, or the event type has none, the log is compacted at once."""
    live = LiveBroker(data, **settings)
    with closing(live.broker):
        live.event_type(**changes)
        live.publish(3)
        live.archive_and_follow()
        assert live.offsets() == [2]
