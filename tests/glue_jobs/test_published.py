"""Tables contain the published events; `make published` tests this at length."""

import pytest

from tests.support.published import TableComparison, compare_hostile


@pytest.mark.long
def test_events_of_any_shape(tmp_path, tables):
    """Events of random shapes, over changing schemas, interrupted jobs and erasures, are in tables value by value,
    and so is the current state of each key; Spark, DuckDB and pyiceberg read the same.

    In this scenario, events have keys, the archive is compacted, a job is killed, and events are erased. Separate
    tests, and other scenarios of `make published`, have deleted event types and data changes.
    """
    TableComparison(602, tmp_path, tables).run(rounds=3)


def test_events_that_no_broker_takes(tmp_path, tables):
    """Numbers of any size, texts that are not Unicode and values that do not fit their schema are in the table too."""
    assert compare_hostile(1, tmp_path / "data", tables) == 18
