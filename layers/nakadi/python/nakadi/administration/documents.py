"""The settings documents of the registry: one JSON object per matter, changed by compare and set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nakadi.caching import Cache
from nakadi.model.outcomes import TryLater
from nakadi.ports.registry import ABSENT, ChangedMeanwhile, Put, Registry

KIND = "settings"
Body = Mapping[str, Any]

# Two administrators at once are rare, ten in a row do not happen by chance.
ATTEMPTS = 10


class SettingsDocument:
    """One document. What `read` answers may be as old as the cache allows; a change starts from what is stored."""

    def __init__(self, registry: Registry, key: str, cache: Cache[str, Body]) -> None:
        self._registry = registry
        self._key = key
        self._cache = cache

    def read(self) -> Body:
        return self._cache.get(self._key, lambda: self._stored()[0])

    def change(self, changed: Callable[[Body], Body]) -> None:
        """Write what `changed` makes of the stored body; nothing is written if that is the same."""
        for _ in range(ATTEMPTS):
            body, revision = self._stored()
            wished = changed(body)
            if wished == body:
                return
            try:
                self._registry.write(Put(KIND, self._key, wished, expected=revision))
            except ChangedMeanwhile:
                continue
            finally:
                self._cache.forget(self._key)
            return
        raise TryLater("The settings are being changed by others, please repeat request")

    def _stored(self) -> tuple[Body, int]:
        document = self._registry.get(KIND, self._key)
        return (document.body, document.revision) if document else ({}, ABSENT)
