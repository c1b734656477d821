"""What was published is what tables have; `make published` does this at length."""

import pytest

from tests.support.published import World


# In the first world numbers that a double would round have columns: reading them as they are is noticed. In the second
# events have keys, and some of them take theirs away.
@pytest.mark.parametrize("seed", [18, 17])
def test_events_of_any_shape(tmp_path, tables, seed):
    """Events of random shapes, over changing schemas and jobs that are cut short, are in tables value by value, and so
    is what there is under each key; Spark, DuckDB and pyiceberg read the same."""
    World(seed, tmp_path, tables).run(rounds=3)
