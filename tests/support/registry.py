"""Registries for tests that are about something else."""

from nakadi.administration.documents import SettingsDocument
from nakadi.caching import Cache
from nakadi.registries.memory import MemoryRegistry
from tests.support.clock import HandMovedClock


def settings_document(key: str) -> SettingsDocument:
    """A settings document in a registry of its own, remembered for a second that does not pass by itself."""
    return SettingsDocument(MemoryRegistry(), key, Cache(HandMovedClock(), 1.0))
