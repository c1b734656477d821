"""Checks that a closed port refuses every call."""

from collections.abc import Callable, Mapping

import pytest

from nakadi.model.outcomes import Unavailable


def assert_everything_is_refused(port: type, attempts: Mapping[str, Callable[[], object]]) -> None:
    """Make the attempts, one for each method of the port, by its name: each has to raise `Unavailable`."""
    methods = {name for name, value in vars(port).items() if callable(value) and not name.startswith("_")}
    assert set(attempts) == methods - {"close"}
    for name, attempt in attempts.items():
        with pytest.raises(Unavailable, match=r"\bclosed\b"):
            print(name, attempt())
