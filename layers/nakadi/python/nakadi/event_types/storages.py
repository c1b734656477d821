"""Storages: places for event logs, and the choice of the storage for new event types.

The storage `default` is built in: it is the event log that the broker's settings name. When an administrator adds
another storage, or chooses it for new event types, the broker tries to reach it, so that administrators notice
mistakes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from nakadi.auth.features import Features
from nakadi.auth.settings_document import SettingsDocument
from nakadi.model.event_type import DEFAULT_STORAGE_ID, Storage, StorageType, is_kafka_configuration, is_stream_name
from nakadi.model.outcomes import Conflict, Fault, Invalid, NotFound, NotPermitted, TryLater, Unavailable
from nakadi.openapi.checks import openapi_violations
from nakadi.ports.registry import ABSENT_REVISION, ChangedMeanwhile, CheckRevision, Document, PutDocument, Registry

log = logging.getLogger(__name__)

STORAGES_KIND = "storages"

# Two administrators rarely change one storage at the same time; this number of conflicts in a row does not happen by
# chance.
MAX_STORAGE_REMOVAL_ATTEMPTS = 8

IsStorageUsed = Callable[[str], bool]
CheckReachable = Callable[[Storage], None]
"""Raises `Unavailable` if this broker cannot use the storage."""


class Storages:
    def __init__(
        self,
        registry: Registry,
        choice: SettingsDocument,
        features: Features,
        built_in: StorageType,
        check_reachable: CheckReachable,
    ) -> None:
        self._registry = registry
        self._choice = choice
        self._features = features
        self._built_in = built_in
        self._check_reach = check_reachable

    def all(self) -> tuple[Storage, ...]:
        stored = [
            self._storage_from_document(document)
            for document in self._registry.list(STORAGES_KIND)
            if not _is_removed(document)
        ]
        return tuple(sorted([*stored, self._default_storage()], key=lambda storage: storage.id))

    def find(self, storage_id: str) -> Storage | None:
        if storage_id == DEFAULT_STORAGE_ID:
            return self._default_storage()
        document = self._find_document(storage_id)
        return None if document is None else self._storage_from_document(document)

    def get(self, storage_id: str) -> Storage:
        storage = self.find(storage_id)
        if storage is None:
            raise NotFound(f"No storage with id {storage_id}")
        return storage

    def chosen_for_new_event_types(self) -> Storage:
        return self.find(self._chosen_storage_id()) or self._default_storage()

    def add(self, storage: Storage) -> None:
        self._features.require_writes_allowed()
        check_storage_fields(storage)
        if storage.id == DEFAULT_STORAGE_ID:
            raise _already_exists_error(storage.id)
        before = self._registry.get(STORAGES_KIND, storage.id)
        if before is not None and not (_is_removed(before) and _is_document_of(before, storage)):
            raise _already_exists_error(storage.id)
        self._check_reachable(storage)
        try:
            self._registry.write(
                PutDocument(
                    STORAGES_KIND,
                    storage.id,
                    _storage_body(storage),
                    expected_revision=before.revision if before else ABSENT_REVISION,
                )
            )
        except ChangedMeanwhile as error:
            raise _already_exists_error(storage.id) from error
        if storage.default:
            self._store_chosen_storage_id(storage.id)

    def choose(self, storage_id: str) -> Storage:
        """Use this storage for new event types. Existing event types stay where they are."""
        self._features.require_writes_allowed()
        storage = self.find(storage_id)
        if storage is None:
            raise NotFound(f"Storage with id {storage_id} is not found")
        self._check_reachable(storage)
        self._store_chosen_storage_id(storage_id)
        return self.get(storage_id)

    def remove(self, storage_id: str, is_used: IsStorageUsed) -> None:
        self._features.require_writes_allowed()
        for _ in range(MAX_STORAGE_REMOVAL_ATTEMPTS):
            try:
                return self._remove(storage_id, is_used)
            except ChangedMeanwhile:
                continue
            except Fault:
                self._try_to_reopen(storage_id)
                raise
        raise TryLater(f"Storage with id {storage_id} is being changed by others, please repeat request")

    def _remove(self, storage_id: str, is_used: IsStorageUsed) -> None:
        """Close the storage, check that it has no timelines, and mark it as removed.

        A closed storage gets no new timelines, so none can begin between the check and the removal. The document stays:
        a process may have the log open, and must not use it for another storage that is added with the same id. Each
        write requires the revision of the write before, since another process may have removed the storage and added it
        again.
        """
        if storage_id in (DEFAULT_STORAGE_ID, self._chosen_storage_id()):
            raise _still_used_error(storage_id)
        document = self._find_document(storage_id)
        if document is None:
            raise NotFound(f"Tried to remove storage that doesn't exist, id: {storage_id}")
        closed = document.revision + 1
        self._registry.write(
            PutDocument(
                STORAGES_KIND, storage_id, {**document.body, "closed": True}, expected_revision=document.revision
            )
        )
        if is_used(storage_id):
            self._registry.write(
                PutDocument(STORAGES_KIND, storage_id, {**document.body, "closed": False}, expected_revision=closed)
            )
            raise _still_used_error(storage_id)
        self._registry.write(
            PutDocument(
                STORAGES_KIND, storage_id, {**document.body, "closed": True, "removed": True}, expected_revision=closed
            )
        )

    def _try_to_reopen(self, storage_id: str) -> None:
        """Let timelines begin in a storage again whose removal failed. If this fails too, the next removal does it."""
        with suppress(Fault, ChangedMeanwhile):
            document = self._find_document(storage_id)
            if document is not None:
                self._registry.write(
                    PutDocument(
                        STORAGES_KIND,
                        storage_id,
                        {**document.body, "closed": False},
                        expected_revision=document.revision,
                    )
                )

    def write_conditions_on(self, storage_id: str) -> tuple[CheckRevision, ...]:
        """The conditions for a write that begins a timeline in this storage. Raises `NotFound`."""
        if storage_id == DEFAULT_STORAGE_ID:
            return ()
        document = self._find_document(storage_id)
        if document is None or document.body["closed"]:
            raise NotFound(f"No storage with id {storage_id}")
        return (CheckRevision(STORAGES_KIND, storage_id, document.revision),)

    def _check_reachable(self, storage: Storage) -> None:
        if storage.id == DEFAULT_STORAGE_ID:
            return  # the settings name this storage, so it cannot be removed
        try:
            self._check_reach(storage)
        except Unavailable as error:
            log.warning("Check of storage %s failed, it cannot be used: %s", storage.id, error.__cause__ or error)
            raise Invalid(error.public or f"The storage {storage.id} cannot be reached") from error

    def _find_document(self, storage_id: str) -> Document | None:
        document = self._registry.get(STORAGES_KIND, storage_id)
        return None if document is None or _is_removed(document) else document

    def _chosen_storage_id(self) -> str:
        """The id of the chosen storage, or of the built-in one if another process has removed it."""
        chosen = str(self._choice.read().get("id", DEFAULT_STORAGE_ID))
        if chosen == DEFAULT_STORAGE_ID or self._find_document(chosen) is not None:
            return chosen
        return DEFAULT_STORAGE_ID

    def _store_chosen_storage_id(self, storage_id: str) -> None:
        self._choice.change(lambda _: {"id": storage_id})

    def _default_storage(self) -> Storage:
        chosen = self._chosen_storage_id() == DEFAULT_STORAGE_ID
        return Storage(id=DEFAULT_STORAGE_ID, type=self._built_in, default=chosen)

    def _storage_from_document(self, document: Document) -> Storage:
        return Storage(
            id=document.key,
            type=StorageType(document.body["type"]),
            configuration=document.body["configuration"],
            default=self._chosen_storage_id() == document.key,
        )


def check_storage_fields(storage: Storage) -> None:
    violations = openapi_violations("StorageDraft", {"id": storage.id, "storage_type": storage.type})
    if violations:
        raise Invalid(violations[0].message)
    if storage.type is StorageType.KINESIS and not is_stream_name(storage.configuration.get("stream")):
        raise Invalid('kinesis_configuration needs the name of a stream, as in {"stream": "orders"}')
    if storage.type is StorageType.KAFKA and not is_kafka_configuration(storage.configuration):
        raise Invalid(
            "kafka_configuration needs the addresses of servers and may have a topic_prefix, as in "
            '{"bootstrap_servers": "kafka-1:9092,kafka-2:9092", "topic_prefix": "nakadi-"}'
        )
    if storage.type is StorageType.EMBEDDED and storage.configuration:
        raise Invalid(
            "embedded_configuration must be empty: its events are in the same place as the built-in storage's"
        )


def _storage_body(storage: Storage) -> Mapping[str, Any]:
    return {"type": storage.type.value, "configuration": dict(storage.configuration), "closed": False}


def _is_removed(document: Document) -> bool:
    return bool(document.body.get("removed", False))


def _is_document_of(document: Document, storage: Storage) -> bool:
    expected = _storage_body(storage)
    return all(document.body[name] == expected[name] for name in ("type", "configuration"))


def _already_exists_error(storage_id: str) -> Conflict:
    return Conflict(f"A storage with id '{storage_id}' already exists.")


def _still_used_error(storage_id: str) -> NotPermitted:
    return NotPermitted(f"Can't delete storage as it is still used, id: {storage_id}")
