"""What moto leaves out of DynamoDB, and the broker relies on; and what it takes too long for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from botocore.model import Shape
from moto.core.responses import ActionResult
from moto.core.serialize import BaseJSONSerializer
from moto.dynamodb.comparisons import get_filter_expression
from moto.dynamodb.exceptions import TransactionCanceledException
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType
from moto.dynamodb.models.table import Table
from moto.dynamodb.responses import DynamoHandler


@contextmanager
def gaps_filled() -> Iterator[None]:
    with (
        patch.object(DynamoDBBackend, "transact_write_items", _transact),
        patch.object(DynamoHandler, "transact_write_items", _once_per_token()),
        patch.object(Table, "query", _of_one_partition(Table.query)),
        patch.object(BaseJSONSerializer, "_serialize_type_structure", _texts_as_they_are()),
    ):
        yield


def _of_one_partition(original: Callable[..., Any]) -> Callable[..., Any]:
    """A query that looks at the items of its partition key. moto's own sorts all items of the table for each query,
    which takes most of its time. Requests come one after the other, so that the table can be made to look smaller."""

    def query(table: Table, hash_key: DynamoType, *arguments: Any, **options: Any) -> Any:
        if table.indexes or table.global_indexes:
            return original(table, hash_key, *arguments, **options)
        items = table.items.get(hash_key, {})
        within = list(items.values()) if table.range_key_attr else [items] if items else []
        with patch.object(table, "all_items", lambda: within):
            return original(table, hash_key, *arguments, **options)

    return query


def _texts_as_they_are() -> Callable[..., None]:
    """Texts and numbers of items are written as they are stored. moto's own looks for each of the ten kinds of values
    by several names, which takes half of its time."""
    original = BaseJSONSerializer.__dict__["_serialize_type_structure"]

    def structure(
        serializer: BaseJSONSerializer, serialized: dict[str, Any], value: Any, shape: Shape, key: str
    ) -> None:
        match value:
            case {"S": str()} | {"N": str()} if shape.name == "AttributeValue" and len(value) == 1:
                serialized[serializer.get_serialized_name(shape, key)] = value
            case _:
                original(serializer, serialized, value, shape, key)

    return structure


def _once_per_token() -> Callable[[DynamoHandler], ActionResult]:
    """A transaction with a token that was carried out is acknowledged, and not carried out again."""
    carried_out: set[str] = set()
    original = DynamoHandler.transact_write_items

    def transact_write_items(handler: DynamoHandler) -> ActionResult:
        token = handler.body["ClientRequestToken"]
        if token in carried_out:
            return ActionResult({})
        answer = original(handler)
        carried_out.add(token)
        return answer

    return transact_write_items


def _transact(backend: DynamoDBBackend, items: Sequence[Mapping[str, Mapping[str, Any]]]) -> None:
    """Every condition first, then every change. moto's own copies the table once for each change."""
    failed = [_failed(backend, operation) for item in items for operation in item.values()]
    if any(code for code, _, _ in failed):
        raise TransactionCanceledException(failed)
    for item in items:
        for kind, operation in item.items():
            _change(backend, kind, operation)


def _failed(backend: DynamoDBBackend, operation: Mapping[str, Any]) -> tuple[str | None, str | None, None]:
    if "ConditionExpression" not in operation:
        return None, None, None
    condition = get_filter_expression(
        operation["ConditionExpression"],
        operation.get("ExpressionAttributeNames"),
        operation.get("ExpressionAttributeValues"),
    )
    found = backend.get_item(operation["TableName"], _key(backend, operation))
    holds = condition.expr(found)
    return (None, None, None) if holds else ("ConditionalCheckFailed", "The conditional request failed", None)


def _key(backend: DynamoDBBackend, operation: Mapping[str, Any]) -> dict[str, Any]:
    if "Key" in operation:
        return dict(operation["Key"])
    table = backend.get_table(operation["TableName"])
    names = [name for name in (table.hash_key_attr, table.range_key_attr) if name]
    return {name: operation["Item"][name] for name in names}


def _change(backend: DynamoDBBackend, kind: str, operation: Mapping[str, Any]) -> None:
    name = operation["TableName"]
    match kind:
        case "Put":
            backend.put_item(name, operation["Item"])
        case "Delete":
            backend.delete_item(name, operation["Key"])
        case "Update":
            backend.update_item(
                name,
                operation["Key"],
                update_expression=operation["UpdateExpression"],
                expression_attribute_names=operation.get("ExpressionAttributeNames", {}),
                expression_attribute_values=operation.get("ExpressionAttributeValues", {}),
            )
