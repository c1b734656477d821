"""Reads the permissions of a template's roles, and those that a prepared request of botocore needs."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from botocore.awsrequest import AWSPreparedRequest

from infra.laptop import roles
from infra.laptop.roles import Permission, Request
from tests.support.templates import ACCOUNT, REGION, Template, as_list, text


class Policy(roles.Policy):
    """The statements of a role. References to the data stack are resolved with its template."""

    def __init__(self, template: Template, role: Any, data: Template) -> None:
        self._data = data
        super().__init__(
            {**each, "Resource": [self._resource(one) for one in as_list(each["Resource"])]}
            for each in template.statements(role)
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


def required_permissions(prepared: AWSPreparedRequest) -> Iterator[Permission]:
    """The permissions that a request needs. For a Kinesis iterator, that is a permission for its stream, whose name the
    emulation puts into the iterator.
    """
    request = _request(prepared)
    for each in roles.required_permissions(request):
        if each.action.startswith("kinesis:") and "ShardIterator" in request.content:
            name = base64.b64decode(request.content["ShardIterator"]).decode().split(":")[0]
            yield Permission(each.action, _arn("kinesis", f"stream/{name}"))
        else:
            yield each


def permission_for_missing(prepared: AWSPreparedRequest) -> Permission | None:
    return roles.list_permission_for_missing(_request(prepared))


def _request(prepared: AWSPreparedRequest) -> Request:
    headers = {name.lower(): _text(value) for name, value in prepared.headers.items()}
    body = prepared.body or b""
    content = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else b""
    return Request(method=prepared.method, url=prepared.url, headers=headers, body=content)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
