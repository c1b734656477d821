"""What roles of the templates are allowed, and what a request to AWS would have to be allowed.

As IAM decides: something has to allow each action, and nothing may deny it. What is not understood is not allowed.
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

# The key of the person who deploys and operates: it may do everything.
OWNER = "laptop"

# A signed request says who asks, and what for: `Credential=key/20261121/eu-central-1/dynamodb/aws4_request`.
SIGNED = re.compile(r"Credential=([^/]+)/[0-9]+/([^/]+)/([^/]+)/aws4_request")

TABLE_KEYS = ("kind", "place")
LEADING_KEYS = "dynamodb:LeadingKeys"
TRANSACTED = {
    "Put": "dynamodb:PutItem",
    "Update": "dynamodb:UpdateItem",
    "Delete": "dynamodb:DeleteItem",
    "ConditionCheck": "dynamodb:ConditionCheckItem",
    "Get": "dynamodb:GetItem",
}
OBJECTS = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "PUT": "s3:PutObject", "POST": "s3:PutObject"}
EQUALITY = re.compile(r"([#\w]+)\s*=\s*(:\w+)")


class Permission(NamedTuple):
    """An action on a resource; in a table, with the partition key of what is read or changed."""

    action: str
    resource: str
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Names of headers in lower case."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def scope(self) -> tuple[str, str, str] | None:
        """Who asks: the key; and what for: region and service."""
        found = SIGNED.search(self.headers.get("authorization", ""))
        return (found[1], found[2], found[3]) if found else None

    @property
    def content(self) -> Mapping[str, Any]:
        content: Mapping[str, Any] = json.loads(self.body or b"{}")
        return content


class Policy:
    def __init__(self, statements: Iterable[Statement]) -> None:
        self._statements = tuple(statements)

    def allows(self, permission: Permission) -> bool:
        effects = {each["Effect"] for each in self._statements if _is_about(each, permission)}
        return effects == {"Allow"}


class Roles:
    """The roles that a file tells of, which is there before any of them asks for anything."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._policies: Mapping[str, Policy] = {}

    def refusal(self, who: str, wanted: Iterable[Permission]) -> str | None:
        """What AWS would say, if the role with this key may not do all of it."""
        if who == OWNER:
            return None
        policy = self._policy(who)
        for each in wanted:
            if policy is None or not policy.allows(each):
                return (
                    f"User: arn:aws:sts::{ACCOUNT}:assumed-role/{who}/laptop is not authorized to perform: "
                    f"{each.action} on resource: {each.resource} because no identity-based policy allows the "
                    f"{each.action} action"
                )
        return None

    def _policy(self, who: str) -> Policy | None:
        if who not in self._policies and self._file.exists():
            told = json.loads(self._file.read_text())
            self._policies = {name: Policy(statements) for name, statements in told.items()}
        return self._policies.get(who)


def write(roles: Mapping[str, Sequence[Statement]], file: Path) -> None:
    """Whole, or not at all: it is read by other processes."""
    unfinished = file.with_suffix(".new")
    unfinished.write_text(json.dumps(roles))
    unfinished.rename(file)


# What policies say


def _is_about(statement: Statement, permission: Permission) -> bool:
    return (
        any(_glob(each.lower()).fullmatch(permission.action.lower()) for each in _listed(statement["Action"]))
        and any(_glob(each).fullmatch(permission.resource) for each in _listed(statement["Resource"]))
        and all(
            _holds(operator, name, _listed(values), permission, statement["Effect"])
            for operator, named in statement.get("Condition", {}).items()
            for name, values in named.items()
        )
    )


def _holds(operator: str, name: str, values: Sequence[str], permission: Permission, effect: str) -> bool:
    if (operator, name) != ("ForAllValues:StringLike", LEADING_KEYS):
        # Of two readings the narrower one.
        return effect == "Deny"
    # As in AWS: where there are no values at all, it holds for all of them.
    return permission.key is None or any(_glob(each).fullmatch(permission.key) for each in values)


@cache
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# What requests want


def needed(request: Request) -> Iterator[Permission]:
    """What a request asks for: actions, each with its resource."""
    service, _, operation = request.headers.get("x-amz-target", "").rpartition(".")
    if service.startswith("DynamoDB"):
        yield from _of_dynamodb(operation, request.content)
    elif service.startswith("Kinesis"):
        yield _of_kinesis(operation, request.content)
    elif service == "AmazonSQS":
        yield _of_sqs(operation, request.content)
    elif service or request.scope is None or request.scope[2] != "s3":
        yield Permission(f"{request.scope[2] if request.scope else service}:{operation}", "*")
    else:
        yield from _of_s3(request)


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
        for name, asked in body["RequestItems"].items():
            for key in asked["Keys"]:
                yield Permission("dynamodb:BatchGetItem", _table(name), _partition_key({"Key": key}))
    else:
        table = _table(body["TableName"]) if "TableName" in body else "*"
        yield Permission(f"dynamodb:{operation}", table, _partition_key(body))


def _table(name: str) -> str:
    return _arn("dynamodb", f"table/{name}")


def _partition_key(asked: Mapping[str, Any]) -> str | None:
    item = asked.get("Key") or asked.get("Item") or dict(_equal_to(asked))
    return next((item[name]["S"] for name in TABLE_KEYS if name in item), None)


def _equal_to(query: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    names, values = query.get("ExpressionAttributeNames", {}), query.get("ExpressionAttributeValues", {})
    for name, value in EQUALITY.findall(query.get("KeyConditionExpression", "")):
        yield names.get(name, name), values[value]


def _of_kinesis(operation: str, body: Mapping[str, Any]) -> Permission:
    # A consumer is behind its stream. Which account it says is the emulation's own idea.
    arn = body.get("ConsumerARN") or body.get("StreamARN", "")
    name = body.get("StreamName") or arn.partition(":stream/")[2]
    return Permission(f"kinesis:{operation}", _arn("kinesis", f"stream/{name}"))


def _of_sqs(operation: str, body: Mapping[str, Any]) -> Permission:
    name = body.get("QueueName") or body.get("QueueUrl", "").rpartition("/")[2]
    return Permission(f"sqs:{operation}", _arn("sqs", name))


def _of_s3(request: Request) -> Iterator[Permission]:
    """A bucket is in the name of the host, or the first part of the path."""
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
        # Of objects that are deleted together, either all or none are named with their versions here.
        action = "s3:DeleteObjectVersion" if b"<VersionId>" in request.body else "s3:DeleteObject"
        yield from (Permission(action, f"{whole}/{each}") for each in deleted_together(request))
    elif request.method == "DELETE":
        yield Permission("s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject", one if key else whole)
    elif key:
        yield Permission("s3:GetObjectVersion" if "versionId" in query else OBJECTS[request.method], one)
    elif "versions" in query:
        yield Permission("s3:ListBucketVersions", whole)
    else:
        yield Permission("s3:ListBucket" if request.method in {"GET", "HEAD"} else "s3:CreateBucket", whole)


def deleted_together(request: Request) -> list[str]:
    """The keys of a request to delete several objects."""
    if "delete" not in parse_qs(urlsplit(request.url).query, keep_blank_values=True):
        return []
    return [unescape(each.decode()) for each in re.findall(rb"<Key>(.*?)</Key>", request.body, re.DOTALL)]


def bucket_of_missing(request: Request) -> Permission | None:
    """What S3 wants of a caller to say that an object is missing. Others get an answer that they may not."""
    wanted = [each for each in needed(request) if each.action == "s3:GetObject"]
    return Permission("s3:ListBucket", wanted[0].resource.partition("/")[0]) if wanted else None


def _arn(service: str, resource: str) -> str:
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{resource}"
