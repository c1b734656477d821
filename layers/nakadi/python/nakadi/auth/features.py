"""Features that administrators switch on and off while the broker runs."""

from __future__ import annotations

from collections.abc import Mapping

from nakadi.auth.settings_document import SettingsDocument
from nakadi.model.authorization import (
    Feature,
)
from nakadi.model.outcomes import TryLater

READ_ONLY_MESSAGE = "Database is currently in read-only mode"


class Features:
    def __init__(self, document: SettingsDocument) -> None:
        self._document = document

    def is_on(self, feature: Feature) -> bool:
        return bool(self._document.read().get(feature, False))

    def all(self) -> Mapping[Feature, bool]:
        return {feature: self.is_on(feature) for feature in Feature}

    def switch(self, feature: Feature, *, on: bool) -> None:
        self._document.change(lambda body: {**body, feature.value: on})

    def require_writes_allowed(self) -> None:
        if self.is_on(Feature.DISABLE_DB_WRITE_OPERATIONS):
            raise TryLater(READ_ONLY_MESSAGE)
