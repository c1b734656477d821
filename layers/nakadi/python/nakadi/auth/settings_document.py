"""Settings that administrators change while the broker runs, as JSON documents in the registry, one for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from nakadi.common.caching import Cache
from nakadi.model.outcomes import TryLater
from nakadi.ports.registry import ABSENT_REVISION, ChangedMeanwhile, PutDocument, Registry

SETTINGS_KIND = "settings"
SettingsBody = Mapping[str, Any]

# Two administrators rarely write at the same time; ten conflicts in a row do not happen by chance.
MAX_SETTINGS_WRITE_ATTEMPTS = 10


class SettingsDocument:
    """One JSON object of settings. `read` may return a cached document; `change` first reads the stored one."""

    def __init__(self, registry: Registry, key: str, cache: Cache[str, SettingsBody]) -> None:
        self._registry = registry
        self._key = key
        self._cache = cache
        self.read: Callable[[], SettingsBody] = partial(cache.get, key, lambda _: self._stored_body()[0])

    def change(self, new_body: Callable[[SettingsBody], SettingsBody]) -> None:
        """Replace the stored body with `new_body(body)`, unless they are equal."""
        for _ in range(MAX_SETTINGS_WRITE_ATTEMPTS):
            body, revision = self._stored_body()
            changed = new_body(body)
            if changed == body:
                return
            try:
                self._registry.write(PutDocument(SETTINGS_KIND, self._key, changed, expected_revision=revision))
            except ChangedMeanwhile:
                continue
            finally:
                self._cache.invalidate(self._key)
            return
        raise TryLater("The settings are being changed by others, please repeat request")

    def _stored_body(self) -> tuple[SettingsBody, int]:
        document = self._registry.get(SETTINGS_KIND, self._key)
        return (document.body, document.revision) if document else ({}, ABSENT_REVISION)
