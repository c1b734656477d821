"""What roles of a template are allowed, and what a request to AWS would have to be allowed."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from botocore.awsrequest import AWSPreparedRequest

from tests.support.templates import ACCOUNT, REGION, Template, listed, text

Permission = tuple[str, str]

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
            (set(listed(each["Action"])), [self._resource(one) for one in listed(each["Resource"])])
            for each in template.statements(role)
        ]

    def allows(self, permission: Permission) -> bool:
        action, resource = permission
        return any(
            action in actions and any(fnmatchcase(resource, pattern) for pattern in resources)
            for actions, resources in self._statements
        )

    def _resource(self, resource: Any) -> str:
        match resource:
            case {"Fn::ImportValue": name}:
                outputs = self._data.content["Outputs"].values()
                [value] = [each["Value"] for each in outputs if text(each["Export"]["Name"]) == text(name)]
                return _arn_of(self._data.resources[value["Fn::GetAtt"][0]])
        return text(resource)


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
                yield TRANSACTED[kind], _arn("dynamodb", f"table/{change['TableName']}")
    elif operation.startswith("Batch"):
        for name in body["RequestItems"]:
            yield f"dynamodb:{operation}", _arn("dynamodb", f"table/{name}")
    else:
        yield f"dynamodb:{operation}", _arn("dynamodb", f"table/{body['TableName']}")


def _of_kinesis(operation: str, body: Mapping[str, Any]) -> Iterator[Permission]:
    """An iterator belongs to its stream, which the emulation writes into it."""
    name = body.get("StreamName") or body.get("StreamARN", "").rpartition("/")[2]
    if not name and "ShardIterator" in body:
        name = base64.b64decode(body["ShardIterator"]).decode().split(":")[0]
    yield f"kinesis:{operation}", _arn("kinesis", f"stream/{name}")


def _of_s3(request: AWSPreparedRequest) -> Permission:
    url = urlsplit(request.url)
    bucket = url.netloc.split(".")[0]
    key = unquote(url.path).lstrip("/")
    if not key:
        many = "delete" in parse_qs(url.query, keep_blank_values=True)
        return ("s3:DeleteObject", f"arn:aws:s3:::{bucket}/*") if many else ("s3:ListBucket", f"arn:aws:s3:::{bucket}")
    return OBJECTS[request.method], f"arn:aws:s3:::{bucket}/{key}"


def _body(request: AWSPreparedRequest) -> Mapping[str, Any]:
    body: Mapping[str, Any] = json.loads(request.body or "{}")
    return body
