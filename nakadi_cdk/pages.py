"""Pages that the gateway serves without a function, since requests without a token must not occupy functions.

Synthesis copies the broker's own responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
from aws_cdk import Aws, Fn, Stage
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.http.message import PROBLEM_MEDIA_TYPE, Request, Response
from nakadi.http.problem import RETRY_AFTER_SECONDS, plain_problem_members
from nakadi_cdk.gateway_responses import BODY_MEDIA_TYPES

AREA = "monitoring"
METHODS = ("get", "head", "options")

# Paths by operation id. Readiness is missing because only a function knows it.
PAGES: Mapping[str, str] = {"get_health": "/health", "get_docs": "/docs", "get_openapi": "/openapi.json"}
NOT_FOUND_PATH = "/health/{proxy+}"

# The example commands on a page name this host if the deployment has no domain.
PLACEHOLDER_HOST = "your-broker"

# Longer pages become objects in S3: API Gateway limits a mapping to 300 KB and the whole definition to a megabyte.
MAX_INLINE_BYTES = 10_000

# The gateway replaces this variable by the request's method.
UNKNOWN_METHOD = "$context.httpMethod"

# The page itself contains the policy, except for the rule about frames, which browsers accept in a header only.
POLICY_HEADER = "content-security-policy"
NO_FRAME_HEADERS = {"x-frame-options": "DENY"}

Operation = Mapping[str, Any]


class Pages(Construct):
    """The gateway answers small pages itself, and fetches large ones from S3."""

    def __init__(self, scope: Construct, name: str, *, host: str = "") -> None:
        super().__init__(scope, name)
        self._host = host or PLACEHOLDER_HOST
        self._role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("apigateway.amazonaws.com"))
        with closing(open_broker(Settings())) as broker:
            application = make_application(broker, AREA)
            self._answers = {
                (path, method): application.answer(self._request(path, method))
                for path in PAGES.values()
                for method in (*METHODS, "any")
            }

    def operations(self, path: str) -> Mapping[str, Operation]:
        """The operations of a page by method; `any` stands for all unsupported methods."""
        asset = self._store_if_large(path, self._answer(path, "get"))
        return {method: self._operation(path, method, asset) for method in (*METHODS, "any")}

    def not_found_operation(self) -> Operation:
        problem = orjson.dumps(plain_problem_members(HTTPStatus.NOT_FOUND, "There is nothing at this path"))
        return mock_operation(Response(HTTPStatus.NOT_FOUND.value, {"content-type": PROBLEM_MEDIA_TYPE}, problem))

    def _request(self, path: str, method: str) -> Request:
        # The answer to an unsupported method contains the method's name, which only the gateway knows.
        name = UNKNOWN_METHOD if method == "any" else method.upper()
        return Request(method=name, path=path, target=path, headers={"host": self._host, "x-forwarded-proto": "https"})

    def _answer(self, path: str, method: str) -> Response:
        answer = self._answers[path, method]
        assert isinstance(answer, Response)
        return answer

    def _store_if_large(self, path: str, answer: Response) -> s3_assets.Asset | None:
        if len(answer.body) <= MAX_INLINE_BYTES:
            return None
        name = path.strip("/").replace(".", "-")
        # The file is inside the assembly, since an app may refer to files instead of copying them.
        file = Path(Stage.of(self).asset_outdir, "pages", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(embed_policy(answer))
        asset = s3_assets.Asset(self, name, path=str(file))
        allow_read(self._role, asset)
        return asset

    def _operation(self, path: str, method: str, asset: s3_assets.Asset | None) -> Operation:
        answer = self._answer(path, method)
        if asset is None or method not in ("get", "head"):
            return mock_operation(answer)
        return stored_operation(answer, asset, method, self._role)


def allow_read(role: iam.Role, asset: s3_assets.Asset) -> None:
    """Let a role of the gateway read one object."""
    object_ = f"arn:{Aws.PARTITION}:s3:::{asset.s3_bucket_name}/{asset.s3_object_key}"
    role.add_to_policy(iam.PolicyStatement(actions=["s3:GetObject"], resources=[object_]))


def mock_operation(answer: Response, template_head: str = "") -> Operation:
    """An operation with a fixed answer in the API definition. `template_head` precedes the body in its template."""
    template = orjson.dumps({"statusCode": answer.status}).decode()
    integration = {
        "type": "mock",
        # Bodies are binary in this API, but templates are text.
        "contentHandling": "CONVERT_TO_TEXT",
        "passthroughBehavior": "never",
        "requestTemplates": dict.fromkeys(BODY_MEDIA_TYPES, template),
        "responses": {
            "default": {
                **_integration_response(answer.status, _headers(answer)),
                "responseTemplates": {"application/json": template_head + answer.body.decode()},
            }
        },
    }
    return {
        "responses": _declare_responses([answer.status], _headers(answer)),
        "x-amazon-apigateway-integration": integration,
    }


def stored_operation(answer: Response, asset: s3_assets.Asset, method: str, role: iam.Role) -> Operation:
    """An operation that answers with an object of S3."""
    headers, unavailable = _headers(answer), {"content-type": PROBLEM_MEDIA_TYPE, "retry-after": RETRY_AFTER_SECONDS}
    problem = orjson.dumps(
        plain_problem_members(HTTPStatus.SERVICE_UNAVAILABLE, "The page cannot be fetched at the moment")
    ).decode()
    integration = {
        "type": "aws",
        "httpMethod": method.upper(),
        "uri": Fn.sub(
            "arn:${AWS::Partition}:apigateway:${AWS::Region}:s3:path/${Bucket}/${Key}",
            {"Bucket": asset.s3_bucket_name, "Key": asset.s3_object_key},
        ),
        "credentials": role.role_arn,
        "responses": {
            "200": _integration_response(200, headers),
            "default": {
                **_integration_response(503, unavailable),
                "contentHandling": "CONVERT_TO_TEXT",
                "responseTemplates": dict.fromkeys(("application/json", "application/xml"), problem),
            },
        },
    }
    declared = _declare_responses([200, 503], {**headers, **unavailable})
    return {"responses": declared, "x-amazon-apigateway-integration": integration}


def _headers(answer: Response) -> Mapping[str, str]:
    """The headers that are the same for every request, without the policy, whose quotes the gateway does not allow."""
    excluded = {"x-flow-id", "content-length", POLICY_HEADER}
    shared = {name: value for name, value in answer.headers.items() if name not in excluded}
    return {**shared, **NO_FRAME_HEADERS} if POLICY_HEADER in answer.headers else shared


def embed_policy(answer: Response) -> bytes:
    """The body of an answer with its policy as a meta element, if it has a policy."""
    policy = answer.headers.get(POLICY_HEADER)
    if not policy:
        return answer.body
    meta = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
    return answer.body.replace(b"<head>", b"<head>" + meta.encode(), 1)


def _integration_response(status: int, headers: Mapping[str, str]) -> dict[str, Any]:
    values = {f"method.response.header.{name}": f"'{value}'" for name, value in headers.items()}
    return {
        "statusCode": str(status),
        "responseParameters": {**values, "method.response.header.x-flow-id": "context.requestId"},
    }


def _declare_responses(statuses: list[int], headers: Mapping[str, str]) -> Operation:
    declared_headers = {name: {"schema": {"type": "string"}} for name in (*headers, "x-flow-id")}
    return {str(status): {"description": "As the broker answers", "headers": declared_headers} for status in statuses}
