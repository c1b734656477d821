"""Registries for tests whose subject is not the registry."""

from __future__ import annotations

from collections.abc import Callable

from nakadi.auth.settings_document import SettingsDocument
from nakadi.common.caching import Cache
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.ports.registry import DocumentChange
from tests.support.clock import HandMovedClock


def settings_document(key: str) -> SettingsDocument:
    """A settings document in a new registry. Its cache lasts a second by a clock that only the test moves."""
    return SettingsDocument(MemoryRegistry(), key, Cache(HandMovedClock(), 1.0))


def act_before_next_writes(registry: MemoryRegistry, *actions: Callable[[], object]) -> None:
    """Carry out each action right before one of the registry's next writes, as if another process were quicker."""
    write, waiting = registry.write, list(actions)
    racing = False

    def write_later(*changes: DocumentChange) -> None:
        nonlocal racing
        if waiting and not racing:
            racing = True
            waiting.pop(0)()
            racing = False
        write(*changes)

    registry.write = write_later  # type: ignore[method-assign]
