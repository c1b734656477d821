"""A limit on work."""

import pytest

from nakadi.schemas.values import StepsExhausted, spend_steps


def test_spending():
    """Steps can be spent until none are left; one more raises. (P56)"""
    steps = [3]
    spend_steps(steps, 2)
    spend_steps(steps, 1)

    assert steps == [0]
    with pytest.raises(StepsExhausted):
        spend_steps(steps, 1)
