"""The registry in DynamoDB: a table of documents, for as many processes as needed."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from uuid import uuid4

import orjson
from pynamodb.attributes import BinaryAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import DoesNotExist, PutError, TransactWriteError
from pynamodb.expressions.condition import Condition
from pynamodb.expressions.operand import Path
from pynamodb.expressions.update import Action
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite

from nakadi.engines.common.documents import CHANGE_COUNTS_KIND, changed_buckets, check_changes_of_one_write
from nakadi.engines.dynamodb.client import (
    CONDITION_FAILED_CODE,
    CONFLICT_RETRY_PAUSES_SECONDS,
    CallRetryPolicy,
    cancellation_reasons,
    is_condition_failure,
)
from nakadi.engines.dynamodb.table_address import TableAddress, connect, model_meta
from nakadi.engines.dynamodb.tables import DOCUMENTS_TABLE
from nakadi.model.outcomes import Invalid, Unavailable
from nakadi.ports.registry import (
    ABSENT_REVISION,
    ChangeCounters,
    ChangedMeanwhile,
    CheckRevision,
    Document,
    DocumentChange,
    PutDocument,
    RemoveDocument,
)

# One read unit pays for an item of about this size. Longer texts are compressed, and shorter ones stay legible in a
# console.
MAX_BYTES_STORED_UNCOMPRESSED = 4000

# DynamoDB accepts items of up to 400 KB, including all names and keys, and sort keys of up to 1024 bytes.
MAX_ITEM_BYTES = 390_000
MAX_KEY_BYTES = 1024


class DocumentItem(Model):
    """The body is JSON, in `body` or `packed`. `written_by` is new with every write: a writer recognizes its own writes
    by it.
    """

    Meta = model_meta(DOCUMENTS_TABLE)  # every registry has a model with the full name of its table

    kind = UnicodeAttribute(hash_key=True)
    key = UnicodeAttribute(range_key=True)
    revision = NumberAttribute()
    body = UnicodeAttribute(null=True)
    packed = BinaryAttribute(null=True, legacy_encoding=False)
    written_by = UnicodeAttribute()


def document_attributes(put: PutDocument) -> dict[str, Any]:
    """The attributes that hold a body. Raises `Invalid` for a document that no item can hold."""
    if not is_valid_key(put.key):
        raise Invalid(f"{put.kind} cannot be kept under so long a name")
    text = orjson.dumps(put.body)
    if len(text) <= MAX_BYTES_STORED_UNCOMPRESSED:
        return {"body": text.decode(), "packed": None}
    packed = zlib.compress(text)
    if len(packed) > MAX_ITEM_BYTES:
        raise Invalid(
            f"{put.key} is too large to be kept: packed, it has {len(packed)} bytes of {MAX_ITEM_BYTES} possible"
        )
    return {"body": None, "packed": packed}


def document_from_item(item: DocumentItem) -> Document:
    text = item.body if item.packed is None else zlib.decompress(item.packed)
    return Document(item.key, orjson.loads(text), int(item.revision))


def is_valid_key(key: str) -> bool:
    return 0 < len(key.encode()) <= MAX_KEY_BYTES


COUNTER_NAME_PREFIX = "n"


def read_change_counters(connection: Connection, items: type[DocumentItem]) -> ChangeCounters:
    found = connection.get_item(
        items.Meta.table_name, CHANGE_COUNTS_KIND, CHANGE_COUNTS_KIND, consistent_read=True
    ).get("Item", {})
    return ChangeCounters(
        {int(name[1:]): int(value["N"]) for name, value in found.items() if name.startswith(COUNTER_NAME_PREFIX)}
    )


def add_change_counts(transaction: TransactWrite, items: type[DocumentItem], buckets: Collection[int]) -> None:
    """Add the counting of changes in these buckets to a transaction. It must be the last change that is added."""
    transaction.update(
        items(CHANGE_COUNTS_KIND, CHANGE_COUNTS_KIND),
        [Path(f"{COUNTER_NAME_PREFIX}{bucket}").add(1) for bucket in buckets],
    )


class DynamoDbRegistry:
    def __init__(self, address: TableAddress, attempts: CallRetryPolicy | None = None) -> None:
        self._items = address.bind_model(DocumentItem, DOCUMENTS_TABLE)
        self._attempts = attempts or CallRetryPolicy()
        self._closed = False
        self._connection = connect(self._items)
        self._client = self._connection.client

    def get(self, kind: str, key: str) -> Document | None:
        item = self._find_item(kind, key)
        return None if item is None else document_from_item(item)

    def list(self, kind: str, *, prefix: str = "", after: str = "", limit: int | None = None) -> Sequence[Document]:
        self._check_open()
        if after > prefix and not after.startswith(prefix):
            return []
        inside = prefix and after.startswith(prefix)
        results = self._items.query(
            kind,
            range_key_condition=_sort_key_condition(prefix, after),
            last_evaluated_key={"kind": {"S": kind}, "key": {"S": after}} if inside else None,
            consistent_read=True,
            limit=limit,
        )
        return [document_from_item(item) for item in self._retry_each_page(results)]

    def write(self, *changes: DocumentChange) -> None:
        check_changes_of_one_write(changes)
        self._check_open()
        counted = changed_buckets(changes)
        match changes:
            case []:
                pass
            case [PutDocument(expected_revision=int()) as put] if not counted:
                self._put_document(put)
            case _:
                self._transact(changes, counted)

    def change_counters(self) -> ChangeCounters:
        self._check_open()
        return self._attempts.call_with_retries(lambda _: read_change_counters(self._connection, self._items))

    def close(self) -> None:
        self._closed = True
        self._client.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("The registry is closed.")

    def _find_item(self, kind: str, key: str) -> DocumentItem | None:
        self._check_open()
        if not is_valid_key(key):
            return None
        return self._attempts.call_with_retries(lambda _: self._get_item(kind, key))

    def _get_item(self, kind: str, key: str) -> DocumentItem | None:
        try:
            return self._items.get(kind, key, consistent_read=True)
        except DoesNotExist:
            return None

    def _retry_each_page(self, results: Iterator[DocumentItem]) -> Iterator[DocumentItem]:
        """List documents one by one, and retry each page that fails."""
        while (item := self._attempts.call_with_retries(lambda _: next(results, None))) is not None:
            yield item

    def _put_document(self, put: PutDocument) -> None:
        """Write one document: a single conditional change costs half as much as a transaction of one."""
        token = uuid4().hex
        item = self._item_to_put(put, token)

        def attempt(in_doubt: bool) -> None:
            try:
                item.save(_revision_condition(put))
            except PutError as error:
                if not is_condition_failure(error):
                    raise
                if not in_doubt:
                    raise ChangedMeanwhile(put) from error
                self._check_written_by_token(put, token)

        self._attempts.call_with_retries(attempt)

    def _check_written_by_token(self, put: PutDocument, token: str) -> None:
        """Check whether an earlier attempt has written. Raises `Unavailable` if another process has written since,
        because the outcome cannot be known then.
        """
        item = self._find_item(put.kind, put.key)
        if item is None or item.written_by != token:
            raise Unavailable(f"It is not known whether {put.key} was written")

    def _transact(self, changes: Sequence[DocumentChange], buckets: Collection[int]) -> None:
        """Make changes in one transaction, which also counts them: otherwise, a writer that dies in between would leave
        other processes with outdated caches.

        DynamoDB recognizes a transaction by its token for ten minutes, and does not execute it twice.
        """
        token = uuid4().hex
        # PynamoDB sends changes grouped by kind, and DynamoDB returns the reasons for a refusal in the order in which
        # changes were sent.
        sent = sorted(changes, key=_order_in_transaction)

        def attempt(_: bool) -> None:
            try:
                with TransactWrite(connection=self._connection, client_request_token=token) as transaction:
                    for change in sent:
                        self._add_change(transaction, change, token)
                    if buckets:
                        add_change_counts(transaction, self._items, buckets)
            except TransactWriteError as error:
                failed = _refused_changes(sent, error)
                if failed:
                    raise ChangedMeanwhile(min(failed, key=changes.index)) from error
                raise

        self._attempts.call_with_retries(attempt, CONFLICT_RETRY_PAUSES_SECONDS if buckets else ())

    def _add_change(self, transaction: TransactWrite, change: DocumentChange, token: str) -> None:
        match change:
            case CheckRevision():
                transaction.condition_check(self._items, change.kind, change.key, condition=_revision_condition(change))
            case RemoveDocument():
                transaction.delete(self._items(change.kind, change.key), _revision_condition(change))
            case PutDocument(expected_revision=None):
                actions = _unconditional_put_actions(change, token)
                transaction.update(self._items(change.kind, change.key), actions=actions)
            case PutDocument():
                transaction.save(self._item_to_put(change, token), _revision_condition(change))

    def _item_to_put(self, put: PutDocument, token: str) -> DocumentItem:
        assert put.expected_revision is not None
        contents = document_attributes(put)
        return self._items(put.kind, put.key, revision=put.expected_revision + 1, written_by=token, **contents)


def _sort_key_condition(prefix: str, after: str) -> Condition | None:
    """The condition on the sort key in a query. With a prefix, `after` is not part of it: the query itself gets that
    starting point.
    """
    if prefix:
        return DocumentItem.key.startswith(prefix)
    return DocumentItem.key > after if after else None


def _revision_condition(change: DocumentChange) -> Condition | None:
    if change.expected_revision is None:
        return None
    return (
        DocumentItem.key.does_not_exist()
        if change.expected_revision == ABSENT_REVISION
        else DocumentItem.revision == change.expected_revision
    )


def _order_in_transaction(change: DocumentChange) -> int:
    match change:
        case CheckRevision():
            return 0
        case RemoveDocument():
            return 1
        case PutDocument(expected_revision=None):
            return 3
        case PutDocument():
            return 2


def _refused_changes(sent_changes: Sequence[DocumentChange], error: TransactWriteError) -> list[DocumentChange]:
    # The reasons for the changes may be followed by one for their count, which has no condition.
    return [
        change
        for change, reason in zip(sent_changes, cancellation_reasons(error), strict=False)
        if reason and reason.code == CONDITION_FAILED_CODE
    ]


def _unconditional_put_actions(put: PutDocument, token: str) -> list[Action]:
    """The update for a put without a condition. It increases the revision by one, or sets it to one if the document
    does not exist.
    """
    contents = document_attributes(put)
    return [
        DocumentItem.revision.add(1),
        DocumentItem.written_by.set(token),
        *(
            getattr(DocumentItem, name).remove() if value is None else getattr(DocumentItem, name).set(value)
            for name, value in contents.items()
        ),
    ]
