"""Patches of moto, mostly of its DynamoDB: features that the broker relies on, and faster implementations."""

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
from moto.kms.models import Key


@contextmanager
def patch_moto() -> Iterator[None]:
    with (
        patch.object(DynamoDBBackend, "transact_write_items", _transact),
        patch.object(DynamoHandler, "transact_write_items", _remember_tokens()),
        patch.object(Table, "query", _query_one_partition(Table.query)),
        patch.object(BaseJSONSerializer, "_serialize_type_structure", _serialize_values_directly()),
        patch.object(
            Key, "create_from_cloudformation_json", _create_key_without_tags(Key.create_from_cloudformation_json)
        ),
    ):
        yield


def _create_key_without_tags(original: Callable[..., Key]) -> Callable[..., Key]:
    """Create a key of a template. moto expects its tags under names that templates do not use."""

    def create(name: str, resource: Mapping[str, Any], *arguments: Any, **options: Any) -> Key:
        properties = {each: value for each, value in resource["Properties"].items() if each != "Tags"}
        return original(name, {**resource, "Properties": properties}, *arguments, **options)

    return create


def _query_one_partition(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let a query read only the items of its partition key. moto sorts all items of the table for each query, which
    takes most of its time. The service handles one request at a time, so the table can temporarily look smaller."""

    def query(table: Table, hash_key: DynamoType, *arguments: Any, **options: Any) -> Any:
        if table.indexes or table.global_indexes:
            return original(table, hash_key, *arguments, **options)
        items = table.items.get(hash_key, {})
        partition_items = list(items.values()) if table.range_key_attr else [items] if items else []
        with patch.object(table, "all_items", lambda: partition_items):
            return original(table, hash_key, *arguments, **options)

    return query


def _serialize_values_directly() -> Callable[..., None]:
    """Serialize texts and numbers of items as stored. moto looks for each of ten kinds of values by several names,
    which takes half of its time."""
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


def _remember_tokens() -> Callable[[DynamoHandler], ActionResult]:
    """Acknowledge a transaction whose token was already used, without executing it again."""
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
    """Check every condition, then apply every change. moto copies the table once for each change."""
    failures = [_check_condition(backend, operation) for item in items for operation in item.values()]
    if any(code for code, _, _ in failures):
        raise TransactionCanceledException(failures)
    for item in items:
        for kind, operation in item.items():
            _apply(backend, kind, operation)


def _check_condition(backend: DynamoDBBackend, operation: Mapping[str, Any]) -> tuple[str | None, str | None, None]:
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


def _apply(backend: DynamoDBBackend, kind: str, operation: Mapping[str, Any]) -> None:
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
