"""Settings that show which of them a part of the broker reads."""

from __future__ import annotations

from typing import Any

from nakadi.app.settings import Settings


class ReadRecordingSettings:
    """Settings that record which of them are read."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        derived = getattr(Settings, name, None)
        if isinstance(derived, property):
            return derived.fget(self)
        self.read.add(name)
        return getattr(self._settings, name)
