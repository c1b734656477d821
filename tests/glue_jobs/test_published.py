"""What was published is what tables have; `make published` does this at length."""

from tests.support.published import World


def test_events_of_any_shape(tmp_path, tables):
    """Events of random shapes, over changing schemas and jobs that are cut short, are in tables value by value."""
    # In this world numbers that a double would round have columns: reading them as they are is noticed.
    World(18, tmp_path, tables).run(rounds=3)
