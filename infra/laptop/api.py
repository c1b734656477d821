"""The REST API of a template, read as API Gateway does: which integration gets a request, and in which form."""

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

from infra.laptop.limits import TokenBucket
from infra.laptop.templates import ACCOUNT, REGION, Template

ANY = "x-amazon-apigateway-any-method"
INTEGRATION = "x-amazon-apigateway-integration"
RESPONSES = "x-amazon-apigateway-gateway-responses"
BINARY = "x-amazon-apigateway-binary-media-types"

URL_VARIABLE = "broker_url"

FUNCTION = re.compile(r":lambda:path/2015-03-31/functions/(.+)/invocations")

# Matches a header that a response template sets.
HEADER_OVERRIDE = re.compile(r'#set\(\$context\.responseOverride\.header\.([\w-]+) = "([^"]*)"\)')

Values = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRequest:
    """A request as received, its body still compressed; header names are in lower case. `own_url` is the URL of the
    gateway.
    """

    method: str
    raw_path: str
    query: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    address: str = "127.0.0.1"
    own_url: str = ""
    id: str = field(default_factory=lambda: str(uuid4()))

    def header(self, name: str) -> str | None:
        return next((value for each, value in self.headers if each == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizerConfig:
    """The function that authorizes tokens, and how long the gateway caches its answer.

    The gateway itself refuses a token that does not match `form`, a regular expression.
    """

    function: str
    header: str
    seconds: int
    form: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MockResponse:
    """A fixed response in the API definition, for requests whose content type has a template."""

    types: frozenset[str]
    reads_text: bool
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response from a file, which on AWS is an object of S3."""

    body: bytes
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """The backend of a method: a function by its ARN, a fixed response, or else the streaming service."""

    resource: str
    method: str
    authorizer: AuthorizerConfig | None
    function: str = ""
    fixed: MockResponse | StoredResponse | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 29.0


@dataclass(frozen=True, slots=True)
class MatchedOperation:
    operation: Operation
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GatewayResponse:
    """A response that the gateway creates itself."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class NoMockResponse(Exception):
    """Raised with the kind of refusal, for a request that no template of a mock matches."""


class Api:
    def __init__(self, template: Template) -> None:
        rest = template.one("AWS::ApiGateway::RestApi")
        definition = rest["Body"]
        stage = template.one("AWS::ApiGateway::Stage")
        self.stage: str = stage["StageName"]
        self._variables = stage.get("Variables", {})
        self._rates = {_setting_key(each): each for each in stage.get("MethodSettings", [])}
        self.minimum_compression_size: int | None = rest.get("MinimumCompressionSize")
        self._binary = [*rest.get("BinaryMediaTypes", []), *definition.get(BINARY, [])]
        self._schemes = definition.get("components", {}).get("securitySchemes", {})
        self._responses = definition.get(RESPONSES, {})
        self._objects = dict(_uploaded_files(template.path))
        operations = {path: dict(self._operations(path, item)) for path, item in definition["paths"].items()}
        self._resources = [
            (_pattern(path), each)
            for path, each in sorted(operations.items(), key=lambda item: _match_priority(item[0]))
        ]

    def functions(self, *, authorizes: bool) -> frozenset[str]:
        """The ARNs of the functions that the API invokes."""
        operations = [each for _, operations in self._resources for each in operations.values()]
        answering = {each.function for each in operations if each.function}
        request = {each.authorizer.function for each in operations if each.authorizer}
        return frozenset(answering | request if authorizes else answering)

    def find_operation(self, method: str, raw_path: str) -> MatchedOperation | None:
        """The operation for a path and method, or None. The most specific resource for the path decides, even if it
        lacks the method.
        """
        path = raw_path.rstrip("/") or "/"
        for pattern, operations in self._resources:
            match = pattern.fullmatch(path)
            if match:
                operation = operations.get(method) or operations.get("ANY")
                parameters = {name: unquote(value) for name, value in match.groupdict().items()}
                return MatchedOperation(operation, parameters) if operation else None
        return None

    def bucket(self, operation: Operation) -> TokenBucket | None:
        """A token bucket with the throttling limits of a method; None if it has no limits."""
        request = [(operation.resource, operation.method), ("*", "*")]
        found: dict[str, Any] = next((self._rates[each] for each in request if each in self._rates), {})
        rate, burst = found.get("ThrottlingRateLimit"), found.get("ThrottlingBurstLimit")
        return None if rate is None or burst is None else TokenBucket(rate, burst)

    def event(
        self, request: GatewayRequest, found: MatchedOperation, authorizer: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """The event that API Gateway passes to a function with a proxy integration."""
        headers = _group_values(request.headers)
        query = _group_values(parse_qsl(request.query, keep_blank_values=True))
        text, is_base64 = self._text(request)
        return {
            "resource": found.operation.resource,
            "path": request.raw_path,
            "httpMethod": request.method,
            "headers": _last_values(headers) or None,
            "multiValueHeaders": headers or None,
            "queryStringParameters": _last_values(query) or None,
            "multiValueQueryStringParameters": query or None,
            "pathParameters": dict(found.parameters) or None,
            # The URL in the template is an address on AWS.
            "stageVariables": {**self._variables, URL_VARIABLE: request.own_url} if self._variables else None,
            "requestContext": self._context(request, found.operation, authorizer),
            "body": text,
            "isBase64Encoded": is_base64,
        }

    def own_response(self, kind: str, request: GatewayRequest, message: str) -> GatewayResponse:
        """A response of the gateway itself, in the format that the API defines."""
        default_status = DEFAULT_STATUSES[kind]
        known = self._responses.get(kind) or self._responses.get(f"DEFAULT_{default_status // 100}XX", {})
        if kind == HEADERS_TOO_LARGE:
            known = {}
        template = known.get("responseTemplates", {}).get(
            "application/json", '{"message":$context.error.messageString}'
        )
        body = template.replace("$context.error.messageString", json.dumps(message))
        headers = dict(_resolve_headers(known.get("responseParameters", {}), request))
        return GatewayResponse(
            int(known.get("statusCode", default_status)), {"content-type": "application/json", **headers}, body.encode()
        )

    def fixed(self, fixed: MockResponse | StoredResponse, request: GatewayRequest) -> GatewayResponse:
        """The fixed response of an operation. Raises `NoMockResponse` if API Gateway could not use the template."""
        if isinstance(fixed, StoredResponse):
            return _fixed(fixed.answer, request, fixed.body)
        kind = (request.header("content-type") or "application/json").partition(";")[0].strip().lower()
        if kind not in fixed.types:
            raise NoMockResponse("UNSUPPORTED_MEDIA_TYPE")
        if self.is_binary(kind) and not fixed.reads_text:
            raise NoMockResponse("DEFAULT_5XX")
        text = fixed.answer["responseTemplates"]["application/json"]
        response = _fixed(
            fixed.answer, request, HEADER_OVERRIDE.sub("", text).replace("$context.httpMethod", request.method).encode()
        )
        return GatewayResponse(
            response.status, {**response.headers, **dict(HEADER_OVERRIDE.findall(text))}, response.body
        )

    def method_arn(self, request: GatewayRequest) -> str:
        return f"arn:aws:execute-api:{REGION}:{ACCOUNT}:laptop/{self.stage}/{request.method}{request.raw_path}"

    def is_binary(self, content_type: str) -> bool:
        return any(_media_pattern(each).fullmatch(content_type.partition(";")[0].strip()) for each in self._binary)

    def _text(self, request: GatewayRequest) -> tuple[str | None, bool]:
        if not request.body:
            return None, False
        if self.is_binary(request.header("content-type") or "application/json"):
            return base64.b64encode(request.body).decode(), True
        return request.body.decode(errors="replace"), False

    def _context(
        self, request: GatewayRequest, operation: Operation, authorizer: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        now = datetime.now(UTC)
        return {
            "resourceId": "laptop",
            "resourcePath": operation.resource,
            "httpMethod": request.method,
            "requestTime": now.strftime("%d/%b/%Y:%H:%M:%S +0000"),
            "requestTimeEpoch": int(now.timestamp() * 1000),
            "path": request.raw_path,
            "accountId": ACCOUNT,
            "protocol": "HTTP/1.1",
            "stage": self.stage,
            "domainName": request.header("host"),
            "requestId": request.id,
            "identity": {"sourceIp": request.address, "userAgent": request.header("user-agent")},
            "apiId": "laptop",
            **({} if authorizer is None else {"authorizer": dict(authorizer)}),
        }

    def _operations(self, path: str, item: Mapping[str, Any]) -> Iterator[tuple[str, Operation]]:
        for name, definition in item.items():
            method = "ANY" if name == ANY else name.upper()
            integration = definition[INTEGRATION]
            function = FUNCTION.search(integration.get("uri", ""))
            yield (
                method,
                Operation(
                    resource=path,
                    method=method,
                    authorizer=self._authorizer(definition.get("security", [])),
                    function=function[1] if function else "",
                    fixed=self._fixed(integration),
                    headers=_mapped_headers(integration.get("requestParameters", {})),
                    timeout=integration.get("timeoutInMillis", 29_000) / 1000,
                ),
            )

    def _fixed(self, integration: Mapping[str, Any]) -> MockResponse | StoredResponse | None:
        match integration.get("type"):
            case "mock":
                return MockResponse(
                    types=frozenset(integration["requestTemplates"]),
                    reads_text=integration.get("contentHandling") == "CONVERT_TO_TEXT",
                    answer=next(iter(integration["responses"].values())),
                )
            case "aws":
                key = integration["uri"].rpartition("/")[2]
                return StoredResponse(body=self._objects[key].read_bytes(), answer=integration["responses"]["200"])
        return None

    def _authorizer(self, security: Sequence[Mapping[str, Any]]) -> AuthorizerConfig | None:
        if not security:
            return None
        [name] = security[0]
        scheme = self._schemes[name]
        definition = scheme["x-amazon-apigateway-authorizer"]
        function = FUNCTION.search(definition["authorizerUri"])
        assert function, "an authorizer is a function"
        seconds = definition.get("authorizerResultTtlInSeconds", 300)
        form = definition.get("identityValidationExpression", "")
        return AuthorizerConfig(function=function[1], header=scheme["name"].lower(), seconds=seconds, form=form)


# The gateway's front end refuses these requests before it knows the API.
HEADERS_TOO_LARGE = "HEADERS_TOO_LARGE"

# The default status codes of the gateway's own responses.
DEFAULT_STATUSES = {
    "UNAUTHORIZED": 401,
    "ACCESS_DENIED": 403,
    "MISSING_AUTHENTICATION_TOKEN": 403,
    "REQUEST_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "THROTTLED": 429,
    HEADERS_TOO_LARGE: 431,
    "AUTHORIZER_FAILURE": 500,
    "AUTHORIZER_CONFIGURATION_ERROR": 500,
    "INTEGRATION_FAILURE": 504,
    "INTEGRATION_TIMEOUT": 504,
    # A function failed, or its answer is malformed.
    "DEFAULT_5XX": 502,
}


def allows(policy: Mapping[str, Any], method_arn: str) -> bool:
    """Whether an authorizer's policy allows a request: some statement allows it, and none denies it."""
    effects = {
        statement["Effect"]
        for statement in policy["policyDocument"]["Statement"]
        if any(_arn_pattern(resource).fullmatch(method_arn) for resource in _as_list(statement["Resource"]))
    }
    return effects == {"Allow"}


def integration_target(stage: str, request: GatewayRequest) -> str:
    """The target of a private integration, whose path begins with the name of the stage."""
    return f"/{stage}{request.raw_path}" + (f"?{request.query}" if request.query else "")


def _uploaded_files(template: Path) -> Iterator[tuple[str, Path]]:
    """The files that a deployment uploads, by key, from the asset manifest beside the template."""
    manifest = template.with_name(template.name.replace(".template.json", ".assets.json"))
    files = json.loads(manifest.read_text())["files"] if manifest.exists() else {}
    for each in files.values():
        for destination in each["destinations"].values():
            yield destination["objectKey"], _locate(template.parent, each["source"]["path"])


def _locate(assembly: Path, relative: str) -> Path:
    """Find an asset. The manifest has the original path of uncopied files, but the assembly may have moved since."""
    path = assembly / relative
    return path if path.exists() else assembly / path.parent.name / path.name


def _fixed(answer: Mapping[str, Any], request: GatewayRequest, body: bytes) -> GatewayResponse:
    return GatewayResponse(
        int(answer["statusCode"]), dict(_resolve_headers(answer.get("responseParameters", {}), request)), body
    )


def _resolve_headers(parameters: Mapping[str, str], request: GatewayRequest) -> Iterator[tuple[str, str]]:
    for name, source in parameters.items():
        header = name.partition(".header.")[2].lower()
        if source.startswith("'"):
            yield header, source.strip("'")
        elif source == "context.requestId":
            yield header, request.id
        elif source.startswith("method.request.header."):
            value = request.header(source.removeprefix("method.request.header.").lower())
            if value is not None:
                yield header, value


def _mapped_headers(parameters: Mapping[str, str]) -> Mapping[str, str]:
    """The constant headers that an integration sets."""
    return {
        name.removeprefix("integration.request.header."): value.strip("'")
        for name, value in parameters.items()
        if name.startswith("integration.request.header.") and value.startswith("'")
    }


def _setting_key(setting: Mapping[str, Any]) -> tuple[str, str]:
    """The resource and method of a stage setting, in which `~1` stands for a slash."""
    return setting["ResourcePath"].removeprefix("/").replace("~1", "/") or "/", setting["HttpMethod"]


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"(\{[^}]+\})", path)
    return re.compile("".join(_pattern_part(part) for part in parts))


def _pattern_part(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    name = part.strip("{}")
    return f"(?P<{name.rstrip('+')}>.+)" if name.endswith("+") else f"(?P<{name}>[^/]+)"


def _match_priority(path: str) -> list[tuple[int, str]]:
    """A sort key that puts literal segments before parameters, and parameters before greedy ones."""
    return [
        (2 if segment.endswith("+}") else 1 if segment.startswith("{") else 0, segment) for segment in path.split("/")
    ]


def _group_values(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    collected: dict[str, list[str]] = {}
    for name, value in pairs:
        collected.setdefault(name, []).append(value)
    return collected


def _last_values(values: Values) -> dict[str, str]:
    return {name: each[-1] for name, each in values.items()}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _arn_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."))


def _media_pattern(pattern: str) -> re.Pattern[str]:
    # The API definition has slashes in paths, but a property of the API resource has `~1` instead.
    return re.compile(re.escape(pattern.replace("~1", "/")).replace(r"\*", ".*"))
