"""The permissions of roles in the templates, and the permissions that a request to AWS requires.

As in IAM, a statement has to allow each action, and none may deny it. Unknown conditions count as not allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import unescape

from infra.laptop.templates import ACCOUNT, REGION

Statement = Mapping[str, Any]

# The operator's key, which may do everything.
OWNER = "laptop"

# The signature names the caller and the service: `Credential=key/20261121/eu-central-1/dynamodb/aws4_request`.
CREDENTIAL = re.compile(r"Credential=([^/]+)/[0-9]+/([^/]+)/([^/]+)/aws4_request")

TABLE_KEYS = ("kind", "place")
LEADING_KEYS = "dynamodb:LeadingKeys"
TRANSACTION_ACTIONS = {
    "Put": "dynamodb:PutItem",
    "Update": "dynamodb:UpdateItem",
    "Delete": "dynamodb:DeleteItem",
    "ConditionCheck": "dynamodb:ConditionCheckItem",
    "Get": "dynamodb:GetItem",
}
OBJECT_ACTIONS = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "PUT": "s3:PutObject", "POST": "s3:PutObject"}
INVOCATION = re.compile(r"/2015-03-31/functions/([^/]+)/invocations")
EQUALITY = re.compile(r"([#\w]+)\s*=\s*(:\w+)")


class Permission(NamedTuple):
    """An action on a resource, and for tables the partition key of the item."""

    action: str
    resource: str
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to AWS. Header names are in lower case."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def scope(self) -> tuple[str, str, str] | None:
        """The caller's key, the region and the service."""
        found = CREDENTIAL.search(self.headers.get("authorization", ""))
        return (found[1], found[2], found[3]) if found else None

    @property
    def content(self) -> Mapping[str, Any]:
        content: Mapping[str, Any] = json.loads(self.body or b"{}")
        return content


class Policy:
    def __init__(self, statements: Iterable[Statement]) -> None:
        self._statements = tuple(statements)

    def allows(self, permission: Permission) -> bool:
        effects = {each["Effect"] for each in self._statements if _matches(each, permission)}
        return effects == {"Allow"}


class Roles:
    """The policies of a file, which exists before any role makes a request."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._policies: Mapping[str, Policy] = {}

    def refusal(self, role: str, wanted: Iterable[Permission]) -> str | None:
        """AWS's error message if the role lacks one of the permissions, else None."""
        if role == OWNER:
            return None
        policy = self._policy(role)
        for each in wanted:
            if policy is None or not policy.allows(each):
                return (
                    f"User: arn:aws:sts::{ACCOUNT}:assumed-role/{role}/laptop is not authorized to perform: "
                    f"{each.action} on resource: {each.resource} because no identity-based policy allows the "
                    f"{each.action} action"
                )
        return None

    def _policy(self, role: str) -> Policy | None:
        if role not in self._policies and self._file.exists():
            statements_by_role = json.loads(self._file.read_text())
            self._policies = {name: Policy(statements) for name, statements in statements_by_role.items()}
        return self._policies.get(role)


def write_roles(roles: Mapping[str, Sequence[Statement]], file: Path) -> None:
    """Write the file atomically, since other processes read it."""
    unfinished = file.with_suffix(".new")
    unfinished.write_text(json.dumps(roles))
    unfinished.rename(file)


# Policies


def _matches(statement: Statement, permission: Permission) -> bool:
    return (
        any(_glob(each.lower()).fullmatch(permission.action.lower()) for each in _as_list(statement["Action"]))
        and any(_glob(each).fullmatch(permission.resource) for each in _as_list(statement["Resource"]))
        and all(
            _condition_holds(operator, name, _as_list(values), permission, statement["Effect"])
            for operator, resources in statement.get("Condition", {}).items()
            for name, values in resources.items()
        )
    )


def _condition_holds(operator: str, name: str, values: Sequence[str], permission: Permission, effect: str) -> bool:
    if (operator, name) != ("ForAllValues:StringLike", LEADING_KEYS):
        # An unknown condition is interpreted in the stricter way.
        return effect == "Deny"
    # As in AWS, ForAllValues holds if the request has no value.
    return permission.key is None or any(_glob(each).fullmatch(permission.key) for each in values)


@cache
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# Required permissions


def required_permissions(request: Request) -> Iterator[Permission]:
    """The permissions that a request requires."""
    service, _, operation = request.headers.get("x-amz-target", "").rpartition(".")
    if service.startswith("DynamoDB"):
        yield from _dynamodb_permissions(operation, request.content)
    elif service.startswith("Kinesis"):
        yield _kinesis_permission(operation, request.content)
    elif service == "AmazonSQS":
        yield _sqs_permission(operation, request.content)
    elif service == "TrentService":
        yield Permission(f"kms:{operation}", request.content.get("KeyId", "*"))
    elif service == "AWSGlue":
        yield from _glue_permissions(operation, request.content)
    elif service == "AWSEvents" and operation == "PutEvents":
        yield from (Permission("events:PutEvents", each["EventBusName"]) for each in request.content["Entries"])
    elif request.scope and request.scope[2] == "sns":
        yield _sns_permission(parse_qs(request.body.decode()))
    elif invoked := INVOCATION.fullmatch(urlsplit(request.url).path):
        yield Permission("lambda:InvokeFunction", unquote(invoked[1]))
    elif service or request.scope is None or request.scope[2] != "s3":
        yield Permission(f"{request.scope[2] if request.scope else service}:{operation}", "*")
    else:
        yield from _s3_permissions(request)


def _dynamodb_permissions(operation: str, body: Mapping[str, Any]) -> Iterator[Permission]:
    if operation.startswith("Transact"):
        for item in body["TransactItems"]:
            for kind, change in item.items():
                yield Permission(TRANSACTION_ACTIONS[kind], _table_arn(change["TableName"]), _partition_key(change))
    elif operation == "BatchWriteItem":
        for name, changes in body["RequestItems"].items():
            for change in (each for one in changes for each in one.values()):
                yield Permission("dynamodb:BatchWriteItem", _table_arn(name), _partition_key(change))
    elif operation == "BatchGetItem":
        for name, operation_body in body["RequestItems"].items():
            for key in operation_body["Keys"]:
                yield Permission("dynamodb:BatchGetItem", _table_arn(name), _partition_key({"Key": key}))
    else:
        table = _table_arn(body["TableName"]) if "TableName" in body else "*"
        yield Permission(f"dynamodb:{operation}", table, _partition_key(body))


def _table_arn(name: str) -> str:
    return _arn("dynamodb", f"table/{name}")


def _partition_key(operation_body: Mapping[str, Any]) -> str | None:
    item = operation_body.get("Key") or operation_body.get("Item") or dict(_key_conditions(operation_body))
    return next((item[name]["S"] for name in TABLE_KEYS if name in item), None)


def _key_conditions(query: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    names, values = query.get("ExpressionAttributeNames", {}), query.get("ExpressionAttributeValues", {})
    for name, value in EQUALITY.findall(query.get("KeyConditionExpression", "")):
        yield names.get(name, name), values[value]


def _kinesis_permission(operation: str, body: Mapping[str, Any]) -> Permission:
    # The ARN of a consumer contains its stream, and an account that the emulation invents.
    arn = body.get("ConsumerARN") or body.get("StreamARN", "")
    name = body.get("StreamName") or arn.partition(":stream/")[2]
    return Permission(f"kinesis:{operation}", _arn("kinesis", f"stream/{name}"))


def _sqs_permission(operation: str, body: Mapping[str, Any]) -> Permission:
    name = body.get("QueueName") or body.get("QueueUrl", "").rpartition("/")[2]
    return Permission(f"sqs:{operation.removesuffix('Batch')}", _arn("sqs", name))


def _glue_permissions(operation: str, body: Mapping[str, Any]) -> Iterator[Permission]:
    """The permissions on a table, which its database and the catalog have to give as well."""
    database, table = body.get("DatabaseName", "*"), body.get("Name", "*")
    for resource in ("catalog", f"database/{database}", f"table/{database}/{table}"):
        yield Permission(f"glue:{operation}", _arn("glue", resource))


def _sns_permission(form: Mapping[str, list[str]]) -> Permission:
    return Permission(f"sns:{form['Action'][0].removesuffix('Batch')}", form.get("TopicArn", ["*"])[0])


def _s3_permissions(request: Request) -> Iterator[Permission]:
    """The permissions that a request to S3 requires. The bucket is part of the host name, or the first segment of the
    path."""
    url = urlsplit(request.url)
    path = unquote(url.path).lstrip("/")
    host = url.netloc.split(".")
    bucket, key = (host[0], path) if host[0] != "s3" else (path.partition("/")[0], path.partition("/")[2])
    query = parse_qs(url.query, keep_blank_values=True)
    whole, one = f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/{key}"
    source = unquote(request.headers.get("x-amz-copy-source", "")).lstrip("/")
    if source:
        yield Permission("s3:GetObject", f"arn:aws:s3:::{source}")
    if "delete" in query:
        # Here, a request names either all objects with their versions, or none.
        action = "s3:DeleteObjectVersion" if b"<VersionId>" in request.body else "s3:DeleteObject"
        yield from (Permission(action, f"{whole}/{each}") for each in keys_to_delete(request))
    elif request.method == "DELETE":
        yield Permission("s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject", one if key else whole)
    elif key:
        yield Permission("s3:GetObjectVersion" if "versionId" in query else OBJECT_ACTIONS[request.method], one)
    elif "versions" in query:
        yield Permission("s3:ListBucketVersions", whole)
    else:
        yield Permission("s3:ListBucket" if request.method in {"GET", "HEAD"} else "s3:CreateBucket", whole)


def keys_to_delete(request: Request) -> list[str]:
    """The keys in a request to delete several objects."""
    if "delete" not in parse_qs(urlsplit(request.url).query, keep_blank_values=True):
        return []
    return [unescape(each.decode()) for each in re.findall(rb"<Key>(.*?)</Key>", request.body, re.DOTALL)]


def list_permission_for_missing(request: Request) -> Permission | None:
    """The permission without which S3 answers a request for a missing object with "access denied"; None for requests
    that read no object.
    """
    wanted = [each for each in required_permissions(request) if each.action == "s3:GetObject"]
    return Permission("s3:ListBucket", wanted[0].resource.partition("/")[0]) if wanted else None


def _arn(service: str, resource: str) -> str:
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{resource}"
