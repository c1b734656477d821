"""Registries for tests whose subject is not the registry."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from nakadi.auth.settings_document import SettingsDocument
from nakadi.common.caching import Cache
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.model.outcomes import Unavailable
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


class WriteFate(Enum):
    """What happens to a write of a registry whose answers may get lost."""

    ANSWERED = auto()
    NOT_WRITTEN = auto()
    WRITTEN_WITHOUT_ANSWER = auto()


def let_next_writes_fail(registry: MemoryRegistry, *fates: WriteFate) -> None:
    """Let the registry's next writes have these fates: a writer without an answer gets `Unavailable`."""
    write, waiting = registry.write, list(fates)

    def write_or_fail(*changes: DocumentChange) -> None:
        fate = waiting.pop(0) if waiting else WriteFate.ANSWERED
        if fate is not WriteFate.NOT_WRITTEN:
            write(*changes)
        if fate is not WriteFate.ANSWERED:
            raise Unavailable("The registry does not answer.")

    registry.write = write_or_fail  # type: ignore[method-assign]
