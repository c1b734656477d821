"""The REST API of a template, as API Gateway reads it: which integration a request meets, and in which form."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote
from uuid import uuid4

from infra.laptop.limits import Bucket
from infra.laptop.templates import ACCOUNT, REGION, Template

ANY = "x-amazon-apigateway-any-method"
INTEGRATION = "x-amazon-apigateway-integration"
RESPONSES = "x-amazon-apigateway-gateway-responses"
BINARY = "x-amazon-apigateway-binary-media-types"

FUNCTION = re.compile(r":lambda:path/2015-03-31/functions/(.+)/invocations")

# A header that the template of an answer sets.
OVERRIDE = re.compile(r'#set\(\$context\.responseOverride\.header\.([\w-]+) = "([^"]*)"\)')

Values = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as it came, its body still packed; names of headers in lower case."""

    method: str
    raw_path: str
    query: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    address: str = "127.0.0.1"
    id: str = field(default_factory=lambda: str(uuid4()))

    def header(self, name: str) -> str | None:
        return next((value for each, value in self.headers if each == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorizer:
    """Whom the gateway asks about the token of a request, and how long it keeps the answer.

    A token without the `form`, a regular expression, is refused without asking.
    """

    function: str
    header: str
    seconds: int
    form: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mock:
    """An answer that stands in the API, told for requests whose Content-Type has a template, once they are text."""

    types: frozenset[str]
    reads_text: bool
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """An answer that is a file, which is an object of S3 on AWS."""

    body: bytes
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What a method of a resource leads to: a function by its ARN, something fixed, or else the streaming service."""

    resource: str
    method: str
    authorizer: Authorizer | None
    function: str = ""
    fixed: Mock | Object | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 29.0


@dataclass(frozen=True, slots=True)
class Found:
    operation: Operation
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Said:
    """An answer of the gateway's own."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class NotMocked(Exception):
    """Raised with the kind of refusal, for a request that the template of a mock is not for."""


class Api:
    def __init__(self, template: Template) -> None:
        rest = template.one("AWS::ApiGateway::RestApi")
        described = rest["Body"]
        stage = template.one("AWS::ApiGateway::Stage")
        self.stage: str = stage["StageName"]
        self._rates = {_of_methods(each): each for each in stage.get("MethodSettings", [])}
        self.least_packed: int | None = rest.get("MinimumCompressionSize")
        self._binary = [*rest.get("BinaryMediaTypes", []), *described.get(BINARY, [])]
        self._schemes = described.get("components", {}).get("securitySchemes", {})
        self._responses = described.get(RESPONSES, {})
        self._objects = dict(_objects(template.path))
        operations = {path: dict(self._operations(path, item)) for path, item in described["paths"].items()}
        self._resources = [
            (_pattern(path), each) for path, each in sorted(operations.items(), key=lambda item: _rank(item[0]))
        ]

    def functions(self, *, authorizes: bool) -> frozenset[str]:
        """Those that it invokes, by their ARNs."""
        operations = [each for _, operations in self._resources for each in operations.values()]
        answering = {each.function for each in operations if each.function}
        asked = {each.authorizer.function for each in operations if each.authorizer}
        return frozenset(answering | asked if authorizes else answering)

    def found(self, method: str, raw_path: str) -> Found | None:
        """The most particular resource at a path decides, also when it does not have the method."""
        path = raw_path.rstrip("/") or "/"
        for pattern, operations in self._resources:
            match = pattern.fullmatch(path)
            if match:
                operation = operations.get(method) or operations.get("ANY")
                parameters = {name: unquote(value) for name, value in match.groupdict().items()}
                return Found(operation, parameters) if operation else None
        return None

    def bucket(self, operation: Operation) -> Bucket | None:
        """How many requests a second a method takes, and how many at once."""
        asked = [(operation.resource, operation.method), ("*", "*")]
        found: dict[str, Any] = next((self._rates[each] for each in asked if each in self._rates), {})
        rate, burst = found.get("ThrottlingRateLimit"), found.get("ThrottlingBurstLimit")
        return None if rate is None or burst is None else Bucket(rate, burst)

    def event(self, asked: Asked, found: Found, authorizer: Mapping[str, Any] | None) -> dict[str, Any]:
        """The event of a function behind a proxy integration."""
        headers = _collected(asked.headers)
        query = _collected(parse_qsl(asked.query, keep_blank_values=True))
        text, is_base64 = self._text(asked)
        return {
            "resource": found.operation.resource,
            "path": asked.raw_path,
            "httpMethod": asked.method,
            "headers": _last(headers) or None,
            "multiValueHeaders": headers or None,
            "queryStringParameters": _last(query) or None,
            "multiValueQueryStringParameters": query or None,
            "pathParameters": dict(found.parameters) or None,
            "stageVariables": None,
            "requestContext": self._context(asked, found.operation, authorizer),
            "body": text,
            "isBase64Encoded": is_base64,
        }

    def said(self, kind: str, asked: Asked, message: str) -> Said:
        """What the gateway answers by itself, as the API wants to have it told."""
        usual = USUAL[kind]
        known = self._responses.get(kind) or self._responses.get(f"DEFAULT_{usual // 100}XX", {})
        if kind == BEFORE_THE_API:
            known = {}
        template = known.get("responseTemplates", {}).get(
            "application/json", '{"message":$context.error.messageString}'
        )
        body = template.replace("$context.error.messageString", json.dumps(message))
        headers = dict(_told_headers(known.get("responseParameters", {}), asked))
        return Said(int(known.get("statusCode", usual)), {"content-type": "application/json", **headers}, body.encode())

    def fixed(self, fixed: Mock | Object, asked: Asked) -> Said:
        """What stands in the API, or beside it. Raises `NotMocked` where API Gateway could not use the template."""
        if isinstance(fixed, Object):
            return _fixed(fixed.answer, asked, fixed.body)
        kind = (asked.header("content-type") or "application/json").partition(";")[0].strip().lower()
        if kind not in fixed.types:
            raise NotMocked("UNSUPPORTED_MEDIA_TYPE")
        if self.is_binary(kind) and not fixed.reads_text:
            raise NotMocked("DEFAULT_5XX")
        text = fixed.answer["responseTemplates"]["application/json"]
        told = _fixed(fixed.answer, asked, OVERRIDE.sub("", text).replace("$context.httpMethod", asked.method).encode())
        return Said(told.status, {**told.headers, **dict(OVERRIDE.findall(text))}, told.body)

    def method_arn(self, asked: Asked) -> str:
        return f"arn:aws:execute-api:{REGION}:{ACCOUNT}:laptop/{self.stage}/{asked.method}{asked.raw_path}"

    def is_binary(self, content_type: str) -> bool:
        return any(_media(each).fullmatch(content_type.partition(";")[0].strip()) for each in self._binary)

    def _text(self, asked: Asked) -> tuple[str | None, bool]:
        if not asked.body:
            return None, False
        if self.is_binary(asked.header("content-type") or "application/json"):
            return base64.b64encode(asked.body).decode(), True
        return asked.body.decode(errors="replace"), False

    def _context(self, asked: Asked, operation: Operation, authorizer: Mapping[str, Any] | None) -> dict[str, Any]:
        now = datetime.now(UTC)
        return {
            "resourceId": "laptop",
            "resourcePath": operation.resource,
            "httpMethod": asked.method,
            "requestTime": now.strftime("%d/%b/%Y:%H:%M:%S +0000"),
            "requestTimeEpoch": int(now.timestamp() * 1000),
            "path": asked.raw_path,
            "accountId": ACCOUNT,
            "protocol": "HTTP/1.1",
            "stage": self.stage,
            "domainName": asked.header("host"),
            "requestId": asked.id,
            "identity": {"sourceIp": asked.address, "userAgent": asked.header("user-agent")},
            "apiId": "laptop",
            **({} if authorizer is None else {"authorizer": dict(authorizer)}),
        }

    def _operations(self, path: str, item: Mapping[str, Any]) -> Iterator[tuple[str, Operation]]:
        for name, described in item.items():
            method = "ANY" if name == ANY else name.upper()
            integration = described[INTEGRATION]
            function = FUNCTION.search(integration.get("uri", ""))
            yield (
                method,
                Operation(
                    resource=path,
                    method=method,
                    authorizer=self._authorizer(described.get("security", [])),
                    function=function[1] if function else "",
                    fixed=self._fixed(integration),
                    headers=_mapped_headers(integration.get("requestParameters", {})),
                    timeout=integration.get("timeoutInMillis", 29_000) / 1000,
                ),
            )

    def _fixed(self, integration: Mapping[str, Any]) -> Mock | Object | None:
        match integration.get("type"):
            case "mock":
                return Mock(
                    types=frozenset(integration["requestTemplates"]),
                    reads_text=integration.get("contentHandling") == "CONVERT_TO_TEXT",
                    answer=next(iter(integration["responses"].values())),
                )
            case "aws":
                key = integration["uri"].rpartition("/")[2]
                return Object(body=self._objects[key].read_bytes(), answer=integration["responses"]["200"])
        return None

    def _authorizer(self, security: Sequence[Mapping[str, Any]]) -> Authorizer | None:
        if not security:
            return None
        [name] = security[0]
        scheme = self._schemes[name]
        described = scheme["x-amazon-apigateway-authorizer"]
        function = FUNCTION.search(described["authorizerUri"])
        assert function, "an authorizer is a function"
        seconds = described.get("authorizerResultTtlInSeconds", 300)
        form = described.get("identityValidationExpression", "")
        return Authorizer(function=function[1], header=scheme["name"].lower(), seconds=seconds, form=form)


# The front of the gateway refuses these before it knows which API they are for.
BEFORE_THE_API = "HEADERS_TOO_LARGE"

# The gateway's own answers, and their status codes if nothing else is said.
USUAL = {
    "UNAUTHORIZED": 401,
    "ACCESS_DENIED": 403,
    "MISSING_AUTHENTICATION_TOKEN": 403,
    "REQUEST_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "THROTTLED": 429,
    BEFORE_THE_API: 431,
    "AUTHORIZER_FAILURE": 500,
    "AUTHORIZER_CONFIGURATION_ERROR": 500,
    "INTEGRATION_FAILURE": 504,
    "INTEGRATION_TIMEOUT": 504,
    # A function that failed, or whose answer cannot be read.
    "DEFAULT_5XX": 502,
}


def allows(policy: Mapping[str, Any], method_arn: str) -> bool:
    """Whether an authorizer's policy lets a request through: something has to allow it, and nothing to deny it."""
    effects = {
        statement["Effect"]
        for statement in policy["policyDocument"]["Statement"]
        if any(_arn(resource).fullmatch(method_arn) for resource in _listed(statement["Resource"]))
    }
    return effects == {"Allow"}


def target_of(stage: str, asked: Asked) -> str:
    """What a private integration asks for: the name of the stage is in front of the path."""
    return f"/{stage}{asked.raw_path}" + (f"?{asked.query}" if asked.query else "")


def _objects(template: Path) -> Iterator[tuple[str, Path]]:
    """The files that a deployment uploads, by their keys: what is beside a template says where they are."""
    told = template.with_name(template.name.replace(".template.json", ".assets.json"))
    files = json.loads(told.read_text())["files"] if told.exists() else {}
    for each in files.values():
        for place in each["destinations"].values():
            yield place["objectKey"], _where(template.parent, each["source"]["path"])


def _where(assembly: Path, told: str) -> Path:
    """A file that was not copied is named by where it was made, which an assembly may have been moved away from."""
    made = assembly / told
    return made if made.exists() else assembly / made.parent.name / made.name


def _fixed(answer: Mapping[str, Any], asked: Asked, body: bytes) -> Said:
    return Said(int(answer["statusCode"]), dict(_told_headers(answer.get("responseParameters", {}), asked)), body)


def _told_headers(parameters: Mapping[str, str], asked: Asked) -> Iterator[tuple[str, str]]:
    for name, source in parameters.items():
        header = name.partition(".header.")[2].lower()
        if source.startswith("'"):
            yield header, source.strip("'")
        elif source == "context.requestId":
            yield header, asked.id
        elif source.startswith("method.request.header."):
            value = asked.header(source.removeprefix("method.request.header.").lower())
            if value is not None:
                yield header, value


def _mapped_headers(parameters: Mapping[str, str]) -> Mapping[str, str]:
    """The headers that an integration always sets."""
    return {
        name.removeprefix("integration.request.header."): value.strip("'")
        for name, value in parameters.items()
        if name.startswith("integration.request.header.") and value.startswith("'")
    }


def _of_methods(setting: Mapping[str, Any]) -> tuple[str, str]:
    """Which resource and method a setting of a stage is for; in it, a slash of a path is written as `~1`."""
    return setting["ResourcePath"].removeprefix("/").replace("~1", "/") or "/", setting["HttpMethod"]


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"(\{[^}]+\})", path)
    return re.compile("".join(_part(part) for part in parts))


def _part(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    name = part.strip("{}")
    return f"(?P<{name.rstrip('+')}>.+)" if name.endswith("+") else f"(?P<{name}>[^/]+)"


def _rank(path: str) -> list[tuple[int, str]]:
    """Words come before parameters, and parameters before what takes everything."""
    return [
        (2 if segment.endswith("+}") else 1 if segment.startswith("{") else 0, segment) for segment in path.split("/")
    ]


def _collected(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    collected: dict[str, list[str]] = {}
    for name, value in pairs:
        collected.setdefault(name, []).append(value)
    return collected


def _last(values: Values) -> dict[str, str]:
    return {name: each[-1] for name, each in values.items()}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _arn(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."))


def _media(pattern: str) -> re.Pattern[str]:
    # In a body a slash is written as it is, in a property of the API as `~1`.
    return re.compile(re.escape(pattern.replace("~1", "/")).replace(r"\*", ".*"))
