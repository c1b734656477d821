"""The environment of query processes."""

from pathlib import Path

import pytest

from nakadi.queries.processes import place_for_child


@pytest.mark.parametrize(
    ("tables", "place"),
    [
        ("", None),
        ("glue", "glue"),
        ("s3://events/tables", "s3://events/tables"),
        ("https://catalog.example.org?warehouse=events", "https://catalog.example.org?warehouse=events"),
        ("data/tables", str(Path("data/tables").absolute())),
        ("/var/lib/nakadi/tables", "/var/lib/nakadi/tables"),
    ],
)
def test_a_child_finds_tables_from_its_own_folder(tables, place):
    """A relative folder is relative to the broker's folder, not to the one in which the query runs. (Q15)"""
    assert place_for_child(tables) == place
