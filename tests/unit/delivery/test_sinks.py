"""How registered sinks are stored."""

import pytest

from nakadi.delivery.sinks import SinkRepository
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.ports.registry import ChangedMeanwhile


def test_two_simultaneous_copies_cannot_close_a_circle():
    """Two copies may together close a cycle that neither closes alone, so only one of two simultaneous copies is
    registered. (X63)
    """
    registry = MemoryRegistry()
    first, second = (SinkRepository(registry).no_new_copy_condition() for _ in range(2))
    registry.write(first)
    with pytest.raises(ChangedMeanwhile):
        registry.write(second)
    registry.write(SinkRepository(registry).no_new_copy_condition())
