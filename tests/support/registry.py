"""Registries for tests that are about something else."""

from __future__ import annotations

from collections.abc import Callable

from nakadi.auth.settings_document import SettingsDocument
from nakadi.common.caching import Cache
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.ports.registry import DocumentChange
from tests.support.clock import HandMovedClock


def settings_document(key: str) -> SettingsDocument:
    """A settings document in a separate registry, cached for a second that passes only on request."""
    return SettingsDocument(MemoryRegistry(), key, Cache(HandMovedClock(), 1.0))


def act_before_next_writes(registry: MemoryRegistry, *actions: Callable[[], object]) -> None:
    """Others are quicker: each action is carried out right before one of the registry's next writes."""
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
