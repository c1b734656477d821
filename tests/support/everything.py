"""Whether all tests run, also those that take long and repeat on another engine or at other moments what others show:
`make test-all`."""

import os

WANTED = os.environ.get("TEST_ALL") == "1"


def times(few: int, many: int) -> int:
    """How many seeds or examples a test tries: a few in every run, and many if all tests run."""
    return many if WANTED else few
