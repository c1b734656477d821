"""Parking under all kinds of faults."""

import pytest

from tests.support.everything import seeds
from tests.support.parking_simulation import ParkingSimulation


@pytest.mark.parametrize("seed", seeds(25, 150))
def test_keys_stay_in_order_and_nothing_is_lost(seed):
    """For any failures, crashes, repeated answers, skips and redrives, the events of a key are processed in order. Once
    everything can be processed and is redriven, nothing is left. (S315, S125)"""
    ParkingSimulation(seed).run()
