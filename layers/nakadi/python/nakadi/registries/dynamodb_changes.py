"""Where changes are counted: one item among the documents, which all processes ask for and few write.

DynamoDB adds to a number without reading it first. Each change is a part of the transaction that makes it, so of two at
the same moment one is refused and tried again.
"""

from __future__ import annotations

from collections.abc import Collection

from pynamodb.connection import Connection
from pynamodb.expressions.operand import Path
from pynamodb.transactions import TransactWrite

from nakadi.model.changes import Changes
from nakadi.registries.documents import NUMBERS
from nakadi.registries.dynamodb_items import DocumentItem

PREFIX = "n"


def changes_in(connection: Connection, items: type[DocumentItem]) -> Changes:
    found = connection.get_item(items.Meta.table_name, NUMBERS, NUMBERS, consistent_read=True).get("Item", {})
    return Changes({int(name[1:]): int(value["N"]) for name, value in found.items() if name.startswith(PREFIX)})


def add_count(transaction: TransactWrite, items: type[DocumentItem], buckets: Collection[int]) -> None:
    """Count changes in these buckets. It must be the last change that is added."""
    transaction.update(items(NUMBERS, NUMBERS), [Path(f"{PREFIX}{bucket}").add(1) for bucket in buckets])
