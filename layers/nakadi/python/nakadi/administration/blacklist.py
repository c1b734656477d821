"""The blacklist: applications and event types that may not publish or consume for now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nakadi.administration.documents import Body, SettingsDocument
from nakadi.model.administration import BlockedKind
from nakadi.model.outcomes import Invalid
from nakadi.model.sizes import MOST_NAMES


class Blacklist:
    def __init__(self, document: SettingsDocument) -> None:
        self._document = document

    def entries(self) -> Mapping[BlockedKind, tuple[str, ...]]:
        body = self._document.read()
        return {kind: tuple(body.get(kind, ())) for kind in BlockedKind}

    def block(self, kind: BlockedKind, name: str) -> None:
        """Add a name. Raises `Invalid` when there are as many as every request can be held against."""
        self._document.change(lambda body: _with(body, kind, {*body.get(kind, ()), name}))

    def unblock(self, kind: BlockedKind, name: str) -> None:
        self._document.change(lambda body: _with(body, kind, {*body.get(kind, ())} - {name}))

    def blocks_producing(self, application: str, event_type: str) -> bool:
        return self._names(BlockedKind.PRODUCER_EVENT_TYPE, event_type) or self._names(
            BlockedKind.PRODUCER_APP, application
        )

    def blocks_consuming(self, application: str, event_types: Iterable[str]) -> bool:
        return any(self._names(BlockedKind.CONSUMER_EVENT_TYPE, name) for name in event_types) or self._names(
            BlockedKind.CONSUMER_APP, application
        )

    def _names(self, kind: BlockedKind, name: str) -> bool:
        return name in self._document.read().get(kind, ())


def _with(body: Body, kind: BlockedKind, names: set[str]) -> Body:
    if len(names) > max(MOST_NAMES, len(body.get(kind, ()))):
        raise Invalid(f"The blacklist has at most {MOST_NAMES} names of one kind")
    return {**body, kind.value: sorted(names)}
