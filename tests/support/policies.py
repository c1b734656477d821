"""What roles of a template are allowed, and what a request to AWS would have to be allowed."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from botocore.awsrequest import AWSPreparedRequest

from tests.support.templates import ACCOUNT, REGION, Template, listed, text


class Permission(NamedTuple):
    """An action on a resource; for a change in a table, with the partition key of what is changed."""

    action: str
    resource: str
    key: str | None = None


TRANSACTED = {
    "Put": "dynamodb:PutItem",
    "Update": "dynamodb:UpdateItem",
    "Delete": "dynamodb:DeleteItem",
    "ConditionCheck": "dynamodb:ConditionCheckItem",
    "Get": "dynamodb:GetItem",
}
OBJECTS = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "PUT": "s3:PutObject", "DELETE": "s3:DeleteObject"}


class Policy:
    """The statements of a role; what a stack takes from another one is looked up there."""

    def __init__(self, template: Template, role: Any, data: Template) -> None:
        self._data = data
        self._statements = [
            (set(listed(each["Action"])), [self._resource(one) for one in listed(each["Resource"])], _own_keys(each))
            for each in template.statements(role)
        ]

    def allows(self, permission: Permission) -> bool:
        action, resource, key = permission
        return any(
            action in actions
            and any(fnmatchcase(resource, pattern) for pattern in resources)
            and (key is None or any(fnmatchcase(key, pattern) for pattern in own))
            for actions, resources, own in self._statements
        )

    def _resource(self, resource: Any) -> str:
        match resource:
            case {"Fn::ImportValue": name}:
                outputs = self._data.content["Outputs"].values()
                [value] = [each["Value"] for each in outputs if text(each["Export"]["Name"]) == text(name)]
                return _arn_of(self._data.resources[value["Fn::GetAtt"][0]])
        return text(resource)


def _own_keys(statement: Mapping[str, Any]) -> list[str]:
    """The partition keys that a statement is about: all of them, unless it has a condition."""
    condition = statement.get("Condition", {}).get("ForAllValues:StringLike", {})
    return listed(condition.get("dynamodb:LeadingKeys", "*"))


def _arn_of(resource: Mapping[str, Any]) -> str:
    match resource:
        case {"Type": "AWS::DynamoDB::Table", "Properties": {"TableName": name}}:
            return _arn("dynamodb", f"table/{name}")
        case {"Type": "AWS::Kinesis::Stream", "Properties": {"Name": name}}:
            return _arn("kinesis", f"stream/{name}")
    raise TypeError(resource["Type"])


def _arn(service: str, resource: str) -> str:
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{resource}"


def needed(request: AWSPreparedRequest) -> Iterator[Permission]:
    """What a request asks for: actions, each with its resource."""
    target = request.headers.get("X-Amz-Target", "")
    service, _, operation = (target.decode() if isinstance(target, bytes) else target).rpartition(".")
    if service.startswith("DynamoDB"):
        yield from _of_dynamodb(operation, _body(request))
    elif service.startswith("Kinesis"):
        yield from _of_kinesis(operation, _body(request))
    else:
        yield _of_s3(request)


def _of_dynamodb(operation: str, body: Mapping[str, Any]) -> Iterator[Permission]:
    if operation.startswith("Transact"):
        for item in body["TransactItems"]:
            for kind, change in item.items():
                yield Permission(TRANSACTED[kind], _table(change["TableName"]), _partition_key(change))
    elif operation == "BatchWriteItem":
        for name, changes in body["RequestItems"].items():
            for change in (each for one in changes for each in one.values()):
                yield Permission("dynamodb:BatchWriteItem", _table(name), _partition_key(change))
    elif operation == "BatchGetItem":
        for name in body["RequestItems"]:
            yield Permission("dynamodb:BatchGetItem", _table(name))
    else:
        yield Permission(f"dynamodb:{operation}", _table(body["TableName"]), _partition_key(body))


def _table(name: str) -> str:
    return _arn("dynamodb", f"table/{name}")


def _partition_key(change: Mapping[str, Any]) -> str | None:
    item = change.get("Key") or change.get("Item") or {}
    return next((item[name]["S"] for name in ("kind", "place") if name in item), None)


def _of_kinesis(operation: str, body: Mapping[str, Any]) -> Iterator[Permission]:
    """An iterator belongs to its stream, which the emulation writes into it."""
    name = body.get("StreamName") or body.get("StreamARN", "").rpartition("/")[2]
    if not name and "ShardIterator" in body:
        name = base64.b64decode(body["ShardIterator"]).decode().split(":")[0]
    yield Permission(f"kinesis:{operation}", _arn("kinesis", f"stream/{name}"))


def _of_s3(request: AWSPreparedRequest) -> Permission:
    url = urlsplit(request.url)
    bucket = url.netloc.split(".")[0]
    key = unquote(url.path).lstrip("/")
    if not key:
        many = "delete" in parse_qs(url.query, keep_blank_values=True)
        objects = Permission("s3:DeleteObject", f"arn:aws:s3:::{bucket}/*")
        return objects if many else Permission("s3:ListBucket", f"arn:aws:s3:::{bucket}")
    return Permission(OBJECTS[request.method], f"arn:aws:s3:::{bucket}/{key}")


def _body(request: AWSPreparedRequest) -> Mapping[str, Any]:
    body: Mapping[str, Any] = json.loads(request.body or "{}")
    return body
