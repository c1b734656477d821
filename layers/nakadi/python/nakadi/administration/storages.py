"""Storages: the places for event logs, and which of them new event types get.

The storage `default` is built in: it is the event log that the broker was started with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nakadi.administration.documents import SettingsDocument
from nakadi.administration.features import Features
from nakadi.model.outcomes import Conflict, Invalid, NotFound, NotPermitted
from nakadi.model.storage import DEFAULT_STORAGE_ID, Storage, StorageType, is_stream_name
from nakadi.ports import ABSENT, ChangedMeanwhile, Check, Document, Put, Registry

KIND = "storages"

InUse = Callable[[str], bool]


class Storages:
    def __init__(self, registry: Registry, choice: SettingsDocument, features: Features, built_in: StorageType) -> None:
        self._registry = registry
        self._choice = choice
        self._features = features
        self._built_in = built_in

    def all(self) -> tuple[Storage, ...]:
        """Ordered by id."""
        stored = [self._storage(document) for document in self._registry.list(KIND) if not _is_removed(document)]
        return tuple(sorted([*stored, self._default_storage()], key=lambda storage: storage.id))

    def find(self, storage_id: str) -> Storage | None:
        if storage_id == DEFAULT_STORAGE_ID:
            return self._default_storage()
        document = self._document(storage_id)
        return None if document is None else self._storage(document)

    def get(self, storage_id: str) -> Storage:
        storage = self.find(storage_id)
        if storage is None:
            raise NotFound(f"No storage with id {storage_id}")
        return storage

    def chosen(self) -> Storage:
        """The storage of new event types."""
        return self.find(self._chosen_id()) or self._default_storage()

    def add(self, storage: Storage) -> None:
        self._features.require_writable()
        if storage.type is StorageType.KINESIS and not is_stream_name(storage.configuration.get("stream")):
            raise Invalid('kinesis_configuration needs the name of a stream, as in {"stream": "orders"}')
        if storage.id == DEFAULT_STORAGE_ID:
            raise _taken(storage.id)
        before = self._registry.get(KIND, storage.id)
        if before is not None and not (_is_removed(before) and _is_same(before, storage)):
            raise _taken(storage.id)
        try:
            self._registry.write(Put(KIND, storage.id, _body(storage), expected=before.revision if before else ABSENT))
        except ChangedMeanwhile as error:
            raise _taken(storage.id) from error
        if storage.default:
            self._choose(storage.id)

    def choose(self, storage_id: str) -> Storage:
        """Make this the storage of new event types; those that exist stay where they are."""
        self._features.require_writable()
        if self.find(storage_id) is None:
            raise NotFound(f"Storage with id {storage_id} is not found")
        self._choose(storage_id)
        return self.get(storage_id)

    def remove(self, storage_id: str, in_use: InUse) -> None:
        """Remove a storage that no timeline lives in.

        It is closed first, so that nobody can move in between looking and removing. Its id stays what it was: some
        process may have its log open, and must not take the next one's for it.
        """
        self._features.require_writable()
        if storage_id in (DEFAULT_STORAGE_ID, self._chosen_id()):
            raise _used(storage_id)
        document = self._document(storage_id)
        if document is None:
            raise NotFound(f"Tried to remove storage that doesn't exist, id: {storage_id}")
        self._registry.write(Put(KIND, storage_id, {**document.body, "closed": True}, expected=document.revision))
        if in_use(storage_id):
            self._registry.write(Put(KIND, storage_id, {**document.body, "closed": False}))
            raise _used(storage_id)
        self._registry.write(Put(KIND, storage_id, {**document.body, "closed": True, "removed": True}))

    def still_there(self, storage_id: str) -> tuple[Check, ...]:
        """What a write has to insist on when it puts a timeline into this storage."""
        if storage_id == DEFAULT_STORAGE_ID:
            return ()
        document = self._document(storage_id)
        if document is None or document.body["closed"]:
            raise NotFound(f"No storage with id {storage_id}")
        return (Check(KIND, storage_id, document.revision),)

    def _document(self, storage_id: str) -> Document | None:
        document = self._registry.get(KIND, storage_id)
        return None if document is None or _is_removed(document) else document

    def _chosen_id(self) -> str:
        return str(self._choice.read().get("id", DEFAULT_STORAGE_ID))

    def _choose(self, storage_id: str) -> None:
        self._choice.change(lambda _: {"id": storage_id})

    def _default_storage(self) -> Storage:
        chosen = self._chosen_id() == DEFAULT_STORAGE_ID
        return Storage(id=DEFAULT_STORAGE_ID, type=self._built_in, default=chosen)

    def _storage(self, document: Document) -> Storage:
        return Storage(
            id=document.key,
            type=StorageType(document.body["type"]),
            configuration=document.body["configuration"],
            default=self._chosen_id() == document.key,
        )


def _body(storage: Storage) -> Mapping[str, Any]:
    return {"type": storage.type.value, "configuration": dict(storage.configuration), "closed": False}


def _is_removed(document: Document) -> bool:
    return bool(document.body.get("removed", False))


def _is_same(document: Document, storage: Storage) -> bool:
    wished = _body(storage)
    return all(document.body[name] == wished[name] for name in ("type", "configuration"))


def _taken(storage_id: str) -> Conflict:
    return Conflict(f"A storage with id '{storage_id}' already exists.")


def _used(storage_id: str) -> NotPermitted:
    return NotPermitted(f"Can't delete storage as it is still used, id: {storage_id}")
