"""Selects tests, and the seeds that random tests begin with.

    @pytest.mark.long("tests/unit/room/test_module.py::test_quickly")
    def test_at_length(): ...

`make test` leaves out tests with this mark, `make test-long` runs these, and `make test-all` runs everything, on every
engine and with new seeds. The mark names the tests in `make test` that show the same behaviour. A mark without a name
means that no shorter test shows the behaviour.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

WANTED = os.environ.get("TEST_ALL") == "1"

SEED = int(os.environ.get("SEED", "0"))
"""The seed with which random tests begin: 0 in `make test`, and a new number in each `make test-all`."""


def choose_by_suite(few: int, many: int) -> int:
    """How many examples a test tries: `few` in most runs, and `many` in `make test-all`."""
    return many if WANTED else few


def seeds(few: int, many: int) -> range:
    """The seeds that a test tries, `few` or `many` of them."""
    return range(SEED, SEED + choose_by_suite(few, many))


def is_skipped(item: pytest.Item) -> bool:
    """Whether `make test` leaves a test out."""
    is_long = not WANTED and item.get_closest_marker("long") is not None
    return is_long and not is_requested(item.nodeid, item.config.option.markexpr, item.config.args)


def is_requested(test: str, mark_expression: str, arguments: Iterable[str]) -> bool:
    """Whether the command line of a run selects a long test: by its mark or by its own name."""
    return "long" in mark_expression or any("::" in each and test.startswith(each) for each in arguments)
