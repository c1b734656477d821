"""Applications and event types that administrators have blocked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nakadi.auth.settings_document import SettingsBody, SettingsDocument
from nakadi.model.authorization import (
    BlockedKind,
    Subject,
)
from nakadi.model.outcomes import MAX_BLACKLIST_NAMES_PER_KIND, Invalid, NotPermitted

BLOCKED_MESSAGE = "Application or event type is blocked"


class Blacklist:
    def __init__(self, document: SettingsDocument) -> None:
        self._document = document

    def entries(self) -> Mapping[BlockedKind, tuple[str, ...]]:
        body = self._document.read()
        return {kind: tuple(body.get(kind, ())) for kind in BlockedKind}

    def block(self, kind: BlockedKind, name: str) -> None:
        """Add a name. Raises `Invalid` when the list is full: the length is limited because every request is compared
        with all names.
        """
        self._document.change(lambda body: _with_names(body, kind, {*body.get(kind, ()), name}))

    def unblock(self, kind: BlockedKind, name: str) -> None:
        self._document.change(lambda body: _with_names(body, kind, {*body.get(kind, ())} - {name}))

    def require_producer(self, subject: Subject, event_type: str) -> None:
        names = self._document.read()
        if event_type in names.get(BlockedKind.PRODUCER_EVENT_TYPE, ()) or subject.name in names.get(
            BlockedKind.PRODUCER_APP, ()
        ):
            raise NotPermitted(BLOCKED_MESSAGE)

    def blocks_consuming(self, application: str, event_types: Iterable[str]) -> bool:
        names = self._document.read()
        return application in names.get(BlockedKind.CONSUMER_APP, ()) or not set(event_types).isdisjoint(
            names.get(BlockedKind.CONSUMER_EVENT_TYPE, ())
        )


def _with_names(body: SettingsBody, kind: BlockedKind, names: set[str]) -> SettingsBody:
    if len(names) > max(MAX_BLACKLIST_NAMES_PER_KIND, len(body.get(kind, ()))):
        raise Invalid(f"The blacklist has at most {MAX_BLACKLIST_NAMES_PER_KIND} names of one kind")
    return {**body, kind.value: sorted(names)}
