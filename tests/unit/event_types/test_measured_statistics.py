from datetime import timedelta

from nakadi.common.caching import Cache
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.event_types.measured_statistics import (
    MEASURED_STATISTICS_KIND,
    MeasuredStatistics,
    measured_statistics_body,
    measured_statistics_from_body,
)
from nakadi.event_types.repository import EventTypes
from nakadi.model.event_type import Statistics
from nakadi.ports.registry import PutDocument
from tests.support.builders import A_MOMENT, an_event_type
from tests.support.clock import HandMovedClock

MEASURED = MeasuredStatistics(
    statistic=Statistics(messages_per_minute=1, message_size=2, read_parallelism=3, write_parallelism=4),
    recommended_partitions=4,
    measured_since=A_MOMENT,
    measured_until=A_MOMENT + timedelta(days=1),
)


def test_measured_statistics_are_stored_completely():
    """Measured statistics are read as they were stored."""
    assert measured_statistics_from_body(measured_statistics_body(MEASURED)) == MEASURED


def test_a_recreated_event_type_has_no_measured_statistics():
    """Measured statistics belong to one event type, not to later ones with the same name."""
    registry = MemoryRegistry()
    event_types = EventTypes(registry, Cache(HandMovedClock(), 1))
    first = an_event_type(name="a.b", id="1")
    registry.write(PutDocument(MEASURED_STATISTICS_KIND, first.id, measured_statistics_body(MEASURED)))

    assert event_types.measured_statistics(first) == MEASURED
    assert event_types.measured_statistics(an_event_type(name="a.b", id="2")) is None
